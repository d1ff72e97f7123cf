"""Supervisors and their sub-agents over HTTP: views, replies, and what of the sub-agents' own ids leaves the house."""

import json
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls
from tests.unit.http.house import House, user
from threadkeep import Agent, Limits, Memory, tool
from threadkeep.http.routes import ROUTES

AGENTS = "/api/agents"
THREADS = "/api/memory/threads"
THREAD = f"{THREADS}/{{threadId}}"
GENERATE = f"{AGENTS}/{{agentId}}/generate"
ADA = user("user-ada")
DELEGATES = calls(("agent-researcher", {"prompt": "find X"}), text="One moment. ")


@tool(id="look-up")
def look_up(word: str) -> str:
    """Look a word up"""
    return word


def team(*answers: Any, **boss: Any) -> House:
    """A house with the supervisor `boss`, whose sub-agent `finder` has the key `researcher` and `leaf` below it."""
    leaf = Agent(id="leaf", name="Leaf", model="fake/m", memory=Memory())
    finder = Agent(
        id="finder", name="Finder", model="fake/m", memory=Memory(), tools=[look_up], agents={"leafy": leaf},
    )  # fmt: skip
    agents = [Agent(id="boss", name="Boss", model="fake/m", memory=Memory(), agents={"researcher": finder}, **boss)]
    return House(model=FakeModel(*answers), agents=agents)  # type: ignore[arg-type]


def ask(house: House, **body: Any) -> dict[str, Any]:
    asked = {"messages": "hi", "memory": {"thread": "thr-1", "resource": "user-ada"}} | body
    status, reply = house.call("POST", GENERATE, path={"agentId": "boss"}, body=asked)
    assert status == 200, reply
    return reply


def result_of(reply: dict[str, Any]) -> dict[str, Any]:
    return reply["toolResults"][0]["payload"]["result"]


@pytest.fixture
def asked() -> tuple[House, dict[str, Any]]:
    """A house in which `boss` delegated to `finder`, and `finder` to `leaf`; and the reply."""
    down = calls(("agent-leafy", {"prompt": "look below"}))
    house = team(DELEGATES, down, "leaf says", "finder says", "boss says")
    return house, ask(house)


def test_del1_a_sub_agent_stands_in_its_supervisor_and_not_in_the_list() -> None:
    house = team()
    status, listed = house.call("GET", AGENTS)
    assert (status, "finder" in listed, "leaf" in listed) == (200, False, False)
    assert listed["boss"]["agents"] == {"researcher": {"id": "finder", "name": "Finder"}}
    assert listed["boss"]["tools"] == {}
    status, finder = house.call("GET", f"{AGENTS}/{{agentId}}", path={"agentId": "finder"})
    assert (status, finder["name"], list(finder["tools"])) == (200, "Finder", ["look_up"])
    assert finder["agents"] == {"leafy": {"id": "leaf", "name": "Leaf"}}
    assert house.call("GET", f"{AGENTS}/{{agentId}}", path={"agentId": "researcher"})[0] == 404


def test_del1_a_sub_agent_has_all_the_routes_of_an_agent_by_its_id() -> None:
    house = team("at your service")
    body = {"messages": "hi", "memory": {"thread": "t", "resource": "user-ada"}}
    assert house.call("POST", GENERATE, path={"agentId": "finder"}, body=body)[1]["text"] == "at your service"
    tool_path = f"{AGENTS}/{{agentId}}/tools/{{toolId}}"
    path = {"agentId": "finder", "toolId": "look-up"}
    assert house.call("GET", tool_path, path=path)[1]["description"] == "Look a word up"
    assert house.call("POST", f"{tool_path}/execute", path=path, body={"data": {"word": "x"}}) == (200, "x")
    assert house.call("GET", f"{AGENTS}/{{agentId}}/suspended-runs", path={"agentId": "finder"})[1]["total"] == 0
    assert house.call("GET", "/api/memory/config", query={"agentId": "leaf"})[1]["config"] is not None
    assert "look-up" not in house.call("GET", "/api/tools")[1], "its tools are not among those of the listed agents"


def test_a_caller_may_choose_the_tool_that_delegates() -> None:
    house = team(DELEGATES, "found", "done")
    ask(house, toolChoice={"type": "tool", "toolName": "agent-researcher"})
    assert house.model.requests[0].tool_choice == "agent-researcher"


def test_del3_the_reply_holds_the_whole_result_with_the_ids_spelled_for_the_wire(asked) -> None:
    house, reply = asked
    assert (reply["text"], reply["finishReason"]) == ("One moment. boss says", "stop")
    result = result_of(reply)
    thread = result["subAgentThreadId"]
    assert result["text"] == "finder says"
    assert result["subAgentResourceId"] == "user-ada-researcher"
    assert thread.startswith("thr-1-")
    inner = result["subAgentToolResults"][0]["result"]
    assert (inner["text"], inner["subAgentResourceId"]) == ("leaf says", "user-ada-researcher-leafy")
    (user_row, answer) = house.call("GET", f"{THREAD}/messages", path={"threadId": "thr-1"})[1]["messages"]
    assert user_row["role"] == "user"
    (part,) = [p for p in answer["content"]["parts"] if p["type"] == "tool-invocation"]
    assert part["toolInvocation"]["result"] == result


