"""Streams of OpenAI-compatible servers: the scripted one, and the shapes in which others send their chunks."""

import asyncio
import json
import threading
import time
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.models.chunks import joined, response_of
from threadkeep.errors import ModelRejected, ModelUnavailable
from threadkeep.models.openai import OpenAIModel
from threadkeep.models.port import Finished, ModelRequest, TextDelta, ToolCall, ToolCallStart, ToolSpec, Usage

WEATHER = ToolSpec("weather", "Tells the weather", {"type": "object"})
STOP = {"index": 0, "delta": {}, "finish_reason": "stop"}


def adapter(url: str) -> OpenAIModel:
    async def read_key():
        return "secret-key-7"

    return OpenAIModel(url, read_key)


def run(url: str, *requests: ModelRequest):
    """The chunks of each request, asked one after the other in one event loop."""

    async def main():
        model = adapter(url)
        try:
            return [[chunk async for chunk in model.stream(request)] for request in requests]
        finally:
            await model.close()

    return asyncio.run(main())


def answer(url: str, request: ModelRequest):
    return response_of(run(url, request)[0])


async def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


class Server:
    """Answers each request with the next of `replies`: status, content type, and the pieces of the body."""

    def __init__(self):
        self.replies = []
        self.seen = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                owner.seen.append((json.loads(body), self.client_address))
                status, kind, pieces, is_whole = owner.replies.pop(0)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                if is_whole:
                    self.wfile.write(b"0\r\n\r\n")
                else:
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def replies_with(self, body: bytes, kind="application/json", status=200):
        self.replies.append((status, kind, [body], True))

    def streams(self, *chunks, done=True, is_whole=True, kind="text/event-stream"):
        pieces = [event(chunk) for chunk in chunks] + ([b"data: [DONE]\n\n"] if done else [])
        self.replies.append((200, kind, pieces, is_whole))

    def deltas(self, *deltas, **more):
        head = {"id": "r1", "object": "chat.completion.chunk", "model": "m1"}
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        self.streams(*({**head, "choices": [choice]} for choice in [*choices, STOP]), **more)


def event(chunk) -> bytes:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.server.shutdown()
    server.server.server_close()
    thread.join()


def call(arguments=None, **more):
    function = {key: more.pop(key) for key in ("name",) if key in more}
    return {"tool_calls": [{**more, "function": {**function, "arguments": arguments}}]}


def test_text_comes_in_pieces_and_the_usage_in_the_last_chunk(scripted, ask):
    (chunks,) = run(scripted.url, ask("@say Good evening, dear friends"))
    assert [chunk.text for chunk in chunks[:-1]] == ["Good eve", "ning, de", "ar frien", "ds"]
    response = response_of(chunks)
    assert (response.text, response.finish_reason) == ("Good evening, dear friends", "stop")
    assert response.usage == Usage(5, 4)
    assert response.model == "m1"
    assert response.response_id.startswith("chatcmpl-")


@pytest.mark.parametrize(
    "script",
    [
        "@say Grüße 👋 aus Bern",
        "@say",
        '@call weather {"city": "Bern", "days": 3, "x": 0.1} && weather && @say Let me see',
        '@call weather {"city": ',
    ],
)
def test_the_last_chunk_is_what_generate_returns(scripted, ask, script):
    async def both():
        model = adapter(scripted.url)
        request = ask(script, tools=(WEATHER,))
        whole = await model.generate(request)
        chunks = [chunk async for chunk in model.stream(request)]
        await model.close()
        return whole, chunks

    whole, chunks = asyncio.run(both())
    assert plain(response_of(chunks)) == plain(whole)


def plain(response):
    """A response without the ids, which the scripted server makes up for each answer."""
    calls = [(call.name, call.args, call.invalid) for call in response.tool_calls]
    return response.text, calls, response.finish_reason, response.usage, response.model, response.reasoning


