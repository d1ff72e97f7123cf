"""The example agents, each with a model that says what the test wants: what they keep, and who sees it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from agents import agents
from agents.collaborator import collaborator
from agents.patient_intake import patient_intake
from agents.personal_assistant import personal_assistant
from agents.session_notes import session_notes
from tests.unit.fakes import FakeModel, calls
from threadkeep import Agent, Speaker
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import MemoryTarget

SAM = "# User Profile\n- Name: Sam\n- Location: Berlin"
ANA, BO = Speaker("u-1", "Ana", "editor"), Speaker("u-2", "Bo", "author")


def update(memory: Any) -> Any:
    return calls(("updateWorkingMemory", {"memory": memory}))


class House:
    """One agent, its model's answers and a store."""

    def __init__(self, agent: Agent, *answers: Any):
        self.model, self.storage = FakeModel(*answers), InMemoryStorage()
        self.agent = replace(agent, model=self.model)

    async def say(self, text: str, thread: str = "t", **more: Any) -> str:
        return (await self.agent.generate(text, thread=thread, resource="r", storage=self.storage, **more)).text

    async def kept(self, scope: Any, id: str) -> str:
        return (await self.storage.get_working_memory(MemoryTarget(scope, id))).text

    def system(self) -> str:
        return "\n".join(text for role, text in self.model.prompt if role == "system")

    def tool_results(self) -> list[str]:
        return [text for role, text in self.model.prompt if role == "tool"]


def test_the_examples_have_the_names_of_the_guide():
    assert [agent.id for agent in agents] == [
        "assistant", "personal-assistant", "patient-intake", "session-notes", "collaborator"
    ]  # fmt: skip


async def test_wm3_the_personal_assistant_knows_in_another_thread_what_it_was_told_in_one():
    house = House(personal_assistant, update(SAM), "Hello Sam.", "In Berlin.")
    await house.say("I am Sam from Berlin.", thread="one")
    await house.say("Where do I live?", thread="two")
    assert SAM in house.system()
    assert "- Timezone:" in house.system()
    assert [text for role, text in house.model.prompt if role == "user"] == ["Where do I live?"]
    assert await house.kept("resource", "r") == SAM


async def test_wm16_the_patients_record_is_merged_field_by_field():
    house = House(
        patient_intake,
        update({"name": "John Doe", "blood_type": "O+", "allergies": ["Penicillin"]}),
        "Thank you.",
        update({"allergies": ["Penicillin", "Ibuprofen"], "medications": [{"name": "Lisinopril", "dose": "10 mg"}]}),
        "Noted.",
        update({"medications": None, "contact": {"phone": "555-0100"}}),
    )  # fmt: skip
    for said in ("I am John Doe, O+, allergic to penicillin.", "Ibuprofen too.", "No pills any more."):
        await house.say(said)
    assert json.loads(await house.kept("resource", "r")) == {
        "name": "John Doe",
        "blood_type": "O+",
        "allergies": ["Penicillin", "Ibuprofen"],
        "contact": {"phone": "555-0100"},
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [("blood_type", "purple"), ("date_of_birth", "yesterday"), ("allergies", "Penicillin"), ("medications", [{}])],
)
async def test_wm17_the_record_refuses_what_is_no_such_value_and_tells_the_model(field: str, value: Any):
    house = House(patient_intake, update({"name": "Eve", field: value}), "Sorry.")
    await house.say("Take this down.")
    assert await house.kept("resource", "r") == ""
    assert field in house.tool_results()[-1]


async def test_wm2_session_notes_stay_in_their_thread():
    house = House(session_notes, update("# Notes\n- Topic: Heron"), "Noted.")
    await house.say("We talk about Heron.", thread="one")
    assert await house.kept("thread", "one") == "# Notes\n- Topic: Heron"
    await house.say("What is the topic?", thread="two")
    assert "Heron" not in house.system()


async def test_mut4_the_collaborator_is_taught_to_tell_its_people_apart():
    house = House(collaborator, "Yes, Ana.", "Ana asked for it, Bo.")
    await house.say("Shorten part two.", speaker=ANA)
    await house.say("Who wants it shorter?", speaker=BO)
    taught = house.system()
    for lesson in (
        "Several users share this thread",
        "by author_name",
        "Respect functional_role",
        "Attribute what was said earlier to the author in the tag around it",
        "Never write turn tags",
        "add a line when a new author_id speaks",
    ):
        assert lesson in taught
    said = [text for role, text in house.model.prompt if role == "user"]
    assert said == [
        '<turn author_id="u-1" author_name="Ana" functional_role="editor">\nShorten part two.\n</turn>',
        '<turn author_id="u-2" author_name="Bo" functional_role="author">\nWho wants it shorter?\n</turn>',
    ]


async def test_mut5_the_participants_are_kept_for_the_thread_by_author_id():
    kept = "# Participants\n- u-1: Ana, editor, wants it short"
    house = House(collaborator, update(kept), "Yes, Ana.")
    assert collaborator.memory.options.window == 20  # type: ignore[union-attr]
    await house.say("Shorten part two.", speaker=ANA)
    assert await house.kept("thread", "t") == kept
    assert "- [author_id]: [author_name], [functional_role]" in house.system()
    assert kept in house.system()
