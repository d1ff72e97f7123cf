"""A supervisor's buffered run delegates through Step Functions: what is stored, and what becomes of what goes wrong."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from local.stack import Stack
from tests.conftest import client_of
from tests.e2e.application import Application, eventually, kill, new_id
from tests.scripted.server import ScriptedModel

FAILED = "[Agent:manager] - Failed agent tool execution for "


@pytest.fixture
def manager(house: Stack) -> Iterator[Application]:
    with client_of(house) as http:
        yield Application(house, http, "manager")


def delegate(*asked: tuple[str, str], then: str = "@say done") -> str:
    """A message for which the supervisor delegates these prompts to these sub-agents, then goes on as `then` says."""
    made = (f"agent-{key} {json.dumps({'prompt': prompt})}" for key, prompt in asked)
    return f"@call {' && '.join(made)}\n{then}"


def results(reply: Any) -> list[Any]:
    return [part["payload"]["result"] for step in reply["steps"] for part in step["toolResults"]]


def shown(scripted: ScriptedModel, thread_text: str) -> list[str]:
    """What the supervisor's model read of its delegations, in the newest request that has this text."""
    asked = next(r for r in reversed(scripted.requests) if thread_text in json.dumps(r["messages"]) and
                 r["messages"][-1]["role"] == "tool")  # fmt: skip
    return [m["content"] for m in asked["messages"] if m["role"] == "tool"]


def sub_threads(application: Application, thread: str) -> list[str]:
    """The ids of the threads below a thread."""
    return sorted(sk.removeprefix("S#") for pk, sk in application.rows() if pk == f"T#{thread}" and sk.startswith("S#"))


def texts(application: Application, thread: str) -> list[tuple[str, str]]:
    """Role and text of a thread's stored messages, from the table itself."""
    rows = sorted(
        (key, row) for key, row in application.rows().items() if key[0] == f"T#{thread}" and key[1][:2] == "M#"
    )
    return [(row["role"]["S"], json.loads(row["content"]["S"]).get("content", "")) for _, row in rows]


def test_del11_del24_two_are_run_and_stored_each_in_its_thread(manager: Application, thread: str, owner: str) -> None:
    reply = manager.say(delegate(("clerk", "@say one"), ("writer", "@say two")), thread, owner)
    assert reply["text"] == "done"
    clerk, writer = results(reply)
    assert (clerk["text"], writer["text"]) == ("one", "two")
    assert [r["subAgentResourceId"] for r in (clerk, writer)] == [f"{owner}-clerk", f"{owner}-writer"]
    below = [clerk["subAgentThreadId"], writer["subAgentThreadId"]]
    assert sub_threads(manager, thread) == sorted(below)
    assert texts(manager, below[0]) == [("user", "@say one"), ("assistant", "one")]
    assert texts(manager, below[1]) == [("user", "@say two"), ("assistant", "two")]
    assert [role for role, _ in texts(manager, thread)] == ["user", "assistant"]
    assert manager.threads_of(owner) == [thread]


def test_del23_del24_one_that_fails_keeps_its_place_and_stops_no_other(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str
) -> None:
    said = delegate(("clerk", "@say one"), ("broken", "@say two"), ("clerk", "@fail 400 no"), ("writer", "@say four"))
    reply = manager.say(said + f"\n{thread}", thread, owner)
    assert reply["text"] == "done"
    assert shown(scripted, thread) == ["one", FAILED + "broken", FAILED + "clerk", "four"]


def test_what_returns_nothing_or_runs_out_of_steps_is_a_result(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str
) -> None:
    """The step budget of the clerk is 2; what it has done until then is stored."""
    look = '@call look {"what": "a"}\n@call look {"what": "b"}\n@say never said'
    reply = manager.say(delegate(("clerk", '@say ""'), ("clerk", look)) + f"\n{thread}", thread, owner)
    assert reply["text"] == "done"
    nothing, cut = results(reply)
    assert shown(scripted, thread) == ["The sub-agent gave no text."] * 2
    assert (nothing["text"], cut["text"]) == ("", "")
    assert [r["toolName"] for r in cut["subAgentToolResults"]] == ["look", "look"]
    assert len(texts(manager, cut["subAgentThreadId"])) == 2
    assert texts(manager, nothing["subAgentThreadId"])[0] == ("user", '@say ""')


def test_what_takes_too_long_is_told_in_time(
    house: Stack, manager: Application, scripted: ScriptedModel, thread: str, owner: str, hold: str
) -> None:
    hasty = Application(house, manager.http, "hasty")
    manager.say(delegate(("clerk", "@wait 500\n@say warm"), ("clerk", "@wait 500\n@say warm")), new_id(), owner)
    said = delegate(("clerk", f"@hold {hold}\n@say late"), ("clerk", "@say early")) + f"\n{thread}"
    reply = hasty.say(said, thread, owner)
    assert reply["text"] == "done"
    assert shown(scripted, thread) == [FAILED.replace("manager", "hasty") + "clerk: it took too long", "early"]


