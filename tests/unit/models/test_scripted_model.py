"""The scripted model itself: every e2e test trusts it."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.scripted import RemoteScriptedModel
from tests.scripted.directives import Answer, Call, Failure, answer, parse


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def ask(*messages, **more):
    return answer({"model": "m", "messages": list(messages), **more})


def post(url, body):
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as reply:
        return reply.read().decode()


def test_text_without_directives_is_repeated():
    assert ask(user("Hello")) == Answer("You said: Hello")


def test_each_call_takes_the_next_directive_and_then_it_is_done():
    said = user("some prose\n@say one\nmore prose\n@say two")
    assert [ask(said, *[assistant("x")] * n).text for n in range(3)] == ["one", "two", "Done."]


def test_only_messages_after_the_last_user_message_count():
    assert ask(user("@say old"), assistant("old"), user("@say new")).text == "new"


@pytest.mark.parametrize(
    ("line", "text", "calls"),
    [
        ("@call t", "", (Call("t", "{}"),)),
        ('@call t {"a": "x && y"}', "", (Call("t", '{"a": "x && y"}'),)),
        ('@call a {"x": 1} && b && @call c {}', "", (Call("a", '{"x": 1}'), Call("b", "{}"), Call("c", "{}"))),
        ("@call a {} && @say see && hear", "see && hear", (Call("a", "{}"),)),
        ('@call t {"a": ', "", (Call("t", '{"a":'),)),
        ("@say", "", ()),
        ('@say "two\\nlines"', "two\nlines", ()),
        ('@say {"json": true}', '{"json": true}', ()),
        ("@sayings are prose\n@say ok", "ok", ()),
    ],
)
def test_syntax(line, text, calls):
    assert parse(line, {}) == [Answer(text, calls)]


def test_waits_and_holds_belong_to_the_answer_that_follows():
    assert parse("@wait 5\n@hold a\n@fail 429 busy\n@say x", {}) == [
        Answer("busy", status=429, wait_ms=5, holds=("a",)),
        Answer("x"),
    ]


def test_pauses_stalls_and_breaks_belong_to_one_answer():
    script = "@pause 5\n@stall a\n@say one && two && @fail 503 too busy\n@call t {} && @fail 400\n@say x"
    assert parse(script, {}) == [
        Answer("one && two", pause_ms=5, stalls=("a",), breaks=Failure(503, "too busy")),
        Answer(calls=(Call("t", "{}"),), breaks=Failure(400, "")),
        Answer("x"),
    ]


def test_dump_tells_what_was_sent():
    tools = [{"type": "function", "function": {"name": "t"}}]
    parts = [{"type": "text", "text": "look"}, {"type": "text", "text": "@dump"}]
    messages = [{"role": "system", "content": "be brief"}, user("a"), assistant("b"), user(parts)]
    told = json.loads(ask(*messages, tools=tools, tool_choice="auto").text)
    assert told == {
        "model": "m",
        "system": ["be brief"],
        "roles": ["system", "user", "assistant", "user"],
        "user": ["a", "look\n@dump"],
        "tools": ["t"],
        "tool_choice": "auto",
        "messages": messages,
    }


def test_a_transcript_is_data_unless_the_system_holds_directives():
    transcript = user("User: hi\n@fail 500 no\nAssistant: ok")
    assert ask({"role": "system", "content": "Make a title"}, transcript).text.startswith("You said: User: hi")
    assert ask({"role": "system", "content": "@say My title"}, transcript).text == "My title"


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "function": {"name": "t", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "r"}


def test_a_prompt_with_paired_calls_is_legal():
    assert ask(user("@call t\n@say end"), CALL, RESULT).text == "end"


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "must be a list that is not empty"),
        ([user("a"), RESULT], "must answer a call"),
        ([user("a"), CALL], "no result for the tool calls c1"),
        ([user("a"), CALL, user("b")], "no result for the tool calls c1"),
        ([user("a"), CALL, RESULT, RESULT], "must answer a call"),
        ([{"role": "robot", "content": "a"}], "unknown role"),
        ([assistant(None)], "needs content or tool calls"),
        ([user(None)], "content is missing"),
    ],
)
def test_an_illegal_prompt_is_refused(messages, complaint):
    refused = ask(*messages)
    assert refused.status == 400
    assert complaint in refused.text


def test_illegal_tools_are_refused():
    def named(*names):
        return [{"type": "function", "function": {"name": name}} for name in names]

    assert ask(user("a"), tools=named("has space")).status == 400
    assert ask(user("a"), tools=named("t", "t")).status == 400


def test_calls_are_visible_in_the_process_and_over_http(scripted):
    scripted.reset()
    remote = RemoteScriptedModel(scripted.url)
    body = {"model": "m", "messages": [user("hi")]}
    post(scripted.url, body)
    with pytest.raises(urllib.error.HTTPError) as failed:
        post(scripted.url, {"model": "m", "messages": [user("@fail 418 teapot")]})
    failed.value.close()
    assert failed.value.code == 418
    assert (scripted.calls, remote.calls) == (2, 2)
    assert remote.requests == scripted.requests
    assert scripted.requests[0] == body
    remote.reset()
    assert (scripted.calls, scripted.requests) == (0, [])


def test_usage_is_small_and_stable(scripted):
    body = {"model": "m", "messages": [user("@say one two three")]}
    first, second = (json.loads(post(scripted.url, body))["usage"] for _ in range(2))
    assert first == second == {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}


def test_a_held_answer_waits_for_its_release(scripted):
    scripted.reset()
    remote = RemoteScriptedModel(scripted.url)
    answers = []
    body = {"model": "m", "messages": [user("@hold the door\n@say in")]}
    thread = threading.Thread(target=lambda: answers.append(post(scripted.url, body)))
    thread.start()
    deadline = time.monotonic() + 5
    while remote.held != ["the door"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (remote.held, answers) == (["the door"], [])
    remote.release("the door")
    thread.join(5)
    assert json.loads(answers[0])["choices"][0]["message"]["content"] == "in"
    assert remote.held == []
    post(scripted.url, body)  # stays released
    scripted.reset()


def test_wait_delays_the_answer(scripted):
    started = time.monotonic()
    post(scripted.url, {"model": "m", "messages": [user("@wait 150\n@say late")]})
    assert time.monotonic() - started >= 0.15


def test_stream_brings_text_calls_and_usage_in_pieces(scripted):
    text = '@call look {"what": "the big window"} && @say Let me have a look'
    body = {"model": "m", "messages": [user(text)], "stream": True, "stream_options": {"include_usage": True}}
    events = [line.removeprefix("data: ") for line in post(scripted.url, body).split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    pieces = [d["content"] for d in deltas if d.get("content")]
    assert len(pieces) > 1
    assert "".join(pieces) == "Let me have a look"
    calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
    assert calls[0]["id"]
    assert "".join(c["function"]["arguments"] for c in calls) == '{"what": "the big window"}'
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["completion_tokens"] == 9


def test_all_chunks_of_a_stream_have_one_id(scripted):
    body = {"model": "m", "messages": [user("@say one two three")], "stream": True}
    chunks = [line for line in post(scripted.url, body).split("\n\n") if line.startswith("data: {")]
    assert len({json.loads(chunk.removeprefix("data: "))["id"] for chunk in chunks}) == 1


def test_pauses_lie_between_the_pieces(scripted):
    body = {"model": "m", "messages": [user("@pause 60\n@say one two three four five")], "stream": True}
    started = time.monotonic()
    assert "[DONE]" in post(scripted.url, body)
    assert time.monotonic() - started >= 0.12  # three pieces


def test_a_stream_that_breaks_tells_its_text_then_the_error_and_never_ends(scripted):
    body = {"model": "m", "messages": [user("@say one two && @fail 503 busy")]}
    stream = post(scripted.url, {**body, "stream": True})
    *_, spoken, broken = (json.loads(line.removeprefix("data: ")) for line in stream.split("\n\n") if line)
    assert spoken["choices"][0]["delta"]["content"] == "one two"
    assert (broken["error"]["message"], broken["error"]["type"]) == ("busy", "server_error")
    with pytest.raises(urllib.error.HTTPError) as failed:
        post(scripted.url, body)
    failed.value.close()
    assert failed.value.code == 503


@pytest.mark.parametrize("script", ["@wait 20000\n@say x", "@hold door\n@say x"])
def test_a_client_that_hangs_up_is_counted_at_once(scripted, script):
    scripted.reset()
    remote = RemoteScriptedModel(scripted.url)
    request = urllib.request.Request(
        f"{scripted.url}/chat/completions", json.dumps({"messages": [user(script)]}).encode(), method="POST"
    )
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(request, timeout=0.2)
    deadline = time.monotonic() + 5
    while remote.hangups == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (remote.hangups, scripted.hangups, remote.held) == (1, 1, [])
    remote.reset()
    assert remote.hangups == 0


@pytest.mark.parametrize(
    "raw", ["nonsense", "[]", '{"messages": [1]}', '{"messages": [{"role": "user", "content": 1}]}']
)
def test_what_is_no_chat_request_is_refused(scripted, raw):
    request = urllib.request.Request(f"{scripted.url}/chat/completions", raw.encode(), method="POST")
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(request, timeout=10)
    failed.value.close()
    assert failed.value.code == 400


def command(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.scripted", *arguments],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_prints_its_url_and_ends_cleanly():
    with command("--port", "0") as process:
        remote = RemoteScriptedModel(process.stdout.readline().strip())
        post(remote.url, {"model": "m", "messages": [user("hi")]})
        assert remote.calls == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0


def test_the_command_says_when_its_port_is_taken(scripted):
    port = scripted.url.rpartition(":")[2].removesuffix("/v1")
    with command("--port", port) as process:
        _, complaint = process.communicate(timeout=10)
    assert (process.returncode, complaint) == (1, f"port {port} cannot be used: Address already in use\n")
