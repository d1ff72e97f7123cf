"""Tools that the caller runs: the call waits in the store, the result comes with the next request (MS-3, H07, H12)."""

import asyncio
import json
from typing import Any

import pytest

from tests.unit.fakes import Gate, calls, says
from threadkeep import Memory, Processor, ProcessorCall, TokenLimiter, tool
from threadkeep.errors import Conflict, InvalidInput
from threadkeep.models.port import ModelResponse, ToolCall, Usage
from threadkeep.storage.port import NewMessage, NewThread, TurnCommit
from threadkeep.turn.input import input_messages
from threadkeep.turn.tools import CallOutcome, Tool

ARGS: dict[str, Any] = {"i": 3, "f": 0.1, "neg": -2.5, "big": 12345678901234567890, "e": 1e-7, "b": True, "n": None}
PICK = Tool("pick", "pick", "Pick a colour.", {"type": "object"}, run=None)


@tool
def weather(city: str) -> dict[str, int]:
    """Get the weather of a city."""
    return {"degrees": len(city)}


def invocations(message) -> list[dict]:
    return [p["toolInvocation"] for p in message.content["parts"] if p["type"] == "tool-invocation"]


def back(call_id: str, result: Any, *, copy: bool = False, **more: Any) -> tuple:
    """What a client sends to answer a call; `copy` adds its own copy of the call, with other arguments."""
    call = {"type": "tool-call", "toolCallId": call_id, "toolName": "pick", "input": {"copied": True}}
    answer = {"type": "tool-result", "toolCallId": call_id, "toolName": "pick", "result": result, **more}
    messages: list[Any] = [{"role": "assistant", "content": [call]}, {"role": "tool", "content": []}] if copy else []
    return input_messages([*messages, {"role": "tool", "content": [answer]}], "messages")


async def test_ms3_a_call_of_a_client_tool_ends_the_run_and_waits_with_its_arguments(house):
    h = house(calls(("pick", ARGS), ("weather", {"city": "Oslo"}), text="Let me see."), tools=[weather])
    result = await h.turn("colour?", client_tools=(PICK,))
    assert [t.name for t in h.model.requests[0].tools] == ["weather", "pick"]
    assert len(h.model.requests) == 1
    assert (result.finish_reason, [c.id for c in result.steps[-1].pending]) == ("tool-calls", ["call-pick-0"])
    _, answer = await h.stored()
    pick, other = invocations(answer)
    assert json.dumps(pick) == json.dumps(
        {"toolCallId": "call-pick-0", "toolName": "pick", "args": ARGS, "state": "call"}
    )
    assert (other["state"], other["result"]) == ("result", {"degrees": 4})  # the agent's own tool did run


@pytest.mark.parametrize("copy", [True, False])
async def test_h12_a_result_goes_to_the_stored_call_and_nothing_is_stored_twice(house, copy: bool):
    h = house(calls(("pick", ARGS)), "teal it is", "still teal")
    await h.turn("colour?", client_tools=(PICK,))
    asked, waiting = await h.stored()
    result = await h.turn(*back("call-pick-0", {"colour": "teal", **ARGS}, copy=copy), client_tools=(PICK,))
    stored = await h.stored()
    assert [m.role for m in stored] == ["user", "assistant", "assistant"]
    assert (stored[0], stored[1].id, stored[1].order) == (asked, waiting.id, waiting.order)
    (pick,) = invocations(stored[1])
    assert (pick["state"], json.dumps(pick["args"])) == ("result", json.dumps(ARGS))  # the store's, not the client's
    assert json.dumps(pick["result"]) == json.dumps({"colour": "teal", **ARGS})  # case H33
    assert [m.id for m in result.messages] == [stored[2].id]
    roles = [role for role, _ in h.model.prompt]
    assert roles == ["system", "user", "assistant", "tool"]
    await h.turn("sure?")
    assert [role for role, _ in h.model.prompt][2:] == ["assistant", "tool", "assistant", "user"]


async def test_a_second_result_of_one_call_is_refused_and_changes_nothing(house):
    h = house(calls(("pick", {})), "teal it is")
    await h.turn("colour?", client_tools=(PICK,))
    await h.turn(*back("call-pick-0", "teal"))
    before = await h.stored()
    with pytest.raises(InvalidInput, match="no result that a call of it waits for"):
        await h.turn(*back("call-pick-0", "red", copy=True))
    assert await h.stored() == before
    assert len(h.model.requests) == 2