def test_h17_one_that_dies_is_run_again_and_stored_once(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str, hold: str,
    aside: Callable[..., Future[Any]],
) -> None:  # fmt: skip
    asked = aside(manager.say, delegate(("clerk", f"@hold {hold}\n@say found")), thread, owner)
    eventually(lambda: hold in scripted.held)
    kill(manager, "DelegateFunction")
    scripted.release(hold)
    reply = asked.result(60)
    assert [r["text"] for r in results(reply)] == ["found"]
    [below] = sub_threads(manager, thread)
    assert [role for role, _ in texts(manager, below)] == ["user", "assistant"]


def test_h17_a_task_that_is_tried_again_after_all_was_stored_stores_nothing(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str
) -> None:
    """The report is there, or it was lost with whoever was about to write it: either way the sub-thread is the same."""
    reply = manager.say(delegate(("clerk", "@say found")), thread, owner)
    [below] = sub_threads(manager, thread)
    before, rows, calls = texts(manager, below), manager.rows(), scripted.calls
    journal, report = next(key for key in rows if key[1].startswith("E#report.") and below in json.dumps(rows[key]))
    order = report.removeprefix("E#report.")
    said = next(sk.removeprefix("E#") for pk, sk in rows if pk == journal and sk.startswith("E#said."))
    item = {"id": order, "said": said, "seconds": 20, "deadline": int(time.time() * 1000) + 20_000}
    event = {"journal": journal.removeprefix("N#"), "order": item, "attempt": 1}
    assert invoke(manager, event) == {"id": order}
    key = {"pk": {"S": journal}, "sk": {"S": report}}
    manager.stack.client("dynamodb").delete_item(TableName=manager.stack.outputs["TableName"], Key=key)
    assert invoke(manager, event) == {"id": order}
    assert texts(manager, below) == before
    assert sub_threads(manager, thread) == [below]
    assert scripted.calls == calls
    assert (journal, report) in manager.rows()
    assert [r["text"] for r in results(reply)] == ["found"]


def invoke(application: Application, event: Any) -> Any:
    functions = application.stack.client("lambda")
    names = [f["FunctionName"] for f in functions.list_functions()["Functions"]]
    [name] = [name for name in names if "DelegateFunction" in name]
    answer = functions.invoke(FunctionName=name, Payload=json.dumps(event))
    return json.loads(answer["Payload"].read())


def test_a_sub_agent_delegates_through_the_same_machine(manager: Application, thread: str, owner: str) -> None:
    reply = manager.say(delegate(("deputy", delegate(("clerk", "@say deep"), then="@say half"))), thread, owner)
    [middle] = results(reply)
    assert (reply["text"], middle["text"]) == ("done", "half")
    [inner] = middle["subAgentToolResults"]
    assert (inner["toolName"], inner["result"]["text"]) == ("agent-clerk", "deep")
    assert inner["result"]["subAgentResourceId"] == f"{owner}-deputy-clerk"
    [below] = sub_threads(manager, thread)
    assert sub_threads(manager, below) == [inner["result"]["subAgentThreadId"]]


def test_a_deleted_thread_takes_its_delegations_along(manager: Application, thread: str, owner: str) -> None:
    manager.say(delegate(("clerk", "@say one"), ("deputy", delegate(("clerk", "@say two")))), thread, owner)
    below = sub_threads(manager, thread)
    deeper = [id for one in below for id in sub_threads(manager, one)]
    assert (len(below), len(deeper)) == (2, 1)
    assert manager.delete(thread, owner).status_code == 200
    eventually(
        lambda: not [key for key in manager.rows() if any(id in "".join(key) for id in (thread, *below, *deeper))]
    )
    left = json.dumps([row for key, row in manager.rows().items() if key[0].startswith("N#")])
    assert thread not in left


def test_eight_at_once_take_little_longer_than_one(manager: Application, owner: str) -> None:
    """Each model call takes 500 ms; the workers are warm."""

    def delegated(count: int) -> bool:
        reply = manager.say(delegate(*[("clerk", "@wait 500\n@say ok")] * count), new_id(), owner)
        return [r["text"] for r in results(reply) if isinstance(r, dict)] == ["ok"] * count

    def taken(count: int) -> float:
        began = time.perf_counter()
        assert delegated(count)
        return time.perf_counter() - began

    eventually(lambda: delegated(8), seconds=120)  # eight workers that start at once may take long
    rounds = [(taken(1), taken(8)) for _ in range(7)]
    one, eight = (statistics.median(times) for times in zip(*rounds, strict=True))
    assert eight < 1.5 * one, rounds
