"""Changing threads, status and config of memory, the second names, and what is always empty (spec-http 2.2, 2.3)."""

import time
from typing import Any

import pytest

from tests.unit.http.house import House, user
from threadkeep import Agent, Memory

ONE = "/api/memory/threads/{threadId}"
TRANSFER = ONE + "/transfer"
THR_1 = {"threadId": "thr-1"}
AGENT = {"agentId": "assistant"}
FOREIGN = (403, {"error": "Access denied: thread belongs to a different resource"})
MISSING = (404, {"error": "Thread not found"})
HARD = {
    "i": 3,
    "f": 0.1,
    "neg": -2.50,
    "big": 12345678901234567890,
    "e": 1e-7,
    "n": None,
    "l": [],
    "o": {},
    "a.b $": "",
}


def patch(house: House, body: Any, **more: Any) -> tuple[int, Any]:
    return house.call("PATCH", ONE, path=more.pop("path", THR_1), query=more.pop("query", AGENT), body=body, **more)


def read(house: House) -> Any:
    return house.call("GET", ONE, path=THR_1)[1]


def test_th8_patch_replaces_what_is_given_and_keeps_the_rest(house: House) -> None:
    house.add_thread(title="First", metadata={"category": "support", "old": 1})
    before = read(house)
    status, changed = patch(house, {"title": "Renamed", "metadata": {"category": "sales"}, "resourceId": "user-ada"})
    assert status == 200
    assert changed == before | {
        "title": "Renamed", "metadata": {"category": "sales"}, "updatedAt": changed["updatedAt"],
    }  # fmt: skip
    assert changed["updatedAt"] > before["updatedAt"]
    assert read(house) == changed
    assert patch(house, {"title": ""})[1]["metadata"] == {"category": "sales"}
    assert (read(house)["title"], patch(house, {"metadata": {}})[1]["metadata"]) == ("", {})
    assert patch(house, {})[1]["metadata"] == {}


def test_h33_metadata_comes_back_as_it_was(house: House) -> None:
    house.add_thread()
    _, changed = patch(house, {"metadata": HARD})
    assert changed["metadata"] == HARD
    assert [type(v) for v in read(house)["metadata"].values()] == [type(v) for v in HARD.values()]


@pytest.mark.parametrize(
    "query,body,caller",
    [
        (AGENT, {"title": "x", "resourceId": "user-eve"}, {"kind": "service"}),
        ({"resourceId": "user-eve"}, {"title": "x"}, {"kind": "service"}),
        (AGENT, {"title": "x", "resourceId": "user-ada"}, user("user-eve")),
        (AGENT, {"title": "x"}, user("user-eve")),
    ],
)
def test_patch_of_another_owners_thread_is_403_and_changes_nothing(
    house: House, query: Any, body: Any, caller: Any
) -> None:
    house.add_thread(title="First")
    before = read(house)
    assert patch(house, body, query=query, caller=caller) == FOREIGN
    assert read(house) == before


def test_patch_never_changes_the_owner_and_a_user_may_name_any(house: House) -> None:
    house.add_thread()
    assert (
        patch(house, {"title": "x", "resourceId": "user-eve"}, caller=user("user-ada"))[1]["resourceId"] == "user-ada"
    )


def test_patch_of_what_is_missing_is_404_and_creates_nothing(house: House) -> None:
    assert patch(house, {"title": "x"}, path={"threadId": "missing"}) == MISSING
    house.add_thread()
    house.call("DELETE", ONE, path=THR_1)
    assert patch(house, {"title": "x"}) == MISSING
    assert house.threads() == []


@pytest.mark.parametrize(
    "body,field,rule",
    [
        ({"title": 5}, "title", "expected string, received number"),
        ({"title": None}, "title", "expected string, received null"),
        ({"title": "t" * 1001}, "title", "at most 1000"),
        ({"title": "\ud800"}, "title", "Unicode"),
        ({"metadata": "x"}, "metadata", "expected object, received string"),
        ({"metadata": None}, "metadata", "expected object, received null"),
        ({"metadata": {"a": "x" * 200_001}}, "metadata", "at most 200000 bytes"),
        ({"resourceId": "a b"}, "resourceId", "may only contain"),
        ([], "root", "expected object, received array"),
    ],
)
def test_bad_patches_name_their_field(house: House, body: Any, field: str, rule: str) -> None:
    house.add_thread(title="First")
    before = read(house)
    status, reply = patch(house, body)
    assert (status, reply["error"]) == (400, "Invalid request body")
    assert [issue["field"] for issue in reply["issues"]] == [field]
    assert rule in reply["issues"][0]["message"]
    assert read(house) == before


