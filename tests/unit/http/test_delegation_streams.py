"""What a stream says of sub-agents (spec-http 3): their own chunks inside, at any depth, in the order of each call."""

import asyncio
from typing import Any

from tests.unit.fakes import FakeModel, calls
from tests.unit.http.test_stream import Caller, request
from tests.unit.turn.test_stream import Talker
from threadkeep import Agent, Limits, ToolContext, tool

ASKS = calls(("agent-helper", {"prompt": "find X"}))
NESTED = ["start", "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish"]


def caller(
    boss: Any, sub: Any, heartbeat: float = 15.0, on_sub: dict[str, Any] | None = None, **on_boss: Any
) -> Caller:
    helper = Agent(id="helper-agent", name="Helper", model=sub, **(on_sub or {}))
    return Caller(boss, {"name": "Talker", "agents": {"helper": helper}} | on_boss, heartbeat)


def outputs(chunks: list[Any]) -> list[Any]:
    """The chunks of sub-agents in these chunks."""
    return [c["payload"]["output"] for c in chunks if c["type"] == "tool-output"]


async def test_del26_each_chunk_of_the_sub_agent_is_the_output_of_the_call() -> None:
    one = caller(FakeModel(ASKS, "boss says"), FakeModel("sub says"))
    await one.post(request())
    assert one.status == 200
    run_id = one.chunks[0]["runId"]
    wrapped = [c for c in one.chunks if c["type"] == "tool-output"]
    assert {(c["from"], c["runId"]) for c in wrapped} == {("USER", run_id)}
    called = {"toolCallId": "call-agent-helper-0", "toolName": "agent-helper"}
    assert all(
        c["payload"].items() >= called.items() and set(c) == {"type", "runId", "from", "payload"} for c in wrapped
    )
    nested = outputs(one.chunks)
    assert [c["type"] for c in nested] == NESTED
    (sub_run,) = {c["runId"] for c in nested}
    assert sub_run != run_id
    assert nested[0]["payload"]["id"] == "helper-agent"
    assert nested[0]["payload"]["messageId"] != one.chunks[0]["payload"]["messageId"]
    assert nested[-1]["payload"]["output"]["text"] == "sub says"
    between = [t for t in one.types if t in ("tool-call", "tool-output", "tool-result")]
    assert between == ["tool-call", *["tool-output"] * len(NESTED), "tool-result"]
    (result,) = [c["payload"]["result"] for c in one.chunks if c["type"] == "tool-result"]
    assert result["text"] == "sub says"
    assert result["subAgentThreadId"].startswith("t-")
    assert result["subAgentResourceId"] == "ana-helper"
    assert one.chunks[-1]["payload"]["output"]["text"] == "boss says"
    assert "u001" not in one.text


async def test_del26_two_levels_below_are_outputs_of_outputs() -> None:
    leaf = Agent(id="leaf", model=FakeModel("leaf says"))
    down = calls(("agent-leafy", {"prompt": "below"}))
    one = caller(FakeModel(ASKS, "boss says"), FakeModel(down, "sub says"), on_sub={"agents": {"leafy": leaf}})
    await one.post(request())
    middle = outputs(one.chunks)
    deepest = [c for c in middle if c["type"] == "tool-output"]
    assert {c["payload"]["toolName"] for c in deepest} == {"agent-leafy"}
    assert [c["type"] for c in outputs(middle)] == NESTED
    assert len({c["runId"] for c in (*one.chunks, *middle, *outputs(middle))}) == 3


@tool
async def dig(context: ToolContext) -> str:
    """Dig."""
    await context.tell("data-progress", {"done": 1})
    return "dug"


async def test_del26_data_come_up_as_they_are_from_any_depth() -> None:
    leaf = Agent(id="leaf", model=FakeModel(calls(("dig", {})), "leaf says"), tools=[dig])
    down = calls(("agent-leafy", {"prompt": "below"}))
    one = caller(FakeModel(ASKS, "boss says"), FakeModel(down, "sub says"), on_sub={"agents": {"leafy": leaf}})
    await one.post(request())
    assert [c for c in one.chunks if c["type"] == "data-progress"] == [
        {"type": "data-progress", "runId": one.chunks[0]["runId"], "data": {"done": 1}}
    ]
    assert "data-progress" not in [c["type"] for c in outputs(one.chunks)]


