"""Copying threads over HTTP, and requests that are sent again (TH-10, H29; DESIGN 4)."""

import asyncio
from typing import Any

import pytest

from tests.unit.http.house import House, user
from threadkeep.http import clone as operation
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Clone, CloneRequest

ONE = "/api/memory/threads/{threadId}"
CLONE = ONE + "/clone"
THR_1 = {"threadId": "thr-1"}
AGENT = {"agentId": "assistant"}
FOREIGN = (403, {"error": "Access denied: thread belongs to a different resource"})
NO_SOURCE = (404, {"error": "Source thread not found"})
KEY = {"content-type": "application/json", "Idempotency-Key": "key-1"}


def clone(house: House, body: Any = None, **more: Any) -> tuple[int, Any]:
    path = more.pop("path", THR_1)
    return house.call("POST", CLONE, path=path, query=more.pop("query", AGENT), body=body or {}, **more)


def messages(house: House, thread: str) -> list[Any]:
    return house.call("GET", ONE + "/messages", path={"threadId": thread}, query={"perPage": "false"})[1]["messages"]


@pytest.fixture
def source(house: House) -> House:
    """Five messages, from the first to the fifth millisecond, in a thread with title and metadata."""
    ticks = iter(range(1_000_000))
    house.store.clock = lambda: next(ticks)
    house.add_thread(messages=5, title="First", metadata={"category": "x"})
    return house


def test_th10_a_copy_has_new_ids_old_times_and_a_map(source: House) -> None:
    before = messages(source, "thr-1")
    status, reply = clone(source)
    assert status == 200
    assert set(reply) == {"thread", "clonedMessages", "messageIdMap"}
    thread = reply["thread"]
    assert thread["metadata"] == {
        "clone": {"sourceThreadId": "thr-1", "clonedAt": thread["createdAt"], "lastMessageId": "thr-1-m4"}
    }
    assert (thread["title"], thread["resourceId"]) == ("Clone of First", "user-ada")
    assert source.call("GET", ONE, path={"threadId": thread["id"]}) == (200, thread)
    copies = reply["clonedMessages"]
    assert [reply["messageIdMap"][m["id"]] for m in before] == [m["id"] for m in copies]
    assert not {m["id"] for m in copies} & {m["id"] for m in before}
    assert [m | {"id": 0, "threadId": 0} for m in copies] == [m | {"id": 0, "threadId": 0} for m in before]
    assert messages(source, thread["id"]) == copies
    assert messages(source, "thr-1") == before


def test_th10_title_metadata_and_new_id(source: House) -> None:
    body = {"newThreadId": "copy", "title": "Copy", "metadata": {"branch": "b1"}, "options": {"messageLimit": 2}}
    _, reply = clone(source, body)
    thread = reply["thread"]
    assert (thread["id"], thread["title"], thread["metadata"]["branch"]) == ("copy", "Copy", "b1")
    assert list(reply["messageIdMap"]) == ["thr-1-m3", "thr-1-m4"]


@pytest.mark.parametrize(
    "options,copied",
    [
        ({"messageLimit": 0}, []),
        ({"messageLimit": 9}, [0, 1, 2, 3, 4]),
        ({"messageFilter": {"messageIds": ["thr-1-m1", "thr-1-m3", "none"]}}, [1, 3]),
        ({"messageFilter": {"messageIds": []}}, []),
        ({"messageFilter": {"startDate": 2}}, [1, 2, 3, 4]),
        ({"messageFilter": {"startDate": "1970-01-01T00:00:00.002Z", "endDate": 4}}, [1, 2, 3]),
        ({"messageFilter": {"endDate": 4, "messageIds": ["thr-1-m0", "thr-1-m4"]}, "messageLimit": 1}, [0]),
    ],
)
def test_th10_options_add_up_and_the_limit_takes_the_newest(source: House, options: Any, copied: list[int]) -> None:
    times = [m["createdAt"][-4:-1] for m in messages(source, "thr-1")]
    assert times == ["001", "002", "003", "004", "005"], "the cases above name these"
    _, reply = clone(source, {"options": options})
    assert list(reply["messageIdMap"]) == [f"thr-1-m{n}" for n in copied]
    last = reply["thread"]["metadata"]["clone"].get("lastMessageId")
    assert last == (f"thr-1-m{copied[-1]}" if copied else None)


def test_h29_the_two_live_apart(source: House) -> None:
    _, reply = clone(source, {"newThreadId": "copy"})
    copies = messages(source, "copy")
    turn = {"messages": "hi", "memory": {"thread": "copy", "resource": "user-ada"}}
    source.call("POST", "/api/agents/{agentId}/generate", path={"agentId": "assistant"}, body=turn)
    assert [m["id"] for m in messages(source, "thr-1")] == list(reply["messageIdMap"])
    source.call("DELETE", ONE, path=THR_1)
    assert messages(source, "copy")[:5] == copies


def test_h29_only_the_owner_or_a_service_may_copy(source: House) -> None:
    assert clone(source, caller=user("user-eve")) == FOREIGN
    assert clone(source, {"resourceId": "user-eve"}, caller=user("user-eve")) == FOREIGN
    assert clone(source, query={"resourceId": "user-eve"}) == FOREIGN
    assert len(source.threads()) == 1
    own = clone(source, {"resourceId": "user-eve"}, caller=user("user-ada"))[1]
    assert own["thread"]["resourceId"] == "user-ada"
    given = clone(source, {"resourceId": "user-eve"})[1]
    assert {given["thread"]["resourceId"], *(m["resourceId"] for m in given["clonedMessages"])} == {"user-eve"}


