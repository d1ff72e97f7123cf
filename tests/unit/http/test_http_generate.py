"""Generate over HTTP: what is taken, what is refused before anything happens, what comes back (spec-http 2.2)."""

import asyncio
import json
from typing import Any

import pytest

from tests.unit.http.house import House, user
from threadkeep import clock
from threadkeep.errors import ModelRejected, ModelUnavailable
from threadkeep.storage.port import Receipt
from threadkeep.turn.receipts import repeatable

GENERATE = "/api/agents/{agentId}/generate"
HI = {"messages": "hi", "memory": {"thread": "thr-1", "resource": "user-ada"}}
SLOW = {  # looks at one value in 2^40 ways
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/L0"}},
    "$defs": {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 2} for n in range(40)} | {"L40": {}},
}


def generate(house: House, body: Any, agent: str = "assistant", **more: Any) -> tuple[int, Any]:
    return house.call("POST", GENERATE, path={"agentId": agent}, body=body, **more)


def stored(house: House, thread: str = "thr-1") -> list[dict[str, Any]]:
    page = house.call("GET", "/api/memory/threads/{threadId}/messages", path={"threadId": thread})[1]
    return page.get("messages", [])


def test_the_reply_has_what_clients_read(house: House) -> None:
    status, reply = generate(house, HI)
    assert status == 200
    assert (reply["text"], reply["finishReason"], reply["toolCalls"], reply["toolResults"]) == ("Hello", "stop", [], [])
    assert reply["usage"] == reply["totalUsage"]
    assert (reply["usage"]["inputTokens"], reply["usage"]["outputTokens"], reply["usage"]["totalTokens"]) == (1, 1, 2)
    assert reply["request"] == {}  # the prompt is not sent back
    assert reply["response"]["messages"] == [{"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}]
    assert [s["stepType"] for s in reply["steps"]] == ["initial"]
    assert reply["rememberedMessages"] == []
    rows = stored(house)
    assert [(m["role"], m["content"]["content"]) for m in rows] == [("user", "hi"), ("assistant", "Hello")]
    assert [m["id"] for m in reply["messages"]] == [m["id"] for m in rows]
    assert reply["response"]["dbMessages"] == [reply["messages"][1]]
    assert reply["response"]["uiMessages"][0]["parts"] == [{"type": "text", "text": "Hello"}]
    assert [m["createdAt"] for m in reply["messages"]] == [m["createdAt"] for m in rows]


def test_both_spellings_of_the_route_work(house: House) -> None:
    assert house.call("POST", f"{GENERATE}/vnext", path={"agentId": "plain"}, body={"messages": "hi"})[0] == 200


@pytest.mark.parametrize(
    "messages",
    [
        "hi",
        ["hi"],
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}],
        [{"id": "m-1", "role": "user", "content": {"format": 2, "parts": [{"type": "text", "text": "hi"}]}}],
        [{"role": "system", "content": "be terse"}, {"role": "user", "content": "hi"}, {"role": "tool", "content": []}],
    ],
)
def test_messages_come_in_several_spellings(house: House, messages: Any) -> None:
    assert generate(house, HI | {"messages": messages})[0] == 200
    assert [m["content"]["content"] for m in stored(house)] == ["hi", "Hello"]


def test_a_file_is_stored_as_a_part(house: House) -> None:
    image = {"type": "image", "image": "data:image/png;base64,AAAA", "mediaType": "image/png"}
    assert generate(house, HI | {"messages": [{"role": "user", "content": [image]}]})[0] == 200
    part = stored(house)[0]["content"]["parts"][0]
    assert (part["type"], part["data"], part["mimeType"]) == ("file", "data:image/png;base64,AAAA", "image/png")


