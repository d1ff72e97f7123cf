"""Agents and tools as clients show them, and the bad input of generate that never reaches a model."""

import base64
import json
from typing import Any

import pytest

from tests.unit.http.house import House

GENERATE = "/api/agents/{agentId}/generate"
LISTED = {"id", "hasDraft"}
FIELDS = {
    *(
        "name",
        "description",
        "instructions",
        "agents",
        "tools",
        "workflows",
        "skills",
        "workspaceTools",
        "browserTools",
    ),
    *("hasBrowser", "inputProcessors", "outputProcessors", "provider", "modelId", "modelVersion", "supportsMemory"),
    *("defaultOptions", "defaultGenerateOptionsLegacy", "defaultStreamOptionsLegacy", "source"),
}


def test_the_list_is_keyed_by_id_and_has_every_field_of_the_wire(house: House) -> None:
    status, agents = house.call("GET", "/api/agents", query={"requestContext": "e30="})
    assert status == 200
    assert list(agents) == ["assistant", "plain", "picky"]
    assert set(agents["assistant"]) == FIELDS | LISTED
    assistant = agents["assistant"]
    assert (assistant["name"], assistant["instructions"], assistant["supportsMemory"]) == (
        "Assistant",
        "Be kind.",
        True,
    )
    assert (assistant["provider"], assistant["modelId"], assistant["hasDraft"]) == ("fake", "m", False)
    assert agents["plain"]["supportsMemory"] is False


def test_one_agent_has_neither_id_nor_draft(house: House) -> None:
    assert set(house.call("GET", "/api/agents/{agentId}", path={"agentId": "plain"})[1]) == FIELDS


def test_schemas_are_text_and_partial_leaves_them_out(house: House) -> None:
    tool = house.call("GET", "/api/agents")[1]["plain"]["tools"]["current_time"]
    assert json.loads(tool["inputSchema"])["json"]["required"] == ["zone"]
    assert json.loads(tool["outputSchema"])["json"] == {"type": "string"}
    bare = house.call("GET", "/api/agents", query={"partial": "true"})[1]["plain"]["tools"]["current_time"]
    assert bare == {"id": "get-time", "description": "Tell the time", "requireApproval": True}
    path = {"agentId": "plain", "toolId": "get-time"}
    assert house.call("GET", "/api/agents/{agentId}/tools/{toolId}", path=path) == (200, tool)


def test_unknown_agents_and_tools_are_404(house: House) -> None:
    unknown = (404, {"error": "Agent with id nope not found"})
    assert house.call("GET", "/api/agents/{agentId}", path={"agentId": "nope"}) == unknown
    tool = "/api/agents/{agentId}/tools/{toolId}"
    assert house.call("GET", tool, path={"agentId": "nope", "toolId": "get-time"}) == unknown
    path = {"agentId": "plain", "toolId": "current_time"}
    assert house.call("GET", tool, path=path) == (404, {"error": "Tool not found"})


def test_dynamic_settings_see_the_request_context_and_one_that_fails_hides_no_other(house: House) -> None:
    context = base64.b64encode(b'{"tenant":"acme"}').decode()
    shown = house.call("GET", "/api/agents/{agentId}", path={"agentId": "picky"}, query={"requestContext": context})
    assert shown[1]["instructions"] == "You serve acme."
    status, agents = house.call("GET", "/api/agents")
    assert (status, agents["picky"]["instructions"], agents["assistant"]["instructions"]) == (200, "", "Be kind.")


@pytest.mark.parametrize("context", ["!", "e30", "W10=", base64.b64encode(b"{").decode()])
def test_a_request_context_that_is_no_base64_of_an_object_is_named(house: House, context: str) -> None:
    status, reply = house.call("GET", "/api/agents", query={"requestContext": context})
    assert (status, reply["issues"][0]["field"]) == (400, "requestContext")


@pytest.mark.parametrize(
    "agent,body,status,field",
    [
        ("nope", {"messages": "hi"}, 404, None),
        ("a b", {"messages": "hi"}, 400, "agentId"),
        ("assistant", {}, 400, "messages"),
        ("assistant", {"messages": ""}, 400, "messages"),
        ("assistant", {"messages": []}, 400, "messages"),
        ("assistant", {"messages": 5}, 400, None),
        ("assistant", {"messages": "hi", "memory": {"thread": "thr-1"}}, 400, "memory.resource"),
        ("assistant", {"messages": "hi", "memory": {"thread": "a b", "resource": "user-ada"}}, 400, "memory.thread"),
        (
            "assistant",
            {"messages": "hi", "memory": {"thread": {"id": ""}, "resource": "user-ada"}},
            400,
            "memory.thread.id",
        ),
        ("assistant", {"messages": "hi", "memory": {"thread": "thr-1", "resource": "user-eve"}}, 403, None),
        ("assistant", {"messages": "hi", "maxSteps": "3"}, 400, "maxSteps"),
        ("assistant", {"messages": "hi", "modelSettings": {"temperature": "hot"}}, 400, "modelSettings.temperature"),
        ("assistant", [], 400, "root"),
    ],
)
def test_bad_input_of_generate_reaches_no_model_and_stores_nothing(
    house: House, agent: str, body: Any, status: int, field: str | None
) -> None:
    house.add_thread("thr-1", "user-ada")
    code, reply = house.call("POST", GENERATE, path={"agentId": agent}, body=body)
    assert code == status, reply
    assert field is None or field in [issue["field"] for issue in reply["issues"]], reply
    assert house.model.calls == 0
    assert house.threads() == ["thr-1"]
    path = {"threadId": "thr-1"}
    assert house.call("GET", "/api/memory/threads/{threadId}/messages", path=path)[1]["total"] == 0


def test_generate_answers_and_remembers(house: House) -> None:
    memory = {"thread": "thr-9", "resource": "user-ada"}
    status, reply = house.call(
        "POST", GENERATE, path={"agentId": "assistant"}, body={"messages": "hi", "memory": memory}
    )
    assert (status, reply["text"], house.model.calls) == (200, "Hello", 1)
    page = house.call("GET", "/api/memory/threads/{threadId}/messages", path={"threadId": "thr-9"})[1]
    assert [m["role"] for m in page["messages"]] == ["user", "assistant"]
