"""Approvals over HTTP, in the requests that client-js sends (spec-http 2.2 and 3)."""

import json
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls
from tests.unit.http.house import SERVICE, House, user
from tests.unit.http.test_stream import Caller
from threadkeep import Agent, Memory, ToolContext, tool
from threadkeep.errors import ModelUnavailable

AGENT = "/api/agents/{agentId}/"
MEMORY = {"thread": "thr-1", "resource": "user-ada"}
ADA, EVE = user("user-ada"), user("user-eve")


@tool(id="delete-file", name="deleteFile", require_approval=True)
def delete_file(path: str, context: ToolContext) -> dict[str, Any]:
    """Delete a file."""
    return {"deleted": path, "tenant": context.request_context.get("tenant")}


def house(*answers: Any) -> House:
    agent = Agent(id="worker", model="fake/m", memory=Memory(), tools=[delete_file])
    other = Agent(id="other", model="fake/m", memory=Memory(), tools=[delete_file])
    return House(model=FakeModel(*answers), agents=[agent, other])  # type: ignore[arg-type]


def ask(h: House, **body: Any) -> dict[str, Any]:
    body = {"messages": "delete x", "memory": MEMORY} | body
    status, reply = h.call("POST", AGENT + "generate", path={"agentId": "worker"}, body=body)
    assert status == 200, reply
    return reply


def decide(
    h: House, run: str, decision: str = "approve", *, agent: str = "worker", caller: Any = SERVICE,
    query: dict[str, str] | None = None, **body: Any,
) -> tuple[int, Any]:  # fmt: skip
    body = {"runId": run, "toolCallId": "call-deleteFile-0"} | body
    path = f"{AGENT}{decision}-tool-call-generate"
    return h.call("POST", path, path={"agentId": agent}, query=query, body=body, caller=caller)


def listed(h: House, caller: Any = SERVICE, agent: str = "worker", **query: str) -> list[str]:
    status, reply = h.call(
        "GET", AGENT + "suspended-runs", path={"agentId": agent}, query=dict(query), caller=caller, headers={}
    )
    assert status == 200 and reply["total"] >= len(reply["runs"])
    return [run["runId"] for run in reply["runs"]]


def waiting(*answers: Any) -> tuple[House, dict[str, Any]]:
    h = house(calls(("deleteFile", {"path": "/x"})), *answers)
    return h, ask(h, requestContext={"tenant": "blue"})


def stored_call(h: House) -> dict[str, Any]:
    _, reply = h.call("GET", "/api/memory/threads/{threadId}/messages", path={"threadId": "thr-1"})
    return reply["messages"][1]["content"]["parts"][0]["toolInvocation"]


def test_generate_answers_with_what_it_waits_for() -> None:
    _, reply = waiting()
    assert (reply["finishReason"], reply["text"], reply["toolResults"]) == ("suspended", "", [])
    payload = reply["suspendPayload"]
    assert (payload["toolCallId"], payload["toolName"], payload["args"]) == (
        "call-deleteFile-0", "deleteFile", {"path": "/x"},
    )  # fmt: skip
    assert reply["toolCalls"][0]["payload"] == {k: payload[k] for k in ("toolCallId", "toolName", "args")}
    assert reply["resumeSchema"] == payload["resumeSchema"]
    schema = json.loads(reply["resumeSchema"])
    assert (schema["required"], sorted(schema["properties"])) == (["approved"], ["approved", "reason"])
    assert [m["role"] for m in reply["messages"]] == ["user", "assistant"]
    note = reply["messages"][1]["content"]["metadata"]["pendingToolApprovals"]["call-deleteFile-0"]
    assert (note["runId"], note["type"]) == (reply["runId"], "approval")
    shown = reply["response"]["uiMessages"][0]["parts"][0]
    assert (shown["state"], shown["approval"]) == ("approval-requested", {"id": "call-deleteFile-0"})


