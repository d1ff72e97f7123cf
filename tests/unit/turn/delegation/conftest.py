"""A supervisor with its sub-agents on one store, without AWS, on both delegators."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.flows.local_machine import LocalMachine
from threadkeep import Agent, Memory, TurnResult
from threadkeep.agents import Registry, library
from threadkeep.flows.delegator import StepFunctionsDelegator
from threadkeep.ids import sub_resource
from threadkeep.models.registry import Models
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Message, Storage
from threadkeep.turn import approvals, suspension
from threadkeep.turn.approvals import Decision
from threadkeep.turn.delegation.in_process import InProcess
from threadkeep.turn.delegation.orders import Delegator
from threadkeep.turn.request import Services, TurnAgent, TurnRequest
from threadkeep.turn.run import run_turn


def asks(*keys: str, text: str = "", prompt: str = "find X", **args: Any):
    """An answer that delegates to these sub-agents."""
    return calls(*((f"agent-{key}", {"prompt": prompt, **args}) for key in keys), text=text)


def by_machine(supervisor: Agent, storage: Storage) -> Delegator:
    """The delegator of buffered runs: orders and reports travel through a journal, agents are found by the path."""
    machine = LocalMachine(Registry([supervisor]), Services(storage, Models(adapters={})))
    delegator = StepFunctionsDelegator(machine)
    machine.services = replace(machine.services, delegator=delegator)
    return delegator


@dataclass
class Desk:
    """A supervisor `boss` with the sub-agent `researcher`: `turn` runs a turn of the supervisor."""

    boss_model: FakeModel
    sub_model: FakeModel
    boss: Agent
    storage: InMemoryStorage
    delegator: Delegator

    async def turn(self, text: Any = "hello first", thread: str | None = "T", resource: str | None = "U", **call: Any):
        call |= {"thread": thread, "resource": resource, "storage": self.storage}
        changed = {name: call.pop(name) for name in ("ask_first", "repeat", "stopped") if name in call}
        agent, request, storage, hooks = await library.prepared(self.boss, text, call)
        return await library.run_in_process(agent, replace(request, **changed), storage, hooks, self._run)

    async def decide(self, run_id: str, call_id: str, approved: bool = True) -> TurnResult:
        run = await approvals.suspended_run(self.storage, run_id, self.boss.id, None)
        context = suspension.context_of(run, {})
        agent = await self.boss.resolve(context)
        request = suspension.request_of(run, agent, context)
        return await approvals.decide(agent, request, run, Decision(call_id, approved, "no"), self.services)

    @property
    def services(self) -> Services:
        return Services(self.storage, Models(adapters={}), self.delegator)

    async def _run(self, agent: TurnAgent, request: TurnRequest, services: Services) -> TurnResult:
        return await run_turn(agent, request, replace(services, delegator=self.delegator))

    async def stored(self, thread: str | None) -> tuple[Message, ...]:
        assert thread is not None
        return (await self.storage.list_messages(thread, per_page=None)).page.items

    async def texts(self, thread: str | None) -> list[tuple[str, str]]:
        return [(m.role, m.content.get("content", "")) for m in await self.stored(thread)]

    async def threads(self, resource: str = "U"):
        return (await self.storage.list_threads(resource, per_page=None)).items

    async def sub_threads(self, resource: str = "U", *keys: str):
        for key in keys or ("researcher",):
            resource = sub_resource(resource, key)
        return await self.threads(resource)

    @property
    def told(self) -> list[str]:
        """The results that the supervisor's model read last."""
        return [p.text for m in self.boss_model.requests[-1].messages if m.role == "tool" for p in m.parts]


def results_of(result: TurnResult) -> list[dict[str, Any]]:
    """The results of the delegations of a run."""
    return [o.result for step in result.all_steps for o in step.outcomes]


@pytest.fixture(params=["in process", "by a machine"])
def through(request: pytest.FixtureRequest) -> str:
    """How orders get to the sub-agents: every rule holds for either way."""
    return request.param


@pytest.fixture
def desk(through: str) -> Callable[..., Desk]:
    """Makes a desk; `boss` and `sub` are the models' answers, `on_boss` and `on_sub` further settings."""

    def make(
        boss: tuple[Any, ...],
        sub: tuple[Any, ...] = ("sub answer",),
        on_boss: dict[str, Any] | None = None,
        on_sub: dict[str, Any] | None = None,
    ) -> Desk:
        boss_model, sub_model = FakeModel(*boss), FakeModel(*sub)
        researcher = Agent(id="researcher", **({"instructions": "SUB INSTR", "model": sub_model} | (on_sub or {})))
        settings = {"instructions": "SUP INSTR", "model": boss_model, "memory": Memory()} | (on_boss or {})
        supervisor = Agent(id="boss", name="Boss", **({"agents": {"researcher": researcher}} | settings))
        storage = InMemoryStorage()
        delegator = InProcess(run_turn) if through == "in process" else by_machine(supervisor, storage)
        return Desk(boss_model, sub_model, supervisor, storage, delegator)

    return make


@dataclass
class Nest:
    """A supervisor, below it `middy`, below that `leafy`."""

    desk: Desk
    mid_model: FakeModel
    leaf_model: FakeModel


@pytest.fixture
def nest(desk) -> Callable[..., Nest]:
    """Makes three levels of agents, each of which delegates once."""

    def make(on_boss: dict[str, Any] | None = None, on_mid: Any = None, on_leaf: Any = None, leaf: Any = "leaf says"):
        leaf_model = FakeModel(leaf)
        mid_model = FakeModel(asks("leafy", prompt="leaf task"), "mid says")
        leafy = Agent(id="leaf", instructions="LEAF", model=leaf_model, **(on_leaf or {}))
        middy = Agent(id="mid", instructions="MID", model=mid_model, **({"agents": {"leafy": leafy}} | (on_mid or {})))
        boss = {"instructions": "SUP", "agents": {"middy": middy}} | (on_boss or {})
        return Nest(desk((asks("middy", prompt="mid task"), "done"), on_boss=boss), mid_model, leaf_model)

    return make


def steps(*texts: str) -> list[Any]:
    """Answers that each end a run."""
    return [says(text) for text in texts]