@pytest.mark.parametrize("taken", ["thr-1", "thr-2"])
def test_h29_an_existing_id_is_409_and_stays_as_it_is(source: House, taken: str) -> None:
    source.add_thread("thr-2", "user-ada", messages=1)
    before = messages(source, taken)
    status, reply = clone(source, {"newThreadId": taken})
    assert (status, reply) == (409, {"error": f"Thread {taken} exists already"})
    assert messages(source, taken) == before


@pytest.mark.parametrize("body", [{}, {"resourceId": "user-ada"}])
def test_a_missing_source_is_404(source: House, body: Any) -> None:
    assert clone(source, body, path={"threadId": "missing"}) == NO_SOURCE
    assert clone(source, body, path={"threadId": "missing"}, caller=user("user-ada")) == NO_SOURCE


@pytest.mark.parametrize(
    "body,field,rule",
    [
        ({"newThreadId": "a/b"}, "newThreadId", "may only contain"),
        ({"newThreadId": 5}, "newThreadId", "expected string"),
        ({"resourceId": "a b"}, "resourceId", "may only contain"),
        ({"title": 5}, "title", "expected string"),
        ({"title": "t" * 1001}, "title", "at most 1000"),
        ({"metadata": []}, "metadata", "expected object"),
        ({"metadata": {"a": "x" * 200_001}}, "metadata", "at most 200000 bytes"),
        ({"options": []}, "options", "expected object"),
        ({"options": {"messageLimit": -1}}, "options.messageLimit", "at least 0"),
        ({"options": {"messageLimit": "2"}}, "options.messageLimit", "expected integer"),
        ({"options": {"messageLimit": 1.5}}, "options.messageLimit", "expected integer"),
        ({"options": {"messageFilter": []}}, "options.messageFilter", "expected object"),
        ({"options": {"messageFilter": {"startDate": "x"}}}, "options.messageFilter.startDate", "expected a date"),
        ({"options": {"messageFilter": {"endDate": []}}}, "options.messageFilter.endDate", "received array"),
        ({"options": {"messageFilter": {"messageIds": "m"}}}, "options.messageFilter.messageIds", "expected array"),
        ({"options": {"messageFilter": {"messageIds": [""]}}}, "options.messageFilter.messageIds.0", "1 to 256"),
        ({"options": {"messageFilter": {"messageIds": ["m"] * 1001}}}, "options.messageFilter.messageIds", "at most"),
    ],
)
def test_bad_bodies_name_their_field_and_copy_nothing(source: House, body: Any, field: str, rule: str) -> None:
    status, reply = clone(source, body)
    assert (status, reply["error"]) == (400, "Invalid request body")
    assert [issue["field"] for issue in reply["issues"]] == [field]
    assert rule in reply["issues"][0]["message"]
    assert source.threads() == ["thr-1"]


# --- sent again ---


def test_the_same_key_finds_the_copy_that_was_made(source: House) -> None:
    first = clone(source, {"title": "Copy"}, headers=KEY)
    assert clone(source, {"title": "Copy"}, headers=KEY) == first
    assert len(source.threads()) == 2
    assert clone(source, headers=KEY | {"Idempotency-Key": "key-2"})[1]["thread"]["id"] != first[1]["thread"]["id"]
    clone(source)
    assert len(source.threads()) == 4


def test_a_repeated_copy_is_the_copy_alone_whatever_was_written_since(source: House) -> None:
    first = clone(source, headers=KEY)[1]
    for thread in ("thr-1", first["thread"]["id"]):
        turn = {"messages": "hi", "memory": {"thread": thread, "resource": "user-ada"}}
        source.call("POST", "/api/agents/{agentId}/generate", path={"agentId": "assistant"}, body=turn)
    again = clone(source, headers=KEY)[1]
    assert again["messageIdMap"] == first["messageIdMap"]
    assert again["clonedMessages"] == first["clonedMessages"]


def test_a_key_does_not_open_another_owners_thread(source: House) -> None:
    clone(source, headers=KEY, caller=user("user-ada"))
    assert clone(source, headers=KEY, caller=user("user-eve")) == FOREIGN


def test_the_same_key_creates_one_thread(house: House) -> None:
    def create(**more: Any) -> Any:
        return house.call("POST", "/api/memory/threads", query=AGENT, body={"resourceId": "user-ada"}, **more)[1]["id"]

    assert create(headers=KEY) == create(headers=KEY) != create()
    assert len(house.threads()) == 2


def test_a_copy_that_takes_too_long_is_409_and_named(source: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is copied after the reply; a 5xx would be repeated and start more copies."""

    async def slow(self: InMemoryStorage, request: CloneRequest, *, resource_id: str | None = None) -> Clone:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(InMemoryStorage, "clone_thread", slow)
    monkeypatch.setattr(operation, "COPY_SECONDS", 0.01)
    status, reply = clone(source, {"newThreadId": "copy"})
    assert (status, reply) == (409, {"error": "Thread copy is still being copied; it appears when it is complete"})


def test_a_repeat_while_the_copy_is_made_is_409(source: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is complete a copy reads as missing."""
    made = clone(source, headers=KEY)[1]["thread"]["id"]
    stored = InMemoryStorage.get_thread

    async def not_yet(self: InMemoryStorage, thread_id: str) -> Any:
        return None if thread_id == made else await stored(self, thread_id)

    monkeypatch.setattr(InMemoryStorage, "get_thread", not_yet)
    status, reply = clone(source, headers=KEY)
    assert (status, "still being copied" in reply["error"]) == (409, True)


def test_a_reply_has_as_many_copies_as_fit(source: House, monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = clone(source)
    assert "hasMore" not in whole
    monkeypatch.setattr(operation, "MAX_REPLIED", 600)
    _, cut = clone(source)
    assert (len(cut["clonedMessages"]), len(cut["messageIdMap"]), cut["hasMore"]) == (2, 5, True)
