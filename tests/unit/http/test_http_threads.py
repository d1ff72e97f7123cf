"""Threads over HTTP: shapes, owners, paging (spec-http 1 and 2.3; H31, H32)."""

import json
import re
from typing import Any
from urllib.parse import quote

import pytest

from tests.unit.http.house import House, user

LIST = "/api/memory/threads"
ONE = "/api/memory/threads/{threadId}"
MESSAGES = "/api/memory/threads/{threadId}/messages"
AGENT = {"agentId": "assistant"}
FOREIGN = (403, {"error": "Access denied: thread belongs to a different resource"})
MISSING = (404, {"error": "Thread not found"})


def create(house: House, body: dict[str, Any], **more: Any) -> tuple[int, Any]:
    return house.call("POST", LIST, query=AGENT, body=body, **more)


def test_th1_th2_create_replies_with_the_thread_and_leaves_absent_metadata_out(house: House) -> None:
    status, thread = create(house, {"agentId": "assistant", "resourceId": "user-ada", "threadId": "thr-1"})
    assert status == 200
    assert set(thread) == {"id", "resourceId", "title", "createdAt", "updatedAt"}
    assert (thread["id"], thread["resourceId"], thread["title"]) == ("thr-1", "user-ada", "")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", thread["createdAt"])
    read = house.call("GET", ONE, path={"threadId": "thr-1"})
    assert read == (200, thread | {"metadata": None})


def test_title_and_metadata_come_back_as_they_were(house: House) -> None:
    metadata = {"n": 3, "x": 0.1, "deep": {"list": [1, None, True]}, "snake_case": "ü"}
    _, thread = create(house, {"resourceId": "user-ada", "title": "First", "metadata": metadata})
    assert thread["metadata"] == metadata
    assert house.call("GET", ONE, path={"threadId": thread["id"]})[1] == thread


def test_th3_mdisc11_create_again_returns_the_stored_thread_and_never_takes_one_over(house: House) -> None:
    first = create(house, {"resourceId": "user-ada", "threadId": "thr-1", "title": "First"})
    assert create(house, {"resourceId": "user-ada", "threadId": "thr-1", "title": "Second"}) == first
    assert create(house, {"resourceId": "user-eve", "threadId": "thr-1", "title": "stolen"}) == FOREIGN
    assert house.call("GET", ONE, path={"threadId": "thr-1"})[1]["title"] == "First"


def test_a_users_own_resource_overrides_the_one_that_is_asked_for(house: House) -> None:
    house.add_thread("thr-eve", "user-eve")
    _, thread = create(house, {"resourceId": "user-eve"}, caller=user("user-ada"))
    assert thread["resourceId"] == "user-ada"
    _, page = house.call("GET", LIST, query={"resourceId": "user-eve"}, caller=user("user-ada"))
    assert [t["id"] for t in page["threads"]] == [thread["id"]]
    claim = {"query": {"resourceId": "user-eve"}, "path": {"threadId": "thr-eve"}, "caller": user("user-ada")}
    assert house.call("GET", ONE, **claim) == FOREIGN
    assert house.call("GET", MESSAGES, **claim) == FOREIGN
    assert house.call("DELETE", ONE, **claim) == FOREIGN
    assert "thr-eve" in house.threads()


def test_a_user_need_not_name_the_resource_but_a_service_must(house: House) -> None:
    assert create(house, {}, caller=user("user-ada"))[1]["resourceId"] == "user-ada"
    assert create(house, {"title": "x"})[1]["issues"][0]["field"] == "resourceId"


@pytest.mark.parametrize("method,resource", [("GET", ONE), ("GET", MESSAGES), ("DELETE", ONE)])
def test_th4_th13_a_service_may_name_the_owner_that_it_acts_for(house: House, method: str, resource: str) -> None:
    house.add_thread()
    path = {"threadId": "thr-1"}
    assert house.call(method, resource, path=path, query={"resourceId": "user-eve"}) == FOREIGN
    assert house.call(method, resource, path=path, query={"resourceId": "user-ada"})[0] == 200