def test_h17_no_users_token_reads_a_sub_thread_and_no_list_of_theirs_shows_one(asked) -> None:
    house, reply = asked
    thread = {"threadId": result_of(reply)["subAgentThreadId"]}
    for caller in (ADA, user("user-ada-researcher")):
        for path in (THREAD, f"{THREAD}/messages"):
            assert house.call("GET", path, path=thread, caller=caller)[0] == 403
        assert house.call("DELETE", THREAD, path=thread, caller=caller)[0] == 403
    assert [t["id"] for t in house.call("GET", THREADS, caller=ADA)[1]["threads"]] == ["thr-1"]
    assert house.call("GET", THREADS, caller=user("user-ada-researcher"))[1]["threads"] == []


def test_h17_a_service_reads_a_sub_thread_by_its_id_alone(asked) -> None:
    house, reply = asked
    path = {"threadId": result_of(reply)["subAgentThreadId"]}
    status, page = house.call("GET", f"{THREAD}/messages", path=path)
    assert (status, [m["role"] for m in page["messages"]]) == (200, ["user", "assistant"])
    assert {m["resourceId"] for m in page["messages"]} == {"user-ada-researcher"}
    assert house.call("GET", THREAD, path=path)[1]["resourceId"] == "user-ada-researcher"
    query = {"resourceId": "user-ada-researcher"}  # the spelling is no name: another owner may have it
    assert house.call("GET", f"{THREAD}/messages", path=path, query=query)[0] == 403
    assert house.call("GET", THREADS, query=query)[1]["threads"] == []
    owners = [t["resourceId"] for t in house.call("GET", THREADS)[1]["threads"]]
    assert sorted(owners) == ["user-ada", "user-ada-researcher", "user-ada-researcher-leafy"]


def test_h17_nobody_talks_in_a_sub_thread_but_its_supervisor(asked) -> None:
    house, reply = asked
    thread = result_of(reply)["subAgentThreadId"]
    path = {"agentId": "finder"}
    for resource in ("user-ada", "user-ada-researcher"):
        body = {"messages": "hi", "memory": {"thread": thread, "resource": resource}}
        assert house.call("POST", GENERATE, path=path, body=body)[0] == 403
    body = {"message": "hi", "threadId": thread}
    assert house.call("POST", f"{AGENTS}/{{agentId}}/send-message", path=path, body=body)[0] == 403
    assert house.workers.started == []


def leaks(reply: Any) -> bool:
    """Whether a separator of the ids within is in a reply."""
    text = json.dumps(reply, ensure_ascii=False)
    return any(sign in text for sign in ("\\u001f", "\\u001e"))


def test_no_get_route_tells_the_inner_spelling_of_a_sub_agents_resource() -> None:
    house = team(DELEGATES, calls(("agent-leafy", {"prompt": "below"})), "leaf", "finder", "boss")
    house.model.answers *= 2  # type: ignore[attr-defined]
    ask(house)
    ask(house, memory=None)  # a run without owner has resources of its own
    threads = house.threads()
    assert len(threads) == 5
    for route in (r for r in ROUTES if r.method == "GET"):
        for thread in threads:
            path = {"threadId": thread, "agentId": "finder", "toolId": "look-up", "resourceId": "user-ada-researcher"}
            path["runId"] = "run-1"
            named = {name: value for name, value in path.items() if f"{{{name}}}" in route.path}
            status, reply = house.call("GET", route.path, path=named, query={"agentId": "finder"})
            assert status in (200, 400) or route.path.endswith(("/tools/{toolId}", "/runs/{runId}")), (
                route.path,
                reply,
            )
            assert not leaks(reply), (route.path, reply)
    shown = house.call("GET", THREADS)[1]["threads"]
    assert sorted(t["resourceId"] for t in shown) == [
        "boss-researcher", "boss-researcher-leafy", "user-ada", "user-ada-researcher", "user-ada-researcher-leafy",
    ]  # fmt: skip


def test_no_write_of_a_service_to_a_sub_thread_tells_the_inner_spelling(asked) -> None:
    house, reply = asked
    path = {"threadId": result_of(reply)["subAgentThreadId"]}
    message = {"role": "user", "content": "x", "threadId": path["threadId"], "resourceId": "user-ada-researcher"}
    answers = [
        reply,
        house.call("PATCH", THREAD, path=path, body={"title": "Below"}),
        house.call("POST", f"{THREAD}/clone", path=path, body={}),
        house.call("POST", "/api/memory/save-messages", body={"messages": [message]}),
        house.call("POST", f"{THREAD}/transfer", path=path, body={"resourceId": "user-bo"}),
        house.call("DELETE", THREAD, path=path, query={"resourceId": "user-bo"}),
    ]
    assert [a[0] for a in answers[1:]] == [200, 200, 403, 200, 200]
    assert not leaks(answers), answers
    assert answers[2][1]["thread"]["resourceId"] == "user-ada-researcher"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(Limits(delegations=0), "max-delegations"), (Limits(depth=0), "max-depth"), (Limits(tokens=1), "max-tokens")],
)
def test_the_limit_at_which_a_run_ends_is_its_finish_reason_also_when_the_request_is_repeated(limits, reason) -> None:
    house = team(DELEGATES, "sub", limits=limits)
    first = ask(house, runId="run-1")
    asked = len(house.model.requests)
    again = ask(house, runId="run-1")
    assert (first["finishReason"], again["finishReason"]) == (reason, reason)
    assert (again["text"], len(house.model.requests)) == (first["text"], asked)
