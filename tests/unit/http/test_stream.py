"""The streaming routes as ASGI: framing, order and errors as `@mastra/client-js` reads them (spec-http 3)."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.http.house import SERVICE, USUAL_HEADERS, House, user
from tests.unit.turn.test_stream import Masked, Talker, weather
from threadkeep import Agent, Memory
from threadkeep.agents import Registry
from threadkeep.errors import ModelUnavailable
from threadkeep.http import asgi
from threadkeep.http.app import App
from threadkeep.http.routes import ROUTES
from threadkeep.models.registry import Models
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import NewThread

PATH = "/api/agents/talker/stream"


@dataclass
class Caller:
    """One client of the ASGI app. `hang_up` ends the connection; `sent` is what has arrived so far."""

    model: Any
    agent: dict[str, Any] = field(default_factory=dict)
    heartbeat: float = 15.0
    store: InMemoryStorage = field(default_factory=InMemoryStorage)

    def __post_init__(self) -> None:
        self.sent: list[Any] = []
        self.gone = asyncio.Event()
        self.news = asyncio.Event()
        settings = {"model": "fake/m", "memory": Memory()} | self.agent
        registry = Registry([Agent(id="talker", **settings)])
        self.app = asgi.StreamApp(
            tuple(route for route in ROUTES if route.streams),
            lambda: App(self.store, registry, Models(adapters={"fake": self.model})),
            heartbeat=self.heartbeat,
        )

    async def post(
        self, body: Any, *, path: str = PATH, caller: Any = SERVICE, headers: dict[str, str] | None = None
    ) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json"} | (headers or {})
        if caller is not None:
            given["x-amzn-request-context"] = json.dumps({"authorizer": caller})
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"requestContext=e30%3D",
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
        }
        unread = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> Any:
            if unread:
                return unread.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)
            self.news.set()

        await self.app(scope, receive, send)

    async def until(self, text: str, times: int = 1) -> None:
        """Wait until the client has received a text so often."""
        while self.text.count(text) < times:
            self.news.clear()
            await self.news.wait()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {k.decode(): v.decode() for k, v in self.sent[0]["headers"]}

    @property
    def text(self) -> str:
        return b"".join(m["body"] for m in self.sent[1:]).decode()

    @property
    def chunks(self) -> list[Any]:
        """What the client sees: blocks that begin with `data: `, without the end mark."""
        blocks = [b.removeprefix("data: ") for b in self.text.split("\n\n") if b.startswith("data: ")]
        return [json.loads(b) for b in blocks if b != "[DONE]"]

    @property
    def types(self) -> list[str]:
        return [c["type"] for c in self.chunks]

    async def stored(self) -> list[Any]:
        page = (await self.store.list_messages("t", per_page=None)).page
        return [(m.role, m.content.get("content")) for m in page.items]


def request(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"messages": text, "memory": {"thread": "t", "resource": "ana"}} | more


async def test_a_text_answer_in_the_order_and_framing_that_clients_read() -> None:
    caller = Caller(Talker("Hello ", "world"))
    await caller.post(request())
    assert caller.status == 200
    assert caller.headers.items() >= {"content-type": "text/event-stream", "cache-control": "no-cache"}.items()
    assert caller.headers["x-accel-buffering"] == "no"
    assert caller.headers["access-control-allow-origin"] == "*"
    assert caller.types == [
        "start", "step-start", "text-start", "text-delta", "text-delta", "text-end", "step-finish", "finish",
    ]  # fmt: skip
    assert caller.text.endswith("data: [DONE]\n\n")
    assert all(len(block.splitlines()) == 1 for block in caller.text.rstrip("\n").split("\n\n"))
    assert "\r" not in caller.text
    start, finish = caller.chunks[0], caller.chunks[-1]
    assert {c["runId"] for c in caller.chunks} == {start["runId"]}
    assert {c["from"] for c in caller.chunks} == {"AGENT"}
    assert start["payload"]["id"] == "talker"
    assert finish["payload"]["messageId"] == start["payload"]["messageId"]
    assert finish["payload"]["stepResult"] == {"reason": "stop", "isContinued": False, "warnings": []}
    assert finish["payload"]["output"]["text"] == "Hello world"
    assert finish["payload"]["output"]["usage"]["totalTokens"] == 15
    assert await caller.stored() == [("user", "hi"), ("assistant", "Hello world")]


async def test_a_tool_call_in_the_order_of_the_recorded_stream() -> None:
    caller = Caller(FakeModel(calls(("weather", {"city": "Oslo"})), says("rain")), {"tools": [weather]})
    await caller.post(request())
    assert caller.types == [
        "start", "step-start", "tool-call-input-streaming-start", "tool-call-delta", "tool-call-input-streaming-end",
        "tool-call", "tool-result", "step-finish", "step-start", "text-start", "text-delta", "text-end",
        "step-finish", "finish",
    ]  # fmt: skip
    by_type = {c["type"]: c["payload"] for c in caller.chunks}
    known = {"toolCallId": "call-weather-0", "toolName": "weather"}
    assert by_type["tool-call-delta"] == known | {"argsTextDelta": '{"city":"Oslo"}'}
    assert by_type["tool-call"] == known | {"args": {"city": "Oslo"}}
    assert by_type["tool-result"] == known | {"args": {"city": "Oslo"}, "result": "rain in Oslo"}
    continued = [c["payload"]["stepResult"]["isContinued"] for c in caller.chunks if c["type"] == "step-finish"]
    assert continued == [True, False]


async def test_a_tool_that_fails_is_told_as_an_error_of_the_tool() -> None:
    caller = Caller(FakeModel(calls(("nothing", {})), says("sorry")), {"tools": [weather]})
    await caller.post(request())
    [error] = [c["payload"] for c in caller.chunks if c["type"] == "tool-error"]
    assert "There is no tool nothing" in error["error"]["message"]


async def test_a_client_side_tool_ends_the_stream_for_the_caller_to_go_on() -> None:
    caller = Caller(FakeModel(calls(("pick", {"hint": "sea"}))))
    await caller.post(request(clientTools={"pick": {"description": "Pick"}}))
    end = caller.chunks[-1]
    assert (end["type"], end["payload"]["stepResult"]["reason"]) == ("finish", "tool-calls")
    assert end["payload"]["stepResult"]["isContinued"] is False
    assert "tool-result" not in caller.types


async def test_structured_output_ends_with_the_object() -> None:
    caller = Caller(Talker('{"n":', "3}"))
    await caller.post(
        request(structuredOutput={"schema": {"type": "object", "properties": {"n": {"type": "integer"}}}})
    )
    [result] = [c for c in caller.chunks if c["type"] == "object-result"]
    assert result["object"] == {"n": 3}


async def test_the_first_piece_leaves_before_the_model_goes_on() -> None:
    gate = asyncio.Event()
    caller = Caller(Talker("first", gate, "second"))
    running = asyncio.create_task(caller.post(request()))
    await caller.until("text-delta")
    assert "second" not in caller.text
    gate.set()
    await running
    assert "second" in caller.text


async def test_h01_a_refused_request_is_an_ordinary_reply() -> None:
    caller = Caller(Talker("x"))
    await caller.store.create_thread(NewThread("t", "bo"))
    await caller.post(request())
    assert caller.status == 403
    assert caller.headers.items() >= USUAL_HEADERS.items()  # a page may read them from another origin, too
    assert json.loads(caller.text) == {"error": "Access denied: thread belongs to a different resource"}


@pytest.mark.parametrize(
    ("body", "path", "caller", "status"),
    [
        (b"{", PATH, SERVICE, 400),
        ({"messages": ""}, PATH, SERVICE, 400),
        (request(), "/api/agents/nobody/stream", SERVICE, 404),
        (request(), "/api/agents/a%20b/stream", SERVICE, 400),
        (request(), "/api/other", SERVICE, 404),
        (request(), PATH, None, 401),
        (request(), PATH, user("ana", expires=1), 401),
        (b" " * (4_718_592 + 1), PATH, SERVICE, 413),
    ],
)
async def test_what_is_wrong_is_said_before_the_stream_begins(body: Any, path: str, caller: Any, status: int) -> None:
    one = Caller(Talker("x"))
    await one.post(body, path=path, caller=caller)
    assert one.status == status
    assert "error" in json.loads(one.text)
    assert one.model.requests == []


async def test_a_users_token_decides_whose_memory_is_used() -> None:
    caller = Caller(Talker("x"))
    await caller.post(request(), caller=user("bo"))
    thread = await caller.store.get_thread("t")
    assert thread and thread.resource_id == "bo"


async def test_a_model_that_fails_half_way_is_an_error_chunk_and_an_end() -> None:
    caller = Caller(Talker("half", ModelUnavailable("the model is down")))
    await caller.post(request())
    assert caller.status == 200
    assert caller.types[-4:] == ["text-end", "error", "step-finish", "finish"]
    error = next(c for c in caller.chunks if c["type"] == "error")
    assert error["payload"]["error"] == {"message": "the model is down", "name": "ModelUnavailable"}
    assert caller.chunks[-1]["payload"]["stepResult"]["reason"] == "error"
    assert caller.text.endswith("data: [DONE]\n\n")


async def test_an_unforeseen_error_says_nothing_of_the_house() -> None:
    caller = Caller(Talker("half", RuntimeError("secret detail")))
    await caller.post(request())
    assert "secret detail" not in caller.text
    assert next(c for c in caller.chunks if c["type"] == "error")["payload"]["error"]["message"] == "Internal error"


async def test_h13_hanging_up_ends_the_run_and_keeps_what_was_said() -> None:
    caller = Caller(Talker("so far", asyncio.Event()))
    running = asyncio.create_task(caller.post(request("tell me")))
    await caller.until("text-delta")
    caller.gone.set()
    await running
    assert caller.model.hung_up
    assert await caller.stored() == [("user", "tell me"), ("assistant", "so far")]


async def test_a_thinking_model_is_bridged_by_comments() -> None:
    gate = asyncio.Event()
    caller = Caller(Talker(gate, "late"), heartbeat=0.02)
    running = asyncio.create_task(caller.post(request()))
    await caller.until(": heartbeat\n\n", 2)
    gate.set()
    await running
    assert caller.types[-1] == "finish"


async def test_h12_a_request_that_comes_again_gets_its_answer_told_again() -> None:
    caller = Caller(Talker("only once"))
    await caller.post(request(), headers={"idempotency-key": "k"})
    first = caller.chunks
    caller.sent = []
    await caller.post(request(), headers={"idempotency-key": "k"})
    assert len(caller.model.requests) == 1
    assert caller.chunks[0]["payload"]["messageId"] == first[0]["payload"]["messageId"]
    assert caller.types == [
        "start", "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish",
    ]  # fmt: skip
    assert await caller.stored() == [("user", "hi"), ("assistant", "only once")]


async def test_h27_what_a_processor_masks_never_leaves(caplog: Any) -> None:
    caller = Caller(Talker("code ", "4711"), {"output_processors": [Masked()]})
    await caller.post(request())
    assert "4711" not in caller.text
    assert "code ****" in caller.text


async def test_stream_until_idle_is_the_same() -> None:
    caller = Caller(Talker("x"))
    await caller.post(request(), path="/api/agents/talker/stream-until-idle")
    assert caller.types[-1] == "finish"


def test_the_gateway_does_not_serve_streams_by_accident(house: House) -> None:
    """The buffered front has no way to stream: the deployed function is another one."""
    assert {route.function for route in ROUTES if route.streams} == {"stream"}
    assert all(route.streams for route in ROUTES if route.function == "stream")


async def test_h13_who_hangs_up_before_the_stream_begins_waits_for_nothing() -> None:
    gate = asyncio.Event()
    first = Caller(Talker("Hello", gate, " world"))
    second = Caller(first.model, store=first.store)
    running = asyncio.create_task(first.post(request()))
    await first.until("Hello")
    repeating = asyncio.create_task(second.post(request()))
    await asyncio.sleep(0.05)
    assert not repeating.done(), "a repeat waits for the run that it repeats"
    second.gone.set()
    await asyncio.wait_for(repeating, 5)
    assert second.sent == []
    gate.set()
    await running
    assert await first.stored() == [("user", "hi"), ("assistant", "Hello world")]
    assert asyncio.all_tasks() == {asyncio.current_task()}