def test_an_approved_call_runs_and_the_rest_of_the_run_is_the_reply() -> None:
    h, asked = waiting("It is gone.")
    status, reply = decide(h, asked["runId"], requestContext={"more": 1})
    assert (status, reply["text"], reply["finishReason"], reply["runId"]) == (
        200, "It is gone.", "stop", asked["runId"],
    )  # fmt: skip
    assert reply["toolResults"][0]["payload"]["result"] == {"deleted": "/x", "tenant": "blue"}
    assert [step["text"] for step in reply["steps"]] == ["", "It is gone."]
    assert [m["role"] for m in reply["messages"]] == ["assistant"]
    assert "suspendPayload" not in reply
    assert [m["role"] for m in reply["response"]["messages"]] == ["assistant", "tool", "assistant"]
    assert stored_call(h)["state"] == "result"
    assert decide(h, asked["runId"])[1]["text"] == "It is gone."
    assert decide(h, asked["runId"], "decline")[0] == 409


def test_a_declined_call_does_not_run_and_the_model_reads_the_reason() -> None:
    h, asked = waiting("Then not.")
    status, reply = decide(h, asked["runId"], "decline", reason="too dangerous")
    assert (status, reply["text"]) == (200, "Then not.")
    assert "too dangerous" in str(h.model.requests[-1].messages)
    denial = {"id": "call-deleteFile-0", "approved": False, "reason": "too dangerous"}
    assert (stored_call(h)["state"], stored_call(h)["approval"]) == ("output-denied", denial)
    assert reply["toolResults"][0]["payload"]["isError"] is True


def test_require_tool_approval_asks_over_generate_too() -> None:
    h = house(calls(("deleteFile", {"path": "/x"})))
    assert ask(h, requireToolApproval=True)["finishReason"] == "suspended"


def test_a_model_that_fails_after_the_decision_is_asked_again_by_a_repeat() -> None:
    h, asked = waiting(ModelUnavailable("down"), "It is gone.")
    assert decide(h, asked["runId"])[0] == 503
    assert stored_call(h)["state"] == "result"
    assert decide(h, asked["runId"])[1]["text"] == "It is gone."


def test_whose_run_it_is() -> None:
    h, asked = waiting()
    for decision in ("approve", "decline"):
        status, reply = decide(h, asked["runId"], decision, caller=EVE)
        assert (status, "different resource" in reply["error"]) == (403, True)
    assert decide(h, "no-such-run")[0] == 404
    assert decide(h, asked["runId"], agent="other")[0] == decide(h, asked["runId"], agent="nobody")[0] == 404
    assert decide(h, asked["runId"], toolCallId="no-such-call")[0] == 404
    assert stored_call(h)["state"] == "approval-requested"
    assert decide(h, asked["runId"], caller=ADA)[0] == 200


FOREIGN = {"error": "Access denied: the run belongs to a different resource"}


@pytest.mark.parametrize("decision", ["approve", "decline"])
def test_a_service_that_names_another_owner_is_refused(decision: str) -> None:
    h, asked = waiting("Done.")
    run = asked["runId"]
    assert decide(h, run, decision, resourceId="user-eve") == (403, FOREIGN)
    assert decide(h, run, decision, query={"resourceId": "user-eve"}) == (403, FOREIGN)
    assert stored_call(h)["state"] == "approval-requested"
    assert decide(h, run, decision, resourceId="user-ada", query={"resourceId": "undefined"})[0] == 200
    assert decide(h, run, decision, query={"resourceId": "user-ada"})[0] == 200
    assert decide(h, run, decision, resourceId="user-eve") == (403, FOREIGN)