@pytest.mark.parametrize("method,resource", [("GET", ONE), ("GET", MESSAGES), ("DELETE", ONE)])
def test_a_resource_that_reads_undefined_is_absent(house: House, method: str, resource: str) -> None:
    house.add_thread()
    assert house.call(method, resource, path={"threadId": "thr-1"}, query={"resourceId": "undefined"})[0] == 200


@pytest.mark.parametrize("method,resource", [("GET", ONE), ("GET", MESSAGES), ("DELETE", ONE)])
def test_th4_th13_what_is_missing_is_404(house: House, method: str, resource: str) -> None:
    assert house.call(method, resource, path={"threadId": "missing"}, query=AGENT) == MISSING


def test_th9_delete_replies_with_json_and_the_thread_is_gone(house: House) -> None:
    house.add_thread(messages=2)
    path = {"threadId": "thr-1"}
    assert house.call("DELETE", ONE, path=path, query=AGENT) == (200, {"result": "Thread deleted"})
    assert house.call("GET", ONE, path=path) == MISSING
    assert house.call("GET", MESSAGES, path=path) == MISSING
    assert house.call("DELETE", ONE, path=path) == MISSING


def test_th5_lists_are_newest_first_with_paging_beside_them(house: House) -> None:
    ticks = iter(range(1000, 2000))
    house.store.clock = lambda: next(ticks)
    for name in ("a", "b", "c"):
        house.add_thread(name)
    house.add_thread("other", "user-eve")
    _, page = house.call("GET", LIST, query={"resourceId": "user-ada", "perPage": "2", "requestContext": "e30="})
    assert [t["id"] for t in page.pop("threads")] == ["c", "b"]
    assert page == {"total": 3, "page": 0, "perPage": 2, "hasMore": True}
    _, page = house.call("GET", LIST, query={"resourceId": "user-ada"})
    assert (page["perPage"], page["hasMore"], len(page["threads"])) == (100, False, 3)
    assert house.call("GET", LIST)[1]["total"] == 4


@pytest.mark.parametrize(
    "wanted,found",
    [
        ({"category": "support"}, ["a", "b"]),
        ({"category": "support", "n": 1}, ["a"]),
        ({"n": True}, ["b"]),
        ({"category": None}, ["c"]),
        ({"nothing": "x"}, []),
        ({"deep": {"x": [1, {"y": None}]}}, ["b"]),
        ({"deep": {"x": [True, {"y": None}]}}, []),
        ({"deep": {"x": [1]}}, []),
        ({}, ["a", "b", "c", "d"]),
    ],
)
def test_th7_metadata_filters_are_equality_of_all_keys(house: House, wanted: Any, found: list[str]) -> None:
    house.add_thread("a", metadata={"category": "support", "n": 1})
    house.add_thread("b", metadata={"category": "support", "n": True, "deep": {"x": [1, {"y": None}]}})
    house.add_thread("c", metadata={"category": None})
    house.add_thread("d")
    query: Any = {"resourceId": "user-ada", "metadata": json.dumps(wanted), "orderBy": "createdAt"}
    _, page = house.call("GET", LIST, query=query)
    assert (sorted(t["id"] for t in page["threads"]), page["total"]) == (found, len(found))
    _, page = house.call("GET", LIST, query=query | {"perPage": "1", "page": "1"})
    rest = min(1, max(0, len(found) - 1))
    assert (len(page["threads"]), page["total"], page["hasMore"]) == (rest, len(found), len(found) > 2)


def test_ms1_a_message_has_its_threads_owner_and_its_stored_content(house: House) -> None:
    house.add_thread(messages=1)
    _, page = house.call("GET", MESSAGES, path={"threadId": "thr-1"}, query=AGENT)
    message = page["messages"][0]
    assert set(message) == {"id", "role", "threadId", "resourceId", "createdAt", "content"}
    assert message["resourceId"] == "user-ada"
    assert message["content"] == {"format": 2, "parts": [{"type": "text", "text": "message 0"}]}
    assert {k: v for k, v in page.items() if k != "messages"} == {
        "total": 1,
        "page": 0,
        "perPage": 40,
        "hasMore": False,
        "uiMessages": None,
    }


