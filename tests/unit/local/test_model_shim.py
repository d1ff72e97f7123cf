"""The server in front of the small model: what it sends on, what it answers, over real HTTP."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from openai import APIError, BadRequestError, InternalServerError, NotFoundError, OpenAI

from local.models.process import listed_models
from local.models.shim import MAX_BODY_BYTES, ShimServer
from threadkeep.memory.working_memory.form import form_of
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.prompt import system_text
from threadkeep.models.openai import OpenAIModel
from threadkeep.models.port import Finished, ModelChunk, ModelRequest, ModelResponse, PromptMessage, TextPart

WEATHER = {
    "type": "function",
    "function": {
        "name": "getWeather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOTE = {
    "type": "function",
    "function": {
        "name": "updateWorkingMemory",
        "description": "Keeps what is known",
        "parameters": {"type": "object", "properties": {"memory": {"type": "string"}}, "required": ["memory"]},
    },
}


class Upstream:
    """The model behind the shim: answers in turn, keeps the requests."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: list[str | dict[str, Any]] = []
        self.at_once = self.most_at_once = 0
        self.seconds = 0.0
        self.told: list[str] = []
        self.breaks: dict[str, Any] | None = None
        self.gate = threading.Event()  # holds a stream after its first word until it is set
        self.gate.set()

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.seconds)
        self.asked.append(body)
        answer = self.answers.pop(0) if self.answers else "Fine."
        self.at_once -= 1
        if isinstance(answer, dict):
            return answer
        message = {"role": "assistant", "content": answer}
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    def stream(self, body: dict[str, Any], take: Callable[[dict[str, Any]], bool]) -> None:
        """Sends the answer word by word; like the runtime it swallows what `take` raises."""
        assert body.pop("stream") and body.pop("stream_options") == {"include_usage": True}
        answer = self(body)
        if "error" in answer:
            take({"error": answer["error"]})
            return
        words = answer["choices"][0]["message"]["content"].split(" ")
        pieces = [words[0], *(f" {word}" for word in words[1:])]
        deltas = [{"role": "assistant", "content": None}, *({"content": piece} for piece in pieces)]
        for delta in deltas:
            if delta.get("content"):
                self.told.append(delta["content"])
                self.gate.wait(5 if len(self.told) > 1 else 0)
            if take({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}):
                return
        if self.breaks:
            take({"error": self.breaks})
            return
        take({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        take({"choices": [], "usage": answer["usage"]})

    @property
    def prompt(self) -> list[dict[str, Any]]:
        return self.asked[-1]["messages"]


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
def server(upstream: Upstream) -> Iterator[ShimServer]:
    with ShimServer(0, "small", upstream, upstream.stream) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(server: ShimServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none", max_retries=0) as client:
        yield client


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


def ask(client: OpenAI, *messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="small", messages=list(messages), **options)


def post(server: ShimServer, body: bytes, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.request("POST", "/v1/chat/completions", body, headers)
    reply = connection.getresponse()
    answer = reply.status, json.loads(reply.read())
    connection.close()
    return answer


def test_it_lists_its_model(server: ShimServer):
    assert listed_models(f"http://127.0.0.1:{server.server_port}/v1") == ["small"]


def test_an_answer_looks_like_any_providers(client: OpenAI):
    answer = ask(client, {"role": "system", "content": "Be brief."}, user("Hi"))
    assert answer.choices[0].message.content == "Fine." and answer.choices[0].finish_reason == "stop"
    assert answer.model == "small" and answer.usage.total_tokens == 9


def test_the_model_is_asked_at_temperature_zero_for_a_bounded_answer_and_never_sees_tools(
    client: OpenAI, upstream: Upstream
):
    upstream.answers = ['{"action": "reply"}', "Fine."]
    ask(client, user("Hi"), tools=[WEATHER], temperature=1, max_tokens=5000)
    assert [body["temperature"] for body in upstream.asked] == [0, 0]
    assert upstream.asked[-1]["max_tokens"] == 160
    assert not any("tools" in body for body in upstream.asked)


def test_what_the_user_told_long_ago_is_in_the_prompt_in_his_words(client: OpenAI, upstream: Upstream):
    small_talk = [message for n in range(5) for message in (user(f"Is {n} even?"), assistant("Noted."))]
    ask(client, {"role": "system", "content": "Be brief."}, user("My dog is Comet."), assistant("Noted."), *small_talk,
        user("What is my dog called?"))  # fmt: skip
    assert upstream.prompt[0]["role"] == "system"
    assert (
        upstream.prompt[0]["content"].startswith("Be brief.") and "- My dog is Comet." in upstream.prompt[0]["content"]
    )
    assert [m["content"] for m in upstream.prompt[1:]] == [
        "Is 3 even?", "Noted.", "Is 4 even?", "Noted.", "What is my dog called?",
    ]  # fmt: skip


def test_nothing_is_kept_from_one_request_to_the_next(client: OpenAI, upstream: Upstream):
    ask(client, user("My dog is Comet."))
    ask(client, user("What is my dog called?"))
    assert "Comet" not in json.dumps(upstream.prompt)


def test_the_newest_facts_survive_when_there_are_too_many(client: OpenAI, upstream: Upstream):
    told = [m for n in range(60) for m in (user(f"I own {n} things. " + "They are all mine. " * 4), assistant("Yes"))]
    ask(client, *told, user("What do I own?"))
    assert "I own 58 things" in upstream.prompt[0]["content"] and "I own 2 things" not in upstream.prompt[0]["content"]
    assert len(upstream.prompt[0]["content"]) < 2500


def test_a_tool_call_is_synthesised(client: OpenAI, upstream: Upstream):
    upstream.answers = ['{"action": "getWeather"}', '{"city": "Oslo"}']
    choice = ask(client, user("Will it rain in Oslo?"), tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.id and call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("getWeather", {"city": "Oslo"})


def test_a_tool_result_becomes_text_and_leads_to_words(client: OpenAI, upstream: Upstream):
    call = {"id": "c1", "type": "function", "function": {"name": "getWeather", "arguments": '{"city": "Oslo"}'}}
    answer = ask(client, user("Will it rain in Oslo?"), {"role": "assistant", "tool_calls": [call]},
                 {"role": "tool", "tool_call_id": "c1", "content": "rain, 4 degrees"}, tools=[WEATHER])  # fmt: skip
    assert answer.choices[0].message.content == "Fine."
    assert upstream.prompt == [user("Will it rain in Oslo?\n\nResult of getWeather: rain, 4 degrees")]


def test_working_memory_is_shown_without_its_rules_and_grows_word_for_word(client: OpenAI, upstream: Upstream):
    memory = (
        "WORKING_MEMORY_SYSTEM_INSTRUCTION: call the tool\n<working_memory_data>\n- I am Ada.\n</working_memory_data>"
    )
    system = {"role": "system", "content": memory}
    choice = ask(client, system, user("My dog is Comet."), tools=[NOTE]).choices[0]
    arguments = json.loads(choice.message.tool_calls[0].function.arguments)
    assert arguments == {"memory": "- I am Ada.\n- My dog is Comet."}
    ask(client, system, user("Who am I?"), tools=[NOTE])
    assert upstream.prompt[0]["content"] == "What you know about the user:\n- I am Ada."


@pytest.mark.parametrize("read_only", [True, False])
def test_an_empty_working_memory_is_no_fact_and_begins_with_the_first_one(
    client: OpenAI, upstream: Upstream, read_only: bool
):
    system = {"role": "system", "content": system_text(form_of(WorkingMemoryOptions()), "", read_only=read_only)}
    choice = ask(client, system, user("My dog is Comet."), tools=[NOTE]).choices[0]
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"memory": "- My dog is Comet."}
    ask(client, system, user("Who am I?"), tools=[NOTE])
    assert "What you know about the user" not in json.dumps(upstream.prompt)


def test_tool_choice_none_leaves_the_tools_out(client: OpenAI, upstream: Upstream):
    ask(client, user("Will it rain in Oslo?"), tools=[WEATHER], tool_choice="none")
    assert len(upstream.asked) == 1


def test_a_response_format_is_passed_on(client: OpenAI, upstream: Upstream):
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    ask(client, user("Hi"), response_format=wanted)
    assert upstream.asked[0]["response_format"] == wanted


def test_a_stream_holds_the_same_answer_and_its_usage(client: OpenAI):
    chunks = list(ask(client, user("Hi"), stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Fine."
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, "stop"]
    assert chunks[-1].usage.total_tokens == 9


def test_a_streamed_call_has_its_index(client: OpenAI, upstream: Upstream):
    upstream.answers = ['{"action": "getWeather"}', '{"city": "Oslo"}']
    chunks = list(ask(client, user("Will it rain in Oslo?"), tools=[WEATHER], stream=True))
    (call,) = chunks[0].choices[0].delta.tool_calls
    assert (call.index, call.function.name) == (0, "getWeather")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def words(client: OpenAI, **options: Any) -> Iterator[str]:
    for chunk in ask(client, user("Hi"), stream=True, **options):
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


def test_the_words_of_a_stream_arrive_while_the_model_makes_them(client: OpenAI, upstream: Upstream):
    upstream.answers = ["It will be fine."]
    upstream.gate.clear()
    said = words(client)
    assert next(said) == "It"
    assert upstream.told in (["It"], ["It", " will"])
    upstream.gate.set()
    assert list(said) == [" will", " be", " fine."]


def test_hanging_up_stops_the_model(server: ShimServer, client: OpenAI, upstream: Upstream):
    upstream.answers = [" ".join(["word"] * 20_000)]
    upstream.gate.clear()
    stream = ask(client, user("Hi"), stream=True)
    next(iter(stream))
    stream.close()
    upstream.gate.set()
    assert ask(client, user("Hi")).choices[0].message.content == "Fine."
    assert len(upstream.told) < 20_000


def test_a_refusal_before_the_first_word_keeps_its_status(client: OpenAI, upstream: Upstream):
    upstream.answers = [{"error": {"code": 400, "message": "the prompt is too long"}}]
    with pytest.raises(BadRequestError, match="too long"):
        list(words(client))


def test_a_failure_after_the_first_word_ends_the_stream(client: OpenAI, upstream: Upstream):
    upstream.breaks = {"code": 500, "message": "out of memory"}
    said = words(client)
    assert next(said) == "Fine."
    with pytest.raises(APIError, match="out of memory"):
        next(said)
    upstream.breaks = None
    assert list(words(client)) == ["Fine."]


def test_a_stream_of_the_product_is_the_same_as_its_answer(server: ShimServer, upstream: Upstream):
    async def key() -> str:
        return "none"

    async def both() -> tuple[ModelResponse, ModelChunk, int]:
        model = OpenAIModel(f"http://127.0.0.1:{server.server_port}/v1", key)
        request = ModelRequest("small", (PromptMessage("user", (TextPart("Hi"),)),))
        upstream.answers = ["It will be fine."] * 2
        whole = await model.generate(request)
        *deltas, last = [chunk async for chunk in model.stream(request)]
        await model.close()
        return whole, last, len(deltas)

    whole, last, deltas = asyncio.run(both())
    assert isinstance(last, Finished) and deltas == 4
    assert replace(last.response, response_id=None) == replace(whole, response_id=None)


def test_requests_are_answered_one_at_a_time(client: OpenAI, upstream: Upstream):
    upstream.seconds = 0.05
    threads = [threading.Thread(target=ask, args=(client, user("Hi"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(upstream.asked), upstream.most_at_once) == (4, 1)


def test_the_models_refusal_keeps_its_status_and_words(client: OpenAI, upstream: Upstream):
    upstream.answers = [{"error": {"code": 400, "message": "the prompt is too long"}}]
    with pytest.raises(BadRequestError, match="too long"):
        ask(client, user("Hi"))


def test_a_model_that_breaks_is_a_server_error(server: ShimServer, client: OpenAI, upstream: Upstream):
    upstream.answers = [{"error": {"code": 500, "message": "out of memory"}}]
    with pytest.raises(InternalServerError, match="out of memory"):
        ask(client, user("Hi"))
    assert ask(client, user("Hi")).choices[0].message.content == "Fine."


def test_another_model_is_not_found(client: OpenAI):
    with pytest.raises(NotFoundError, match="small"):
        client.chat.completions.create(model="large", messages=[user("Hi")])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(
    server: ShimServer, upstream: Upstream, changes: dict[str, Any], field: str
):
    body = {"model": "small", "messages": [user("Hi")]} | changes
    status, answer = post(server, json.dumps(body).encode())
    assert status == 400 and answer["error"]["message"].startswith(field)
    assert upstream.asked == []


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b'{"tools": 5}', 404)])
def test_a_body_that_is_no_request(server: ShimServer, body: bytes, status: int):
    assert post(server, body)[0] == status


def test_a_tool_without_a_function_is_left_out_and_one_without_a_name_is_a_400(server: ShimServer):
    request = {"model": "small", "messages": [user("Rain in Oslo?")]}
    assert post(server, json.dumps({**request, "tools": [{"type": "function"}]}).encode())[0] == 200
    assert post(server, json.dumps({**request, "tools": [{"function": {"description": "x"}}]}).encode())[0] == 400


def test_a_huge_body_is_refused_unread(server: ShimServer):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