async def test_of_two_results_that_race_for_one_call_one_counts(house):
    gate = Gate(says("teal it is"))
    h = house(calls(("pick", {})), gate, "red it is")
    await h.turn("colour?", client_tools=(PICK,))
    slow = asyncio.create_task(h.turn(*back("call-pick-0", "teal")))
    await gate.reached.wait()
    await h.turn(*back("call-pick-0", "red"))
    gate.opened.set()
    with pytest.raises(Conflict):
        await slow
    assert [invocations(m)[0]["result"] for m in await h.stored() if m.role == "assistant" and invocations(m)] == [
        "red"
    ]
    assert len(await h.stored()) == 3


async def test_a_failed_client_tool_is_an_error_for_the_model(house):
    h = house(calls(("pick", {})), "sorry")
    await h.turn("colour?", client_tools=(PICK,))
    await h.turn(*back("call-pick-0", {"reason": "no screen"}, isError=True))
    assert h.model.prompt[-1] == ("tool", '[ToolResult {"reason":"no screen"}]')
    (pick,) = invocations((await h.stored())[1])
    assert (pick["state"], pick["errorText"]) == ("output-error", '{"reason":"no screen"}')


async def test_results_and_a_new_question_come_together(house):
    h = house(calls(("pick", {})), "ok")
    await h.turn("colour?", client_tools=(PICK,))
    await h.turn(*back("call-pick-0", "teal", copy=True), "and now hurry")
    assert h.model.prompt[-2:] == [("tool", "[ToolResult teal]"), ("user", "and now hurry")]
    assert [m.role for m in await h.stored()] == ["user", "assistant", "user", "assistant"]


async def test_a_form_of_user_interfaces_brings_the_result_inside_the_answer(house):
    h = house(calls(("pick", {"hint": "sea"})), "teal it is")
    await h.turn("colour?", client_tools=(PICK,))
    part = {
        "type": "tool-pick",
        "toolCallId": "call-pick-0",
        "input": {},
        "state": "output-available",
        "output": "teal",
    }
    shown = [
        {"role": "user", "parts": [{"type": "text", "text": "colour?"}]},
        {"id": "x", "role": "assistant", "content": "", "parts": [{"type": "step-start"}, part]},
    ]
    await h.turn(*input_messages(shown, "messages"))
    assert h.model.prompt[-1] == ("tool", "[ToolResult teal]")
    assert [m.role for m in await h.stored()] == ["user", "assistant", "assistant"]


async def test_without_memory_the_calls_of_the_input_get_their_results(house):
    h = house("teal it is")
    question = input_messages("colour?", "messages")
    result = await h.turn(*question, *back("k1", "teal", copy=True), thread=None)
    assert h.model.prompt == [
        ("system", "Be kind."),
        ("user", "colour?"),
        ("assistant", "[call pick]"),
        ("tool", "[ToolResult teal]"),
    ]
    assert result.text == "teal it is"


async def test_h22_a_waiting_call_is_found_even_where_no_history_is_loaded(house):
    h = house(calls(("pick", {})), "teal it is", memory=Memory(last_messages=False))
    await h.turn("colour?", client_tools=(PICK,))
    await h.turn(*back("call-pick-0", "teal"))
    assert [text for _, text in h.model.prompt] == ["Be kind.", ".", "[call pick]", "[ToolResult teal]"]
    assert invocations((await h.stored())[1])[0]["state"] == "result"


async def test_a_second_client_tool_waits_in_the_second_answer(house):
    second = ModelResponse("", (ToolCall("k2", "pick", {}),), "tool-calls", Usage(), "fake-1")
    h = house(calls(("pick", {})), second, "done")
    await h.turn("colour?", client_tools=(PICK,))
    await h.turn(*back("call-pick-0", "teal", copy=True), client_tools=(PICK,))
    result = await h.turn(*back("k2", "red", copy=True), client_tools=(PICK,))
    assert result.text == "done"
    assert [invocations(m)[0]["result"] for m in (await h.stored())[1:3]] == ["teal", "red"]


async def test_arguments_that_are_no_object_are_told_to_the_model_not_to_the_client(house):
    bad = ModelResponse("", (ToolCall("c", "pick", {}, invalid="{oops"),), "tool-calls", Usage(), "fake-1")
    h = house(bad, "fine")
    result = await h.turn("go", client_tools=(PICK,))
    assert result.text == "fine"


async def test_a_client_tool_cannot_take_the_name_of_the_agents_own(house):
    h = house(tools=[weather])
    with pytest.raises(InvalidInput, match="clientTools.weather"):
        await h.turn("go", client_tools=(Tool("weather", "w", "", {}, run=None),))
    assert h.model.requests == []
    assert await h.storage.get_thread("t") is None