def test_a_token_stays_its_own_owner_whatever_the_request_says() -> None:
    h, asked = waiting("Done.")
    names_ada = {"resourceId": "user-ada", "query": {"resourceId": "user-ada"}}
    names_eve = {"resourceId": "user-eve", "query": {"resourceId": "user-eve"}}
    assert decide(h, asked["runId"], caller=EVE, **names_ada) == (403, FOREIGN)
    assert decide(h, asked["runId"], caller=ADA, **names_eve)[0] == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"runId": 1}, "runId"),
        ({"resourceId": "a/b"}, "resourceId"),
        ({"resourceId": 1}, "resourceId"),
        ({"runId": "a/b"}, "runId"),
        ({"toolCallId": ""}, "toolCallId"),
        ({"reason": 1}, "reason"),
        ({"requestContext": []}, "requestContext"),
    ],
)
def test_bad_decisions_name_their_field(body: dict[str, Any], field: str) -> None:
    h = house()
    status, reply = decide(h, **{"run": "r"} | {"decision": "decline"} | body)
    assert (status, reply["issues"][0]["field"]) == (400, field)


def test_a_deleted_thread_has_no_run_to_decide() -> None:
    h, asked = waiting()
    assert h.call("DELETE", "/api/memory/threads/{threadId}", path={"threadId": "thr-1"})[0] == 200
    assert decide(h, asked["runId"])[0] == 404
    assert listed(h) == []


def test_no_client_sets_what_only_the_server_may() -> None:
    h, asked = waiting()
    status, reply = decide(h, asked["runId"], requestContext={"mastra__threadId": "other", "tenant": "red"})
    assert status == 200 and h.threads() == ["thr-1"]
    assert reply["toolResults"][0]["payload"]["result"]["tenant"] == "red"


def test_suspended_runs_are_listed_to_those_whose_they_are() -> None:
    h, asked = waiting()
    run = asked["runId"]
    assert listed(h) == listed(h, threadId="thr-1") == listed(h, resourceId="user-ada") == [run]
    assert listed(h, ADA) == listed(h, ADA, resourceId="undefined") == listed(h, ADA, resourceId="user-eve") == [run]
    assert listed(h, EVE) == listed(h, EVE, threadId="thr-1") == listed(h, EVE, resourceId="user-ada") == []
    assert listed(h, agent="other") == listed(h, threadId="thr-2") == listed(h, fromDate="2999-01-01") == []
    assert listed(h, toDate="2999-01-01", fromDate="2001-01-01") == listed(h, perPage="1") == [run]
    assert listed(h, page="1", perPage="1") == []
    _, reply = h.call("GET", AGENT + "suspended-runs", path={"agentId": "worker"}, headers={})
    (shown,) = reply["runs"]
    assert shown.pop("suspendedAt").endswith("Z")
    assert shown == {
        "runId": run, "status": "suspended", "threadId": "thr-1", "resourceId": "user-ada",
        "toolCalls": [{"toolCallId": "call-deleteFile-0", "toolName": "deleteFile", "args": {"path": "/x"},
                       "requiresApproval": True}],
    }  # fmt: skip
    decide(h, run)
    assert listed(h) == listed(h, ADA) == []


def test_the_list_of_an_unknown_agent_is_404() -> None:
    assert house().call("GET", AGENT + "suspended-runs", path={"agentId": "nobody"}, headers={})[0] == 404


# --- streams ----------------------------------------------------------------------------------------------------

TALK = {"messages": "delete x", "memory": MEMORY}
APPROVE, DECLINE = "/api/agents/talker/approve-tool-call", "/api/agents/talker/decline-tool-call"


def caller(*answers: Any) -> Caller:
    return Caller(FakeModel(calls(("deleteFile", {"path": "/x"})), *answers), agent={"tools": [delete_file]})


