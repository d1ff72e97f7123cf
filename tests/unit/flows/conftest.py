"""A supervisor that delegates by a machine, whose tasks run in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.fakes import FakeModel
from tests.unit.flows.local_machine import LocalMachine
from threadkeep import Agent, Memory, TurnResult, clock
from threadkeep.agents import Registry
from threadkeep.flows.delegator import StepFunctionsDelegator
from threadkeep.flows.task import Task, perform
from threadkeep.models.registry import Models
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.turn.context import RequestContext
from threadkeep.turn.request import Conversation, InputMessage, Services, TurnRequest
from threadkeep.turn.run import run_turn


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
