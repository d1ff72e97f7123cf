from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.fakes import FakeModel
from threadkeep import Agent, Memory, RequestContext
from threadkeep.ids import new_id
from threadkeep.models.registry import Models
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Message
from threadkeep.turn.request import Conversation, InputMessage, Services, TurnRequest
from threadkeep.turn.result import TurnResult
from threadkeep.turn.run import run_turn


def user(text: str, id: str | None = None) -> InputMessage:
    return InputMessage("user", ({"type": "text", "text": text},), id)


def assistant(text: str, id: str | None = None) -> InputMessage:
    return InputMessage("assistant", ({"type": "text", "text": text},), id)


def system(text: str) -> InputMessage:
    return InputMessage("system", ({"type": "text", "text": text},))


@dataclass
class House:
    """One agent on one store: `turn` runs a turn, `stored` reads a thread back."""

    model: FakeModel
    storage: InMemoryStorage
    agent: Agent

    @property
    def services(self) -> Services:
        return Services(self.storage, Models(adapters={"fake": self.model}))

    async def turn(
        self, *messages: InputMessage | str, thread: str | None = "t", resource: str = "ana", **request: Any
    ) -> TurnResult:
        resolved = await self.agent.resolve(RequestContext())
        memory = resolved.memory.options if resolved.memory else None
        given: dict[str, Any] = {"options": memory} if memory else {}
        given |= {"run_id": new_id(), "conversation": Conversation(thread, resource) if thread else None} | request
        said = tuple(m if isinstance(m, InputMessage) else user(m) for m in messages)
        return await run_turn(resolved, TurnRequest(messages=said, **given), self.services)

    async def stored(self, thread: str = "t") -> tuple[Message, ...]:
        return (await self.storage.list_messages(thread, per_page=None)).page.items

    async def texts(self, thread: str = "t") -> list[tuple[str, str]]:
        return [(m.role, m.content.get("content", "")) for m in await self.stored(thread)]


@pytest.fixture
def house() -> Callable[..., House]:
    """Makes a house; arguments are the model's answers and the agent's settings."""

    def make(*answers: Any, memory: Memory | None = None, **agent: Any) -> House:
        settings = {"instructions": "Be kind.", "model": "fake/one", "memory": memory or Memory()} | agent
        return House(FakeModel(*answers), InMemoryStorage(), Agent(id="agent", **settings))

    return make