def test_th15_transfer_moves_the_thread_with_its_messages(house: House) -> None:
    house.add_thread(messages=2, title="Copy", metadata={})
    before = read(house)
    time.sleep(0.002)
    status, moved = house.call("POST", TRANSFER, path=THR_1, query=AGENT, body={"resourceId": "user-bob"})
    assert status == 200
    assert moved == before | {"resourceId": "user-bob", "updatedAt": moved["updatedAt"]}
    assert moved["updatedAt"] > before["updatedAt"]
    _, page = house.call("GET", ONE + "/messages", path=THR_1, query={"resourceId": "user-bob"})
    assert [m["resourceId"] for m in page["messages"]] == ["user-bob"] * 2
    assert house.call("GET", ONE, path=THR_1, caller=user("user-ada")) == FOREIGN
    assert house.call("POST", TRANSFER, path=THR_1, body={"resourceId": "user-bob"}) == (200, moved)


def test_th15_only_a_service_may_transfer_and_may_name_the_owner(house: House) -> None:
    house.add_thread()
    body = {"resourceId": "user-bob"}
    refused = (403, {"error": "Thread transfer requires a privileged (non-resource-scoped) context"})
    assert house.call("POST", TRANSFER, path=THR_1, body=body, caller=user("user-ada")) == refused
    assert house.call("POST", TRANSFER, path=THR_1, body=body, query={"resourceId": "user-eve"}) == FOREIGN
    assert house.call("POST", TRANSFER, path={"threadId": "missing"}, body=body) == MISSING
    assert read(house)["resourceId"] == "user-ada"


@pytest.mark.parametrize("body", [{}, {"resourceId": None}, {"resourceId": 5}, {"resourceId": "a/b"}])
def test_a_transfer_must_name_a_legal_owner(house: House, body: Any) -> None:
    house.add_thread()
    status, reply = house.call("POST", TRANSFER, path=THR_1, body=body)
    assert (status, [issue["field"] for issue in reply["issues"]]) == (400, ["resourceId"])


# --- status and config ---

STATUS, CONFIG = "/api/memory/status", "/api/memory/config"
OBSERVATIONS = "/api/memory/observational-memory"
NOTHING = {"semanticRecall": False, "workingMemory": {"enabled": False}, "observationalMemory": {"enabled": False}}


@pytest.mark.parametrize(
    "agent,status",
    [("assistant", {"result": True, "memoryType": "local"}), ("plain", {"result": False}), ("no", {"result": False})],
)
def test_status(house: House, agent: str, status: Any) -> None:
    assert house.call("GET", STATUS, query={"agentId": agent, "resourceId": "r", "threadId": "t"}) == (200, status)
    assert house.call("GET", STATUS, query={"networkId": agent}) == (200, status)


@pytest.mark.parametrize("route", [STATUS, CONFIG])
def test_status_and_config_need_an_agent(house: House, route: str) -> None:
    status, body = house.call("GET", route)
    assert (status, [issue["field"] for issue in body["issues"]]) == (400, ["agentId"])


@pytest.mark.parametrize("agent", ["assistant", "plain"])
def test_no_agent_observes(house: House, agent: str) -> None:
    refused = (400, {"error": "Observational Memory is not enabled for this agent"})
    query: dict[str, Any] = {"agentId": agent, "resourceId": "user-ada", "limit": "5"}
    assert house.call("GET", OBSERVATIONS, query=query) == refused
    assert house.call("POST", OBSERVATIONS + "/buffer-status", body={"agentId": agent, "threadId": "t"}) == refused


