"""Saving and deleting messages over HTTP (MS-1 to MS-8; H11, H12, H19, H33)."""

import asyncio
from typing import Any

import pytest

from tests.unit.http.house import House, user
from threadkeep import clock

SAVE, DELETE = "/api/memory/save-messages", "/api/memory/messages/delete"
ONE = "/api/memory/threads/{threadId}"
MESSAGES = ONE + "/messages"
AGENT = {"agentId": "assistant"}
FOREIGN = (403, {"error": "Access denied: thread belongs to a different resource"})
MISSING = (404, {"error": "Thread not found"})
V2 = {"format": 2, "parts": [{"type": "text", "text": "saved by hand"}]}


def message(**fields: Any) -> dict[str, Any]:
    return {"threadId": "thr-1", "resourceId": "user-ada", "role": "user", "content": "x"} | fields


def save(house: House, *messages: Any, **more: Any) -> tuple[int, Any]:
    body = {"agentId": "assistant", "messages": list(messages)}
    return house.call("POST", SAVE, query=more.pop("query", AGENT), body=body, **more)


def delete(house: House, ids: Any, **more: Any) -> tuple[int, Any]:
    return house.call("POST", DELETE, query=more.pop("query", AGENT), body={"messageIds": ids}, **more)


def listed(house: House, thread: str = "thr-1") -> list[Any]:
    query = {"perPage": "false", "includeSystemReminders": "true"}
    return house.call("GET", MESSAGES, path={"threadId": thread}, query=query)[1]["messages"]


@pytest.fixture
def ada(house: House) -> House:
    """A house with one thread of user-ada and nothing in it."""
    house.add_thread()
    return house


def test_ms4_text_becomes_the_stored_form_and_an_id_is_made(ada: House) -> None:
    status, reply = save(ada, message(content="Hello!", createdAt="2024-11-29T17:44:37.904Z", format=2))
    assert status == 200
    stored = reply["messages"][0]
    assert stored == {
        "id": stored["id"], "role": "user", "createdAt": "2024-11-29T17:44:37.904Z",
        "threadId": "thr-1", "resourceId": "user-ada",
        "content": {"format": 2, "parts": [{"type": "text", "text": "Hello!"}], "content": "Hello!"},
    }  # fmt: skip
    assert listed(ada) == [stored]


def test_ms1_the_stored_form_is_kept_exactly(ada: House) -> None:
    parts = [
        {"type": "text", "text": "", "createdAt": 1795974275007, "mine": {"n": [1, 1.5, None]}},
        {"type": "file", "data": "aGk=", "mimeType": "text/plain"},
        {
            "type": "tool-invocation",
            "toolInvocation": {"state": "call", "toolCallId": "c", "toolName": "t", "args": {"tool_name": 3, "f": 0.1}},
        },
        {"type": "step-start", "model": "a/b"},
        {"type": "data-anything", "snake_case": 1, "camelCase": 12345678901234567890},
    ]
    content = {"format": 2, "parts": parts, "metadata": {"a.b": {"": ""}}, "reasoning": "r", "content": "c"}
    _, reply = save(ada, message(id="m-1", content=content, type="text"))
    assert reply["messages"][0]["content"] == content == listed(ada)[0]["content"]
    assert (reply["messages"][0]["id"], reply["messages"][0]["type"]) == ("m-1", "text")
    without = {"parts": [{"type": "text", "text": "x"}]}
    assert save(ada, message(content=without))[1]["messages"][0]["content"] == {"format": 2} | without


def test_ms6_saving_again_replaces_content_and_keeps_place_and_time(ada: House) -> None:
    first = save(ada, message(id="a", content="one", createdAt=1000), message(id="b", createdAt=2000))[1]["messages"]
    _, again = save(ada, message(id="a", role="assistant", content="two", createdAt=5000, type="v2"))
    assert [(m["id"], m["role"], m["content"].get("content"), m["createdAt"]) for m in listed(ada)] == [
        ("a", "assistant", "two", first[0]["createdAt"]), ("b", "user", "x", first[1]["createdAt"]),
    ]  # fmt: skip
    assert again["messages"][0]["type"] == "v2"


def test_times_are_iso_text_or_milliseconds_and_put_messages_in_their_place(ada: House) -> None:
    save(
        ada,
        message(id="c", createdAt=3000),
        message(id="a", createdAt="1970-01-01T00:00:01Z"),
        message(id="b", createdAt="1970-01-01T01:00:02+01:00"),
        message(id="d"),
    )
    assert [m["id"] for m in listed(ada)] == ["a", "b", "c", "d"]


