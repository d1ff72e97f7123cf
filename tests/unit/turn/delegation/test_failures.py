"""Sub-agents that fail, run beside each other, are aborted, or cannot do what they want (DEL-23 to DEL-25)."""

import asyncio
import logging

import pytest

from tests.unit.fakes import FakeModel, Gate, calls, says
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Agent, Delegation, Processor, tool
from threadkeep.errors import DeadlineExceeded, ModelUnavailable, StoreUnavailable
from threadkeep.turn.delegation.in_process import InProcess
from threadkeep.turn.tools import Tool

FAILED = "[Agent:Boss] - Failed agent tool execution for researcher"


@pytest.mark.parametrize(
    "error", [RuntimeError("secret"), ModelUnavailable("secret"), asyncio.CancelledError("secret")]
)
async def test_del23_a_failing_sub_agent_is_told_without_its_cause(desk, error, caplog):
    async def fails():
        raise error

    told = []
    d = desk(
        (asks("researcher"), "done"),
        (fails,) * 3,  # a machine tries again what may be mended
        {"delegation": Delegation(on_complete=lambda done: told.append(done))},
    )
    with caplog.at_level(logging.WARNING):
        result = await d.turn()
    part = d.boss_model.requests[-1].messages[-1].parts[0]
    assert part.text == FAILED and part.is_error and result.text == "done"
    (sub,) = await d.sub_threads()
    assert await d.stored(sub.id) == ()
    (_, answer) = await d.stored("T")
    assert answer.content["parts"][0]["toolInvocation"]["errorText"] == FAILED
    assert "secret" not in str(answer.content) and (told[0].success, told[0].error) == (False, FAILED)


async def test_del23_a_sub_agent_that_cannot_be_made_fails_alone(desk):
    def memory(context):
        raise ValueError("no tenant")

    d = desk((asks("researcher"), "done"), on_sub={"memory": memory})
    assert (await d.turn()).text == "done" and d.told == [FAILED]


async def test_del23_pr7_a_processor_that_stops_the_sub_agent_fails_the_call(desk):
    class Guard(Processor):
        id = "guard"

        async def process_input(self, messages, call):
            call.abort("forbidden words")

    told = []
    d = desk(
        (asks("researcher"), "done"),
        on_boss={"delegation": Delegation(on_complete=lambda done: told.append(done))},
        on_sub={"input_processors": [Guard()]},
    )
    await d.turn()
    assert d.told == [FAILED] and not told[0].success and d.sub_model.requests == []


async def test_del23_a_thread_that_is_deleted_meanwhile_ends_the_run(desk):
    from threadkeep.errors import ThreadGone

    d = desk((asks("researcher"), "never"))

    async def deleting():
        await d.storage.delete_thread("T", resource_id="U")
        return says("sub answer")

    d.sub_model.answers = [deleting]
    with pytest.raises(ThreadGone):
        await d.turn()


async def test_a_run_out_of_time_says_that_what_sub_agents_did_is_stored(desk):
    late = Gate(says("never"))
    d = desk((asks("researcher"), late))
    with pytest.raises(DeadlineExceeded, match="it stored nothing; sub-agents that had finished are stored"):
        await d.turn(deadline=1.6)
    (sub,) = await d.sub_threads()
    assert await d.texts(sub.id) == [("user", "find X"), ("assistant", "sub answer")]
    assert await d.stored("T") == ()


async def test_del24_delegations_of_a_step_run_at_once_ten_at_a_time(desk):
    running, most = 0, 0

    async def busy():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return says("ok")

    d = desk((asks(*["researcher"] * 13), "done"), (busy,) * 13)
    result = await d.turn()
    assert [r["text"] for r in results_of(result)] == ["ok"] * 13
    assert most == 10


async def test_del24_results_keep_the_order_of_the_calls_and_one_failing_stops_no_other(desk):
    gate = Gate(says("a says"))

    async def opens():
        gate.opened.set()
        return says("c says")

    models = {"a": FakeModel(gate), "b": FakeModel(RuntimeError("x")), "c": FakeModel(opens)}
    d = desk((asks("a", "b", "c"), "done"), on_boss={"agents": {k: Agent(id=k, model=m) for k, m in models.items()}})
    await d.turn()  # c ends before a, and b fails
    assert d.told == ["a says", FAILED.replace("researcher", "b"), "c says"]


async def test_del25_whoever_ends_the_run_ends_its_sub_agents(desk):
    """The sub-agent is asked before each step, like the run itself."""
    asked = 0

    async def stopped() -> bool:
        nonlocal asked
        asked += 1
        return len(d.sub_model.requests) >= 1

    d = desk((asks("researcher"), "never"), (calls(("nope", {})), "never"))
    result = await d.turn(stopped=stopped)
    assert len(d.sub_model.requests) == (1 if isinstance(d.delegator, InProcess) else 2)  # another process is not told
    assert len(d.boss_model.requests) == 1 and asked >= 2
    assert result.steps == () and await d.stored("T") == ()  # nobody watched it, so nothing is kept


async def test_del25_a_run_that_is_cancelled_leaves_no_sub_agent_running(desk):
    gate = Gate(says("too late"))
    d = desk((asks("researcher"), "never"), (gate,))
    run = asyncio.create_task(d.turn())
    await gate.reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    gate.opened.set()
    await asyncio.sleep(0)
    assert await d.stored("T") == ()
    for sub in await d.sub_threads():
        assert await d.stored(sub.id) == ()
    assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]


async def test_a_sub_agents_tool_that_needs_approval_refuses_and_says_why(desk):
    ran = []

    @tool(require_approval=True)
    def erase(path: str) -> str:
        """Erase a file"""
        ran.append(path)
        return "gone"

    d = desk((asks("researcher"), "done"), (calls(("erase", {"path": "/"})), "I may not"), on_sub={"tools": [erase]})
    result = await d.turn()
    assert d.told == ["I may not"] and ran == [] and result.finish_reason == "stop"
    (refused,) = results_of(result)[0]["subAgentToolResults"]
    assert "needs a person's approval" in refused["result"] and refused["isError"]


async def test_a_sub_agents_client_side_tool_refuses_and_says_why(desk):
    pick = Tool("pick", "pick", "Pick", {"type": "object"}, None)
    d = desk((asks("researcher"), "done"), (calls(("pick", {})), "I cannot pick"), on_sub={"tools": [pick]})
    result = await d.turn()
    assert d.told == ["I cannot pick"]
    (refused,) = results_of(result)[0]["subAgentToolResults"]
    assert refused["result"] == "The tool pick needs the caller to run it, which cannot be done here; it did not run"


async def test_a_store_that_is_down_for_the_sub_agent_fails_the_call(desk, monkeypatch):
    d = desk((asks("researcher"), "done"))
    create = d.storage.create_thread

    async def broken(new):
        if new.id != "T":
            raise StoreUnavailable("busy")
        return await create(new)

    monkeypatch.setattr(d.storage, "create_thread", broken)
    assert (await d.turn()).text == "done" and d.told == [FAILED]