def types(chunks: list[Any]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


async def told(c: Caller, body: Any, path: str = "/api/agents/talker/stream", who: Any = SERVICE) -> list[Any]:
    c.sent = []
    await c.post(body, path=path, caller=who)
    return c.chunks if c.status == 200 else []


async def asked(c: Caller) -> dict[str, str]:
    chunks = await told(c, TALK)
    (wanted,) = [chunk for chunk in chunks if chunk["type"] == "tool-call-approval"]
    return {"runId": wanted["runId"], "toolCallId": wanted["payload"]["toolCallId"]}


async def test_a_stream_ends_with_what_it_waits_for() -> None:
    chunks = await told(caller(), TALK)
    assert types(chunks)[:2] == ["start", "step-start"] and types(chunks)[-2:] == ["tool-call", "tool-call-approval"]
    assert "step-finish" not in types(chunks)
    payload = chunks[-1]["payload"]
    assert (payload["toolName"], payload["args"]) == ("deleteFile", {"path": "/x"})
    assert json.loads(payload["resumeSchema"])["required"] == ["approved"]


async def test_an_approved_call_streams_call_result_and_the_rest() -> None:
    c = caller("It is gone.")
    pending = await asked(c)
    for _ in range(2):  # a repeat is told the same
        chunks = await told(c, pending, APPROVE)
        assert types(chunks) == [
            "tool-call", "tool-result", "step-finish",
            "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish",
        ]  # fmt: skip
        assert {chunk["runId"] for chunk in chunks} == {pending["runId"]}
        assert chunks[1]["payload"]["result"]["deleted"] == "/x"
        assert chunks[2]["payload"]["stepResult"] == {"reason": "tool-calls", "isContinued": True, "warnings": []}
        assert chunks[-1]["payload"]["stepResult"]["reason"] == "stop"
        assert chunks[2]["payload"]["messageId"] == chunks[3]["payload"]["messageId"]


async def test_a_declined_call_streams_its_refusal() -> None:
    c = caller("Then not.")
    pending = await asked(c)
    chunks = await told(c, pending | {"reason": "no"}, DECLINE)
    assert types(chunks)[:3] == ["tool-call", "tool-output-denied", "step-finish"]
    denial = {"id": pending["toolCallId"], "approved": False, "reason": "no"}
    assert chunks[1]["payload"]["approval"] == denial


async def test_what_refuses_a_streamed_decision_is_an_ordinary_reply() -> None:
    c = caller()
    pending = await asked(c)
    for body, who, status in (
        (pending | {"runId": "none"}, SERVICE, 404),
        (pending | {"toolCallId": "none"}, SERVICE, 404),
        (pending, EVE, 403),
        ({"runId": "r"}, SERVICE, 400),
    ):
        await told(c, body, APPROVE, who)
        assert (c.status, c.headers["content-type"]) == (status, "application/json")


async def test_a_model_that_fails_after_the_result_is_told_as_a_chunk() -> None:
    c = caller(ModelUnavailable("down"), "It is gone.")
    pending = await asked(c)
    chunks = await told(c, pending, APPROVE)
    assert types(chunks)[:2] == ["tool-call", "tool-result"] and types(chunks)[-3:] == [
        "error",
        "step-finish",
        "finish",
    ]
    chunks = await told(c, pending, APPROVE)
    assert chunks[-1]["payload"]["stepResult"]["reason"] == "stop"


@pytest.mark.parametrize("path", [APPROVE, DECLINE])
async def test_a_streamed_decision_on_the_run_of_another_owner_is_refused(path: str) -> None:
    c = caller("Done.")
    pending = await asked(c)
    await told(c, pending | {"resourceId": "user-eve"}, path)
    assert (c.status, json.loads(c.text)) == (403, FOREIGN)
    assert (await told(c, pending | {"resourceId": "user-ada"}, path))[-1]["type"] == "finish"


# --- resumed by data --------------------------------------------------------------------------------------------

RESUME = "/api/agents/talker/resume-stream"


@pytest.mark.parametrize("path", [RESUME, RESUME + "-until-idle"])
async def test_a_run_that_is_resumed_streams_as_an_approved_one(path: str) -> None:
    c = caller("It is gone.")
    run = (await asked(c))["runId"]
    for _ in range(2):  # a repeat is told the same
        chunks = await told(c, {"runId": run, "resumeData": {"approved": True}, "maxSteps": 1}, path)
        assert types(chunks)[:3] == ["tool-call", "tool-result", "step-finish"]
        assert chunks[-1]["payload"]["stepResult"]["reason"] == "stop"
        assert {chunk["runId"] for chunk in chunks} == {run}
    await told(c, {"runId": run, "resumeData": {"approved": False}}, path)
    assert c.status == 409


async def test_a_run_that_is_resumed_with_a_refusal_tells_the_model_why() -> None:
    c = caller("Then not.")
    pending = await asked(c)
    chunks = await told(c, pending | {"resumeData": {"approved": False, "reason": "too dear"}}, RESUME)
    assert types(chunks)[:3] == ["tool-call", "tool-output-denied", "step-finish"]
    assert "too dear" in str(c.model.requests[-1].messages)


async def test_of_several_calls_that_wait_one_must_be_named() -> None:
    asks = calls(("deleteFile", {"path": "/x"}), ("deleteFile", {"path": "/y"}))
    c = Caller(FakeModel(asks, "Both."), agent={"tools": [delete_file]})
    chunks = [chunk for chunk in await told(c, TALK) if chunk["type"] == "tool-call-approval"]
    first, second = (chunk["payload"]["toolCallId"] for chunk in chunks)
    body = {"runId": chunks[0]["runId"], "resumeData": {"approved": True}}
    await told(c, body, RESUME)
    (issue,) = json.loads(c.text)["issues"]
    assert (c.status, issue["field"]) == (400, "toolCallId")
    assert first in issue["message"] and second in issue["message"]
    assert types(await told(c, body | {"toolCallId": second}, RESUME))[:2] == ["tool-call", "tool-result"]
    chunks = await told(c, body, RESUME)  # the other one is the only one now
    assert (chunks[0]["payload"]["toolCallId"], chunks[-1]["type"]) == (first, "finish")
    await told(c, body, RESUME)
    assert c.status == 400


@pytest.mark.parametrize("path", [RESUME, RESUME + "-until-idle"])
async def test_nobody_resumes_the_run_of_another_owner(path: str) -> None:
    c = caller("It is gone.")
    body = await asked(c) | {"resumeData": {"approved": True}}
    for foreign in ({"resourceId": "user-eve"}, {"memory": {"thread": "thr-1", "resource": "user-eve"}}):
        await told(c, body | foreign, path)
        assert (c.status, json.loads(c.text)) == (403, FOREIGN)
    assert await told(c, body | {"memory": {"resource": "user-ada"}}, path, EVE) == [] and c.status == 403
    assert (await told(c, body | {"memory": MEMORY}, path))[-1]["type"] == "finish"
    assert (await told(c, body | {"memory": {"resource": "user-eve"}}, path, ADA))[-1]["type"] == "finish"


async def test_what_refuses_to_resume_is_an_ordinary_reply() -> None:
    c = caller()
    pending = await asked(c)
    yes = {"resumeData": {"approved": True}}
    for body, who, status, field in (
        (pending, SERVICE, 400, "resumeData"),
        (pending | {"resumeData": {}}, SERVICE, 400, "resumeData.approved"),
        (pending | {"resumeData": {"approved": "yes"}}, SERVICE, 400, "resumeData.approved"),
        (pending | yes | {"toolCallId": ""}, SERVICE, 400, "toolCallId"),
        (pending | yes | {"runId": "none"}, SERVICE, 404, None),
        (pending | yes | {"toolCallId": "none"}, SERVICE, 404, None),
        (pending | yes, EVE, 403, None),
    ):
        await told(c, body, RESUME, who)
        assert (c.status, c.headers["content-type"]) == (status, "application/json")
        assert [i["field"] for i in json.loads(c.text).get("issues", ())] == ([field] if field else [])
