"""Memory objects on one store behave as one; those on different stores share nothing (SHR-4)."""

from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls
from threadkeep import Agent, Memory
from threadkeep.errors import AccessDenied
from threadkeep.storage.memory import InMemoryStorage

NOTES = "# Project\n- Findings: qubits decohere"
PROJECT = {"thread": "research-session", "resource": "project-42"}


def agent(name: str, storage: InMemoryStorage, *answers: Any) -> tuple[Agent, FakeModel]:
    """An agent with a Memory of its own that names its store."""
    model = FakeModel(*answers)
    memory = Memory(working_memory={"enabled": True}, storage=storage)
    return Agent(id=name, model=model, memory=memory), model


def told(model: FakeModel) -> str:
    return "\n".join(text for _, text in model.prompt)


@pytest.mark.parametrize("shared", [True, False])
async def test_shr4_two_memories_are_one_by_their_store_alone(shared: bool):
    first = InMemoryStorage()
    second = first if shared else InMemoryStorage()
    note = calls(("updateWorkingMemory", {"memory": NOTES}))
    researcher, _ = agent("researcher", first, note, "They decohere.")
    writer, model = agent("writer", second)
    await researcher.generate("Why do qubits fail?", **PROJECT)
    await writer.generate("Sum it up.", **PROJECT)
    assert [(text in told(model)) for text in (NOTES, "Why do qubits fail?", "They decohere.")] == [shared] * 3
    assert len((await first.list_messages("research-session")).page.items) == (4 if shared else 2)


@pytest.mark.parametrize("shared", [True, False])
async def test_shr1_shr4_the_owner_of_a_thread_is_known_to_its_store(shared: bool):
    first = InMemoryStorage()
    researcher, _ = agent("researcher", first)
    writer, model = agent("writer", first if shared else InMemoryStorage())
    await researcher.generate("Why do qubits fail?", **PROJECT)
    turn = writer.generate("Sum it up.", thread="research-session", resource="project-43")
    if shared:
        with pytest.raises(AccessDenied):
            await turn
        assert model.requests == []
    else:
        assert (await turn).text == "ok"
    stored = await first.get_thread("research-session")
    assert stored and (stored.resource_id, stored.message_count) == ("project-42", 2)
