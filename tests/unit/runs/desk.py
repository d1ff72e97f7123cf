"""Durable runs without AWS: the machine `supervisor` is played task by task, as its definition says."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.unit.fakes import calls, says
from tests.unit.http.house import NoExecutions
from threadkeep import Agent, Memory, clock, tool
from threadkeep.agents import Registry
from threadkeep.flows import supervise
from threadkeep.flows.supervise import RunFailed
from threadkeep.flows.task import Task, perform
from threadkeep.http import identity, runs
from threadkeep.http.app import App
from threadkeep.http.route import Request, Route
from threadkeep.http.serve import serve
from threadkeep.ids import sub_resource
from threadkeep.models.port import ModelRequest, ModelResponse
from threadkeep.models.registry import Models
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.turn.request import Services

SERVICE = {"kind": "service"}
MAX_PAYLOAD = 256_000
LONG = 900.0


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Points:
    """The points at which a process can be killed, counted as it comes to them."""

    kill_at: int | None = None
    seen: list[str] = field(default_factory=list)

    def at(self, name: str) -> None:
        self.seen.append(name)
        if self.kill_at == len(self.seen) - 1:
            raise Killed(name)


class Store(InMemoryStorage):
    """An in-memory store around whose writes a process can be killed."""

    def __init__(self, points: Points):
        super().__init__()
        self.points = points


def _around(name: str) -> Callable[..., Any]:
    async def write(self: Store, *given: Any, **more: Any) -> Any:
        self.points.at(f"before {name}")
        done = await getattr(InMemoryStorage, name)(self, *given, **more)
        self.points.at(f"after {name}")
        return done

    return write


for _name in ("create_thread", "write_entries", "commit_turn", "end_run", "put_working_memory"):
    setattr(Store, _name, _around(_name))


class Scripted:
    """A model whose answer depends on what it is asked, so that a repeat is asked the same. `asked` counts answers."""

    def __init__(self, points: Points, answer: Callable[[ModelRequest], ModelResponse]):
        self.points = points
        self.answer = answer
        self.requests: list[ModelRequest] = []
        self.asked: Counter[str] = Counter()

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.points.at("before model")
        self.requests.append(request)
        made = self.answer(request)
        self.asked[made.text or str([(c.name, c.args) for c in made.tool_calls])] += 1
        self.points.at("after model")
        return made


def round_of(request: ModelRequest) -> int:
    """How many steps of the run the model sees: answers with calls."""
    return sum(m.role == "tool" for m in request.messages)


def in_rounds(*answers: ModelResponse | str | Exception | Callable[[ModelRequest], ModelResponse]) -> Any:
    """Answers by the number of steps before."""

    def answer(request: ModelRequest) -> ModelResponse:
        given = answers[min(round_of(request), len(answers) - 1)]
        if isinstance(given, Exception):
            raise given
        if isinstance(given, str):
            return says(given)
        return given if isinstance(given, ModelResponse) else given(request)

    return answer


@dataclass
class Desk:
    """One application with a supervisor `boss`. `ran` are the calls of its tools that ran."""

    boss_answer: Callable[[ModelRequest], ModelResponse]
    sub_answer: Callable[[ModelRequest], ModelResponse] = field(default_factory=lambda: in_rounds("sub answer"))
    on_boss: dict[str, Any] = field(default_factory=dict)
    on_sub: dict[str, Any] = field(default_factory=dict)
    points: Points = field(default_factory=Points)
    ran: list[str] = field(default_factory=list)
    payloads: list[int] = field(default_factory=list)
    tasks: int = 0
    retries: int = 3

    def __post_init__(self) -> None:
        @tool(id="note")
        async def note(text: str) -> str:
            """Note it"""
            self.points.at("before tool")
            self.ran.append(text)
            self.points.at("after tool")
            return f"noted {text}"

        self.boss_model, self.sub_model = (
            Scripted(self.points, self.boss_answer),
            Scripted(self.points, self.sub_answer),
        )
        self.store, self.executions = Store(self.points), NoExecutions()
        sub = Agent(id="researcher", **({"model": "sub/m"} | self.on_sub))
        settings = {
            "model": "boss/m",
            "memory": Memory(),
            "tools": [note],
            "agents": {"researcher": sub},
        } | self.on_boss
        models = Models(adapters={"boss": self.boss_model, "sub": self.sub_model})
        self.app = App(
            self.store, Registry([Agent(id="boss", **settings), Agent(id="other", model="boss/m", memory=Memory())]),
            models, executions=self.executions,
        )  # fmt: skip

    async def http(
        self, method: str, path: str, body: Any = None, caller: Any = SERVICE, query: Any = None, **headers: str
    ) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        pattern = "/".join(
            ["", "api", "agents", "{agentId}", "runs", *(["{runId}"] if len(parts) > 2 else []), *parts[3:]]
        )
        route: Route[Any, Any, Any] = next(r for r in runs.ROUTES if (r.method, r.path) == (method, pattern))
        given = {"agentId": parts[0]} | ({"runId": parts[2]} if len(parts) > 2 else {})
        raw = json.dumps(body).encode() if body is not None else b""
        asked = {name: [value] for name, value in (query or {}).items()}
        told = {"content-type": "application/json"} | {n.replace("_", "-"): v for n, v in headers.items()}
        request = Request(given, asked, told, raw, identity.from_authorizer(caller), clock.now())
        found = await serve(route, request, self.app)
        return found.status, json.loads(found.body)

    async def begin(self, text: str = "hello", thread: str | None = "T", owner: str = "U", **body: Any) -> str:
        memory = {"memory": {"thread": thread, "resource": owner}} if thread else {}
        status, started = await self.http("POST", "boss/runs", {"messages": text} | memory | body)
        assert status == 202
        return started["runId"]

    async def drive(
        self, run_id: str, *, redriven: bool = False, seconds: float = LONG, at: dict[str, Any] | None = None
    ) -> str:
        """Play the machine to its end, from its beginning or the input of a step: `SUCCEEDED` or `FAILED`."""
        state: dict[str, Any] = at or {"runId": run_id, "outcomes": []}
        if redriven:
            try:
                state = await self._mark(run_id) | {"outcomes": []}
            except RunFailed:
                return "FAILED"
        while state.get("next") != "over":
            try:
                state = await self._step(state, seconds)
            except Exception as error:
                self.error = {"Error": type(error).__name__, "Cause": json.dumps({"errorMessage": str(error)})}
                try:
                    state = await self._mark(run_id) | {"outcomes": []}
                except RunFailed:
                    return "FAILED"
            if state["next"] == "delegate":
                state = await self._delegated(state)
            elif state["next"] == "again":
                state = {"runId": run_id, "outcomes": []}
        return "SUCCEEDED"

    async def run(self, text: str = "hello", **body: Any) -> dict[str, Any]:
        """A run from its beginning to its end, as its caller sees it then."""
        run_id = await self.begin(text, **body)
        await self.drive(run_id)
        return await self.view(run_id)

    async def view(self, run_id: str, caller: Any = SERVICE) -> dict[str, Any]:
        status, view = await self.http("GET", f"boss/runs/{run_id}", caller=caller)
        assert status == 200
        return view

    async def stored(self, thread: str = "T") -> list[tuple[str, Any]]:
        rows = (await self.store.list_messages(thread, per_page=None)).page.items
        return [(m.role, m.content.get("content")) for m in rows]

    async def sub_threads(self, owner: str = "U", key: str = "researcher") -> list[str]:
        return [t.id for t in (await self.store.list_threads(sub_resource(owner, key), per_page=None)).items]

    async def _step(self, state: dict[str, Any], seconds: float) -> dict[str, Any]:
        return await self._again(
            state, lambda: supervise.step(self.app, state["runId"], state["outcomes"], lambda: seconds)
        )

    async def _mark(self, run_id: str) -> dict[str, Any]:
        return await self._again(self.error, lambda: supervise.mark(self.app, run_id, self.error))

    async def _again(self, given: Any, task: Callable[[], Any]) -> Any:
        """A task with its retries: whoever kills it, it is begun again."""
        self._weigh(given)
        for _ in range(self.retries):
            self.tasks += 1
            try:
                done = await task()
                self._weigh(done)
                return done
            except Killed:
                continue
        raise AssertionError("killed again and again")

    async def _delegated(self, state: dict[str, Any]) -> dict[str, Any]:
        async def one(item: Any) -> Any:
            event = {"journal": state["runId"], "order": item}
            attempt = -1

            async def task() -> Any:
                nonlocal attempt
                attempt += 1
                services = Services(self.store, self.app.models)
                return await perform(Task.read(event | {"attempt": attempt}, 300_000), self.app.registry, services)

            return await self._again(event, task)

        outcomes = await asyncio.gather(*map(one, state["orders"]))
        self._weigh(outcomes)
        return {"runId": state["runId"], "outcomes": list(outcomes)}

    error: Any = None

    def _weigh(self, payload: Any) -> None:
        self.payloads.append(len(json.dumps(payload)))
        assert self.payloads[-1] < MAX_PAYLOAD


def delegates(*prompts: str, text: str = "") -> ModelResponse:
    return calls(*(("agent-researcher", {"prompt": prompt}) for prompt in prompts), text=text)


def notes(*texts: str) -> ModelResponse:
    return calls(*(("note", {"text": text}) for text in texts))