def test_several_threads_in_one_request_are_each_saved_and_answered_in_order(ada: House) -> None:
    ada.add_thread("thr-2", "user-eve")
    eve = {"threadId": "thr-2", "resourceId": "user-eve"}
    _, reply = save(ada, message(id="1"), message(id="2", **eve), message(id="3"), message(id="4", **eve))
    assert [(m["id"], m["threadId"], m["resourceId"]) for m in reply["messages"]] == [
        ("1", "thr-1", "user-ada"), ("2", "thr-2", "user-eve"), ("3", "thr-1", "user-ada"), ("4", "thr-2", "user-eve"),
    ]  # fmt: skip
    assert [[m["id"] for m in listed(ada, t)] for t in ("thr-1", "thr-2")] == [["1", "3"], ["2", "4"]]


def test_one_id_twice_is_one_message_with_the_last_content(ada: House) -> None:
    _, reply = save(ada, message(id="m", content="one"), message(id="m", content="two"))
    assert (
        [m["content"]["content"] for m in reply["messages"]]
        == ["two"]
        == [m["content"]["content"] for m in listed(ada)]
    )


@pytest.mark.parametrize(
    "bad,refusal",
    [
        ({"resourceId": "user-eve"}, FOREIGN),
        ({"threadId": "thr-2"}, FOREIGN),
        ({"threadId": "missing"}, MISSING),
    ],
)
def test_owners_are_checked_before_anything_is_written(ada: House, bad: Any, refusal: Any) -> None:
    ada.add_thread("thr-2", "user-eve")
    before = ada.call("GET", ONE, path={"threadId": "thr-1"})
    assert save(ada, message(), message(**bad)) == refusal
    assert save(ada, message(**bad), message()) == refusal
    assert (listed(ada), listed(ada, "thr-2")) == ([], [])
    assert ada.call("GET", ONE, path={"threadId": "thr-1"}) == before


def test_a_users_resource_overrides_and_need_not_be_named(ada: House) -> None:
    bare = {k: v for k, v in message().items() if k != "resourceId"}
    assert save(ada, bare, message(resourceId="user-eve"), caller=user("user-ada"))[0] == 200
    assert save(ada, message(), caller=user("user-eve")) == FOREIGN
    status, reply = save(ada, message(), bare)
    assert (status, [i["field"] for i in reply["issues"]]) == (400, ["messages.1.resourceId"])
    assert len(listed(ada)) == 2


def signal(**more: Any) -> dict[str, Any]:
    return {"role": "signal", "content": V2 | {"metadata": {"signal": {"id": "s", "tagName": "state"} | more}}}


def test_h19_system_rows_and_transient_signals_are_skipped(ada: House) -> None:
    _, reply = save(
        ada,
        message(role="system", id="s"),
        message(id="u"),
        message(**signal(transient=True)),
        message(**signal(transient=False), id="kept"),
        message(**signal(), id="typed", type="reactive"),
        message(role="signal", id="bare"),
    )
    shown = [(m["id"], m["role"], m.get("type")) for m in reply["messages"]]
    assert shown == [
        ("u", "user", None), ("kept", "signal", "state"), ("typed", "signal", "reactive"), ("bare", "signal", None),
    ]  # fmt: skip
    assert listed(ada) == reply["messages"]


def test_nothing_to_save_is_fine(ada: House) -> None:
    assert save(ada) == (200, {"messages": []})
    assert save(ada, message(role="system")) == (200, {"messages": []})


KEY = {"content-type": "application/json", "Idempotency-Key": "key-1"}


def test_h12_the_same_key_saves_once_and_random_ids_twice(ada: House) -> None:
    rows = [message(content="yes"), message(content="yes"), message(id="mine")]
    first = save(ada, *rows, headers=KEY)
    assert save(ada, *rows, headers=KEY) == first
    assert len(listed(ada)) == len({m["id"] for m in first[1]["messages"]}) == 3
    save(ada, *rows, headers=KEY | {"Idempotency-Key": "key-2"})
    save(ada, *rows)
    assert len(listed(ada)) == 7


def test_keys_of_different_owners_do_not_meet(ada: House) -> None:
    ada.add_thread("thr-2", "user-eve")
    first = save(ada, message(), headers=KEY)[1]["messages"][0]["id"]
    second = save(ada, message(threadId="thr-2", resourceId="user-eve"), headers=KEY)[1]["messages"][0]["id"]
    assert first != second


@pytest.mark.parametrize("key", ["", " ", "a b", "ü", "a" * 256])
def test_bad_keys_are_refused(ada: House, key: str) -> None:
    status, reply = save(ada, message(), headers=KEY | {"Idempotency-Key": key})
    assert (status, reply["error"], reply["issues"][0]["field"]) == (400, "Invalid headers", "Idempotency-Key")
    assert listed(ada) == []