@pytest.mark.parametrize("messages", ["", [], None])
def test_no_messages_are_refused_in_the_documented_words(house: House, messages: Any) -> None:
    status, reply = generate(house, {"messages": messages})
    assert (status, reply["error"]) == (400, 'Argument "messages" is required')
    assert house.model.calls == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messages"),
        ({"messages": 5}, "messages"),
        ({"messages": "  "}, "messages"),
        ({"messages": [5]}, "messages.0"),
        ({"messages": ["a", ""]}, "messages.1"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "data": "x"}]}]}, "messages.0.content.0.mimeType"),
        ({"messages": [{"role": "user", "content": "x", "id": 7}]}, "messages.0.id"),
        ({"messages": [{"role": "user", "content": "x", "id": "a\nb"}]}, "messages.0.id"),
        *[
            ({"messages": [{"role": role, "content": content}]}, f"messages.0.content{field}")
            for role, content, field in [
                ("tool", "done", ""),
                ("tool", [{"type": "text", "text": "done"}], ".0.type"),
                ("tool", [{"type": "tool-result"}], ".0.result"),
                ("tool", [{"type": "tool-result", "result": 1}], ".0.toolCallId"),
                ("tool", [{"type": "tool-result", "result": 1, "toolCallId": "c"}], ".0.toolName"),
                ("tool", [{"type": "tool-result", "result": 1, "toolCallId": 5, "toolName": "t"}], ".0.toolCallId"),
                ("user", [{"type": "tool-call", "toolCallId": "c", "toolName": "t"}], ".0.type"),
                ("assistant", [{"type": "tool-call", "toolCallId": "c", "toolName": "t", "input": 5}], ".0.input"),
                ("assistant", [{"type": "tool-result", "toolCallId": "c", "toolName": "t", "result": 1}], ".0.type"),
                ("assistant", [{"type": "tool-invocation"}], ".0.toolInvocation"),
                ("assistant", [{"type": "tool-invocation", "toolInvocation": {}}], ".0.toolInvocation.state"),
            ]
        ],
        (HI | {"memory": {"thread": "a b", "resource": "r"}}, "memory.thread"),
        (HI | {"memory": {"thread": {"id": "x" * 300}, "resource": "r"}}, "memory.thread.id"),
        (HI | {"memory": {"thread": "t", "resource": "r/s"}}, "memory.resource"),
        (HI | {"memory": {"thread": "t"}}, "memory.resource"),
        (HI | {"memory": {"resource": "r"}}, "memory.thread"),
        (
            HI | {"memory": {"thread": "t", "resource": "r", "options": {"lastMessages": -1}}},
            "memory.options.lastMessages",
        ),
        (
            HI | {"memory": HI["memory"] | {"options": {"workingMemory": {"enabled": True, "schema": SLOW}}}},
            "memory.options.workingMemory.schema",
        ),
        (HI | {"maxSteps": -1}, "maxSteps"),
        (HI | {"maxSteps": "3"}, "maxSteps"),
        (HI | {"toolChoice": {"type": "tool", "toolName": "nope"}}, "toolChoice.toolName"),
        (HI | {"modelSettings": {"temperature": 9}}, "modelSettings.temperature"),
        (HI | {"runId": "a/b"}, "runId"),
        (HI | {"clientTools": {"x": 5}}, "clientTools.x"),
        (HI | {"clientTools": {"x": {"inputSchema": {"type": "strin"}}}}, "clientTools.x.inputSchema"),
        (HI | {"clientTools": {"x": {"inputSchema": {"$ref": "http://127.0.0.1/x"}}}}, "clientTools.x.inputSchema"),
        (HI | {"structuredOutput": {}}, "structuredOutput.schema"),
        (HI | {"structuredOutput": {"schema": {"pattern": "("}}}, "structuredOutput.schema"),
        (HI | {"structuredOutput": {"schema": SLOW}}, "structuredOutput.schema"),
        (HI | {"clientTools": {"x": {"inputSchema": SLOW}}}, "clientTools.x.inputSchema"),
        (HI | {"structuredOutput": {"schema": {}, "errorStrategy": "hope"}}, "structuredOutput.errorStrategy"),
        (HI | {"requireToolApproval": 1}, "requireToolApproval"),
    ],
)
def test_bad_input_names_its_field_and_nothing_happens(house: House, body: Any, field: str) -> None:
    status, reply = generate(house, body)
    assert status == 400, reply
    assert [i["field"] for i in reply["issues"]] == [field]
    assert all(i["message"] for i in reply["issues"])
    assert house.model.calls == 0 and house.threads() == []


def test_an_unknown_agent_is_404(house: House) -> None:
    assert generate(house, HI, agent="nope") == (404, {"error": "Agent with id nope not found"})


def test_a_foreign_thread_is_403_and_reaches_no_model(house: House) -> None:
    house.add_thread("thr-1", "user-eve")
    assert generate(house, HI)[0] == 403
    assert house.model.calls == 0 and stored(house) == []


def test_a_users_token_is_the_resource_whatever_the_body_says(house: House) -> None:
    body = {"messages": "hi", "memory": {"thread": "thr-1", "resource": "user-eve"}}
    status, reply = generate(house, body, caller=user("user-ada"))
    assert status == 200 and reply["messages"][0]["resourceId"] == "user-ada"
    assert generate(house, {"messages": "x", "memory": {"thread": "thr-1"}}, caller=user("user-ada"))[0] == 200
    assert generate(house, {"messages": "x", "memory": {"thread": "thr-1"}}, caller=user("user-eve"))[0] == 403


def test_th16_title_and_metadata_of_the_call_are_kept_where_it_creates_the_thread(house: House) -> None:
    thread = {"id": "thr-1", "title": "Auto", "metadata": {"k": 1}}
    generate(house, {"messages": "hi", "memory": {"thread": thread, "resource": "user-ada"}})
    created = house.call("GET", "/api/memory/threads/{threadId}", path={"threadId": "thr-1"})[1]
    assert (created["title"], created["metadata"]) == ("Auto", {"k": 1})


@pytest.mark.parametrize(("error", "status"), [(ModelRejected("bad key"), 424), (ModelUnavailable("busy"), 503)])
def test_a_failing_model_gives_one_clear_error_and_stores_nothing(house: House, error: Exception, status: int) -> None:
    async def fail(request: object) -> Any:
        raise error

    house.model.generate = fail  # type: ignore[method-assign]
    answered, reply = generate(house, HI)
    assert (answered, reply["error"]) == (status, str(error))
    assert stored(house) == []


