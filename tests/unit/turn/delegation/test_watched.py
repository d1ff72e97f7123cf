"""A watched run that delegates: what is told of its sub-agents, and what is kept of a cut one (DEL-25, DEL-26)."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls
from tests.unit.turn.delegation.conftest import asks
from tests.unit.turn.test_stream import Masked, MaskedAsItComes, Talker, kinds
from threadkeep import Agent, Memory, ToolContext, tool
from threadkeep.ids import sub_resource
from threadkeep.memory.messages import parts_of
from threadkeep.turn import events
from threadkeep.turn.events import Delegated, Event, told_below
from threadkeep.turn.processors.base import Processor

SUB_RUN = ["RunStarted", "StepStarted", "TextDelta", "StepFinished", "RunFinished"]


async def watch(desk: Any, **call: Any) -> list[Event]:
    stream = desk.boss.stream("hi", thread="T", resource="U", storage=desk.storage, **call)
    return [event async for event in stream]


def below(seen: list[Event], call_id: str) -> list[Event]:
    """What the sub-agent of a call said."""
    return [e.event for e in seen if isinstance(e, Delegated) and e.call_id == call_id]


async def test_del26_a_sub_agents_run_is_told_from_its_start_to_its_end_between_call_and_result(desk) -> None:
    seen = await watch(desk((asks("researcher"), "done")))
    assert kinds(below(seen, "call-agent-researcher-0")) == SUB_RUN
    around = [kind for kind in kinds(seen) if kind in ("CallMade", "Delegated", "CallFinished")]
    assert around == ["CallMade", *["Delegated"] * len(SUB_RUN), "CallFinished"]
    started = [e for e in map(told_below, seen) if isinstance(e, events.RunStarted)]
    assert len({e.run_id for e in started}) == len({e.message_id for e in started}) == 2


async def test_del26_what_is_said_two_levels_below_is_told_too(desk) -> None:
    leaf = Agent(id="leaf", model=FakeModel("leaf says"))
    seen = await watch(
        desk((asks("researcher"), "done"), (asks("leafy"), "sub says"), on_sub={"agents": {"leafy": leaf}})
    )
    middle = below(seen, "call-agent-researcher-0")
    assert kinds(below(middle, "call-agent-leafy-0")) == SUB_RUN
    assert kinds(middle)[0] == "RunStarted" and kinds(middle)[-1] == "RunFinished"


async def test_del24_sub_agents_of_one_step_talk_at_the_same_time_each_in_its_order(desk) -> None:
    one_spoke, gate = asyncio.Event(), asyncio.Event()
    slow = Agent(id="slow", model=Talker("first ", gate, "last"))
    boss = (asks("slow", "quick"), "done")
    d = desk(boss, on_boss={"agents": {"slow": slow, "quick": Agent(id="quick", model=Talker("quick"))}})
    seen: list[Event] = []
    async for event in d.boss.stream("hi", thread="T", resource="U", storage=d.storage):
        seen.append(event)
        ended = isinstance(event, Delegated) and isinstance(event.event, events.RunFinished)
        if ended and event.call_id == "call-agent-quick-1":
            one_spoke.set()
            gate.set()
    assert one_spoke.is_set()
    assert kinds(below(seen, "call-agent-slow-0")) == [*SUB_RUN[:3], *SUB_RUN[2:]]
    assert kinds(below(seen, "call-agent-quick-1")) == SUB_RUN
    finished = [e.outcome.call.id for e in seen if isinstance(e, events.CallFinished)]
    assert finished == ["call-agent-slow-0", "call-agent-quick-1"]


async def test_del25_hanging_up_in_a_delegation_ends_the_sub_run_and_keeps_what_was_seen_of_both(desk) -> None:
    sub = Talker("so far", asyncio.Event(), "never")
    d = desk((asks("researcher", text="let me ask"), "never"), on_sub={"model": sub})
    async with aclosing(d.boss.stream("hi", thread="T", resource="U", storage=d.storage)) as run:
        while told_below(await anext(run)) != events.TextDelta("so far"):
            pass
    assert sub.hung_up
    assert asyncio.all_tasks() == {asyncio.current_task()}
    (user, answer) = await d.stored("T")
    assert answer.content["metadata"]["aborted"] is True
    (text, call) = parts_of(answer.content)
    assert text["text"] == "let me ask"
    assert call["toolInvocation"]["state"] == "output-error"
    assert call["toolInvocation"]["args"] == {"prompt": "find X"}
    (thread,) = await d.sub_threads()
    assert await d.texts(thread.id) == [("user", "find X"), ("assistant", "so far")]


async def test_del25_hanging_up_before_the_sub_agent_has_spoken_stores_nothing(desk) -> None:
    d = desk((asks("researcher"), "never"), on_sub={"model": Talker(asyncio.Event())})
    async with aclosing(d.boss.stream("hi", thread="T", resource="U", storage=d.storage)) as run:
        while not isinstance(told_below(await anext(run)), events.StepStarted) or not await _sub_has_begun(d):
            pass
    assert await d.stored("T") == ()


async def _sub_has_begun(desk: Any) -> bool:
    return bool(await desk.sub_threads())


@pytest.mark.parametrize("boss_text", ["", "let me ask"])
async def test_h13_hanging_up_on_a_delegating_run_at_any_moment_loses_nothing_that_was_seen(desk, boss_text) -> None:
    ends = set[bool]()
    for moment in range(90):
        d = desk((asks("researcher", text=boss_text), "done"), ("sub says",))
        seen: list[Event] = []

        async def read(d: Any = d, seen: list[Event] = seen) -> None:
            async with aclosing(d.boss.stream("hi", thread="T", resource="U", storage=d.storage)) as run:
                async for event in run:
                    seen.append(event)

        reading = asyncio.create_task(read())
        for _ in range(moment):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert asyncio.all_tasks() == {asyncio.current_task()}, f"a task is left at moment {moment}"
        stored = await d.stored("T") if await d.storage.get_thread("T") else ()
        kinds_seen = {type(told_below(event)) for event in seen}
        assert [m.role for m in stored] in ([], ["user", "assistant"]), f"at moment {moment}"
        assert stored or not {events.TextDelta, events.CallFinished} & kinds_seen, f"lost at moment {moment}"
        texts = [p["text"] for m in stored[1:] for p in parts_of(m.content) if p["type"] == "text"]
        assert len(texts) == len(set(texts)), f"said twice at moment {moment}"
        ends.add(reading.cancelled())
    assert ends == {True, False}, "some runs are cut, some come to their end"


class MaskedResults(Processor):
    id = "mask-results"

    def process_tool_result(self, outcome, call):
        return outcome.with_result({**outcome.result, "text": outcome.result["text"].replace("4711", "****")})


@pytest.mark.parametrize("processor", [Masked, MaskedAsItComes, MaskedResults])
async def test_pr3_a_supervisor_whose_processors_edit_what_it_says_tells_nothing_of_its_sub_agents(
    desk, processor
) -> None:
    d = desk((asks("researcher"), "done"), ("code 4711",), on_boss={"output_processors": [processor()]})
    seen = await watch(d)
    assert not [e for e in seen if isinstance(e, Delegated)]
    assert kinds(seen)[-1] == "RunFinished"


# --- data that tools tell ---


@tool
async def dig(context: ToolContext) -> str:
    """Dig, and tell how far it is."""
    await context.tell("data-progress", {"done": 1})
    await context.tell("data-progress", {"done": 2})
    return "dug"


PROGRESS = [{"type": "data-progress", "data": {"done": n}} for n in (1, 2)]
DIGS = calls(("dig", {}))


async def data_in(desk: Any, thread: str) -> list[Any]:
    return [p for m in await desk.stored(thread) for p in parts_of(m.content) if p["type"].startswith("data-")]


@pytest.fixture
def deep(desk):
    """A desk whose supervisor's sub-agent has a sub-agent that digs."""
    leaf = Agent(id="leaf", model=FakeModel(DIGS, "leaf says"), tools=[dig], memory=Memory())
    return desk((asks("researcher"), "done"), (asks("leafy"), "sub says"), on_sub={"agents": {"leafy": leaf}})


