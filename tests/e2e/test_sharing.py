"""Agents that share memory by equal ids, on the deployed application: a researcher and a writer of one project.

Each has a Memory object of its own; the store is one. The emulator enforces the functions' policies.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from local.stack import Stack
from tests.conftest import client_of
from tests.e2e.application import THREADS, Application, new_id

NOTES = "# Project\n- Findings: qubits decohere\n- Style:"
THREAD_SCOPE = {"options": {"workingMemory": {"scope": "thread"}}}
READ_ONLY = {"options": {"readOnly": True}}


@pytest.fixture
def researcher(house: Stack) -> Iterator[Application]:
    with client_of(house) as http:
        yield Application(house, http, "researcher")


@pytest.fixture
def writer(researcher: Application) -> Application:
    return replace(researcher, agent="writer")


@pytest.fixture
def reviewer(researcher: Application) -> Application:
    return replace(researcher, agent="reviewer")


@pytest.fixture
def project() -> str:
    """The resource that both name: a project, not a person."""
    return new_id("project-42")


@pytest.fixture
def research() -> str:
    return new_id("research-session")


@pytest.fixture
def writing() -> str:
    return new_id("writing-session")


def note(memory: str, answer: str = "Noted.") -> str:
    """What makes the model write down a memory, then answer."""
    return f"@call updateWorkingMemory {json.dumps({'memory': memory})}\n@say {answer}"


def prompt(application: Application, text: str, thread: str, owner: str, **body: Any) -> Any:
    """What the model is sent for a turn."""
    return json.loads(application.say(f"{text}\n@dump", thread, owner, **body)["text"])


def shown(sent: Any) -> str:
    """The working memory in a prompt."""
    return "\n".join(sent["system"])


def kept(application: Application, project: str) -> tuple[str | None, int]:
    """A project's working memory and its version."""
    answer = application.http.get(f"/api/memory/resources/{project}/working-memory")
    assert answer.status_code == 200, answer.text
    return answer.json()["workingMemory"], answer.json()["version"]


def conversation(sent: Any) -> list[tuple[str, str]]:
    """Role and first line of what the prompt holds of the conversation; fails if a message says who wrote it."""
    said = [message for message in sent["messages"] if message["role"] != "system"]
    assert all(message.keys() == {"role", "content"} for message in said)
    return [(message["role"], message["content"].partition("\n")[0]) for message in said]


def test_shr1_a_thread_with_another_resource_is_refused_and_nothing_is_saved(
    researcher: Application, writer: Application, research: str, project: str
) -> None:
    researcher.say(f"Find out why qubits fail.\n{note(NOTES)}", research, project)
    stranger = new_id("project-43")
    rows, held = researcher.quiet(), researcher.texts(research)
    for refused in (writer, researcher):
        said = refused.say(f"Sum it up.\n{note('# Project - mine')}", research, stranger, status=403)
        assert said == {"error": "Access denied: thread belongs to a different resource"}
    assert (researcher.texts(research), kept(researcher, project)) == (held, (NOTES, 1))
    assert kept(researcher, stranger) == (None, 0)
    assert researcher.threads_of(stranger) == []
    assert {key: row for key, row in researcher.quiet().items() if stranger in str(row)} == {}
    assert rows.keys() <= researcher.rows().keys()


def test_shr2_one_resource_in_two_threads_shares_working_memory_and_not_history(
    researcher: Application, writer: Application, research: str, writing: str, project: str
) -> None:
    researcher.say(f"Find information about quantum computing.\n{note(NOTES)}", research, project)
    sent = prompt(writer, "Write a summary from the research notes.", writing, project)
    assert f"<working_memory_data>\n{NOTES}\n</working_memory_data>" in shown(sent)
    assert "You are the writer." in shown(sent) and "You are the researcher." not in shown(sent)
    assert conversation(sent) == [("user", "Write a summary from the research notes.")]
    styled = NOTES + " short sentences"
    writer.say(f"Keep sentences short.\n{note(styled)}", writing, project)
    again = prompt(researcher, "What else is there to find?", research, project)
    assert styled in shown(again)
    assert "Keep sentences short." not in json.dumps(again["messages"])
    assert set(researcher.threads_of(project)) == {research, writing}


