"""The HTTP room in process: real routes, operations and turn, the in-memory store, a model that counts its calls."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from threadkeep import Agent, Memory, tool
from threadkeep.agents import Registry
from threadkeep.http import gateway
from threadkeep.http.app import App
from threadkeep.http.executions import Executions
from threadkeep.http.routes import ROUTES
from threadkeep.http.workers import Workers
from threadkeep.models.port import ModelRequest, ModelResponse, Usage
from threadkeep.models.registry import Models
from threadkeep.storage.live import Channel
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import NewMessage, NewThread, TurnCommit

EVENTS = Path(__file__).parents[3] / "events"
SERVICE = {"kind": "service"}
USUAL_HEADERS = {
    "content-type": "application/json",
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "Retry-After,ETag",
}


def user(resource: str, expires: int = 4_102_444_800) -> dict[str, str]:
    """The context that the authorizer makes for a token."""
    return {"kind": "user", "resource": resource, "expires": str(expires)}


class CountingModel:
    def __init__(self) -> None:
        self.calls = 0
        self.requests: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.calls += 1
        self.requests.append(request)
        return ModelResponse("Hello", (), "stop", Usage(1, 1), "counting")


@tool(id="get-time", require_approval=True)
def current_time(zone: str) -> str:
    """Tell the time"""
    return zone


class NoWorkers(Workers):
    """Remembers for which threads a worker was wanted, and starts none."""

    def __init__(self) -> None:
        self.started: list[Channel] = []

    async def start(self, channel: Channel) -> None:
        self.started.append(channel)


class NoExecutions(Executions):
    """Remembers which runs were started and stopped, and drives none. `over` says what became of executions."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.over: dict[str, str] = {}

    async def start(self, run_id: str) -> bool:
        self.started.append(run_id)
        return run_id not in self.over and self.started.count(run_id) == 1

    async def stop(self, run_id: str) -> None:
        self.stopped.append(run_id)

    async def ended(self, run_id: str) -> str | None:
        return self.over.get(run_id)


@dataclass
class House:
    """One application. `call` sends one request through the gateway adapter, as API Gateway would."""

    model: CountingModel = field(default_factory=CountingModel)
    store: InMemoryStorage = field(default_factory=InMemoryStorage)
    agents: list[Agent] = field(default_factory=list[Agent])
    workers: NoWorkers = field(default_factory=NoWorkers)
    executions: NoExecutions = field(default_factory=NoExecutions)

    def __post_init__(self) -> None:
        self.agents += [
            Agent(id="assistant", name="Assistant", instructions="Be kind.", model="fake/m", memory=Memory()),
            Agent(id="plain", model="fake/m", tools=[current_time]),
            Agent(id="picky", instructions=lambda context: f"You serve {context['tenant']}.", model="fake/m"),
        ]
        models = Models(adapters={"fake": self.model})
        self.app = App(self.store, Registry(self.agents), models, self.workers, executions=self.executions)
        self.handler = gateway.handler(ROUTES, lambda: self.app)

    def send(self, event: dict[str, Any]) -> tuple[int, Any]:
        response = self.handler(event, None)
        self.headers = response["headers"]
        assert self.headers.items() >= USUAL_HEADERS.items()
        assert self.headers.keys() - USUAL_HEADERS <= {"retry-after", "etag"}
        return response["statusCode"], json.loads(response["body"])

    def call(
        self,
        method: str,
        resource: str,
        *,
        path: dict[str, str] | None = None,
        query: dict[str, str | list[str]] | None = None,
        body: Any = None,
        text: str | None = None,
        caller: dict[str, str] | None = SERVICE,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> tuple[int, Any]:
        values = {name: value if isinstance(value, list) else [value] for name, value in (query or {}).items()}
        event = {
            "httpMethod": method,
            "resource": resource,
            "pathParameters": path,
            "multiValueQueryStringParameters": values or None,
            "headers": {"Content-Type": "application/json"} if headers is None else headers,
            "body": json.dumps(body) if text is None and body is not None else text,
            "isBase64Encoded": False,
            "requestContext": {"requestId": "req-1"} | ({"authorizer": caller} if caller is not None else {}),
        }
        return self.send(event | more)

    def threads(self) -> list[str]:
        """The ids of all stored threads."""
        return [t.id for t in asyncio.run(self.store.list_threads(None, per_page=None)).items]

    def add_thread(self, thread_id: str = "thr-1", owner: str = "user-ada", messages: int = 0, **more: Any) -> None:
        async def add() -> None:
            thread = await self.store.create_thread(NewThread(thread_id, owner, **more))
            for n in range(messages):
                content = {"format": 2, "parts": [{"type": "text", "text": f"message {n}"}]}
                new = NewMessage(f"{thread_id}-m{n}", "user", content, at=n)
                await self.store.commit_turn(TurnCommit(thread, (new,)))

        asyncio.run(add())
