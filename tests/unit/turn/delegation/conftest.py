"""A supervisor with its sub-agents on one store, without AWS."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls
from threadkeep import Agent, Memory, TurnResult
from threadkeep.ids import sub_resource
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Message


def asks(*keys: str, text: str = "", prompt: str = "find X", **args: Any):
    """An answer that delegates to these sub-agents."""
    return calls(*((f"agent-{key}", {"prompt": prompt, **args}) for key in keys), text=text)


@dataclass
class Desk:
    """A supervisor `boss` with the sub-agent `researcher`: `turn` runs a turn of the supervisor."""

    boss_model: FakeModel
    sub_model: FakeModel
    boss: Agent
    storage: InMemoryStorage

    async def turn(self, text: str = "hello first", thread: str | None = "T", resource: str | None = "U", **call: Any):
        return await self.boss.generate(text, thread=thread, resource=resource, storage=self.storage, **call)

    async def stored(self, thread: str | None) -> tuple[Message, ...]:
        assert thread is not None
        return (await self.storage.list_messages(thread, per_page=None)).page.items

    async def texts(self, thread: str | None) -> list[tuple[str, str]]:
        return [(m.role, m.content.get("content", "")) for m in await self.stored(thread)]

    async def sub_threads(self, resource: str = "U", key: str = "researcher"):
        return (await self.storage.list_threads(sub_resource(resource, key), per_page=None)).items


def results_of(result: TurnResult) -> list[dict[str, Any]]:
    """The results of the delegations of a run."""
    return [o.result for step in result.steps for o in step.outcomes]


@pytest.fixture
def desk() -> Callable[..., Desk]:
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
        return Desk(boss_model, sub_model, supervisor, InMemoryStorage())

    return make
