"""The example agents, each with a model that says what the test wants: what they keep, and who sees it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from agents import agents
from agents.collaborator import collaborator
from agents.patient_intake import patient_intake
from agents.personal_assistant import personal_assistant
from agents.research_desk import notes, research_desk, researcher, writer
from agents.session_notes import session_notes
from tests.unit.fakes import FakeModel, calls
from threadkeep import Agent, Speaker, ToolContext
from threadkeep.ids import sub_resource
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
        "assistant", "personal-assistant", "patient-intake", "session-notes", "collaborator", "research-desk"
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


class Desk(House):
    """The research desk, with a script for each of the three."""

    def __init__(self, lead: list[Any], researcher_says: list[Any], writer_says: list[Any]):
        super().__init__(research_desk, *lead)
        self.researcher, self.writer = FakeModel(*researcher_says), FakeModel(*writer_says)
        team = {"researcher": replace(researcher, model=self.researcher), "writer": replace(writer, model=self.writer)}
        self.agent = replace(self.agent, agents=team)


def shown(model: FakeModel, role: str, request: int = -1) -> list[str]:
    return [message.text for message in model.requests[request].messages if message.role == role]


def ask(who: str, prompt: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return f"agent-{who}", {"prompt": prompt, **more}


async def test_del27_the_desk_hands_findings_to_the_writer_by_reference():
    desk = Desk(
        [
            calls(ask("researcher", "Why do qubits fail?")),
            calls(ask("writer", "Two sentences for a newsletter.", contextFromRefs=["researcher-1"])),
            "They lose their state to heat [decoherence].",
        ],
        [calls(("search_notes", {"query": "why do qubits decohere"})), "- Heat disturbs them [decoherence]"],
        ["They lose their state to heat [decoherence]."],
    )
    assert await desk.say("Write me something on why qubits fail.") == "They lose their state to heat [decoherence]."
    assert "[ref: researcher-1]" in shown_results(desk.model, 1)[0]
    found = shown_results(desk.researcher, 1)[0]
    assert "A qubit loses its state to its surroundings" in found and '"source":"decoherence"' in found
    task = shown(desk.writer, "user")[-1]
    assert "- Heat disturbs them [decoherence]" in task and task.endswith("Two sentences for a newsletter.")


def shown_results(model: FakeModel, request: int) -> list[str]:
    told = (message.parts for message in model.requests[request].messages if message.role == "tool")
    return [part.text for parts in told for part in parts]  # type: ignore[union-attr]


async def test_del8_each_of_the_desk_remembers_its_user_and_only_its_own():
    plain = "# How This User Likes Texts\n- Tone: plain"
    desk = Desk(
        [
            calls(ask("writer", "A draft, please.")),
            "Draft.",
            "A title",
            calls(ask("writer", "Shorter."), ask("researcher", "Why?")),
        ],
        ["They decohere."],
        [update(plain), "A draft.", "A short draft."],
    )
    await desk.say("Write plainly, always.", thread="one")
    await desk.say("Shorter, and tell me why.", thread="two")
    assert plain in "\n".join(shown(desk.writer, "system"))
    assert "- Tone:" not in "\n".join(shown(desk.researcher, "system") + shown(desk.model, "system"))
    assert await desk.kept("resource", sub_resource("r", "writer")) == plain
    assert await desk.kept("resource", "r") == ""


async def test_del13_the_researcher_sees_the_questions_and_the_writer_the_answers_too():
    both = calls(ask("researcher", "What is new?"), ask("writer", "Make it shorter."))
    desk = Desk(["One answer.", "A title", both, "Done."], ["Nothing."], ["Short."])
    await desk.say("One question.")
    await desk.say("Two wishes.")
    assert shown(desk.researcher, "user") == ["One question.", "Two wishes.", "What is new?"]
    assert shown(desk.researcher, "assistant") == []
    assert shown(desk.writer, "assistant") == ["One answer."]
    assert "You lead a research desk" not in "\n".join(shown(desk.writer, "system"))


async def test_the_desk_ends_a_run_that_delegates_without_end():
    desk = Desk([calls(*[ask("researcher", f"Question {n}.")] * 3) for n in range(6)], ["Nothing."] * 20, [])
    result = await desk.agent.generate("Ask on.", thread="t", resource="r", storage=desk.storage)
    assert result.finish_reason == "max-delegations"
    assert len(desk.researcher.requests) == research_desk.limits.delegations == 8


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("why do qubits decohere", "decoherence"),
        ("How is error correction done?", "error-correction"),
        ("Will AES be broken by Grover?", "post-quantum"),
        ("trapped ions, neutral atoms", "hardware"),
        ("factoring integers", "algorithms"),
    ],
)
async def test_the_search_finds_the_note_that_a_question_is_about(query: str, best: str):
    found: Any = await notes.search_notes.run({"query": query}, _nobody())  # type: ignore[misc]
    assert found[0]["source"] == best
    assert len(found) <= 3 and all(note["text"] and note["title"] for note in found)


async def test_the_search_finds_nothing_where_there_is_nothing():
    assert await notes.search_notes.run({"query": "sourdough"}, _nobody()) == []  # type: ignore[misc]


def _nobody() -> ToolContext:
    return ToolContext("researcher", "run", "call", None, None, {})  # type: ignore[arg-type]
