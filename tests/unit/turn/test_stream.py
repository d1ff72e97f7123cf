"""A watched run: what it tells and when, and what is kept of one that is cut (DESIGN 4 and 7)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.turn.conftest import user
from threadkeep import Memory, RequestContext, tool
from threadkeep.errors import AccessDenied, DeadlineExceeded, ModelUnavailable
from threadkeep.ids import new_id
from threadkeep.models.port import Finished, ModelRequest, ModelResponse, TextDelta
from threadkeep.turn import events
from threadkeep.turn.events import Event
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.request import Conversation, TurnRequest
from threadkeep.turn.run import run_turn
from threadkeep.turn.watch import watched


class Talker(FakeModel):
    """Says `pieces` one by one; a piece that is an event is waited for, one that is an error is raised."""

    def __init__(self, *pieces: Any, response: ModelResponse | None = None):
        super().__init__()
        self.pieces = pieces
        self.response = response
        self.hung_up = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Any]:
        self.requests.append(request)
        try:
            for piece in self.pieces:
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                elif isinstance(piece, Exception):
                    raise piece
                else:
                    yield TextDelta(piece)
            said = "".join(p for p in self.pieces if isinstance(p, str))
            yield Finished(self.response or says(said))
        finally:
            self.hung_up = True


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


async def watch(house: Any, *said: str, **request: Any) -> AsyncGenerator[Event]:
    agent = await house.agent.resolve(RequestContext())
    options = {"options": agent.memory.options} if agent.memory else {}
    given = options | {"run_id": new_id(), "conversation": Conversation("t", "ana")} | request
    messages = tuple(map(user, said))
    return watched(lambda sink: run_turn(agent, TurnRequest(messages=messages, watcher=sink, **given), house.services))


async def told(house: Any, *said: str, **request: Any) -> list[Event]:
    return [event async for event in await watch(house, *said, **request)]


def kinds(seen: list[Event]) -> list[str]:
    return [type(event).__name__ for event in seen]


async def test_a_text_run_is_told_from_its_start_to_its_end(house):
    h = house()
    h.model = Talker("Hel", "lo")
    seen = await told(h, "hi")
    assert kinds(seen) == ["RunStarted", "StepStarted", "TextDelta", "TextDelta", "StepFinished", "RunFinished"]
    assert [e.text for e in seen if isinstance(e, events.TextDelta)] == ["Hel", "lo"]
    stored = await h.stored()
    assert seen[0].message_id == stored[-1].id
    assert await h.texts() == [("user", "hi"), ("assistant", "Hello")]


async def test_each_piece_is_told_before_the_model_says_the_next(house):
    h, gate = house(), asyncio.Event()
    h.model = Talker("first", gate, "second")
    async with aclosing(await watch(h, "hi")) as run:
        seen = [await anext(run) for _ in range(3)]
        assert seen[-1] == events.TextDelta("first")
        gate.set()
        assert await anext(run) == events.TextDelta("second")


async def test_calls_are_told_with_their_arguments_and_outcomes(house):
    h = house(calls(("weather", {"city": "Oslo"})), says("It rains."), tools=[weather])
    seen = await told(h, "weather?")
    assert kinds(seen) == [
        "RunStarted", "StepStarted", "CallStarted", "CallDelta", "CallEnded", "CallMade", "CallFinished",
        "StepFinished", "StepStarted", "TextDelta", "StepFinished", "RunFinished",
    ]  # fmt: skip
    assert [e.continues for e in seen if isinstance(e, events.StepFinished)] == [True, False]
    assert next(e for e in seen if isinstance(e, events.CallFinished)).outcome.result == "rain in Oslo"


async def test_h01_what_refuses_the_request_is_raised_before_anything_is_told(house):
    h = house()
    await h.turn("mine")
    with pytest.raises(AccessDenied):
        await told(h, "hi", conversation=Conversation("t", "bo"))
    assert len(h.model.requests) == 1


async def test_h13_a_watcher_who_leaves_stops_the_model_and_keeps_what_was_said(house):
    h = house()
    h.model = Talker("so far", asyncio.Event(), "never")
    run = await watch(h, "tell me")
    while await anext(run) != events.TextDelta("so far"):
        pass
    await run.aclose()
    assert h.model.hung_up
    assert await h.texts() == [("user", "tell me"), ("assistant", "so far")]
    assert (await h.stored())[-1].content["metadata"]["aborted"] is True


async def test_h13_a_watcher_who_leaves_before_the_first_word_leaves_the_thread_as_it_was(house):
    h = house()
    h.model = Talker(asyncio.Event(), "never")
    run = await watch(h, "tell me")
    await anext(run)
    await anext(run)
    await run.aclose()
    assert await h.stored() == ()


async def test_h13_a_model_that_fails_half_way_leaves_what_was_said(house):
    h = house()
    h.model = Talker("half of", ModelUnavailable("down"))
    with pytest.raises(ModelUnavailable):
        await told(h, "hi")
    assert await h.texts() == [("user", "hi"), ("assistant", "half of")]


async def test_h13_a_run_out_of_time_leaves_what_was_said(house):
    h = house()
    h.model = Talker("half of", asyncio.Event())
    with pytest.raises(DeadlineExceeded):
        await told(h, "hi", deadline=0.2)
    assert (await h.texts())[-1] == ("assistant", "half of")


async def test_h13_finished_steps_of_a_cut_run_stay_with_their_results(house):
    h = house(tools=[weather])
    first, gate = calls(("weather", {"city": "Oslo"})), asyncio.Event()

    class TwoSteps(Talker):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Any]:
            self.pieces, self.response = ((), first) if not self.requests else (("It", gate), None)
            async for chunk in super().stream(request):
                yield chunk

    h.model = TwoSteps()
    run = await watch(h, "weather?")
    while await anext(run) != events.TextDelta("It"):
        pass
    await run.aclose()
    parts = (await h.stored())[-1].content["parts"]
    assert [p["type"] for p in parts] == ["tool-invocation", "step-start", "text"]
    assert parts[0]["toolInvocation"]["state"] == "result"


async def test_a_run_that_somebody_stops_ends_before_its_next_step(house):
    h = house(calls(("weather", {"city": "Oslo"})), says("never"), tools=[weather])
    asked = iter([False, True])

    async def stopped() -> bool:
        return next(asked)

    seen = await told(h, "weather?", stopped=stopped)
    assert len(h.model.requests) == 1
    assert seen[-1].result.finish_reason == "tool-calls"
    assert (await h.stored())[-1].content["metadata"]["aborted"] is True


async def test_read_only_runs_are_told_and_not_stored_when_they_are_cut(house):
    h = house(memory=Memory(read_only=True))
    h.model = Talker("so far", asyncio.Event())
    run = await watch(h, "hi")
    while await anext(run) != events.TextDelta("so far"):
        pass
    await run.aclose()
    assert await h.storage.get_thread("t") is None


class Masked(Processor):
    id = "mask"

    def process_output_result(self, messages, call):
        return [m.with_text(lambda text: text.replace("4711", "****")) for m in messages]


class MaskedAsItComes(Masked):
    id = "mask-stream"

    def process_output_stream(self, chunk, call):
        return TextDelta(chunk.text.replace("4711", "****"))


async def test_h27_an_answer_that_a_processor_edits_later_is_withheld_until_then(house):
    """What a stream has shown cannot be taken back (H27)."""
    h = house(output_processors=[Masked()])
    h.model = Talker("code ", "4711")
    seen = await told(h, "hi")
    assert [e.text for e in seen if isinstance(e, events.TextDelta)] == ["code ****"]
    assert kinds(seen)[0] == "RunStarted"


async def test_pr1_a_processor_may_edit_or_drop_pieces_of_the_stream(house):
    h = house(output_processors=[MaskedAsItComes()])
    h.model = Talker("code ", "4711")
    seen = await told(h, "hi")
    assert [e.text for e in seen if isinstance(e, events.TextDelta)] == ["code ", "****"]
    assert await h.texts() == [("user", "hi"), ("assistant", "code ****")]

    class Mute(MaskedAsItComes):
        def process_output_stream(self, chunk, call):
            return None

    h = house(output_processors=[Mute()])
    h.model = Talker("code 4711")
    assert "TextDelta" not in kinds(await told(h, "hi"))


async def test_a_tripwire_is_the_end_of_a_run(house):
    class Stop(Processor):
        id = "stop"

        def process_input(self, messages, call):
            call.abort("no")

    h = house(input_processors=[Stop()])
    seen = await told(h, "hi")
    assert kinds(seen) == ["RunStarted", "RunFinished"]
    assert seen[-1].result.tripwire.reason == "no"
    assert await h.stored() == ()


async def test_a_slow_watcher_never_holds_the_run_up(house):
    h = house()
    h.model = Talker(*["x"] * 50)
    run = await watch(h, "hi")
    await anext(run)
    for _ in range(200):
        await asyncio.sleep(0)
    assert await h.texts() == [("user", "hi"), ("assistant", "x" * 50)]
    await run.aclose()
    assert await h.texts() == [("user", "hi"), ("assistant", "x" * 50)]


async def test_tt5_a_title_is_told_before_the_end_where_the_options_ask_for_it(house):
    h = house(says("Hello"), says("A greeting"), memory=Memory(generate_title={"emit_event": True}))
    seen = await told(h, "hi")
    assert kinds(seen)[-2:] == ["TitleGiven", "RunFinished"]
    assert seen[-2] == events.TitleGiven("t", "A greeting")
    thread = await h.storage.get_thread("t")
    assert thread.title == "A greeting"
    assert await h.storage.get_job("t", seen[0].run_id) is None


async def test_tt5_a_buffered_run_leaves_its_title_for_later(house):
    h = house(says("Hello"), memory=Memory(generate_title={"emit_event": True}))
    result = await h.turn("hi")
    assert len(h.model.requests) == 1
    assert await h.storage.get_job("t", result.run_id) is not None


async def test_tt5_a_title_model_that_is_down_does_not_spoil_the_answer(house):
    h = house(says("Hello"), ModelUnavailable("down"), memory=Memory(generate_title={"emit_event": True}))
    seen = await told(h, "hi")
    assert kinds(seen)[-2:] == ["StepFinished", "RunFinished"]
    assert await h.texts() == [("user", "hi"), ("assistant", "Hello")]