def test_a_reply_that_could_not_be_sent_is_refused_before_saving(ada: House) -> None:
    """A quote takes two bytes of the request, and four of the reply, which is JSON inside Lambda's JSON."""
    quotes = message(content=V2 | {"parts": [{"type": "text", "text": '"' * 100_000}]})
    status, reply = save(ada, *[quotes | {"id": str(n)} for n in range(15)])
    assert (status, reply) == (413, {"error": "Reply too large: save fewer messages at once"})
    assert listed(ada) == []
    assert save(ada, *[quotes | {"id": str(n)} for n in range(10)])[0] == 200


def test_ms1_a_long_text_is_kept_once(ada: House) -> None:
    _, reply = save(ada, message(content="x" * 3_000_000))
    assert reply["messages"][0]["content"] == {"format": 2, "parts": [{"type": "text", "text": "x" * 3_000_000}]}
    assert listed(ada) == reply["messages"]


@pytest.mark.parametrize(
    "fields,field,rule",
    [
        ({"threadId": None}, "threadId", "expected string, received null"),
        ({"threadId": "a/b"}, "threadId", "may only contain"),
        ({"resourceId": 5}, "resourceId", "expected string, received number"),
        ({"resourceId": "a b"}, "resourceId", "may only contain"),
        ({"role": "wizard"}, "role", "received wizard"),
        ({"role": "tool"}, "role", "received tool"),
        ({"content": None}, "content", "expected string, received null"),
        ({"content": 5}, "content", "expected string, received number"),
        ({"content": ["x"]}, "content", "expected string, received array"),
        ({"content": {}}, "content.parts", "required"),
        ({"content": {"parts": "x"}}, "content.parts", "expected array, received string"),
        ({"content": {"parts": ["x"]}}, "content.parts.0", "expected object, received string"),
        ({"content": {"parts": [{}]}}, "content.parts.0.type", "required"),
        ({"content": {"parts": [{"type": 5}]}}, "content.parts.0.type", "expected string, received number"),
        ({"content": {"parts": [{"type": "text"}]}}, "content.parts.0.text", "required"),
        ({"content": {"parts": [{"type": "text", "text": 5}]}}, "content.parts.0.text", "expected string"),
        ({"content": {"parts": [{"type": "file", "data": "x"}]}}, "content.parts.0.mimeType", "required"),
        ({"content": {"parts": [{"type": "tool-invocation"}]}}, "content.parts.0.toolInvocation", "required"),
        (
            {"content": {"parts": [{"type": "tool-invocation", "toolInvocation": {"state": "call", "toolName": "t"}}]}},
            "content.parts.0.toolInvocation.toolCallId",
            "required",
        ),
        ({"content": {"format": 3, "parts": []}}, "content.format", "expected 2, received 3"),
        ({"content": {"parts": [], "content": 5}}, "content.content", "expected string"),
        ({"content": {"parts": [], "metadata": []}}, "content.metadata", "expected object"),
        ({"id": ""}, "id", "1 to 256 bytes"),
        ({"id": "a" * 257}, "id", "1 to 256 bytes"),
        ({"id": "a\nb"}, "id", "control characters"),
        ({"id": 5}, "id", "expected string"),
        ({"createdAt": "yesterday"}, "createdAt", "expected a date"),
        ({"createdAt": True}, "createdAt", "received boolean"),
        ({"createdAt": -1}, "createdAt", "not be before 1970"),
        ({"createdAt": clock.now() + 90_000_000}, "createdAt", "more than a day ahead"),
        ({"createdAt": "9999-12-31"}, "createdAt", "more than a day ahead"),
        ({"type": 5}, "type", "expected string"),
        ({"type": "x" * 129}, "type", "at most 128"),
    ],
)
def test_bad_messages_name_their_field_and_nothing_is_stored(ada: House, fields: Any, field: str, rule: str) -> None:
    status, reply = save(ada, message(), message(**fields))
    assert (status, reply["error"]) == (400, "Invalid request body")
    assert [issue["field"] for issue in reply["issues"]] == [f"messages.1.{field}"]
    assert rule in reply["issues"][0]["message"]
    assert listed(ada) == []


@pytest.mark.parametrize(
    "body,field",
    [
        ({}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": ["x"]}, "messages.0"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages.0.threadId"),
        ({"messages": [message()] * 1001}, "messages"),
        ([], "root"),
    ],
)
def test_bad_bodies_name_their_field(ada: House, body: Any, field: str) -> None:
    status, reply = ada.call("POST", SAVE, query=AGENT, body=body)
    assert (status, [issue["field"] for issue in reply["issues"]]) == (400, [field])


# --- delete ---


