"""The Step Functions delegator without AWS: a machine that runs each order's task in this process, as the ASL says."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.fakes import FakeModel
from threadkeep import Agent, Memory, TurnResult, clock
from threadkeep.agents import Registry
from threadkeep.errors import ModelUnavailable, StoreUnavailable
from threadkeep.flows.delegator import StepFunctionsDelegator
from threadkeep.flows.machine import Execution
from threadkeep.flows.task import Task, perform
from threadkeep.models.registry import Models
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.turn.context import RequestContext
from threadkeep.turn.request import Conversation, InputMessage, Services, TurnRequest
from threadkeep.turn.run import run_turn


@dataclass
class LocalMachine:
    """Runs tasks side by side, those that may be mended three times. `inputs` are what it was given."""

    registry: Registry
    services: Services
    left: int = 300_000
    ending: str = "SUCCEEDED"
    inputs: list[Any] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)

    async def run(self, given: Any, seconds: float) -> Execution:
        self.inputs.append((given, seconds))
        if self.ending != "SUCCEEDED":
            return Execution(self.ending)  # type: ignore[arg-type]
        outcomes = await asyncio.gather(*[self._task(given["journal"], item) for item in given["orders"]])
        return Execution("SUCCEEDED", [dict(outcome) for outcome in outcomes])

    async def _task(self, journal: str, item: Any) -> Any:
        for attempt in range(3):
            self.attempts.append(attempt)
            event = {"journal": journal, "order": item, "attempt": attempt}
            try:
                return await perform(Task.read(event, self.left), self.registry, self.services)
            except (ModelUnavailable, StoreUnavailable):
                continue
        return {"id": item["id"], "failure": "failed"}


@dataclass
class Office:
    """A supervisor `boss` with a researcher, which delegates by a machine."""

    boss: Agent
    boss_model: FakeModel
    sub_model: FakeModel
    storage: InMemoryStorage
    machine: LocalMachine
    services: Services

    async def turn(self, run_id: str = "run", thread: str = "T", owner: str = "U", deadline: float = 27) -> TurnResult:
        request = TurnRequest(
            messages=(InputMessage("user", ({"type": "text", "text": "hello"},)),),
            run_id=run_id,
            conversation=Conversation(thread, owner),
            deadline=deadline,
            request_context=RequestContext({"tier": "gold"}),
        )
        return await run_turn(await self.boss.resolve(RequestContext()), request, self.services)

    def task(self, number: int = 0, attempt: int = 0) -> Task:
        """The task of an order of the newest step."""
        given, _ = self.machine.inputs[-1]
        item = given["orders"][number] | {"deadline": clock.now() + 20_000}
        return Task(given["journal"], item, attempt, clock.now() + 300_000)

    async def perform(self, task: Task) -> Any:
        return await perform(task, self.machine.registry, self.services)

    async def texts(self, thread: str) -> list[tuple[str, str]]:
        page = (await self.storage.list_messages(thread, per_page=None)).page
        return [(m.role, m.content.get("content", "")) for m in page.items]


@pytest.fixture
def office() -> Callable[..., Office]:
    """Makes an office; `boss` and `sub` are the models' answers, `on_sub` and `on_boss` further settings."""

    def make(
        boss: tuple[Any, ...], sub: tuple[Any, ...] = ("found",), on_sub: Any = None, on_boss: Any = None
    ) -> Office:
        boss_model, sub_model = FakeModel(*boss), FakeModel(*sub)
        researcher = Agent(id="res-agent", model=sub_model, **(on_sub or {}))
        supervisor = Agent(
            id="boss", model=boss_model, memory=Memory(), **({"agents": {"researcher": researcher}} | (on_boss or {}))
        )
        storage = InMemoryStorage()
        machine = LocalMachine(Registry([supervisor]), Services(storage, Models()))
        services = Services(storage, Models(), StepFunctionsDelegator(machine))
        machine.services = services
        return Office(supervisor, boss_model, sub_model, storage, machine, services)

    return make
