"""Delegation by a state machine: what travels, what comes back, and what a repeat finds."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.unit.fakes import Gate, says
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Agent, Memory, clock
from threadkeep.errors import ModelUnavailable, StoreUnavailable
from threadkeep.flows import ledger
from threadkeep.flows.machine import Machine
from threadkeep.flows.task import Task
from threadkeep.turn.context import RequestContext

FAILED = "[Agent:boss] - Failed agent tool execution for researcher"


def told(o) -> list[str]:
    """What the supervisor's model read of its delegations."""
    return [part.text for message in o.boss_model.requests[-1].messages for part in message.parts
            if type(part).__name__ == "ToolResult"]  # fmt: skip


async def test_a_step_is_one_execution_and_only_ids_travel(office):
    o = office((asks("researcher", "researcher", prompt="find the secret"), "done"), (says("one"), says("two")))
    result = await o.turn()
    assert (result.text, [r["text"] for r in results_of(result)]) == ("done", ["one", "two"])
    [(given, seconds)] = o.machine.inputs
    assert 21 < seconds <= 23
    assert set(given) == {"journal", "orders"} and len(given["orders"]) == 2
    assert all(set(item) == {"id", "said", "seconds", "deadline"} for item in given["orders"])
    assert all(item["seconds"] == 22 for item in given["orders"])
    assert "secret" not in json.dumps(given) and "hello" not in json.dumps(given)


async def test_the_conversation_is_stored_once_for_all_orders_of_a_step(office):
    o = office((asks("researcher", "researcher", "researcher"), "done"))
    await o.turn()
    journal = o.machine.inputs[0][0]["journal"]
    names = [entry.name.partition(".")[0] for entry in await o.storage.list_entries(journal, "")]
    assert sorted(names) == ["order"] * 3 + ["report"] * 3 + ["said"]


async def test_del24_order_is_kept_and_one_failing_stops_no_other(office):
    o = office((asks("researcher", "researcher", "researcher"), "done"), ("one", RuntimeError("secret"), "three"))
    result = await o.turn()
    outcomes = [outcome for step in result.steps for outcome in step.outcomes]
    assert [c.id for step in result.steps for c in step.response.tool_calls] == [
        outcome.call.id for outcome in outcomes
    ]
    assert told(o) == [FAILED if outcome.error else outcome.result["text"] for outcome in outcomes]
    assert sorted(told(o)) == sorted(["one", FAILED, "three"])


async def test_h17_other_runs_and_other_owners_have_journals_of_their_own(office):
    o = office((asks("researcher"), "done") * 3)
    for run, thread, owner in (("run", "T", "U"), ("run", "T2", "V"), ("run2", "T", "U")):
        await o.turn(run, thread, owner)
    assert len({given["journal"] for given, _ in o.machine.inputs}) == 3


async def test_a_repeat_of_a_step_finds_the_reports(office):
    o = office((asks("researcher"), "done", asks("researcher"), "done"), ("one", "two"))
    first, second = await o.turn(), await o.turn()
    assert results_of(first) == results_of(second)
    assert len(o.sub_model.requests) == 1


async def test_h17_a_retry_after_the_turn_was_stored_stores_nothing(office, monkeypatch):
    """The first try dies between the turn and its report."""
    o = office((asks("researcher"), "done"), ("one", "two"))
    write, lost = o.storage.write_entries, []

    async def dying(journal, entries, *, thread_id):
        if entries[0].name.startswith("report.") and not lost:
            lost.append(entries)
            raise StoreUnavailable("the connection broke")
        return await write(journal, entries, thread_id=thread_id)

    monkeypatch.setattr(o.storage, "write_entries", dying)
    (result,) = results_of(await o.turn())
    assert o.machine.attempts == [0, 1]
    assert result["text"] == "one" and len(o.sub_model.requests) == 1
    assert await o.texts(result["subAgentThreadId"]) == [("user", "find X"), ("assistant", "one")]