async def test_active_tools_choose_among_client_tools_too(house):
    h = house(tools=[weather])
    await h.turn("go", client_tools=(PICK,), active_tools=frozenset({"pick"}))
    assert [t.name for t in h.model.requests[0].tools] == ["pick"]


# --- case H07 ------------------------------------------------------------------------------------------------------


def seeded(parts: list[dict]) -> dict[str, Any]:
    return {"format": 2, "parts": parts}


def call_part(call_id: str, state: str, **more: Any) -> dict[str, Any]:
    invocation = {"toolCallId": call_id, "toolName": "pick", "args": {}, "state": state, **more}
    return {"type": "tool-invocation", "toolInvocation": invocation}


async def seed(h, *contents: tuple[str, dict[str, Any]]) -> None:
    thread = await h.storage.create_thread(NewThread("t", "ana"))
    rows = tuple(NewMessage(f"m{n}", role, content, n) for n, (role, content) in enumerate(contents))
    await h.storage.commit_turn(TurnCommit(thread, rows))


def assert_legal(h) -> None:
    """Every call in the prompt has exactly one result, right behind it, and the user has the last word."""
    messages = h.model.requests[-1].messages
    for n, message in enumerate(messages):
        wanted = [p.id for p in message.parts if isinstance(p, ToolCall)]
        results = [p.call_id for p in messages[n + 1].parts] if wanted else []  # type: ignore[union-attr]
        assert results == wanted
        assert message.role != "tool" or any(isinstance(p, ToolCall) for p in messages[n - 1].parts)
    assert messages[-1].role == "user"


HELLO = ("user", seeded([{"type": "text", "text": "hello"}]))


@pytest.mark.parametrize(
    "parts",
    [
        [call_part("k1", "call")],
        [call_part("k1", "call"), call_part("k2", "result", result="red")],
        [call_part("k1", "result", result="red"), call_part("k1", "result", result="red")],
        [call_part("k1", "partial-call")],
    ],
)
async def test_h07_a_thread_that_ends_in_an_open_call_goes_on(house, parts: list[dict]):
    h = house("I am")
    await seed(h, HELLO, ("assistant", seeded(parts)))
    before = await h.stored()
    await h.turn("are you there?")
    assert_legal(h)
    assert (await h.stored())[:2] == before


async def test_h07_results_that_match_no_call_are_dropped_and_the_stored_rows_stay(house):
    h = house("fine")
    await seed(h, HELLO, ("assistant", seeded([{"type": "text", "text": "hi"}])))
    before = await h.stored()
    twice = back("nobody", 1) + back("nobody", 2)
    await h.turn(*twice, "go on")
    assert_legal(h)
    assert (await h.stored())[:2] == before
    assert [m.role for m in await h.stored()] == ["user", "assistant", "user", "assistant"]


async def test_h07_of_two_results_for_one_call_the_first_counts(house):
    h = house(calls(("pick", {})), "ok")
    await h.turn("colour?", client_tools=(PICK,))
    await h.turn(*back("call-pick-0", "teal"), *back("call-pick-0", "red"))
    assert invocations((await h.stored())[1])[0]["result"] == "teal"


async def test_h08_h27_results_of_client_tools_pass_the_processors_and_no_limit_drops_them(house):
    class Mask(Processor):
        id = "mask"

        def process_tool_result(self, outcome: CallOutcome, call: ProcessorCall) -> CallOutcome:
            return outcome.with_result(str(outcome.result or outcome.error).replace("1234", "####"))

    memory = Memory(message_history={"max_tokens": 80})
    settings = {"memory": memory, "input_processors": [TokenLimiter(150)], "output_processors": [Mask()]}
    h = house("ok", **settings)
    await h.turn("old " * 9)
    h.model.answers = [calls(("pick", {}), ("pick", {})), says("noted")]
    await h.turn("PIN?", client_tools=(PICK,))
    secret = "my PIN is 1234 " * 4
    both = (*back("call-pick-0", secret), *back("call-pick-1", "no 1234", isError=True))
    result = await h.turn(*both, client_tools=(PICK,))
    assert result.text == "noted"
    assert "1234" not in str(h.model.requests[-1].messages) and "PIN is ####" in str(h.model.requests[-1].messages)
    assert "old" not in str(h.model.requests[-1].messages)
    one, two = invocations((await h.stored())[-2])
    assert (one["result"], two["result"]) == (secret.replace("1234", "####"), "no ####")
    assert "errorText" not in two and len(await h.stored()) == 5