def test_the_request_differs_only_in_how_it_is_answered(scripted, ask):
    scripted.reset()
    run(scripted.url, ask("hi"))
    assert scripted.requests == [
        {
            "model": "m1",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_the_first_piece_arrives_while_the_model_still_works(scripted, ask):
    scripted.reset()
    model = adapter(scripted.url)
    chunks = model.stream(ask("@stall door\n@say one two three four"))
    assert await anext(chunks) == TextDelta("one two ")
    await until(lambda: scripted.held == ["door"])
    scripted.release("door")
    rest = [chunk async for chunk in chunks]
    assert joined(rest, TextDelta) == "three four"
    await model.close()


@pytest.mark.parametrize("script", ["@stall door\n@say one two three", "@pause 30000\n@say one two three"])
async def test_closing_hangs_up(scripted, ask, script):
    scripted.reset()
    model = adapter(scripted.url)
    async with aclosing(model.stream(ask(script))) as chunks:
        await anext(chunks)
        assert scripted.hangups == 0
    await until(lambda: scripted.hangups == 1)
    assert scripted.held == []
    await model.close()


@pytest.mark.parametrize("script", ["@hold door\n@say x", "@stall door\n@say one two three"])
async def test_cancelling_whoever_waits_for_a_chunk_hangs_up(scripted, ask, script):
    scripted.reset()
    model = adapter(scripted.url)

    async def consume():
        async for _ in model.stream(ask(script)):
            pass

    task = asyncio.create_task(consume())
    await until(lambda: scripted.held == ["door"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: scripted.hangups == 1)
    await model.close()


@pytest.mark.parametrize("script", ["@hold door\n@say x", "@stall door\n@say one two three"])
async def test_the_timeout_spans_the_whole_stream_and_hangs_up(scripted, ask, script):
    scripted.reset()
    model = adapter(scripted.url)
    with pytest.raises(ModelUnavailable, match=r"did not answer within 0\.5 s"):
        async for _ in model.stream(ask(script, timeout=0.5)):
            pass
    await until(lambda: scripted.hangups == 1)
    assert scripted.calls == 1
    await model.close()


async def test_a_trickle_does_not_outlive_the_timeout(scripted, ask):
    model = adapter(scripted.url)
    started = time.monotonic()
    with pytest.raises(ModelUnavailable, match="did not answer"):
        async for _ in model.stream(ask("@pause 100\n@say " + "x" * 800, timeout=0.6)):
            pass
    assert 0.5 < time.monotonic() - started < 3
    await model.close()


async def test_the_timeout_never_cancels_a_consumer_that_is_slow_itself(scripted, ask):
    model = adapter(scripted.url)
    async with aclosing(model.stream(ask("@stall never\n@say one two three", timeout=0.3))) as chunks:
        await anext(chunks)
        await asyncio.sleep(0.5)
        with pytest.raises(ModelUnavailable, match="did not answer"):
            await anext(chunks)
    await model.close()


@pytest.mark.parametrize(("status", "error"), [(400, ModelRejected), (503, ModelUnavailable)])
def test_a_failure_before_the_first_chunk(scripted, ask, status, error):
    scripted.reset()
    with pytest.raises(error, match=r"^not now$"):
        run(scripted.url, ask(f"@fail {status} not now"))
    assert scripted.calls == 1


@pytest.mark.parametrize(("status", "error"), [(400, ModelRejected), (503, ModelUnavailable)])
async def test_a_failure_in_mid_stream_comes_after_what_was_told(scripted, ask, status, error):
    model, told = adapter(scripted.url), []
    with pytest.raises(error, match=r"^not now$"):
        async for chunk in model.stream(ask(f"@say one two three && @fail {status} not now")):
            told.append(chunk)
    assert joined(told, TextDelta) == "one two three"
    assert not any(isinstance(chunk, Finished) for chunk in told)
    await model.close()


@pytest.mark.parametrize("shape", [{"message": "up"}, {"message": "up", "code": 502}, "up"])
def test_other_failures_in_mid_stream(server, ask, shape):
    server.streams({"choices": [{"delta": {"content": "a"}}]}, {"error": shape})
    with pytest.raises(ModelUnavailable, match=r"^up$"):
        run(server.url, ask("hi"))


def test_messages_in_mid_stream_hold_no_keys(server, ask):
    server.streams({"error": {"message": "the key secret-key-7 is blocked", "code": 401}})
    with pytest.raises(ModelRejected, match=r"^the key \*\*\* is blocked$"):
        run(server.url, ask("hi"))


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_stream_that_is_cut_is_no_answer(server, ask, is_whole):
    server.streams({"choices": [{"delta": {"content": "a"}}]}, done=False, is_whole=is_whole)
    with pytest.raises(ModelUnavailable, match="cut off" if is_whole else "no connection to the model"):
        run(server.url, ask("hi"))


def test_no_server_is_unavailable(ask):
    with pytest.raises(ModelUnavailable, match="no connection to the model"):
        run("http://127.0.0.1:1/v1", ask("hi"))


@pytest.mark.parametrize(("kind", "body"), [("text/html", b"<html>hi"), ("text/event-stream", b"data: hi\n\n")])
def test_what_is_no_model_is_rejected(server, ask, kind, body):
    server.replies_with(body, kind)
    with pytest.raises(ModelRejected, match="check the base URL"):
        run(server.url, ask("hi"))


def test_a_stream_without_a_choice_is_a_failure(server, ask):
    server.streams({"choices": []})
    with pytest.raises(ModelUnavailable, match="holds no choice"):
        run(server.url, ask("hi"))


def test_a_server_that_answers_whole_is_taken_at_that(server, ask):
    message = {"role": "assistant", "content": "ok"}
    whole = {"model": "m1", "choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    server.replies_with(json.dumps(whole).encode())
    response = answer(server.url, ask("hi"))
    assert (response.text, response.finish_reason, response.usage) == ("ok", "stop", Usage(3))


def test_a_server_that_refuses_stream_options_is_asked_without_and_remembered(server, ask):
    server.replies_with(b'{"error": {"message": "stream_options: extra field"}}', status=422)
    server.deltas({"content": "a"})
    server.deltas({"content": "b"})
    first, second = run(server.url, ask("hi"), ask("hi"))
    assert (response_of(first).text, response_of(second).text) == ("a", "b")
    assert ["stream_options" in body for body, _ in server.seen] == [True, False, False]


def test_a_server_that_sends_no_usage_counts_nothing(server, ask):
    server.deltas({"content": "a"})
    assert answer(server.url, ask("hi")).usage == Usage()


def test_the_usage_may_come_with_any_chunk_and_null_elsewhere(server, ask):
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    server.streams(
        {"id": "", "model": "", "choices": [], "usage": None, "prompt_filter_results": []},
        {"id": "r1", "model": "m9", "choices": [{"delta": {"role": "assistant", "content": None}}], "usage": None},
        {"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}], "usage": {"prompt_tokens": 1}},
        {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, **details}},
    )
    response = answer(server.url, ask("hi"))
    assert (response.usage, response.finish_reason) == (Usage(10, 5, 2, 4), "length")
    assert (response.model, response.response_id) == ("m9", "r1")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning(server, ask, name):
    server.deltas({name: "Let me "}, {name: "think"}, {"content": "ok", name: ""})
    response = answer(server.url, ask("hi"))
    assert (response.reasoning, response.text) == ("Let me think", "ok")


def test_reasoning_under_both_names_is_told_once(server, ask):
    server.deltas({"reasoning": "Hm", "reasoning_content": "Hm"}, {"content": "ok"})
    assert answer(server.url, ask("hi")).reasoning == "Hm"


def test_a_refusal_is_the_text(server, ask):
    server.deltas({"content": None, "refusal": "I will "}, {"refusal": "not"})
    response = answer(server.url, ask("hi"))
    assert (response.text, response.finish_reason) == ("I will not", "content-filter")


@pytest.mark.parametrize(
    ("finish", "done", "reason"), [(None, True, "other"), ("tool_calls", True, "tool-calls"), ("stop", False, "stop")]
)
def test_a_stream_ends_with_a_reason_or_with_done(server, ask, finish, done, reason):
    server.streams({"choices": [{"delta": {"content": "a"}, "finish_reason": finish}]}, done=done)
    assert answer(server.url, ask("hi")).finish_reason == reason


ONE, TWO = '{"a": 1}', '{"b": 2}'


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [call("", index=0, id="x", name="t"), call('{"a"', index=0), call(": 1}", index=0),
             call("", index=1, id="y", name="u"), call(TWO, index=1)],
            id="as OpenAI sends them",
        ),
        pytest.param(
            [call(None, index=0, id="x", name="t"), call("", index=1, id="y", name="u"), call('{"b"', index=1),
             call('{"a"', index=0), call(": 2}", index=1), call(": 1}", index=0)],
            id="in turns",
        ),
        pytest.param([call(ONE, index=0, id="x", name="t"), call(TWO, index=0, id="y", name="u")], id="all numbered 0"),
        pytest.param([call(ONE, index=0, name="t"), call(TWO, index=1, name="u")], id="no ids"),
        pytest.param([call(ONE, index=0, name="t"), call(TWO, index=0, name="u")], id="all numbered 0, no ids"),
        pytest.param([call(ONE, name="t"), call(TWO[:3], name="u"), call(TWO[3:])], id="no numbers, no ids"),
        pytest.param([call(ONE, id="x", name="t"), call(TWO, id="y", name="u")], id="no numbers"),
        pytest.param([call(ONE, index=0, id="x", name="t"), call(TWO, index=1, id="x", name="u")], id="one id for two"),
        pytest.param(
            [call(ONE[:3], index=0, id="x", name="t"), call(ONE[3:], index=0, id="x", name="t"),
             call(TWO[:3], index=1, id="y", name="u"), call(TWO[3:], index=1, id="y", name="u")],
            id="id and name in each fragment",
        ),
        pytest.param(
            [call(ONE[:3], id="x", name="t"), call(ONE[3:], id="x", name="t"), call(TWO, id="y", name="u")],
            id="id and name in each fragment, no numbers",
        ),
        pytest.param(
            [call(ONE[:3], index=0, id="x", name="t"), call(ONE[3:], index=0, id="z"),
             call(TWO[:3], index=1, id="y", name="u"), call(TWO[3:], index=1, id="w", name=None)],
            id="a new id in each fragment",
        ),
        pytest.param(
            [call(ONE[:3], index=0, id="x"), call(ONE[3:], index=0, name="t"), call(TWO, index=1, name="u", id="y")],
            id="the name comes late",
        ),
        pytest.param(
            [call({"a": 1}, index=0, id="x", name="t"), call({"b": 2}, index=1, id="y", name="u")], id="objects"
        ),
        pytest.param(
            [{"tool_calls": call(ONE, index=0, id="x", name="t")["tool_calls"]
              + call(TWO, index=1, id="y", name="u")["tool_calls"]}],
            id="both in one chunk",
        ),
    ],
)  # fmt: skip
def test_calls_however_servers_number_them(server, ask, deltas):
    server.deltas(*deltas)
    response = answer(server.url, ask("hi"))
    assert [(c.name, c.args, c.invalid) for c in response.tool_calls] == [("t", {"a": 1}, None), ("u", {"b": 2}, None)]
    assert all(c.id for c in response.tool_calls) and len({c.id for c in response.tool_calls}) == 2
    assert response.finish_reason == "tool-calls"


def test_ids_of_the_server_are_kept_and_a_call_without_a_name_is_told_too(server, ask):
    server.deltas(call("", index=0, id="x", name="t"), call(ONE, index=1, id="y"))
    (chunks,) = run(server.url, ask("hi"))
    assert [chunk for chunk in chunks if isinstance(chunk, ToolCallStart)] == [
        ToolCallStart("x", "t"),
        ToolCallStart("y", ""),
    ]
    assert response_of(chunks).tool_calls == (ToolCall("x", "t", {}), ToolCall("y", "", {"a": 1}))


def test_comments_crlf_other_fields_and_a_missing_last_newline(server, ask):
    lines = [
        b": hello\r\n\r\nevent: message\r\nid: 1\r\n",
        b'data:{"choices": [{"delta": {"content": "a\xe2\x80\xa8b"}}]}\r\n\r\n: still here\r\n\r\n',
        b"data: [DONE]",
    ]
    server.replies.append((200, "text/event-stream", lines, True))
    assert answer(server.url, ask("hi")).text == "a\u2028b"


def test_the_connection_is_kept_for_the_next_request(server, ask):
    server.deltas({"content": "a"})
    server.deltas({"content": "b"})
    run(server.url, ask("one"), ask("two"))
    (_, first), (_, second) = server.seen
    assert first == second


def test_the_opening_is_repeated_once(server, ask):
    server.replies.append((503, "application/json", [b"{}"], True))
    server.deltas({"content": "a"})
    assert answer(server.url, ask("hi")).text == "a"


TEXT = st.text(max_size=20)
ARGUMENTS = st.one_of(TEXT, st.dictionaries(TEXT, st.one_of(st.integers(), TEXT), max_size=3).map(json.dumps))
CALLS = st.lists(st.tuples(st.sampled_from(["t", "u"]), ARGUMENTS), max_size=3)


def pieces_of(draw, text):
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


class Reply:
    """The reply of a server as the adapter reads it, in the given pieces."""

    headers = {"content-type": "text/event-stream; charset=utf-8"}

    def __init__(self, pieces):
        self.pieces = pieces
        self.is_closed = False

    async def aiter_bytes(self):
        for piece in self.pieces:
            yield piece

    async def aclose(self):
        self.is_closed = True


@settings(max_examples=200, deadline=None)
@given(st.data(), TEXT, TEXT, CALLS, st.sampled_from(["stop", "length", None]))
def test_any_split_of_an_answer_is_put_together_again(data, text, reasoning, calls, finish):
    ids = [f"call-{n}" for n in range(len(calls))]
    wires = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in zip(ids, calls, strict=True)
    ]
    message = {"content": text, "reasoning_content": reasoning, "tool_calls": wires}
    head = {"id": "r1", "model": "m1"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    whole = {**head, "choices": [{"message": message, "finish_reason": finish}], "usage": usage}

    deltas = [{"content": piece} for piece in pieces_of(data.draw, text)]
    deltas += [{"reasoning_content": piece} for piece in pieces_of(data.draw, reasoning)]
    for index, wire in enumerate(wires):
        first, *rest = pieces_of(data.draw, wire["function"]["arguments"])
        function = {"name": wire["function"]["name"], "arguments": first}
        deltas.append({"tool_calls": [{"index": index, "id": wire["id"], "function": function}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in rest]
    chunks = [{**head, "choices": [{"delta": delta}]} for delta in deltas]
    chunks += [{**head, "choices": [{"delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": usage}]
    body = b"".join(map(event, chunks)) + b"data: [DONE]\n\n"
    reply = Reply(pieces_of(data.draw, body))

    async def told():
        model = adapter("http://127.0.0.1:1/v1")
        model._open = lambda *_: asyncio.sleep(0, reply)
        return model, [chunk async for chunk in model.stream(ModelRequest("m1", ()))]

    model, chunks = asyncio.run(told())
    assert response_of(chunks) == model._response(json.dumps(whole).encode(), "m1", "k")
    assert reply.is_closed
