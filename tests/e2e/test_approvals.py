"""Approvals on the deployed application: suspended in one process, decided in others (MS-14, H12, H21)."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from local.stack import Stack
from tests.conftest import client_of
from tests.e2e.application import THREADS, Application, as_user, eventually, kill, new_id
from tests.e2e.racers import race
from tests.e2e.test_streams import chunks
from tests.oidc import Issuer
from tests.scripted.server import ScriptedModel

AGENT = "/api/agents/careful"


@pytest.fixture
def application(house: Stack) -> Iterator[Application]:
    with client_of(house) as http:
        yield Application(house, http, "careful")


def ask(application: Application, thread: str, owner: str, rest: str = "@dump", **body: Any) -> dict[str, Any]:
    """A run that waits for approval to count an effect on `thread`; what a decision on it must name."""
    reply = application.say(f'@call count {{"what":"{thread}"}}\n{rest}', thread, owner, **body)
    assert reply["finishReason"] == "suspended"
    return {"runId": reply["runId"], "toolCallId": reply["suspendPayload"]["toolCallId"]}


def decide(http: httpx.Client, pending: dict[str, Any], decision: str = "approve", **body: Any) -> httpx.Response:
    return http.post(f"{AGENT}/{decision}-tool-call-generate", json=pending | body)


def streamed(http: httpx.Client, pending: dict[str, Any], decision: str = "approve", **body: Any) -> list[Any]:
    """The chunks of a streamed decision; it is taken in the process of the front door."""
    with http.stream("POST", f"{AGENT}/{decision}-tool-call", json=pending | body) as response:
        assert response.status_code == 200, response.read()
        return list(chunks(response.iter_lines()))


def effects(application: Application, thread: str) -> int:
    row = application.stack.client("dynamodb").get_item(
        TableName=application.stack.outputs["TableName"],
        Key={"pk": {"S": f"EFFECTS#{thread}"}, "sk": {"S": "@"}},
        ConsistentRead=True,
    )
    return int(row.get("Item", {}).get("effects", {}).get("N", "0"))


def listed(http: httpx.Client, **query: str) -> list[str]:
    answer = http.get(f"{AGENT}/suspended-runs", params=query)
    assert answer.status_code == 200, answer.text
    return [run["runId"] for run in answer.json()["runs"]]


def invocations(application: Application, thread: str) -> list[Any]:
    stored = application.http.get(f"{THREADS}/{thread}/messages?perPage=false").json()["messages"]
    return [part["toolInvocation"] for m in stored for part in m["content"]["parts"] if part["type"][:5] == "tool-"]


def test_an_approved_call_has_its_effect_and_the_model_goes_on(
    application: Application, thread: str, owner: str
) -> None:
    pending = ask(application, thread, owner, maxSteps=2, system="Stay polite.")
    assert (effects(application, thread), listed(application.http, threadId=thread)) == (0, [pending["runId"]])
    reply = decide(application.http, pending).json()
    assert (reply["finishReason"], reply["runId"], effects(application, thread)) == ("stop", pending["runId"], 1)
    prompt = json.loads(reply["text"])
    assert prompt["roles"] == ["system", "user", "assistant", "tool"]
    assert "Stay polite." in prompt["messages"][0]["content"]
    assert json.loads(prompt["messages"][-1]["content"]) == {"counted": thread, "for": owner}
    assert [call["state"] for call in invocations(application, thread)] == ["result"]
    assert listed(application.http, threadId=thread) == []


def test_a_stream_suspends_and_another_process_than_its_own_approves(
    application: Application, thread: str, owner: str
) -> None:
    given = {
        "messages": f'@call count {{"what":"{thread}"}}\n@say counted',
        "memory": {"thread": thread, "resource": owner},
    }
    with application.http.stream("POST", f"{AGENT}/stream", json=given) as response:
        seen = list(chunks(response.iter_lines()))
    assert [c["type"] for c in seen][-2:] == ["tool-call", "tool-call-approval"]
    pending = {"runId": seen[-1]["runId"], "toolCallId": seen[-1]["payload"]["toolCallId"]}
    assert decide(application.http, pending).json()["text"] == "counted"
    retold = streamed(application.http, pending)
    assert [c["type"] for c in retold][:3] == ["tool-call", "tool-result", "step-finish"]
    assert retold[-1]["payload"]["output"]["text"] == "counted"
    assert effects(application, thread) == 1


def test_a_declined_call_has_no_effect_and_the_model_reads_why(
    application: Application, thread: str, owner: str
) -> None:
    pending = ask(application, thread, owner)
    seen = streamed(application.http, pending, "decline", reason="too dangerous")
    assert [c["type"] for c in seen][:2] == ["tool-call", "tool-output-denied"]
    text = "".join(c["payload"]["text"] for c in seen if c["type"] == "text-delta")
    assert json.loads(text)["messages"][-1]["content"] == "too dangerous"
    (call,) = invocations(application, thread)
    assert (call["state"], call["approval"]["reason"], effects(application, thread)) == (
        "output-denied", "too dangerous", 0,
    )  # fmt: skip
    assert decide(application.http, pending).status_code == 409
    assert effects(application, thread) == 0


def test_h21_racing_approvals_of_many_processes_have_one_effect(
    application: Application, thread: str, owner: str, aside: Callable[..., Future[Any]]
) -> None:
    pending = ask(application, thread, owner, "@wait 200\n@say counted once")
    beside = [aside(streamed, application.http, pending) for _ in range(2)]
    answers = race(application.http, [[(f"{AGENT}/approve-tool-call-generate", pending)] for _ in range(4)])
    assert [a.status for plan in answers for a in plan] == [200] * 4
    assert {a.body["text"] for plan in answers for a in plan} == {"counted once"}
    assert {one.result(60)[-1]["payload"]["output"]["text"] for one in beside} == {"counted once"}
    assert effects(application, thread) == 1
    assert [role for role, _ in application.texts(thread)] == ["user", "assistant", "assistant"]


def test_h21_an_approval_that_races_a_refusal_is_decided_once(
    application: Application, thread: str, owner: str
) -> None:
    pending = ask(application, thread, owner, "@say done")
    plans = [[(f"{AGENT}/{decision}-tool-call-generate", pending)] for decision in ("approve", "decline") * 2]
    statuses = [a.status for plan in race(application.http, plans) for a in plan]
    assert sorted(statuses) == [200, 200, 409, 409]
    approved = statuses[0] == 200
    assert effects(application, thread) == approved
    assert [call["state"] for call in invocations(application, thread)] == ["result" if approved else "output-denied"]


def test_a_suspended_run_outlives_the_process_that_suspended_it(
    application: Application, thread: str, owner: str
) -> None:
    pending = ask(application, thread, owner, "@say still here")
    kill(application, "GenerateFunction")  # the emulator may hand it one more request, which is then lost
    answer = eventually(lambda: (a := decide(application.http, pending)).status_code == 200 and a)
    assert answer.json()["text"] == "still here"
    assert effects(application, thread) == 1


def test_h21_a_process_that_dies_after_the_tool_ran_is_followed_without_the_tool(
    application: Application, thread: str, owner: str, hold: str, scripted: ScriptedModel,
    aside: Callable[..., Future[Any]],
) -> None:  # fmt: skip
    """The dead process still holds the rest of the run until its deadline; then a repeat takes it up."""
    pending = ask(application, thread, owner, f"@hold {hold}\n@say taken up")
    dying = aside(decide, application.http, pending)
    eventually(lambda: hold in scripted.held)
    assert [call["state"] for call in invocations(application, thread)] == ["result"]
    kill(application, "GenerateFunction")
    assert dying.result(60).status_code >= 500
    scripted.release(hold)
    answer = eventually(lambda: (a := decide(application.http, pending)).status_code == 200 and a, 90)
    assert (answer.json()["text"], effects(application, thread)) == ("taken up", 1)


def test_h01_a_run_is_decided_and_seen_by_its_owner_alone(
    application: Application, thread: str, owner: str, issuer: Issuer
) -> None:
    pending = ask(application, thread, owner, "@say mine")
    with as_user(application.stack, issuer, new_id("eve")) as eve, as_user(application.stack, issuer, owner) as own:
        for decision in ("approve", "decline"):
            assert decide(eve, pending, decision).status_code == 403
            assert eve.post(f"{AGENT}/{decision}-tool-call", json=pending).status_code == 403
        assert (listed(eve), listed(eve, threadId=thread), listed(eve, resourceId=owner)) == ([], [], [])
        assert listed(own) == [pending["runId"]]
        assert [call["state"] for call in invocations(application, thread)] == ["approval-requested"]
        assert decide(own, pending).json()["text"] == "mine"
        assert listed(own) == []
    assert effects(application, thread) == 1


def test_what_does_not_exist_cannot_be_decided(application: Application, thread: str, owner: str) -> None:
    pending = ask(application, thread, owner)
    for wrong in (pending | {"runId": new_id("run")}, pending | {"toolCallId": "no-such-call"}):
        assert decide(application.http, wrong).status_code == 404
        assert application.http.post(f"{AGENT}/approve-tool-call", json=wrong).status_code == 404
    other = application.http.post("/api/agents/template-agent/approve-tool-call-generate", json=pending)
    assert other.status_code == 404
    assert effects(application, thread) == 0


def test_th14_a_run_of_a_deleted_thread_is_gone(application: Application, thread: str, owner: str) -> None:
    pending = ask(application, thread, owner)
    assert application.delete(thread, owner).status_code == 200
    assert decide(application.http, pending).status_code == 404
    assert (listed(application.http, resourceId=owner), effects(application, thread)) == ([], 0)


def test_all_runs_of_an_agent_are_listed_to_a_service(application: Application, thread: str, owner: str) -> None:
    pending = ask(application, thread, owner)
    eventually(lambda: pending["runId"] in listed(application.http))
    decide(application.http, pending)
    eventually(lambda: pending["runId"] not in listed(application.http))
