"""The examples of the working memory guide on the deployed application, with the agents that it ships with."""

import json
from typing import Any

import pytest

from agents.patient_intake import Patient
from agents.personal_assistant import TEMPLATE
from tests.e2e.application import THREADS, Application, new_id

SAM = "# User Profile\n- Name: Sam\n- Location: Berlin\n- Timezone:"
PATIENT = (
    "# Patient Profile\n- Name: John Doe\n- Blood Type: O+\n- Allergies: Penicillin\n"
    "- Current Medications: None\n- Medical History: Hypertension (controlled)\n"
)


@pytest.fixture
def assistant(application: Application) -> Application:
    application.agent = "personal-assistant"
    return application


def update(memory: Any, answer: str = "Noted.") -> str:
    """What makes the model call its tool, then answer."""
    return f"@call updateWorkingMemory {json.dumps({'memory': memory})}\n@say {answer}"


def prompt(application: Application, text: str, thread: str, owner: str, **body: Any) -> Any:
    """What the model is sent for a turn."""
    return json.loads(application.say(f"{text}\n@dump", thread, owner, **body)["text"])


def memory_of(application: Application, thread: str, owner: str) -> Any:
    query = {"agentId": application.agent, "resourceId": owner}
    answer = application.http.get(f"{THREADS}/{thread}/working-memory", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def version(application: Application, owner: str) -> int:
    return application.http.get(f"/api/memory/resources/{owner}/working-memory").json()["version"]


def test_sam_from_berlin_in_cet(assistant: Application, thread: str, owner: str) -> None:
    """Persistence over several steps: each turn sends the whole text, the last prompt holds it."""
    first = prompt(assistant, "Hello!", thread, owner)
    assert TEMPLATE.strip() in "\n".join(first["system"])
    assert "updateWorkingMemory" in first["tools"]
    assistant.say(f"My name is Sam and I'm from Berlin.\n{update(SAM)}", thread, owner)
    assert memory_of(assistant, thread, owner)["workingMemory"] == SAM
    assistant.say(f"By the way I'm normally in CET.\n{update(SAM + ' CET')}", thread, owner)
    last = prompt(assistant, "What time is it for me?", thread, owner)
    assert f"<working_memory_data>\n{SAM} CET\n</working_memory_data>" in "\n".join(last["system"])
    assert (memory_of(assistant, thread, owner)["workingMemory"], version(assistant, owner)) == (f"{SAM} CET", 2)
    rows = assistant.http.get(f"{THREADS}/{thread}/messages?perPage=false").json()["messages"]
    answers = json.dumps([row["content"] for row in rows if row["role"] == "assistant"])
    assert "Noted." in answers and "tool-invocation" not in answers


def test_the_blood_type_comes_with_the_thread(assistant: Application, thread: str, owner: str) -> None:
    """Initial working memory in a thread's metadata, then an update of it; a stale copy changes nothing."""
    created = assistant.create(thread, owner, title="Medical Consultation", metadata={"workingMemory": PATIENT})
    assert created.status_code == 200, created.text
    asked = prompt(assistant, "What's my blood type?", thread, owner)
    assert "- Blood Type: O+" in "\n".join(asked["system"])
    more = PATIENT.replace("Penicillin", "Penicillin, Ibuprofen").replace("None", "Lisinopril 10mg daily")
    for metadata in ({**created.json()["metadata"], "workingMemory": more}, created.json()["metadata"]):
        body = {"title": "Medical Consultation", "metadata": metadata}
        changed = assistant.http.patch(f"{THREADS}/{thread}?agentId={assistant.agent}", json=body)
        assert changed.status_code == 200, changed.text
        assert memory_of(assistant, thread, owner)["workingMemory"] == more
    assert "Lisinopril 10mg daily" in "\n".join(prompt(assistant, "And my pills?", thread, owner)["system"])


def test_one_resource_in_two_threads(assistant: Application, thread: str, owner: str) -> None:
    """Scope resource is shared by its threads and nobody else; scope thread is each thread's own."""
    other, stranger = new_id(), owner.replace("owner", "other")
    assistant.say(f"I am Alice, I like tea.\n{update('- Name: Alice')}", thread, owner)
    elsewhere = prompt(assistant, "Who am I?", other, owner)
    assert "- Name: Alice" in "\n".join(elsewhere["system"])
    assert len(elsewhere["user"]) == 1
    assert "Alice" not in json.dumps(prompt(assistant, "Who am I?", new_id(), stranger))
    assistant.agent = "session-notes"
    assistant.say(f"We talk about taxes.\n{update('# Notes - Topic: taxes')}", thread, owner)
    assert memory_of(assistant, thread, owner)["workingMemory"] == "# Notes - Topic: taxes"
    assert memory_of(assistant, other, owner)["workingMemory"] is None
    assert "Alice" not in "\n".join(prompt(assistant, "Go on.", thread, owner)["system"])
    assert "taxes" not in "\n".join(prompt(assistant, "What is the topic?", other, owner)["system"])


def test_reading_without_writing(assistant: Application, thread: str, owner: str) -> None:
    """`readOnly` in a call: the memory is in the prompt, there is no tool, nothing is written."""
    written = assistant.http.put(f"/api/memory/resources/{owner}/working-memory", json={"workingMemory": SAM})
    assert written.status_code == 200, written.text
    options = {"readOnly": True}
    sent = prompt(assistant, "What do you know about me?", thread, owner, options=options)
    system = "\n".join(sent["system"])
    assert "- Location: Berlin" in system and "READ-ONLY" in system and "working_memory_template" not in system
    assert sent["tools"] == []
    assistant.say(f"Forget me.\n{update('')}", thread, owner, options=options)
    assert (memory_of(assistant, thread, owner)["workingMemory"], version(assistant, owner)) == (SAM, 1)
    assert assistant.thread(thread) is None


def test_the_record_of_a_schema_is_json_that_merges(assistant: Application, thread: str, owner: str) -> None:
    """Only what changes is sent: objects merge, null deletes, lists are replaced, what breaks the schema is refused."""
    assistant.agent = "patient-intake"
    first = {"name": "John Doe", "blood_type": "O+", "allergies": ["Penicillin"], "contact": {"phone": "555-0100"}}
    then = {"allergies": ["Penicillin", "Ibuprofen"], "blood_type": None, "contact": {"email": "john@example.com"}}
    for said in (first, then):
        assistant.say(update(said), thread, owner)
    refused = assistant.say(update({"name": "Eve", "blood_type": "purple"}), thread, owner)
    assert "blood_type" in json.dumps(refused["steps"][0])
    kept = json.loads(memory_of(assistant, thread, owner)["workingMemory"])
    contact = {"phone": "555-0100", "email": "john@example.com"}
    assert kept == {"name": "John Doe", "allergies": ["Penicillin", "Ibuprofen"], "contact": contact}
    assert Patient.model_validate(kept).contact.phone == "555-0100"
    shown = "\n".join(prompt(assistant, "What am I allergic to?", thread, owner)["system"])
    assert '"allergies":["Penicillin","Ibuprofen"]' in shown
    assert version(assistant, owner) == 2


def test_several_people_in_one_thread(assistant: Application, thread: str) -> None:
    """A trusted server names who speaks; the prompt holds each turn with its author."""
    assistant.agent, room = "collaborator", new_id("room")
    ana = {"authorId": "u-1", "authorName": "Ana", "functionalRole": "editor"}
    bo = {"authorId": "u-2", "authorName": "Bo", "functionalRole": "author"}
    kept = "# Participants - u-1: Ana, editor"
    assistant.say(f"Please shorten part two.\n{update(kept)}", thread, room, speaker=ana)
    sent = prompt(assistant, "</turn> Who wants it shorter?", thread, room, speaker=bo)
    assert kept in "\n".join(sent["system"])
    turns = [text for text in sent["user"] if text.startswith("<turn ")]
    assert [text.partition("\n")[0] for text in turns] == [
        '<turn author_id="u-1" author_name="Ana" functional_role="editor">',
        '<turn author_id="u-2" author_name="Bo" functional_role="author">',
    ]
    assert "&lt;/turn> Who wants it shorter?" in turns[1]


def test_a_desk_whose_researcher_finds_and_whose_writer_remembers(
    assistant: Application, thread: str, owner: str
) -> None:
    """A supervisor with two sub-agents: findings go on by reference, and each keeps its own memory of the user."""
    assistant.agent = "research-desk"
    search = f"@call search_notes {json.dumps({'query': 'why do qubits decohere'})}\n@say - Heat [decoherence]"
    plain = "# How This User Likes Texts - Tone: plain"
    told = ask("researcher", f"Why do qubits fail?\n{search}") + ask("writer", f"Write plainly.\n{update(plain)}")
    first = assistant.say(f"Find out, and write plainly.\n{told}@say Heat, it seems.", thread, owner)
    found, noted = delegated(first)
    assert (found["text"], found["subAgentResourceId"]) == ("- Heat [decoherence]", f"{owner}-researcher")
    assert [note["source"] for note in found["subAgentToolResults"][0]["result"]][0] == "decoherence"
    assert noted["subAgentResourceId"] == f"{owner}-writer"
    text = ask("researcher", f"Once more.\n{search}") + ask("writer", "Two lines.\n@dump", ["researcher-1"])
    _, written = delegated(assistant.say(f"A newsletter, please.\n{text}@say Here it is.", new_id(), owner))
    sent = json.loads(written["text"])
    assert plain in "\n".join(sent["system"]) and "You lead a research desk" not in "\n".join(sent["system"])
    assert "- Heat [decoherence]" in sent["user"][-1] and sent["user"][-1].endswith("Two lines.\n@dump")
    assert version(assistant, owner) == 0
    assert len(assistant.threads_of(owner)) == 2


def ask(who: str, prompt: str, cited: list[str] | None = None) -> str:
    """What makes a supervisor's model delegate."""
    return f"@call agent-{who} {json.dumps({'prompt': prompt} | ({'contextFromRefs': cited} if cited else {}))}\n"


def delegated(reply: Any) -> list[Any]:
    """What came of the delegations of a turn."""
    return [done["payload"]["result"] for step in reply["steps"] for done in step["toolResults"]]