async def test_h17_a_retry_does_not_wait_for_the_dead(office):
    """Whoever ran the order hangs and holds its receipt; the retry takes that over, and the dead stores nothing."""
    dead = Gate(says("from the grave"))
    o = office((asks("researcher"), "done"), (dead, "alive"))
    turn = asyncio.create_task(o.turn())
    await dead.reached.wait()
    assert await asyncio.wait_for(o.perform(o.task(attempt=1)), 5) == {"id": o.task().item["id"]}
    dead.opened.set()
    (result,) = results_of(await turn)
    assert result["text"] == "alive"
    assert await o.texts(result["subAgentThreadId"]) == [("user", "find X"), ("assistant", "alive")]


async def test_only_what_a_retry_may_mend_is_raised(office):
    o = office((asks("researcher"), "done"), (ModelUnavailable("busy"), "one"))
    (result,) = results_of(await o.turn())
    assert (result["text"], o.machine.attempts) == ("one", [0, 1])
    o = office((asks("researcher"), "done"), (ModelUnavailable("busy"),) * 3)
    await o.turn()
    assert (told(o), o.machine.attempts) == ([FAILED], [0, 1, 2])


async def test_a_failure_is_a_report_and_its_cause_stays_in_the_log(office, caplog):
    o = office((asks("researcher"), "done"), (RuntimeError("secret"),))
    await o.turn()
    journal = o.machine.inputs[0][0]["journal"]
    [report] = await o.storage.list_entries(journal, "report.")
    assert report.body["failure"] == "failed" and "secret" in report.body["reason"]
    assert told(o) == [FAILED] and o.machine.attempts == [0]
    assert await o.perform(o.task(attempt=1)) == {"id": o.task().item["id"]} and len(o.sub_model.requests) == 1


async def test_late_orders_start_no_machine_and_late_tasks_no_model(office):
    o = office((asks("researcher"), "done"))
    await o.turn(deadline=1.1)
    assert (told(o), o.machine.inputs, o.sub_model.requests) == ([FAILED + ": it took too long"], [], [])
    o = office((asks("researcher"), "done"))
    o.machine.left = 5_900  # of the function's time; 5 seconds are kept for the report
    await o.turn()
    assert (told(o), o.sub_model.requests) == ([FAILED + ": it took too long"], [])


async def test_an_order_that_waits_for_its_turn_has_its_whole_time_then(office, monkeypatch):
    """Ten tasks run at once: in a durable run the eleventh may begin when the first ten have had all their time."""
    o = office((asks("researcher"), "done"))
    o.machine.ending = "FAILED"
    await o.turn(deadline=3_000)
    [(given, _)] = o.machine.inputs
    [item] = given["orders"]
    later = clock.now() + 400_000
    assert item["seconds"] == ledger.LONGEST and item["deadline"] > later
    monkeypatch.setattr(clock, "now", lambda: later)
    task = Task.read(given | {"order": item, "attempt": 0}, 300_000)
    assert task.ends == later + ledger.LONGEST * 1000, "it ends by itself before it is cut off"
    assert await o.perform(task) == {"id": item["id"]}
    [report] = await o.storage.list_entries(given["journal"], "report.")
    assert report.body["text"] == "found"


async def test_a_timeout_leaves_no_report_so_that_a_later_run_may_do_better(office):
    o = office((asks("researcher"), "done", asks("researcher"), "done"), ("one",))
    o.machine.left = 5_000
    await o.turn()
    o.machine.left = 300_000
    (result,) = results_of(await o.turn())
    assert result["text"] == "one"


@pytest.mark.parametrize(("ending", "why"), [("FAILED", ""), ("TIMED_OUT", ": it took too long")])
async def test_a_machine_that_fails_fails_its_orders_but_no_report_is_lost(office, ending, why):
    o = office((asks("researcher"), "done", asks("researcher"), "done"), ("one",))
    o.machine.ending = ending
    await o.turn()
    assert told(o) == [FAILED + why]
    await o.perform(o.task())
    (result,) = results_of(await o.turn())
    assert result["text"] == "one"


async def test_more_orders_than_one_write_takes(office):
    o = office((asks(*["researcher"] * 50), "done"), ("one",) * 50, on_boss={"max_steps": 2})
    result = await o.turn()
    assert [r["text"] for r in results_of(result)] == ["one"] * 50
    assert len(json.dumps(o.machine.inputs[0][0])) < 256 * 1024 / 8