def test_read_only_comes_with_the_call(house: House) -> None:
    house.add_thread("thr-1")
    memory = {"thread": "thr-1", "resource": "user-ada", "options": {"readOnly": True}}
    assert generate(house, {"messages": "hi", "memory": memory})[0] == 200
    assert stored(house) == []


KEY = {"Content-Type": "application/json", "Idempotency-Key": "order-7"}


def test_an_idempotency_key_makes_a_repeat_the_same_turn(house: House) -> None:
    first = generate(house, HI, headers=KEY)
    assert first[0] == 200
    again = generate(house, HI, headers=KEY)
    assert again[0] == 200
    for field in ("text", "finishReason", "runId", "messages", "usage", "toolCalls"):
        assert again[1][field] == first[1][field]
    assert house.model.calls == 1 and len(stored(house)) == 2


def test_an_idempotency_key_with_another_body_is_422(house: House) -> None:
    generate(house, HI, headers=KEY)
    status, reply = generate(house, HI | {"messages": "other"}, headers=KEY)
    assert (status, reply) == (422, {"error": "Idempotency-Key was used with another request before"})


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ü"])
def test_a_bad_idempotency_key_is_named(house: House, key: str) -> None:
    status, reply = generate(house, HI, headers=KEY | {"Idempotency-Key": key})
    assert (status, reply["issues"][0]["field"]) == (400, "Idempotency-Key")
    assert house.model.calls == 0 and house.threads() == []


def test_a_run_id_makes_a_repeat_the_same_turn_too(house: House) -> None:
    body = HI | {"runId": "run-7"}
    assert generate(house, body)[1]["messages"] == generate(house, body)[1]["messages"]
    assert house.model.calls == 1


def test_a_request_that_is_still_answered_is_409_with_retry_after(house: House) -> None:
    async def claim() -> None:
        repeat = repeatable(
            owner="user-ada",
            route="generate/assistant",
            thread_id="thr-1",
            body=json.dumps(HI).encode(),
            arrived=clock.now(),
            key="order-7",
        )
        until = clock.now() + 7_000
        receipt = Receipt(repeat.key, "other", repeat.request_hash, "running", until)
        await house.store.load_turn("thr-1", last_messages=0, claim=receipt)

    asyncio.run(claim())
    event = {
        "httpMethod": "POST",
        "resource": GENERATE,
        "pathParameters": {"agentId": "assistant"},
        "headers": KEY,
        "body": json.dumps(HI),
        "requestContext": {"authorizer": {"kind": "service"}},
    }
    response = house.handler(event, None)
    assert response["statusCode"] == 409
    assert 1 <= int(response["headers"]["retry-after"]) <= 7
    assert house.model.calls == 0


def test_a_reply_repeats_the_history_only_while_it_is_small(house: House) -> None:
    generate(house, HI | {"messages": "x" * 1_200_000})
    status, reply = generate(house, HI)
    assert (status, reply["text"], reply["rememberedMessages"]) == (200, "Hello", [])
    assert [len(m["content"]["parts"][0]["text"]) for m in stored(house)] == [1_200_000, 5, 2, 5]


def test_a_message_of_3_mb_is_answered_and_read_back(house: House) -> None:
    text = "3 MB of text. " * 220_000
    status, reply = generate(house, HI | {"messages": text})
    assert (status, reply["text"]) == (200, "Hello")
    assert stored(house)[0]["content"]["parts"][0]["text"] == text


@pytest.mark.parametrize("field", ["instructions", "system"])
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("be terse", "be terse"),
        (["be terse", "be kind"], "be terse\n\nbe kind"),
        ({"role": "system", "content": "be terse"}, "be terse"),
        (["be terse", {"role": "system", "content": "be kind", "providerOptions": {}}], "be terse\n\nbe kind"),
    ],
)
def test_instructions_and_system_take_what_clients_write(house: House, field: str, given: Any, seen: str) -> None:
    assert generate(house, HI | {field: given})[0] == 200
    assert seen in [m.text for m in house.model.requests[-1].messages if m.role == "system"]


@pytest.mark.parametrize("field", ["instructions", "system"])
@pytest.mark.parametrize(
    "given", [5, True, {"content": 1}, {"role": "user", "content": "x"}, [["x"]], [None], {"role": "system"}]
)
def test_other_instructions_and_system_are_refused(house: House, field: str, given: Any) -> None:
    status, reply = generate(house, HI | {field: given})
    assert (status, [i["field"] for i in reply["issues"]]) == (400, [field])


@pytest.mark.parametrize(("given", "status"), [(1, 200), (0.5, 200), ("1", 400), (True, 400), (2.1, 400)])
def test_a_temperature_is_a_number(house: House, given: Any, status: int) -> None:
    assert generate(house, HI | {"modelSettings": {"temperature": given}})[0] == status
