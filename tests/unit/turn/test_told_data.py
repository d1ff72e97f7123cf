"""Data that tools tell while they run: chunks for whoever watches, parts of the stored answer (DEL-26)."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from tests.unit.fakes import calls, says
from tests.unit.turn.test_approvals import decided
from tests.unit.turn.test_stream import kinds, told
from threadkeep import Memory, RequestContext, ToolContext, tool
from threadkeep.ids import nobodys_resource, sub_resource
from threadkeep.memory.messages import is_data, parts_of
from threadkeep.turn import events
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.receipts import repeatable


class Progress(BaseModel):
    done: int


@tool
async def dig(depth: int, context: ToolContext) -> str:
    """Dig."""
    await context.tell("data-progress", Progress(done=depth))
    if depth > 9:
        raise OverflowError("too deep")
    return f"{depth} m"


@tool(require_approval=True)
async def erase(context: ToolContext) -> str:
    """Erase, if somebody approves."""
    await context.tell("data-bang", None)
    return "done"


def part(done: int) -> dict[str, Any]:
    return {"type": "data-progress", "data": {"done": done}}


async def shape(house: Any, row: int = -1) -> list[Any]:
    """The parts of a stored message: data as they are, of others the type."""
    parts = parts_of((await house.stored())[row].content)
    return [p if is_data(p) else p["type"] for p in parts]


async def test_data_stand_behind_their_call_watched_or_not(house):
    for run in (lambda h: h.turn("dig"), lambda h: told(h, "dig")):
        h = house(calls(("dig", {"depth": 1}), ("dig", {"depth": 2})), "dug", tools=[dig])
        await run(h)
        call = "tool-invocation"
        assert await shape(h) == [call, part(1), call, part(2), "step-start", "text"]


async def test_data_are_told_between_call_and_outcome(house):
    h = house(calls(("dig", {"depth": 1})), "dug", tools=[dig])
    seen = await told(h, "dig")
    assert kinds(seen)[5:8] == ["CallMade", "DataTold", "CallFinished"]
    assert seen[6] == events.DataTold("call-dig-0", "data-progress", {"done": 1})


async def test_data_of_a_tool_that_fails_later_stay(house):
    h = house(calls(("dig", {"depth": 10})), "no", tools=[dig])
    await h.turn("dig")
    assert await shape(h) == ["tool-invocation", part(10), "step-start", "text"]


async def test_data_are_shown_to_no_model_and_the_history_stays_whole(house):
    h = house(calls(("dig", {"depth": 1})), "dug", "ok", tools=[dig])
    await h.turn("dig")
    await h.turn("again")
    assert h.model.prompt[-4:] == [
        ("assistant", "[call dig]"), ("tool", "[ToolResult 1 m]"), ("assistant", "dug"), ("user", "again"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("progress", 1), ("data-", 1), ("data-a b", 1), ("data-user-message", 1), ("data-thread-title", 1),
        ("data-om-status", 1), ("data-x", float("nan")), ("data-x", object()),
        ("data-x", "x" * 49_999),
    ],
)  # fmt: skip
async def test_what_is_no_data_is_an_error_of_the_tool(type: str, data: Any):
    context = ToolContext("a", "run", "call", None, None, RequestContext())
    with pytest.raises(ValueError):
        await context.tell(type, data)
    assert context.told == []


async def test_data_may_have_just_the_size_that_is_allowed():
    context = ToolContext("a", "run", "call", None, None, RequestContext())
    await context.tell("data-x", "x" * 49_998)
    assert len(context.told) == 1


@pytest.mark.parametrize(
    ("resource", "owner"),
    [
        ("ana", "ana"),
        (sub_resource(sub_resource("ana", "a"), "b"), "ana"),
        (sub_resource(nobodys_resource("boss", "run"), "a"), None),
        (None, None),
    ],
)
def test_h17_the_owner_of_a_tools_run_is_the_person_at_every_depth(resource, owner):
    assert ToolContext("a", "run", "call", None, resource, RequestContext()).owner == owner


async def test_data_are_kept_as_they_were_when_they_were_told():
    context, data = ToolContext("a", "run", "call", None, None, RequestContext()), {"list": [1]}
    await context.tell("data-x", data)
    data["list"].append(2)
    assert context.told == [{"type": "data-x", "data": {"list": [1]}}]


async def test_ms14_data_of_an_approved_call_are_told_and_stored_behind_it(house):
    h = house(calls(("erase", {}), ("dig", {"depth": 1})), "gone", tools=[erase, dig])
    run_id = (await h.turn("erase")).run_id
    for _ in range(2):  # a repeat tells the same
        assert kinds(await decided(h, run_id))[:4] == ["RunResumed", "CallMade", "DataTold", "CallFinished"]
    call, bang = "tool-invocation", {"type": "data-bang", "data": None}
    assert await shape(h, 1) == [call, bang, call, part(1)]


async def test_a_request_that_is_repeated_is_told_its_data_again(house):
    h = house(calls(("dig", {"depth": 1})), "dug", tools=[dig])
    repeat = repeatable(owner="ana", route="stream", thread_id="t", body=b"{}", arrived=0)
    first = await told(h, "dig", repeat=repeat)
    again = await told(h, "dig", repeat=repeat)
    assert len(h.model.requests) == 2
    assert [e for e in again if isinstance(e, events.DataTold)] == [e for e in first if isinstance(e, events.DataTold)]


class NoData(Processor):
    """Takes data out of the answer, which is therefore held back."""

    id = "no-data"

    def process_output_result(self, messages, call):
        def left(content: Any) -> Any:
            return {**content, "parts": [p for p in parts_of(content) if not is_data(p)]}

        return [replace(m, content=left(m.content)) for m in messages]


async def test_pr3_data_that_a_processor_takes_out_are_neither_stored_nor_told(house):
    h = house(calls(("dig", {"depth": 1})), "dug", tools=[dig], output_processors=[NoData()])
    seen = await told(h, "dig")
    assert "DataTold" not in kinds(seen) and "CallFinished" in kinds(seen)
    assert await shape(h) == ["tool-invocation", "step-start", "text"]


async def test_data_of_a_tool_whose_result_a_processor_changes_stay(house):
    class Short(Processor):
        id = "short"

        def process_tool_result(self, outcome, call):
            return outcome.with_result("...")

    h = house(calls(("dig", {"depth": 1})), says("dug"), tools=[dig], output_processors=[Short()], memory=Memory())
    await h.turn("dig")
    assert await shape(h) == ["tool-invocation", part(1), "step-start", "text"]