def shown(house: House, query: dict[str, Any]) -> list[int]:
    status, page = house.call("GET", MESSAGES, path={"threadId": "thr-1"}, query=query)
    assert status == 200, page
    return [int(m["id"].rpartition("m")[2]) for m in page["messages"]]


@pytest.mark.parametrize(
    "spelling",
    [
        {"orderBy": '{"field":"createdAt","direction":"ASC"}'},
        {"orderBy[field]": "createdAt", "orderBy[direction]": "ASC"},
        {"orderBy[direction]": "ASC"},
        {"orderBy": "createdAt", "sortDirection": "ASC"},
        {"orderBy": ["{}", '{"direction":"ASC"}']},
    ],
)
def test_h31_every_spelling_of_the_order_is_understood(house: House, spelling: dict[str, Any]) -> None:
    house.add_thread(messages=5)
    assert shown(house, AGENT | spelling | {"page": "0", "perPage": "2"}) == [0, 1]
    descending = json.loads(json.dumps(spelling).replace("ASC", "DESC"))
    assert shown(house, AGENT | descending | {"page": "0", "perPage": "2"}) == [3, 4]


def test_mrc2_messages_default_to_the_newest_page_or_to_the_oldest_without_an_agent(house: House) -> None:
    house.add_thread(messages=5)
    assert shown(house, AGENT | {"perPage": "2"}) == [3, 4]
    assert shown(house, {"perPage": "2"}) == [0, 1]


def test_h31_th6_bounds_of_paging(house: House) -> None:
    house.add_thread(messages=45)
    assert len(shown(house, AGENT)) == 40
    assert len(shown(house, {"perPage": "false"})) == 45
    for query in ({"perPage": "0"}, {"page": "9"}):
        _, page = house.call("GET", MESSAGES, path={"threadId": "thr-1"}, query=query)
        assert (page["messages"], page["total"]) == ([], 45)
    assert page["hasMore"] is False
    _, page = house.call("GET", MESSAGES, path={"threadId": "thr-1"}, query={"perPage": "false"})
    assert page["perPage"] is False
    assert shown(house, {"perPage": ["2", "3"]}) == [0, 1, 2]


@pytest.mark.parametrize(
    "query,field,rule",
    [
        ({"page": "-1"}, "page", "must be at least 0, received -1"),
        ({"perPage": "-1"}, "perPage", "must be at least 0, received -1"),
        ({"perPage": "abc"}, "perPage", "expected integer, received string"),
        ({"page": "9" * 5000}, "page", None),
        ({"page": "99999999999"}, "page", "must be at most 2147483647"),
        ({"orderBy": "{broken"}, "orderBy", "is not JSON"),
        ({"orderBy": "password"}, "orderBy", "'createdAt'"),
        ({"orderBy": "[1]"}, "orderBy", "expected object, received array"),
        ({"orderBy[field]": "password"}, "orderBy.field", "received password"),
        ({"orderBy": '{"direction":"UP"}'}, "orderBy.direction", "'ASC' or 'DESC', received UP"),
        ({"orderBy": "createdAt", "sortDirection": "sideways"}, "sortDirection", "'ASC' or 'DESC'"),
        ({"resourceId": "a b"}, "resourceId", "may only contain letters"),
        ({"resourceId": ""}, "resourceId", "1 to 256 bytes"),
        ({"resourceId": "a" * 257}, "resourceId", "1 to 256 bytes"),
    ],
)
@pytest.mark.parametrize("resource", [LIST, MESSAGES])
def test_bad_queries_name_field_and_rule(house: House, resource: str, query: Any, field: str, rule: str | None) -> None:
    house.add_thread()
    status, body = house.call(
        "GET", resource, path={"threadId": "thr-1"} if resource == MESSAGES else None, query=query
    )
    assert (status, body["error"]) == (400, "Invalid query parameters")
    assert [issue["field"] for issue in body["issues"]] == [field]
    assert rule is None or rule in body["issues"][0]["message"]