def test_observations_of_an_agent_that_is_unknown_or_not_named(house: House) -> None:
    missing = (404, {"error": "Agent not found"})
    assert house.call("GET", OBSERVATIONS, query={"agentId": "no"}) == missing
    assert house.call("POST", OBSERVATIONS + "/buffer-status", body={"agentId": "no"}) == missing
    for status, reply in (
        house.call("GET", OBSERVATIONS),
        house.call("POST", OBSERVATIONS + "/buffer-status", body={}),
    ):
        assert (status, reply["issues"][0]["field"]) == (400, "agentId")


def config(house: House, agent: str, **query: str) -> Any:
    status, body = house.call("GET", CONFIG, query={"agentId": agent} | query)
    assert (status, list(body)) == (200, ["config"])
    return body["config"]


def dynamic(context: Any) -> Memory:
    return Memory(last_messages=context["size"])


TITLES = {"model": "a/b", "instructions": lambda context: "x"}


def test_config_shows_the_options_as_they_are() -> None:
    house = House(
        agents=[
            Agent(id="off", model="fake/m", memory=Memory(last_messages=False, generate_title=True, read_only=True)),
            Agent(id="budget", model="fake/m", memory=Memory(message_history={"maxTokens": 100})),
            Agent(id="titles", model="fake/m", memory=Memory(generate_title=TITLES)),
            Agent(id="dynamic", model="fake/m", memory=dynamic),
        ]
    )
    assert config(house, "assistant") == NOTHING | {"lastMessages": 10, "generateTitle": False}
    assert config(house, "off") == NOTHING | {"lastMessages": False, "generateTitle": True, "readOnly": True}
    assert config(house, "budget")["messageHistory"] == {"maxTokens": 100}
    assert config(house, "titles")["generateTitle"] == {"model": "a/b"}
    assert config(house, "dynamic", requestContext="eyJzaXplIjo3fQ==")["lastMessages"] == 7
    assert config(house, "dynamic") is None
    assert config(house, "plain") is None
    assert config(house, "nope") is None


# --- second names, and what is always empty ---


def test_networks_reach_the_same_threads(house: House) -> None:
    base, query = "/api/memory/network/threads", {"networkId": "assistant"}
    _, thread = house.call("POST", base, query=query, body={"resourceId": "user-ada", "threadId": "thr-1"})
    assert house.call("GET", base + "/{threadId}", path=THR_1, query=query)[1]["id"] == thread["id"] == "thr-1"
    assert house.call("GET", base, query=query | {"resourceId": "user-ada"})[1]["total"] == 1
    assert house.call("PATCH", base + "/{threadId}", path=THR_1, query=query, body={"title": "x"})[1]["title"] == "x"
    assert house.call("GET", base + "/{threadId}/messages", path=THR_1, query=query)[1]["total"] == 0
    assert house.call("DELETE", base + "/{threadId}", path=THR_1, query=query) == (200, {"result": "Thread deleted"})
    unknown = house.call("POST", base, query={"networkId": "nope"}, body={"resourceId": "user-ada"})
    assert unknown == (404, {"error": "Agent not found"})


def test_messages_of_a_network_are_the_newest_ones(house: House) -> None:
    house.add_thread(messages=3)
    query = {"networkId": "assistant", "perPage": "1"}
    _, page = house.call("GET", "/api/memory/network/threads/{threadId}/messages", path=THR_1, query=query)
    assert [m["id"] for m in page["messages"]] == ["thr-1-m2"]


@pytest.mark.parametrize(
    "resource,reply",
    [
        ("/api/agents/{agentId}/voice/speakers", []),
        ("/api/agents/{agentId}/voice/listener", {"enabled": False}),
        ("/api/agents/{agentId}/browser/session", {"hasSession": False, "screencastAvailable": False}),
    ],
)
def test_agents_neither_speak_nor_listen_nor_browse(house: House, resource: str, reply: Any) -> None:
    assert house.call("GET", resource, path={"agentId": "plain"}) == (200, reply)
    missing = (404, {"error": "Agent with id nope not found"})
    assert house.call("GET", resource, path={"agentId": "nope"}) == missing


def test_there_are_no_providers_to_choose_from(house: House) -> None:
    assert house.call("GET", "/api/agents/providers") == (200, {"providers": []})