async def test_a_sub_agent_that_delegates_uses_the_machine_too_and_has_less_time(office):
    leaf = Agent(id="leaf", model="scripted/never")
    middle_answers = (asks("leaf", prompt="deep"), "half")
    o = office((asks("researcher"), "done"), middle_answers, on_sub={"agents": {"leaf": leaf}, "memory": Memory()})
    result = await o.turn()
    assert results_of(result)[0]["text"] == "half"
    (outer, _), (inner, _) = o.machine.inputs
    assert inner["orders"][0]["deadline"] < outer["orders"][0]["deadline"]
    assert inner["journal"] != outer["journal"]


async def test_the_context_travels_to_the_sub_agent(office):
    seen = []

    def instructions(context: RequestContext) -> str:
        seen.append(context.get("tier"))
        return "x"

    o = office((asks("researcher"), "done"), on_sub={"instructions": instructions})
    await o.turn()
    assert seen == ["gold"]


async def test_a_forgotten_journal_is_no_retry(office):
    o = office((asks("researcher"), "done"))
    await o.turn()
    task = o.task()
    assert await o.perform(replace(task, journal="gone")) == {"id": task.item["id"], "failure": "conflict"}


async def test_a_journal_goes_with_a_thread_that_is_deleted_meanwhile(office):
    gate = Gate(says("late"))
    o = office((asks("researcher"), "done"), (gate,))
    turn = asyncio.create_task(o.turn())
    await gate.reached.wait()
    await o.storage.delete_thread("T", resource_id="U")
    gate.opened.set()
    with pytest.raises(Exception, match="deleted"):
        await turn
    assert await o.storage.list_entries(o.machine.inputs[0][0]["journal"], "")
    assert await o.storage.purge_thread("T")
    assert await o.storage.list_entries(o.machine.inputs[0][0]["journal"], "") == ()


class Client:
    """A client of Step Functions that answers as it is told."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def start_sync_execution(self, **asked):
        self.asked.append(asked)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_the_machine_is_started_by_its_arn_and_tells_how_it_ended():
    from botocore.exceptions import ClientError, ReadTimeoutError

    arn = "arn:aws:states:us-east-1:000000000000:stateMachine:delegation-x"
    client = Client({"status": "SUCCEEDED", "output": '[{"id":"a"}]', "executionArn": "e"})
    done = await Machine(lambda: client, arn).run({"journal": "j"}, 5)  # type: ignore[arg-type,return-value]
    assert client.asked == [{"stateMachineArn": arn, "input": '{"journal":"j"}'}]
    assert (done.ending, done.output) == ("SUCCEEDED", [{"id": "a"}])
    refused = ClientError({"Error": {"Code": "StateMachineDoesNotExist"}}, "StartSyncExecution")
    for answer, ending in (
        ({"status": "TIMED_OUT", "executionArn": "e"}, "TIMED_OUT"),
        ({"status": "FAILED", "executionArn": "e", "error": "States.Runtime"}, "FAILED"),
        (refused, "FAILED"),
        (ReadTimeoutError(endpoint_url="x"), "FAILED"),
    ):
        found = await Machine(lambda answer=answer: Client(answer), arn).run({}, 5)  # type: ignore[arg-type,return-value]
        assert (found.ending, found.output) == (ending, None)


async def test_the_machine_is_not_waited_for_longer_than_its_tasks_may_take():
    import time

    class Slow(Client):
        def start_sync_execution(self, **asked):
            time.sleep(0.3)
            return self.answer

    began = clock.now()
    found = await Machine(lambda: Slow({}), "arn").run({}, 0.05)  # type: ignore[arg-type,return-value]
    assert found.ending == "TIMED_OUT" and clock.now() - began < 250


async def test_an_order_has_the_time_of_its_own_run_not_of_the_first(office):
    """The entry was written with the time of the first run; the item has that of this one."""
    o = office((asks("researcher"), "done"))
    await o.turn()
    item = o.task().item | {"deadline": 42}
    found = await o.storage.read_entries(o.task().journal, [f"order.{item['id']}", item["said"]])
    order = ledger.read_order(item, found)  # type: ignore[arg-type]
    assert order is not None and order.deadline == 42
    assert [part["text"] for said in order.said for part in said.parts] == ["hello"]
