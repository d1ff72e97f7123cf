"""The OpenAI-compatible adapter against the scripted model, and against a fake that misbehaves."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from threadkeep.errors import ModelRejected, ModelUnavailable
from threadkeep.models.openai import OpenAIModel
from threadkeep.models.port import (
    FilePart,
    ModelRequest,
    ModelSettings,
    PromptMessage,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

KEY = "secret-key-7"
WEATHER = ToolSpec("weather", "Tells the weather", {"type": "object", "properties": {"city": {"type": "string"}}})


def run(model_url: str, *requests: ModelRequest):
    """The answers of one adapter, asked one after the other in one event loop."""

    async def read_key():
        return KEY

    async def main():
        model = OpenAIModel(model_url, read_key)
        try:
            return [await model.generate(request) for request in requests]
        finally:
            await model.close()

    return asyncio.run(main())


def user(*parts) -> PromptMessage:
    return PromptMessage("user", parts)


class Fake:
    """Answers every request with the next of `replies` (status, body, headers); keeps the last one."""

    def __init__(self):
        self.replies = []
        self.seen = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                fake.seen.append((json.loads(body), self.headers["authorization"], self.client_address))
                status, reply, headers = fake.replies.pop(0) if len(fake.replies) > 1 else fake.replies[0]
                data = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def answers(self, status, reply, **headers):
        self.replies = [(status, reply, {name.replace("_", "-"): value for name, value in headers.items()})]

    def completes(self, message=None, **more):
        message = {"role": "assistant", **(message or {"content": "ok"})}
        choice = {"index": 0, "message": message, "finish_reason": "stop", **more}
        self.answers(200, {"id": "r1", "object": "chat.completion", "model": "m1", "choices": [choice]})


@pytest.fixture
def fake():
    fake = Fake()
    thread = threading.Thread(target=fake.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()
    thread.join()


def test_text_answer(scripted, ask):
    (answer,) = run(scripted.url, ask("@say Good evening"))
    assert answer.text == "Good evening"
    assert answer.finish_reason == "stop"
    assert answer.tool_calls == ()
    assert answer.usage == Usage(input_tokens=3, output_tokens=2)
    assert answer.model == "m1"
    assert answer.response_id.startswith("chatcmpl-")


def test_tool_calls_and_their_results(scripted):
    said = user(TextPart('@call weather {"city": "Bern", "days": 3} && weather && @say Let me see\n@dump'))
    (answer,) = run(scripted.url, ModelRequest("m1", (said,), (WEATHER,)))
    first, second = answer.tool_calls
    assert (answer.text, answer.finish_reason) == ("Let me see", "tool-calls")
    assert (first.name, first.args, first.invalid) == ("weather", {"city": "Bern", "days": 3}, None)
    assert (second.args, second.invalid) == ({}, None)
    assert first.id != second.id

    results = PromptMessage("tool", tuple(ToolResult(c.id, c.name, f"sunny {c.id}") for c in answer.tool_calls))
    called = PromptMessage("assistant", (TextPart(answer.text), *answer.tool_calls))
    (dumped,) = run(scripted.url, ModelRequest("m1", (said, called, results), (WEATHER,)))
    told = json.loads(dumped.text)
    assert told["roles"] == ["user", "assistant", "tool", "tool"]
    assert [m["tool_call_id"] for m in told["messages"][2:]] == [first.id, second.id]
    replayed = told["messages"][1]
    assert replayed["content"] == "Let me see"
    assert json.loads(replayed["tool_calls"][0]["function"]["arguments"]) == first.args
    assert told["tools"] == ["weather"]


@pytest.mark.parametrize("raw", ['{"city": ', '["Bern"]', '"Bern"', '{"n": NaN}', "null"])
def test_arguments_that_are_no_object_are_kept_as_text(scripted, ask, raw):
    (answer,) = run(scripted.url, ask(f"@call weather {raw}", tools=(WEATHER,)))
    (call,) = answer.tool_calls
    assert (call.args, call.invalid) == ({}, raw.strip())


def test_an_invalid_call_is_replayed_as_legal_json(scripted, ask):
    call = ToolCall("c1", "weather", {}, invalid='{"city": ')
    result = PromptMessage("tool", (ToolResult("c1", "weather", "no"),))
    before = (user(TextPart("q")), PromptMessage("assistant", (call,)), result)
    (answer,) = run(scripted.url, ask("@dump", *before))
    replayed = json.loads(answer.text)["messages"][1]
    assert replayed["tool_calls"][0]["function"]["arguments"] == "{}"
    assert replayed["content"] is None


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("weather", {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_tool_choice(scripted, ask, choice, wire):
    scripted.reset()
    run(scripted.url, ask("@say x", tools=(WEATHER,), tool_choice=choice))
    (sent,) = scripted.requests
    assert sent["tool_choice"] == wire
    function = {"name": "weather", "description": WEATHER.description, "parameters": WEATHER.parameters}
    assert sent["tools"] == [{"type": "function", "function": function}]


def test_a_plain_request_sends_nothing_more_than_it_needs(scripted, ask):
    scripted.reset()
    run(scripted.url, ask("hi", tool_choice="required"))
    assert scripted.requests == [{"model": "m1", "messages": [{"role": "user", "content": "hi"}]}]


OPEN = {"type": "object", "properties": {"n": {"type": "number"}}}
CLOSED = OPEN | {"required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize(
    "schema,strict",
    [
        (CLOSED, True),
        (OPEN, False),
        (OPEN | {"additionalProperties": False}, False),
        (OPEN | {"required": ["n"]}, False),
        ({"type": "array", "items": CLOSED}, True),
        ({"type": "array", "items": {"type": "object"}}, False),
        ({"anyOf": [CLOSED, OPEN]}, False),
    ],
)
def test_a_response_schema_is_strict_where_strict_mode_takes_it(scripted, ask, schema, strict):
    scripted.reset()
    run(scripted.url, ask('@say {"n":3}', tools=(WEATHER,), response_schema=schema))
    (sent,) = scripted.requests
    wanted = {"name": "response", "schema": schema, "strict": strict}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": wanted}


def test_settings(scripted, ask):
    scripted.reset()
    run(scripted.url, ask("hi", settings=ModelSettings(0.0, 0.5, 77, ("END",))))
    (sent,) = scripted.requests
    assert {k: sent[k] for k in ("temperature", "top_p", "max_tokens", "stop")} == {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 77,
        "stop": ["END"],
    }


def test_system_messages_keep_their_places(scripted, ask):
    system = [PromptMessage("system", (TextPart(text),)) for text in ("first", "second")]
    before = (system[0], user(TextPart("a")), PromptMessage("assistant", (TextPart("b"),)), system[1])
    (answer,) = run(scripted.url, ask("@dump", *before))
    told = json.loads(answer.text)
    assert told["roles"] == ["system", "user", "assistant", "system", "user"]
    assert told["system"] == ["first", "second"]


def test_files(scripted):
    scripted.reset()
    parts = (
        TextPart("look"),
        FilePart("QUJD", "image/png"),
        FilePart("https://example.com/a.png", "image/png"),
        FilePart("QUJD", "application/pdf"),
        FilePart("data:application/pdf;base64,QUJD", "application/pdf"),
        FilePart("QUJD", "audio/wav"),
        FilePart("aMOp", "text/plain"),
    )
    run(scripted.url, ModelRequest("m1", (user(*parts),)))
    pdf = {"filename": "file.pdf", "file_data": "data:application/pdf;base64,QUJD"}
    assert scripted.requests[0]["messages"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": pdf},
        {"type": "file", "file": pdf},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "text", "text": "hé"},
    ]


@pytest.mark.parametrize(
    "part",
    [FilePart("https://example.com/a.pdf", "application/pdf"), FilePart("%%", "text/plain"), ToolResult("c", "t", "x")],
)
def test_what_cannot_be_sent_is_rejected_before_the_call(scripted, part):
    scripted.reset()
    with pytest.raises(ModelRejected):
        run(scripted.url, ModelRequest("m1", (user(TextPart("a"), part),)))
    assert scripted.calls == 0


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 415, 422])
def test_what_repeating_cannot_mend_is_rejected_at_once(fake, ask, status):
    fake.answers(status, {"error": {"message": "You may not", "code": None}})
    with pytest.raises(ModelRejected, match=r"^You may not$"):
        run(fake.url, ask("hi"))
    assert len(fake.seen) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_the_rest_is_unavailable_after_one_repeat(fake, ask, status):
    fake.answers(status, {"error": {"message": "Busy"}}, retry_after_ms="1")
    with pytest.raises(ModelUnavailable, match=r"^Busy$"):
        run(fake.url, ask("hi"))
    assert len(fake.seen) == 2


def test_a_repeat_that_works_is_an_answer(fake, ask):
    fake.completes()
    fake.replies.insert(0, (503, {"error": {"message": "Busy"}}, {"retry-after-ms": "1"}))
    assert run(fake.url, ask("hi"))[0].text == "ok"


def test_an_empty_account_is_no_passing_trouble(fake, ask):
    fake.answers(429, {"error": {"message": "Pay first", "code": "insufficient_quota"}}, x_should_retry="false")
    with pytest.raises(ModelRejected, match="Pay first"):
        run(fake.url, ask("hi"))


def test_messages_are_cut_and_hold_no_keys(fake, ask):
    text = f"Incorrect API key provided: {KEY} or sk-proj-abc123, Bearer xyz. " + "x" * 1000
    fake.answers(401, {"error": {"message": text}})
    with pytest.raises(ModelRejected) as caught:
        run(fake.url, ask("hi"))
    message = str(caught.value)
    assert len(message) == 500
    assert message.startswith("Incorrect API key provided: *** or sk-***, Bearer ***")


def test_an_error_without_json_gives_its_text_or_the_status(fake, ask):
    fake.answers(404, "page not found", content_type="text/plain")
    with pytest.raises(ModelRejected, match="page not found"):
        run(fake.url, ask("hi"))
    fake.answers(404, "", content_type="text/plain")
    with pytest.raises(ModelRejected, match="HTTP 404"):
        run(fake.url, ask("hi"))


@pytest.mark.parametrize("page", ["<html>welcome</html>", "[1]"])
def test_a_server_that_is_no_model_is_rejected(fake, ask, page):
    fake.answers(200, page, content_type="text/html")
    with pytest.raises(ModelRejected, match="check the base URL"):
        run(fake.url, ask("hi"))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"choices": []}, ModelUnavailable),
        ({"error": {"message": "upstream", "code": 502}}, ModelUnavailable),
        ({"error": {"message": "upstream", "code": 400}}, ModelRejected),
    ],
)
def test_a_200_without_a_choice_is_a_failure(fake, ask, body, error):
    fake.answers(200, body)
    with pytest.raises(error):
        run(fake.url, ask("hi"))


def test_no_server_is_unavailable(ask):
    with pytest.raises(ModelUnavailable, match="no connection to the model"):
        run("http://127.0.0.1:1/v1", ask("hi"))


def test_the_timeout_holds_over_all_repeats(scripted, ask):
    scripted.reset()
    with pytest.raises(ModelUnavailable, match=r"did not answer within 0\.3 s"):
        run(scripted.url, ask("@wait 2000\n@say late", timeout=0.3))
    assert scripted.calls <= 1  # no time is left for a repeat


@pytest.mark.parametrize(
    ("wire", "has_calls", "reason"),
    [
        ("stop", False, "stop"),
        ("length", False, "length"),
        ("content_filter", False, "content-filter"),
        ("function_call", True, "tool-calls"),
        ("stop", True, "tool-calls"),
        (None, True, "tool-calls"),
        (None, False, "other"),
        ("eos", False, "other"),
        ("length", True, "length"),
    ],
)
def test_finish_reasons(fake, ask, wire, has_calls, reason):
    calls = [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": ""}}] if has_calls else []
    fake.completes({"content": None, "tool_calls": calls}, finish_reason=wire)
    assert run(fake.url, ask("hi"))[0].finish_reason == reason


def test_a_refusal_is_the_text(fake, ask):
    fake.completes({"content": None, "refusal": "I will not"})
    (answer,) = run(fake.url, ask("hi"))
    assert (answer.text, answer.finish_reason) == ("I will not", "content-filter")


def test_ids_are_made_unique_and_arguments_may_be_an_object(fake, ask):
    def call(**more):
        return {"type": "function", "function": {"name": "t", "arguments": {"a": 1}}, **more}

    fake.completes({"content": "", "tool_calls": [call(id="x"), call(id="x"), call(), call(id="")]})
    (answer,) = run(fake.url, ask("hi"))
    assert len({c.id for c in answer.tool_calls}) == 4
    assert all(c.id and c.args == {"a": 1} and c.invalid is None for c in answer.tool_calls)


def test_exact_numbers_in_arguments(fake, ask):
    text = '{"id": 12345678901234567890, "x": 0.1, "y": 3.0}'
    fake.completes({"content": "", "tool_calls": [{"id": "c", "function": {"name": "t", "arguments": text}}]})
    args = run(fake.url, ask("hi"))[0].tool_calls[0].args
    assert json.dumps(args) == text


def test_usage_details_and_reasoning(fake, ask):
    fake.completes({"content": "ok", "reasoning_content": "thinking"})
    fake.replies[0][1]["usage"] = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    (answer,) = run(fake.url, ask("hi"))
    assert answer.usage == Usage(10, 5, 2, 4)
    assert answer.reasoning == "thinking"


def test_the_key_is_sent_and_the_connection_kept(fake, ask):
    fake.completes()
    run(fake.url, ask("one"), ask("two"))
    (_, key, connection), second = fake.seen
    assert key == f"Bearer {KEY}"
    assert second[1:] == (key, connection)


def test_one_adapter_serves_several_event_loops(scripted, ask):
    async def read_key():
        return KEY

    model = OpenAIModel(scripted.url, read_key)

    async def turn():
        answer = await model.generate(ask("@say hi"))
        await model.close()
        return answer.text

    assert [asyncio.run(turn()) for _ in range(2)] == ["hi", "hi"]


def test_h24_a_lone_surrogate_is_replaced_on_its_way_to_the_model(scripted, ask):
    (answer,) = run(scripted.url, ask("@say a \ud83d b"))
    assert answer.text == "a \ufffd b"
