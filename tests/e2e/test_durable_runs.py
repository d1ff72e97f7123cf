"""Durable runs on the deployed stack: what is driven by Step Functions survives whoever dies."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from local.stack import Stack
from tests.conftest import client_of
from tests.e2e.application import Application, as_user, eventually, kill, new_id
from tests.e2e.test_delegation_flow import delegate, sub_threads, texts
from tests.oidc import Issuer
from tests.scripted import directives
from tests.scripted.directives import Answer
from tests.scripted.server import ScriptedModel

RUNS = "/api/agents/manager/runs"


@pytest.fixture
def manager(house: Stack) -> Iterator[Application]:
    with client_of(house) as http:
        yield Application(house, http, "manager")


def begin(manager: Application, text: str, thread: str, owner: str, **body: Any) -> str:
    asked = {"messages": text, "memory": {"thread": thread, "resource": owner}} | body
    answer = manager.http.post(RUNS, json=asked)
    assert answer.status_code == 202, answer.text
    assert answer.json().keys() == {"runId"}
    return answer.json()["runId"]


def look(manager: Application, run_id: str) -> Any:
    answer = manager.http.get(f"{RUNS}/{run_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def over(manager: Application, run_id: str, seconds: float = 60) -> Any:
    """The run once it is over."""
    return eventually(lambda: run if (run := look(manager, run_id))["state"] != "running" else None, seconds)


def execution(manager: Application, run_id: str) -> str:
    machines = manager.stack.client("stepfunctions")
    [machine] = [m for m in machines.list_state_machines()["stateMachines"] if m["name"].startswith("supervisor-")]
    return f"{machine['stateMachineArn'].replace(':stateMachine:', ':execution:')}:{run_id}"


def asked_with(scripted: ScriptedModel, text: str) -> int:
    """How often a model was asked with this text in its prompt."""
    return sum(text in json.dumps(request["messages"]) for request in scripted.requests)


def test_a_run_is_accepted_at_once_and_polled_to_its_end(manager: Application, thread: str, owner: str) -> None:
    run_id = begin(manager, delegate(("clerk", "@say one"), ("writer", "@say two")), thread, owner)
    run = over(manager, run_id)
    assert (run["state"], run["result"]["text"], run["result"]["finishReason"]) == ("succeeded", "done", "stop")
    assert [(d["key"], d["state"], d["text"]) for d in run["delegations"]] == [
        ("clerk", "succeeded", "one"), ("writer", "succeeded", "two"),
    ]  # fmt: skip
    assert sorted(d["subAgentThreadId"] for d in run["delegations"]) == sub_threads(manager, thread)
    assert [role for role, _ in texts(manager, thread)] == ["user", "assistant"]
    assert len(run["steps"]) == 2
    listed = manager.http.get(RUNS, params={"threadId": thread, "resourceId": owner}).json()["runs"]
    assert [r["runId"] for r in listed] == [run_id]


def test_the_same_key_is_the_same_run(manager: Application, thread: str, owner: str) -> None:
    body, key = {"messages": "@say hi", "memory": {"thread": thread, "resource": owner}}, {"Idempotency-Key": new_id()}
    first, second = (manager.http.post(RUNS, json=body, headers=key) for _ in range(2))
    assert (first.status_code, first.json()) == (second.status_code, second.json())
    other = manager.http.post(RUNS, json=body | {"messages": "@say ho"}, headers=key)
    assert other.status_code == 422
    over(manager, first.json()["runId"])
    assert len(texts(manager, thread)) == 2


def test_killed_in_a_step_it_goes_on_where_it_was(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str, hold: str
) -> None:
    look_up = '@call agent-clerk {"prompt": "@say first"}'
    run_id = begin(manager, f"{look_up}\n@hold {hold}\n@say done\n{thread}", thread, owner)
    eventually(lambda: hold in scripted.held)
    kill(manager, "SuperviseFunction")
    scripted.release(hold)
    run = over(manager, run_id)
    assert (run["state"], run["result"]["text"]) == ("succeeded", "done")
    assert asked_with(scripted, thread) == 4, "two steps, the sub-agent, which sees what was said, and a step again"
    assert [role for role, _ in texts(manager, thread)] == ["user", "assistant"]
    assert len(sub_threads(manager, thread)) == 1


def test_killed_between_two_steps_it_goes_on_with_the_next(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str, hold: str
) -> None:
    run_id = begin(manager, delegate(("clerk", f"@hold {hold}\n@say found")) + f"\n{thread}", thread, owner)
    eventually(lambda: hold in scripted.held)  # the sub-agent works, the supervisor's function waits for its next task
    before = look(manager, run_id)
    assert (before["state"], before["delegations"][0]["state"]) == ("running", "running")
    kill(manager, "SuperviseFunction")
    scripted.release(hold)
    run = over(manager, run_id)
    assert (run["state"], run["result"]["text"], run["delegations"][0]["text"]) == ("succeeded", "done", "found")
    assert [role for role, _ in texts(manager, thread)] == ["user", "assistant"]


def test_a_sub_agent_that_dies_is_run_again_and_stored_once(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str, hold: str
) -> None:
    run_id = begin(manager, delegate(("clerk", f"@hold {hold}\n@say found")), thread, owner)
    eventually(lambda: hold in scripted.held)
    kill(manager, "DelegateFunction")
    scripted.release(hold)
    assert over(manager, run_id)["state"] == "succeeded"
    [below] = sub_threads(manager, thread)
    assert [role for role, _ in texts(manager, below)] == ["user", "assistant"]


@pytest.mark.parametrize("where", ["supervisor", "sub-agent"])
def test_nothing_is_stored_once_a_run_is_cancelled(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str, hold: str, where: str
) -> None:
    held = f"@hold {hold}\n@say late"
    said = delegate(("clerk", held)) if where == "sub-agent" else delegate(("clerk", "@say early"), then=held)
    run_id = begin(manager, said, thread, owner)
    eventually(lambda: hold in scripted.held)
    stored = {below: texts(manager, below) for below in sub_threads(manager, thread)}
    cancelled = manager.http.post(f"{RUNS}/{run_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    scripted.release(hold)
    machines, named = manager.stack.client("stepfunctions"), {"executionArn": execution(manager, run_id)}
    eventually(lambda: machines.describe_execution(**named)["status"] != "RUNNING")
    again = manager.http.post(f"{RUNS}/{run_id}/cancel")
    assert (again.status_code, again.json()["state"]) == (200, "cancelled")
    eventually(lambda: hold not in scripted.held)
    manager.quiet()
    assert look(manager, run_id)["state"] == "cancelled"
    assert texts(manager, thread) == []
    assert {below: texts(manager, below) for below in sub_threads(manager, thread)} == stored


def test_a_run_whose_model_was_down_goes_on_when_it_is_redriven(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = directives.answer

    def down(body: Any) -> Answer:
        is_second = thread in json.dumps(body["messages"]) and body["messages"][-1]["role"] == "tool"
        return Answer("the model is down", status=503) if is_second else usual(body)

    monkeypatch.setattr(directives, "answer", down)
    run_id = begin(manager, delegate(("clerk", "@say found")) + f"\n{thread}", thread, owner)
    run = over(manager, run_id, seconds=120)
    assert (run["state"], run["error"]["name"]) == ("failed", "ModelUnavailable")
    assert "down" in run["error"]["message"]
    assert texts(manager, thread) == []
    [below] = sub_threads(manager, thread)
    before = asked_with(scripted, thread)
    monkeypatch.setattr(directives, "answer", usual)
    machines = manager.stack.client("stepfunctions")
    eventually(lambda: machines.describe_execution(executionArn=execution(manager, run_id))["status"] == "FAILED")
    machines.redrive_execution(executionArn=execution(manager, run_id))
    run = eventually(lambda: found if (found := look(manager, run_id))["state"] == "succeeded" else None)
    assert (run["result"]["text"], "error" in run) == ("done", False)
    assert asked_with(scripted, thread) == before + 1, "only the step that failed was asked again"
    assert sub_threads(manager, thread) == [below]
    assert [role for role, _ in texts(manager, thread)] == ["user", "assistant"]


def test_a_model_that_refuses_fails_the_run_at_once(manager: Application, thread: str, owner: str) -> None:
    run = over(manager, begin(manager, "@fail 400 not like this", thread, owner))
    assert (run["state"], run["error"]["name"]) == ("failed", "ModelRejected")
    assert "not like this" in run["error"]["message"]


def test_h17_runs_of_two_users_have_nothing_in_common(
    house: Stack, manager: Application, issuer: Issuer, aside: Callable[..., Future[Any]]
) -> None:
    owners = [new_id("ana"), new_id("bo")]
    note = '@call updateWorkingMemory {"memory": "# Project\\n- Findings: of %s"}\n@say noted'
    with as_user(house, issuer, owners[0]) as ana, as_user(house, issuer, owners[1]) as bo:
        users = [Application(house, http, "manager") for http in (ana, bo)]
        for asks in (lambda owner: note % owner, lambda owner: "@dump"):
            threads = [new_id(), new_id()]
            started = [
                aside(begin, user, delegate(("writer", asks(owner))), thread, "somebody-else")
                for user, owner, thread in zip(users, owners, threads, strict=True)
            ]
            runs = [over(user, run.result(30)) for user, run in zip(users, started, strict=True)]
            assert [run["resourceId"] for run in runs] == owners
        for run, owner, other in zip(runs, owners, owners[::-1], strict=True):
            below = texts(manager, run["delegations"][0]["subAgentThreadId"])[-1][1]
            assert f"of {owner}" in below
            assert other not in below
        for path in (runs[0]["runId"], f"{runs[0]['runId']}/cancel"):
            denied = bo.request("POST" if path.endswith("cancel") else "GET", f"{RUNS}/{path}")
            assert denied.status_code == 403
            assert denied.json() == {"error": "Access denied: the run belongs to a different resource"}


def test_results_of_megabytes_do_not_travel_through_the_machine(manager: Application, thread: str, owner: str) -> None:
    """A request to the model cannot ask for so much, but a sub-agent that repeats what it is sent says it."""
    said = "@say " + "x" * 1_200_000
    run_id = begin(manager, delegate(*[("clerk", said)] * 2), thread, owner)
    run = over(manager, run_id, 120)
    assert run["state"] == "succeeded"
    assert [len(d["text"]) for d in run["delegations"]] == [500] * 2
    machines = manager.stack.client("stepfunctions")
    pages = machines.get_paginator("get_execution_history").paginate(executionArn=execution(manager, run_id))
    longest = max(len(json.dumps(event, default=str)) for page in pages for event in page["events"])
    assert longest < 10_000


def test_a_deleted_threads_runs_are_gone(manager: Application, thread: str, owner: str) -> None:
    run_id = begin(manager, delegate(("clerk", "@say one")), thread, owner)
    over(manager, run_id)
    assert manager.delete(thread, owner).status_code == 200
    eventually(lambda: not [key for key in manager.rows() if run_id in key[0]])
    assert manager.http.get(f"{RUNS}/{run_id}").status_code == 404


def test_a_run_whose_execution_was_stopped_from_outside_is_not_running_for_ever(
    manager: Application, scripted: ScriptedModel, thread: str, owner: str, hold: str
) -> None:
    run_id = begin(manager, f"@hold {hold}\n@say done", thread, owner)
    eventually(lambda: hold in scripted.held)
    table, key = manager.stack.outputs["TableName"], {"pk": {"S": f"N#{run_id}"}, "sk": {"S": "R"}}
    manager.stack.client("dynamodb").update_item(
        TableName=table, Key=key, UpdateExpression="SET updatedAt = updatedAt - :age",
        ExpressionAttributeValues={":age": {"N": "61000"}},
    )  # fmt: skip
    assert look(manager, run_id)["state"] == "running", "old, but its execution runs"
    manager.stack.client("stepfunctions").stop_execution(executionArn=execution(manager, run_id))
    run = over(manager, run_id)
    assert (run["state"], run["error"]["name"]) == ("failed", "ExecutionEnded")
    scripted.release(hold)