def test_shr2_working_memory_of_a_thread_is_that_threads_own(
    researcher: Application, writer: Application, research: str, writing: str, project: str
) -> None:
    researcher.say(f"Find out why qubits fail.\n{note(NOTES)}", research, project, **THREAD_SCOPE)
    assert "qubits decohere" not in shown(prompt(writer, "Sum it up.", writing, project, **THREAD_SCOPE))
    assert NOTES in shown(prompt(writer, "Sum it up.", research, project, **THREAD_SCOPE))
    assert kept(researcher, project) == (None, 0)


def test_shr3_one_thread_is_one_history_without_author_marks(
    researcher: Application, writer: Application, research: str, project: str
) -> None:
    researcher.say("Why do qubits fail?\n@say They decohere.", research, project)
    sent = prompt(writer, "Say it shorter.", research, project)
    begun = [("user", "Why do qubits fail?"), ("assistant", "They decohere.")]
    assert conversation(sent) == [*begun, ("user", "Say it shorter.")]
    writer.say("And once more.\n@say Noise.", research, project)
    back = conversation(prompt(researcher, "Is that right?", research, project))
    assert back[:2] == begun
    assert back[-3:] == [("user", "And once more."), ("assistant", "Noise."), ("user", "Is that right?")]
    assert researcher.texts(research) == writer.texts(research)
    assert researcher.threads_of(project) == [research]


def test_shr4_agents_need_no_supervisor_and_no_common_memory_to_share(
    researcher: Application, writer: Application, research: str, writing: str, project: str
) -> None:
    """Memory objects on one store behave as one: each reads and deletes what the other wrote, over every route."""
    researcher.say(f"Why do qubits fail?\n{note(NOTES, 'They decohere.')}", research, project)
    query = {"resourceId": project}
    memories, lists = (
        [researcher.http.get(path, params={**query, "agentId": agent}).json() for agent in ("researcher", "writer")]
        for path in (f"{THREADS}/{research}/working-memory", f"{THREADS}/{research}/messages")
    )
    assert memories[0] == memories[1] and memories[0]["workingMemory"] == NOTES
    assert lists[0] == lists[1] and len(lists[0]["messages"]) == 2
    assert writer.delete(research, project).status_code == 200
    assert researcher.thread(research) is None


def test_shr6_readonly_in_a_call_reads_everything_and_writes_nothing(
    researcher: Application, writer: Application, research: str, writing: str, project: str
) -> None:
    researcher.say(f"Why do qubits fail?\n{note(NOTES, 'They decohere.')}", research, project)
    reads_and_writes_nothing(writer, research, writing, project, **READ_ONLY)


def test_shr6_a_readonly_agent_reads_everything_and_writes_nothing(
    researcher: Application, reviewer: Application, research: str, writing: str, project: str
) -> None:
    researcher.say(f"Why do qubits fail?\n{note(NOTES, 'They decohere.')}", research, project)
    reads_and_writes_nothing(reviewer, research, writing, project)
    reads_and_writes_nothing(reviewer, research, writing, project, options={"readOnly": False})


def reads_and_writes_nothing(application: Application, known: str, unknown: str, project: str, **body: Any) -> None:
    """A turn on a thread that exists and one on a thread that does not; the model tries to write in both."""
    before = application.quiet()
    for thread, history in ((known, [("user", "Why do qubits fail?"), ("assistant", "They decohere.")]), (unknown, [])):
        sent = prompt(application, "Sum it up.", thread, project, **body)
        assert NOTES in shown(sent) and sent["tools"] == []
        assert conversation(sent) == [*history, ("user", "Sum it up.")]
        application.say(f"Forget it.\n{note('')}", thread, project, **body)
    after = application.quiet()
    ours = [{key: row for key, row in rows.items() if project in str(key) + str(row)} for rows in (before, after)]
    assert ours[0] == ours[1]
    assert application.thread(unknown) is None
    assert kept(application, project) == (NOTES, 1)