async def test_del26_parallel_sub_agents_keep_their_own_order() -> None:
    boss = FakeModel(calls(("agent-a", {"prompt": "x"}), ("agent-b", {"prompt": "y"})), "done")
    gate = asyncio.Event()
    team = {"a": Agent(id="a", model=Talker("a1", gate, "a2")), "b": Agent(id="b", model=Talker("b1", "b2"))}
    one = Caller(boss, {"agents": team})
    running = asyncio.create_task(one.post(request()))
    await one.until('"type":"finish"')  # of b, while a is held
    gate.set()
    await running
    for key in ("a", "b"):
        mine = [
            c["payload"]["output"]
            for c in one.chunks
            if c["type"] == "tool-output" and c["payload"]["toolName"] == f"agent-{key}"
        ]
        assert [c["payload"]["text"] for c in mine if c["type"] == "text-delta"] == [f"{key}1", f"{key}2"]
        assert (mine[0]["type"], mine[-1]["type"]) == ("start", "finish")
    assert [c["payload"]["toolName"] for c in one.chunks if c["type"] == "tool-result"] == ["agent-a", "agent-b"]


async def test_del23_a_sub_agent_that_fails_half_way_ends_its_own_stream_and_its_cause_stays_within() -> None:
    one = caller(FakeModel(ASKS, "sorry"), Talker("half", RuntimeError("secret")))
    await one.post(request())
    nested = outputs(one.chunks)
    assert [c["type"] for c in nested][-4:] == ["text-end", "error", "step-finish", "finish"]
    (error,) = [c["payload"]["error"]["message"] for c in nested if c["type"] == "error"]
    (told,) = [c["payload"]["error"]["message"] for c in one.chunks if c["type"] == "tool-error"]
    assert error == told == "[Agent:Talker] - Failed agent tool execution for helper"
    assert "secret" not in one.text
    assert one.chunks[-1]["payload"]["stepResult"]["reason"] == "stop"
    last_output = max(n for n, t in enumerate(one.types) if t == "tool-output")
    assert one.types.index("tool-error") == last_output + 1


async def test_a_thinking_sub_agent_is_bridged_by_comments() -> None:
    gate = asyncio.Event()
    one = caller(FakeModel(ASKS, "boss says"), Talker(gate, "late"), heartbeat=0.02)
    running = asyncio.create_task(one.post(request()))
    await one.until('"type":"tool-output"')
    beats = one.text.count(": heartbeat")
    await one.until(": heartbeat\n\n", beats + 2)
    gate.set()
    await running
    assert one.types[-1] == "finish"


async def test_del25_hanging_up_in_a_delegation_ends_the_sub_run_and_keeps_what_was_seen() -> None:
    sub = Talker("so far", asyncio.Event())
    one = caller(FakeModel(ASKS), sub)
    running = asyncio.create_task(one.post(request("tell me")))
    await one.until("so far")
    one.gone.set()
    await running
    assert sub.hung_up
    assert [role for role, _ in await one.stored()] == ["user", "assistant"]
    (answer,) = (await one.store.list_messages("t", per_page=None)).page.items[1:]
    assert answer.content["metadata"]["aborted"] is True
    assert answer.content["parts"][0]["toolInvocation"]["state"] == "output-error"


async def test_the_limit_at_which_a_run_ends_is_the_reason_of_its_finish() -> None:
    one = caller(FakeModel(ASKS), FakeModel(), limits=Limits(delegations=0))
    await one.post(request())
    assert one.chunks[-1]["payload"]["stepResult"] == {
        "reason": "max-delegations",
        "isContinued": False,
        "warnings": [],
    }
    assert "tool-output" not in one.types


async def test_a_stream_that_is_repeated_tells_the_result_and_not_how_it_came_about() -> None:
    one = caller(FakeModel(ASKS, "boss says"), FakeModel("sub says"))
    await one.post(request(runId="run-1"))
    first, one.sent = one.chunks, []
    await one.post(request(runId="run-1"))
    assert "tool-output" not in one.types
    results = [[c["payload"]["result"] for c in chunks if c["type"] == "tool-result"] for chunks in (first, one.chunks)]
    assert results[0] == results[1] != []


async def test_ms14_a_delegation_that_a_person_approved_tells_its_sub_agent_too() -> None:
    one = caller(FakeModel(ASKS, "boss says"), FakeModel("sub says"))
    await one.post(request(requireToolApproval=True))
    (asked,) = [c for c in one.chunks if c["type"] == "tool-call-approval"]
    one.sent = []
    body = {"runId": asked["runId"], "toolCallId": asked["payload"]["toolCallId"]}
    await one.post(body, path="/api/agents/talker/approve-tool-call")
    assert [c["type"] for c in outputs(one.chunks)] == NESTED
    kept = [t for t in one.types if t in ("tool-call", "tool-output", "tool-result", "finish")]
    assert kept == ["tool-call", *["tool-output"] * len(NESTED), "tool-result", "finish"]