@pytest.mark.parametrize(
    "ids,left,said",
    [
        ("thr-1-m0", ["m1", "m2"], "1 message"),
        (["thr-1-m0", "thr-1-m2"], ["m1"], "2 messages"),
        ({"id": "thr-1-m1"}, ["m0", "m2"], "1 message"),
        ([{"id": "thr-1-m1"}, {"id": "none"}], ["m0", "m2"], "2 messages"),
        (["thr-1-m0", {"id": "thr-1-m1"}], ["m2"], "2 messages"),
        ("no-such-id", ["m0", "m1", "m2"], "1 message"),
        ([], ["m0", "m1", "m2"], "0 messages"),
    ],
)
def test_ms8_every_spelling_deletes_and_the_reply_counts_what_was_asked_for(
    house: House, ids: Any, left: list[str], said: str
) -> None:
    house.add_thread(messages=3)
    assert delete(house, ids) == (200, {"success": True, "message": f"{said} deleted successfully"})
    assert [m["id"].removeprefix("thr-1-") for m in listed(house)] == left
    _, page = house.call("GET", MESSAGES, path={"threadId": "thr-1"})
    assert page["total"] == len(left)


@pytest.mark.parametrize(
    "query,caller",
    [(AGENT | {"resourceId": "user-eve"}, {"kind": "service"}), ({"resourceId": "user-ada"}, user("user-eve"))],
)
def test_ms8_another_owners_message_is_403_and_nothing_is_deleted(house: House, query: Any, caller: Any) -> None:
    house.add_thread(messages=1)
    house.add_thread("thr-2", "user-eve", messages=1)
    assert delete(house, ["thr-2-m0", "thr-1-m0"], query=query, caller=caller) == FOREIGN
    assert (len(listed(house)), len(listed(house, "thr-2"))) == (1, 1)


def test_a_service_without_a_resource_may_delete_any(house: House) -> None:
    house.add_thread(messages=1)
    house.add_thread("thr-2", "user-eve", messages=1)
    assert delete(house, ["thr-1-m0", "thr-2-m0"])[0] == 200
    assert (listed(house), listed(house, "thr-2")) == ([], [])


@pytest.mark.parametrize(
    "body,field",
    [
        ({}, "messageIds"),
        ({"messageIds": None}, "messageIds"),
        ({"messageIds": 5}, "messageIds"),
        ({"messageIds": ""}, "messageIds"),
        ({"messageIds": {}}, "messageIds"),
        ({"messageIds": {"id": 5}}, "messageIds"),
        ({"messageIds": ["a", ""]}, "messageIds.1"),
        ({"messageIds": ["a", 5]}, "messageIds.1"),
        ({"messageIds": [{"name": "a"}]}, "messageIds.0"),
        ({"messageIds": ["a"] * 1001}, "messageIds"),
    ],
)
def test_bad_deletes_name_their_field(house: House, body: Any, field: str) -> None:
    house.add_thread(messages=1)
    status, reply = house.call("POST", DELETE, query=AGENT, body=body)
    assert (status, [issue["field"] for issue in reply["issues"]]) == (400, [field])
    assert len(listed(house)) == 1


def test_an_id_that_several_owners_have_needs_the_resource(house: House) -> None:
    house.add_thread()
    house.add_thread("thr-2", "user-eve")
    save(house, message(id="same"), message(id="same", threadId="thr-2", resourceId="user-eve"))
    assert delete(house, "same")[0] == 409
    assert delete(house, "same", query={"resourceId": "user-ada"})[0] == 200
    assert (len(listed(house)), len(listed(house, "thr-2"))) == (0, 1)


def test_networks_save_and_delete_too(house: House) -> None:
    house.add_thread()
    body = {"messages": [message(id="m")]}
    query = {"networkId": "assistant"}
    assert house.call("POST", "/api/memory/network/save-messages", query=query, body=body)[0] == 200
    assert house.call("POST", "/api/memory/network/messages/delete", query=query, body={"messageIds": "m"})[0] == 200
    assert listed(house) == []


def test_saved_messages_are_what_the_next_turn_remembers(ada: House) -> None:
    save(ada, message(content="My boat is Petrel"), message(role="assistant", content="Noted"), message(role="system"))
    body = {"messages": "What is it?", "memory": {"thread": "thr-1", "resource": "user-ada"}}
    _, reply = ada.call("POST", "/api/agents/{agentId}/generate", path={"agentId": "assistant"}, body=body)
    assert [m["content"]["content"] for m in reply["rememberedMessages"]] == ["My boat is Petrel", "Noted"]
    assert asyncio.run(ada.store.get_thread("thr-1")).message_count == 4  # type: ignore[union-attr]


def test_a_signals_tag_name_is_its_type_and_as_short(ada: House) -> None:
    signal = {"format": 2, "parts": [], "metadata": {"signal": {"tagName": "x" * 129}}}
    status, reply = save(ada, message(role="signal", content=signal))
    assert (status, reply["issues"][0]["field"]) == (400, "messages.0.content.metadata.signal.tagName")
    assert listed(ada) == []