@pytest.mark.parametrize("watched", [True, False])
async def test_del26_data_told_below_are_stored_in_the_answer_of_every_level(deep, watched: bool) -> None:
    await (watch(deep) if watched else deep.turn("hi"))
    (middle,) = await deep.sub_threads()
    (leaf,) = await deep.sub_threads(sub_resource("U", "researcher"), "leafy")
    for thread in ("T", middle.id, leaf.id):
        assert await data_in(deep, thread) == PROGRESS
    parts = [p["type"] for p in parts_of((await deep.stored("T"))[1].content)]
    assert parts == ["tool-invocation", "data-progress", "data-progress", "step-start", "text"]


async def test_del26_data_are_told_once_each_and_in_their_order(deep) -> None:
    seen = await watch(deep)
    assert [e.data["done"] for e in map(told_below, seen) if isinstance(e, events.DataTold)] == [1, 2]


async def test_del26_data_told_below_reach_the_watcher_also_where_sub_agents_are_not_shown(deep) -> None:
    object.__setattr__(deep.boss, "output_processors", [MaskedResults()])
    seen = await watch(deep)
    shown = [told_below(e) for e in seen if isinstance(e, Delegated)]
    assert [type(e).__name__ for e in shown] == ["DataTold", "DataTold"]


async def test_del26_data_told_by_a_sub_agent_that_is_cut_are_kept(desk) -> None:
    sub = {"tools": [dig], "model": FakeModel(DIGS, asyncio.Event().wait)}
    d = desk((asks("researcher"), "never"), on_sub=sub)
    async with aclosing(d.boss.stream("hi", thread="T", resource="U", storage=d.storage)) as run:
        while not isinstance(told_below(await anext(run)), events.CallFinished):
            pass
    assert await data_in(d, "T") == PROGRESS


async def test_del26_no_model_sees_data(deep) -> None:
    await deep.turn("hi")
    await deep.turn("again")
    prompts = [str(request) for request in deep.boss_model.requests]
    assert len(prompts) == 3
    assert not any("progress" in prompt for prompt in prompts)
