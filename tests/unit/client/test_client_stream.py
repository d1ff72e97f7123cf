"""Streams: the framing of spec-http 3, however it is cut, and who hangs up when."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from tests.unit.client.door import KEY, Door, Pieces
from threadkeep_client import AsyncClient, Chunk, Client, ConnectionFailed, NotFound, Unavailable, UnreadableReply
from threadkeep_client.stream import Decoder


def chunk(kind: str, **payload: Any) -> dict[str, Any]:
    return {"type": kind, "runId": "run-1", "from": "AGENT", "payload": payload}


RUN = [
    chunk("start", id="assistant", messageId="m"),
    chunk("text-delta", id="1", text="Grüß "),
    chunk("text-delta", id="1", text="dich\u2028\x85du"),
    chunk("finish", stepResult={"reason": "stop"}),
]


def event(given: Any) -> bytes:
    return b"data: " + json.dumps(given, ensure_ascii=False).encode() + b"\n\n"


BYTES = b"".join(map(event, RUN)) + b"data: [DONE]\n\n"


def pieces(*given: bytes, forever: bool = False) -> Pieces:
    async def give() -> AsyncGenerator[bytes]:
        for piece in given:
            yield piece
            await asyncio.sleep(0.01)
        while forever:
            yield b": heartbeat\n\n"
            await asyncio.sleep(0.01)

    return give


def decoded(*received: bytes) -> list[Chunk]:
    decoder = Decoder()
    return [c for piece in received for c in decoder.feed(piece)] + list(decoder.end())


def texts(chunks: list[Chunk]) -> str:
    return "".join(c.text for c in chunks)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_chunks_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    found = decoded(*[BYTES[n : n + size] for n in range(0, len(BYTES), size)])
    assert [c.model_dump(by_alias=True, exclude_unset=True) for c in found] == RUN
    assert texts(found) == "Grüß dich\u2028\x85du"
    assert (found[0].run_id, found[0].sender) == ("run-1", "AGENT")


@pytest.mark.parametrize(
    "received",
    [
        b": connected\n\n: heartbeat\n\n" + BYTES,
        BYTES.replace(b"\n", b"\r\n"),
        BYTES.replace(b"data: ", b"data:"),
        BYTES.replace(b"data: {", b"event: chunk\nid: 7\ndata: {"),
        BYTES.removesuffix(b"data: [DONE]\n\n"),
        BYTES.removesuffix(b"data: [DONE]\n\n").removesuffix(b"\n\n"),
        BYTES + event(chunk("text-delta", text="too late")),
        BYTES.replace(b'"runId"', b'\ndata: "runId"'),
    ],
    ids=["comments", "crlf", "no space", "other fields", "no done", "no last line", "after done", "two data lines"],
)
def test_the_decoder_is_tolerant(received: bytes) -> None:
    assert [c.model_dump(by_alias=True, exclude_unset=True) for c in decoded(received)] == RUN


@pytest.mark.parametrize(
    "received", [b"data: {\n\n", b'data: {"type": "text-de', b'data: {"a": 1}\n\n', b"data: []\n\n"]
)
def test_what_is_no_chunk_or_was_cut_off_is_unreadable(received: bytes) -> None:
    with pytest.raises(UnreadableReply, match="no chunk, or was cut off"):
        decoded(event(RUN[0]), received)


def test_an_answer_of_comments_has_no_chunks() -> None:
    assert decoded(b": connected\n\n", b"\n\n\n") == []


def test_chunks_tell_text_and_problems() -> None:
    assert Chunk(type="text-delta", payload={"text": "a"}).text == "a"
    assert Chunk(type="reasoning-delta", payload={"text": "a"}).text == ""
    assert Chunk(type="error", payload={"error": {"message": "no", "name": "E"}}).problem == "no"
    assert Chunk(type="error", payload={"error": "no"}).problem == "no"
    assert Chunk(type="tripwire", payload={"reason": "rude"}).problem == "rude"
    assert Chunk(type="finish").problem == ""
    user = Chunk.model_validate({"type": "data-user-message", "data": {"id": "x"}})
    assert user.model_extra == {"data": {"id": "x"}}


def test_a_chunk_of_a_sub_agent_is_read_at_any_depth_and_is_no_text_of_the_answer() -> None:
    def wrapped(key: str, inner: dict[str, Any]) -> dict[str, Any]:
        return {**chunk("tool-output", toolCallId="c", toolName=f"agent-{key}", output=inner), "from": "USER"}

    (seen,) = decoded(event(wrapped("a", wrapped("b", chunk("text-delta", text="deep")))))
    assert seen.text == "" and seen.problem == ""
    assert seen.output and seen.output.output and seen.output.output.text == "deep"
    assert seen.output.payload["toolName"] == "agent-b"
    assert Chunk(type="tool-output", payload={"output": "no chunk"}).output is None
    assert Chunk(type="tool-result", payload={"output": {"type": "x"}}).output is None


def test_a_run_is_read_as_it_comes(door: Door, client: Client) -> None:
    door.streams["assistant"] = pieces(b": connected\n\n", BYTES[:100], BYTES[100:])
    with client.stream("assistant", "Hi", thread="t", resource="ada", max_steps=2) as chunks:
        assert texts(list(chunks)) == "Grüß dich\u2028\x85du"
    _, path, headers, body = door.seen[-1]
    assert path == "/api/agents/assistant/stream" and headers["idempotency-key"]
    expected = {"messages": "Hi", "memory": {"thread": "t", "resource": "ada"}, "maxSteps": 2}
    assert json.loads(body) == expected


def test_the_first_chunk_is_there_before_the_last_was_sent(door: Door, client: Client) -> None:
    door.streams["assistant"] = pieces(event(RUN[0]), forever=True)
    with client.stream("assistant", "Hi") as chunks:
        assert next(iter(chunks)).type == "start"
        time.sleep(0.1)
        assert not door.hung_up.is_set()
    assert door.hung_up.wait(5)


def test_who_stops_reading_hangs_up(door: Door, client: Client) -> None:
    door.streams["assistant"] = pieces(event(RUN[0]), forever=True)
    for _ in client.stream("assistant", "Hi"):
        break
    assert door.hung_up.wait(5)


def test_done_ends_the_stream_though_the_connection_stays(door: Door, client: Client) -> None:
    door.streams["assistant"] = pieces(BYTES, forever=True)
    assert len(list(client.stream("assistant", "Hi"))) == len(RUN)
    assert door.hung_up.wait(5)


async def test_the_async_stream_does_the_same(door: Door) -> None:
    async with AsyncClient(door.url, KEY) as client:
        door.streams["assistant"] = pieces(BYTES[:90], BYTES[90:])
        async with client.stream("assistant", "Hi") as chunks:
            assert texts([c async for c in chunks]) == "Grüß dich\u2028\x85du"
        door.streams["assistant"] = pieces(event(RUN[0]), forever=True)
        async with client.stream("assistant", "Hi") as chunks:
            async for found in chunks:
                assert found.type == "start"
                break
        assert await asyncio.to_thread(door.hung_up.wait, 5)


def test_a_refusal_before_the_run_is_an_exception(door: Door, client: Client) -> None:
    with pytest.raises(NotFound), client.stream("assistant", "Hi"):
        pass
    with pytest.raises(NotFound):
        list(client.stream("assistant", "Hi"))


def answering(*answers: httpx.Response | Exception) -> tuple[Client, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def give(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = answers[len(seen) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client("http://server", transport=httpx.MockTransport(give)), seen


def test_a_stream_on_a_thread_is_asked_for_again_until_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep_client.client.time.sleep", lambda seconds: None)
    busy = httpx.Response(503, json={"error": "busy"})
    done = httpx.Response(200, content=BYTES, headers={"content-type": "text/event-stream; charset=utf-8"})
    client, seen = answering(httpx.ReadError("cut"), busy, done)
    assert len(list(client.stream("a", "Hi", thread="t"))) == len(RUN)
    assert len({r.headers["idempotency-key"] for r in seen}) == 1 and len(seen) == 3
    client, seen = answering(httpx.Response(503, json={"error": "busy"}))
    with pytest.raises(Unavailable):
        list(client.stream("a", "Hi"))
    assert len(seen) == 1


class Breaking(httpx.SyncByteStream):
    def __iter__(self) -> Any:
        yield event(RUN[0])
        raise httpx.ReadError("cut")


def test_a_stream_that_breaks_is_not_begun_again() -> None:
    broken = httpx.Response(200, stream=Breaking(), headers={"content-type": "text/event-stream"})
    client, seen = answering(broken)
    found: list[str] = []
    with pytest.raises(ConnectionFailed, match="The connection broke"):
        found += [c.type for c in client.stream("a", "Hi", thread="t")]
    assert len(seen) == 1


def test_an_answer_in_one_piece_is_no_stream() -> None:
    client, _ = answering(httpx.Response(200, json={"text": "Hi"}))
    with pytest.raises(UnreadableReply, match="its content type is application/json"):
        list(client.stream("a", "Hi"))


def test_the_streaming_route_of_the_server_is_understood(door: Door, client: Client) -> None:
    door.real_streams = True
    with client.stream("assistant", "Hi", thread="t1", resource="ada") as chunks:
        found = list(chunks)
    assert [c.type for c in found][0] == "start" and found[-1].type == "finish"
    assert texts(found) == "Hello" and not any(c.problem for c in found)
    assert [m.role for m in client.list_messages("t1").messages] == ["user", "assistant"]
    with pytest.raises(NotFound, match="Agent with id nope not found"), client.stream("nope", "Hi"):
        pass


def test_a_stream_asked_for_again_under_its_key_is_one_turn(door: Door, client: Client) -> None:
    door.real_streams = True
    for _ in range(2):
        assert (
            texts(list(client.stream("assistant", "Hi", thread="t1", resource="ada", idempotency_key="k"))) == "Hello"
        )
    assert client.list_messages("t1").total == 2