BAD_KEYS = [json.dumps({key: 1}) for key in ("a.b", "1a", "", "a b", "ü", "a" * 129, "__proto__", "constructor", "a\n")]


@pytest.mark.parametrize("metadata", ["{broken", '"text"', "[]", '{"a":NaN}', *BAD_KEYS])
def test_bad_metadata_filters_are_refused(house: House, metadata: str) -> None:
    status, body = house.call("GET", LIST, query={"metadata": metadata})
    assert (status, body["issues"][0]["field"]) == (400, "metadata")


@pytest.mark.parametrize(
    "body,issues",
    [
        ({"resourceId": 5, "metadata": "x"}, {"resourceId": "number", "metadata": "string"}),
        ({"resourceId": "user-ada", "title": None}, {"title": "expected string, received null"}),
        ({"resourceId": "user-ada", "title": "t" * 1001}, {"title": "at most 1000, received 1001"}),
        ({"resourceId": "user-ada", "title": "\ud800"}, {"title": "Unicode"}),
        ({"resourceId": "user-ada", "metadata": {"a": "x" * 200_001}}, {"metadata": "at most 200000 bytes"}),
        ({"resourceId": "user-ada", "metadata": [1]}, {"metadata": "expected object, received array"}),
        ({"resourceId": "a b"}, {"resourceId": "may only contain"}),
        ({"resourceId": "user-ada", "threadId": "a/b"}, {"threadId": "may only contain"}),
        ({"resourceId": "user-ada", "threadId": ""}, {"threadId": "1 to 256 bytes"}),
        ({"resourceId": "user-ada", "threadId": "a" * 257}, {"threadId": "1 to 256 bytes"}),
        ({"resourceId": "user-ada", "threadId": True}, {"threadId": "expected string, received boolean"}),
        ([], {"root": "expected object, received array"}),
        ("text", {"root": "expected object, received string"}),
        (3, {"root": "expected object, received number"}),
    ],
)
def test_bad_bodies_name_each_field_and_store_nothing(house: House, body: Any, issues: dict[str, str]) -> None:
    status, reply = create(house, body)
    assert (status, reply["error"]) == (400, "Invalid request body")
    found = {issue["field"]: issue["message"] for issue in reply["issues"]}
    assert found.keys() == issues.keys()
    assert all(issues[field] in found[field] for field in issues)
    assert house.threads() == []


def test_the_agent_must_exist_and_remember(house: House) -> None:
    body = {"resourceId": "user-ada"}
    status, reply = house.call("POST", LIST, body=body)
    assert (status, reply["error"], reply["issues"][0]["field"]) == (400, "Invalid query parameters", "agentId")
    assert house.call("POST", LIST, query={"agentId": "nope"}, body=body) == (404, {"error": "Agent not found"})
    assert house.call("POST", LIST, query={"agentId": "plain"}, body=body) == (
        400,
        {"error": "Memory is not initialized"},
    )
    assert house.threads() == []


HARD_IDS = ["a b", "a/b", "a%2Fb", "user@host", "tür", "日本", "a+b", "a?b", "a#b", "..", ".", "%", "a\n", "~|:=,._-"]


@pytest.mark.parametrize("hard", HARD_IDS)
@pytest.mark.parametrize("decoded_by_gateway", [True, False])
def test_h32_an_id_is_the_same_everywhere_or_refused_everywhere(
    house: House, hard: str, decoded_by_gateway: bool
) -> None:
    legal = hard in ("user@host", "a+b", "~|:=,._-")
    status, reply = create(house, {"resourceId": "user-ada", "threadId": hard})
    assert status == (200 if legal else 400)
    path = {"threadId": hard if decoded_by_gateway else quote(hard, safe="")}
    status, reply = house.call("GET", ONE, path=path)
    if legal:
        assert (status, reply["id"]) == (200, hard)
    else:
        assert (status, reply["error"]) == (400, "Invalid path parameters")
        assert reply["issues"][0]["field"] == "threadId"
    assert house.call("DELETE", ONE, path=path)[0] == status
