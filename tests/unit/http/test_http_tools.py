"""Client-side tools and structured output over HTTP, in the requests that client-js sends (spec-http 2.2)."""

from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls
from tests.unit.http.house import SERVICE, House, user
from threadkeep import Agent, Memory, ToolContext, tool

GENERATE = "/api/agents/{agentId}/generate"
EXECUTE = "/api/agents/{agentId}/tools/{toolId}/execute"
MEMORY = {"thread": "thr-1", "resource": "user-ada"}
HINT = {"type": "object", "properties": {"hint": {"type": "string"}}, "required": ["hint"]}
PICK = {"pickColor": {"id": "pick-color", "description": "picks", "inputSchema": HINT}}


@tool(id="get-weather", name="getWeather")
def get_weather(city: str, context: ToolContext) -> dict[str, Any]:
    """Get the weather for a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "tempC": 21.0, "for": context.resource_id, "tenant": context.request_context.get("tenant")}


@tool(id="delete-file", require_approval=True)
def delete_file(path: str) -> None:
    """Delete a file."""


def house(*answers: Any) -> House:
    memory = Memory()
    return House(
        model=FakeModel(*answers),  # type: ignore[arg-type]
        agents=[
            Agent(id="worker", model="fake/m", memory=memory, tools=[get_weather, delete_file]),
            Agent(id="other", model="fake/m", tools=lambda _: [get_weather]),
        ],
    )


def post(house: House, body: Any, agent: str = "worker") -> tuple[int, Any]:
    return house.call("POST", GENERATE, path={"agentId": agent}, body=body)


def execute(house: House, body: Any, agent: str = "worker", tool: str = "get-weather", **more: Any) -> tuple[int, Any]:
    return house.call("POST", EXECUTE, path={"agentId": agent, "toolId": tool}, body=body, **more)


def stored(house: House) -> list[dict[str, Any]]:
    return house.call("GET", "/api/memory/threads/{threadId}/messages", path={"threadId": "thr-1"})[1]["messages"]


@pytest.mark.parametrize("memory", [MEMORY, None])
def test_both_requests_of_a_client_side_tool(memory: Any) -> None:
    h = house(calls(("getWeather", {"city": "Oslo"}), ("pickColor", {"hint": "sea"})), "teal it is")
    first = {"messages": "colour?", "clientTools": PICK, "memory": memory}
    status, reply = post(h, first)
    assert (status, reply["finishReason"]) == (200, "tool-calls")
    assert [c["payload"]["toolName"] for c in reply["toolCalls"]] == ["getWeather", "pickColor"]
    asked = reply["toolCalls"][1]["payload"]
    assert asked == {"toolCallId": "call-pickColor-1", "toolName": "pickColor", "args": {"hint": "sea"}}
    assert [r["payload"]["toolName"] for r in reply["toolResults"]] == ["getWeather"]
    said, results = reply["response"]["messages"]
    assert [(p["type"], p["toolCallId"], p["input"]) for p in said["content"]] == [
        ("tool-call", "call-getWeather-0", {"city": "Oslo"}),
        ("tool-call", "call-pickColor-1", {"hint": "sea"}),
    ]
    assert results["content"][0]["output"]["type"] == "json"
    shown = reply["response"]["uiMessages"][0]["parts"]
    assert (shown[1]["type"], shown[1]["state"]) == ("tool-pickColor", "input-available")

    answer = {"role": "tool", "content": [{"type": "tool-result", **asked, "result": {"color": "teal"}}]}
    back = [*([] if memory else [{"role": "user", "content": "colour?"}]), *reply["response"]["messages"], answer]
    status, reply = post(h, first | {"messages": back})
    assert (status, reply["text"], reply["finishReason"]) == (200, "teal it is", "stop")
    assert [role for role, _ in h.model.prompt] == ["user", "assistant", "tool"]  # type: ignore[attr-defined]
    if memory:
        rows = stored(h)
        assert [m["role"] for m in rows] == ["user", "assistant", "assistant"]
        invocation = rows[1]["content"]["parts"][1]["toolInvocation"]
        assert invocation == {**asked, "state": "result", "result": {"color": "teal"}}


def test_the_model_is_offered_the_clients_schema() -> None:
    h = house("ok")
    assert (
        post(
            h,
            {"messages": "hi", "clientTools": PICK | {"bare": {}}, "toolChoice": {"type": "tool", "toolName": "bare"}},
        )[0]
        == 200
    )
    request = h.model.requests[0]  # type: ignore[attr-defined]
    assert {t.name: t.parameters for t in request.tools}["pickColor"] == HINT
    assert request.tool_choice == "bare"


def test_a_client_tool_with_the_name_of_the_agents_own_is_named() -> None:
    status, reply = post(house(), {"messages": "hi", "clientTools": {"getWeather": {}}})
    assert (status, reply["issues"][0]["field"]) == (400, "clientTools.getWeather")


def test_without_a_thread_a_tool_that_needs_approval_is_refused_to_the_model() -> None:
    h = house(calls(("getWeather", {"city": "Oslo"})), "I may not.")
    reply = post(h, {"messages": "hi", "requireToolApproval": True})[1]
    assert reply["text"] == "I may not."
    assert "needs a person's approval" in reply["toolResults"][0]["payload"]["result"]


# --- structured output ---------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def test_loop11_the_object_is_in_the_reply() -> None:
    reply = post(house('{"n":3}'), {"messages": "n?", "structuredOutput": {"schema": SCHEMA}, "memory": MEMORY})[1]
    assert (reply["object"], reply["text"], reply["usedFallbackValue"], reply["warnings"]) == (
        {"n": 3},
        '{"n":3}',
        False,
        [],
    )
    assert reply["messages"][1]["content"]["metadata"]["structuredOutput"] == {"n": 3}


def test_loop11_a_broken_answer_is_a_424_that_lists_what_is_wrong_and_stores_nothing() -> None:
    h = house('{"n":"x"}')
    status, reply = post(h, {"messages": "n?", "structuredOutput": {"schema": SCHEMA}, "memory": MEMORY})
    assert status == 424
    assert reply["error"].startswith("STRUCTURED_OUTPUT_SCHEMA_VALIDATION_FAILED") and "\n- n: " in reply["error"]
    assert stored(h) == []


def test_loop11_fallback_and_warn() -> None:
    wanted = {"schema": SCHEMA, "errorStrategy": "fallback", "fallbackValue": None}
    reply = post(house("x"), {"messages": "n?", "structuredOutput": wanted})[1]
    assert (reply["object"], reply["usedFallbackValue"]) == (None, True)
    reply = post(house("x"), {"messages": "n?", "structuredOutput": wanted | {"errorStrategy": "warn"}})[1]
    assert "object" not in reply
    assert "is not JSON" in reply["warnings"][0]["message"]


# --- tool routes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["worker", "other"])
def test_a_tool_is_executed_by_its_own_id(agent: str) -> None:
    body = {"data": {"city": "Oslo"}, "requestContext": {"tenant": "acme", "organizationId": "x"}}
    expected = {"city": "Oslo", "tempC": 21.0, "for": None, "tenant": "acme"}
    assert execute(house(), body, agent) == (200, expected)
    path = {"toolId": "get-weather"}
    assert (
        house().call("POST", "/api/tools/{toolId}/execute", path=path, body=body, query={"runId": "r"})[1] == expected
    )


def test_a_tool_runs_for_the_user_of_the_token() -> None:
    assert execute(house(), {"data": {"city": "Oslo"}}, caller=user("user-ada"))[1]["for"] == "user-ada"


def test_a_tool_that_needs_approval_may_be_executed_by_the_person_who_asks() -> None:
    assert execute(house(), {"data": {"path": "x"}}, tool="delete-file") == (200, None)


@pytest.mark.parametrize("data,fields", [({"city": 5}, ["city"]), ({}, ["city"]), ("Oslo", []), (None, [])])
def test_wm10_invalid_arguments_are_a_200_that_says_so(data: Any, fields: list[str]) -> None:
    status, reply = execute(house(), {"data": data})
    assert (status, reply["error"], list(reply["validationErrors"]["fields"])) == (200, True, fields)
    assert reply["message"].startswith("Tool input validation failed for get")
    assert bool(reply["validationErrors"]["errors"]) is not bool(fields)


def test_what_a_tool_raises_is_a_424() -> None:
    assert execute(house(), {"data": {"city": "Atlantis"}}) == (424, {"error": "LookupError: no such city"})


@pytest.mark.parametrize(
    "body,agent,tool,status",
    [
        ({}, "worker", "get-weather", 400),
        ({"data": {"city": "x"}}, "nobody", "get-weather", 404),
        ({"data": {"city": "x"}}, "worker", "getWeather", 404),
        ({"data": {"city": "x"}, "requestContext": 5}, "worker", "get-weather", 400),
    ],
)
def test_bad_requests_to_execute(body: Any, agent: str, tool: str, status: int) -> None:
    answer = execute(house(), body, agent, tool)
    assert answer[0] == status
    if body == {}:
        assert answer[1]["issues"] == [{"field": "data", "message": "required, received undefined"}]


def test_all_tools_by_id() -> None:
    status, tools = house().call("GET", "/api/tools", caller=SERVICE)
    assert (status, list(tools)) == (200, ["get-weather", "delete-file", "get-time"])
    assert tools["delete-file"]["requireApproval"] is True
    assert house().call("GET", "/api/tools/{toolId}", path={"toolId": "get-weather"}) == (200, tools["get-weather"])
    assert house().call("GET", "/api/tools/{toolId}", path={"toolId": "nope"}) == (404, {"error": "Tool not found"})
    missing = house().call("POST", "/api/tools/{toolId}/execute", path={"toolId": "nope"}, body={"data": {}})
    assert missing == (404, {"error": "Tool not found"})
