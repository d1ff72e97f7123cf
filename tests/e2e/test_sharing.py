"""Agents that share memory by equal ids, on the deployed application: a researcher and a writer of one project.

Each has a Memory object of its own; the store is one. Then what a supervisor's sub-agents share: nothing, unless they
are told to. The emulator enforces the functions' policies.
"""

import json
from collections.abc import Callable, Iterator
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


Delegate = Callable[..., list[Any]]


@pytest.fixture(params=["generate", "stream"])
def delegate(request: pytest.FixtureRequest, researcher: Application) -> Delegate:
    """Has the editor give tasks to sub-agents, one after another, in one turn; returns what its tools came to."""

    def delegated(*tasks: tuple[str, str], thread: str, owner: str, **body: Any) -> list[Any]:
        calls = (f"@call agent-{key} {json.dumps({'prompt': prompt})}" for key, prompt in tasks)
        options = {"options": body.pop("options")} if "options" in body else {}
        memory = {"thread": thread, "resource": owner} | options
        given = {"messages": "\n".join((*calls, "@say Done.")), "memory": memory} | body
        answer = researcher.http.post(f"/api/agents/editor/{request.param}", json=given)
        assert answer.status_code == 200, answer.text
        results = buffered(answer.json()) if request.param == "generate" else streamed(answer.text)
        assert len(results) == len(tasks), answer.text
        return results

    return delegated


def buffered(reply: Any) -> list[Any]:
    return [result["payload"]["result"] for step in reply["steps"] for result in step["toolResults"]]


def streamed(text: str) -> list[Any]:
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {"))
    ended = [chunk for chunk in map(json.loads, lines) if chunk["type"] in ("tool-result", "tool-error")]
    return [c["payload"]["result"] if c["type"] == "tool-result" else c["payload"]["error"]["message"] for c in ended]


def seen(result: Any) -> Any:
    """What the model of a sub-agent was sent, where its prompt asked to be told so."""
    return json.loads(result["text"])


def notes_of(project: str) -> str:
    """Notes that no other test writes."""
    return f"{NOTES} in {project}"


def test_shr5_subagents_share_nothing_with_anybody(delegate: Delegate, researcher: Application, project: str) -> None:
    """Each has the resource of its own that goes with the user: it knows it again, nobody else ever sees it."""
    notes = notes_of(project)
    first, again, other = delegate(
        ("researcher", note(notes)),
        ("researcher", "What do you know?\n@dump"),
        ("writer", "What do you know?\n@dump"),
        thread=new_id(),
        owner=project,
    )
    assert first["subAgentResourceId"] == again["subAgentResourceId"] == f"{project}-researcher"
    assert first["subAgentThreadId"] != again["subAgentThreadId"]
    assert notes in shown(seen(again)) and notes not in shown(seen(other))
    assert kept(researcher, project) == (None, 0)
    (stranger,) = delegate(("researcher", "What do you know?\n@dump"), thread=new_id(), owner=new_id("project-43"))
    assert notes not in json.dumps(seen(stranger))
    for called in (project, f"{project}-researcher"):
        assert notes not in json.dumps(prompt(researcher, "What do you know?", new_id(), called))


def test_shr5_a_subagent_that_is_given_a_resource_shares_its_memory(
    delegate: Delegate, researcher: Application, research: str, owner: str, project: str
) -> None:
    notes, shared = notes_of(project), {"shared": {"resource": project}}
    researcher.say(f"Why do qubits fail?\n{note(notes)}", research, project)
    read, wrote = delegate(
        ("archivist", "What do you know?\n@dump"),
        ("archivist", note(f"{notes} twice")),
        thread=new_id(),
        owner=owner,
        requestContext=shared,
    )
    assert notes in shown(seen(read))
    assert "Why do qubits fail?" not in json.dumps(seen(read))
    assert wrote["subAgentResourceId"] == project
    assert wrote["subAgentThreadId"] not in (research, read["subAgentThreadId"])
    assert kept(researcher, project) == (f"{notes} twice", 2)
    assert kept(researcher, owner) == (None, 0)


def test_shr5_a_subagent_that_is_given_a_thread_shares_its_history(
    delegate: Delegate, researcher: Application, research: str, owner: str, project: str
) -> None:
    shared = {"shared": {"resource": project, "thread": research}}
    researcher.say("Why do qubits fail?\n@say They decohere.", research, project)
    read, told = delegate(
        ("archivist", "What was said?\n@dump"),
        ("archivist", "Write it down.\n@say It is written."),
        thread=new_id(),
        owner=owner,
        requestContext=shared,
    )
    sent = [(m["role"], m["content"].partition("\n")[0]) for m in seen(read)["messages"] if m["role"] != "system"]
    assert sent[:2] == [("user", "Why do qubits fail?"), ("assistant", "They decohere.")]
    assert sent[-1] == ("user", "What was said?")
    assert told["subAgentThreadId"] == research
    back = conversation(prompt(researcher, "And now?", research, project))
    assert back[-3:] == [("user", "Write it down."), ("assistant", "It is written."), ("user", "And now?")]


def test_shr5_what_the_prompt_says_is_shared_with_every_subagent(delegate: Delegate, project: str, owner: str) -> None:
    (result,) = delegate(("writer", f"{notes_of(project)}\n@dump"), thread=new_id(), owner=owner)
    assert notes_of(project) in seen(result)["user"][-1]


def test_shr1_a_subagent_cannot_be_given_a_thread_of_another_resource(
    delegate: Delegate, researcher: Application, research: str, owner: str, project: str
) -> None:
    researcher.say("Why do qubits fail?\n@say They decohere.", research, project)
    held = researcher.texts(research)
    shared = {"shared": {"resource": new_id("project-43"), "thread": research}}
    thread = new_id()
    (result,) = delegate(("archivist", "What was said?\n@dump"), thread=thread, owner=owner, requestContext=shared)
    assert "Failed agent tool execution for archivist" in result
    assert researcher.texts(research) == held
    assert researcher.texts(thread)[-1] == ("assistant", "Done.")


def test_shr6_a_readonly_subagent_reads_and_writes_nothing(
    delegate: Delegate, researcher: Application, research: str, owner: str, project: str
) -> None:
    """By its own setting, and by the options of the memory that it is given."""
    researcher.say(f"Why do qubits fail?\n{note(NOTES, 'They decohere.')}", research, project)
    held = researcher.texts(research)
    options = {"resource": project, "thread": research, "options": {"read_only": True}}
    tasks = [(key, f"Forget it.\n{text}") for key in ("archivist", "reviewer") for text in ("@dump", note(""))]
    results = delegate(*tasks, thread=(thread := new_id()), owner=owner, requestContext={"shared": options})
    archivists, reviewers = seen(results[0]), seen(results[2])
    assert NOTES in shown(archivists) and archivists["tools"] == reviewers["tools"] == []
    assert "They decohere." in json.dumps(archivists["messages"])
    assert (researcher.texts(research), kept(researcher, project)) == (held, (NOTES, 1))
    assert written_below(researcher, thread, owner) == []


def test_shr6_del10_ddisc18_what_a_readonly_supervisor_delegates_writes_nothing(
    delegate: Delegate, researcher: Application, owner: str
) -> None:
    thread = new_id()
    delegate(("researcher", note("# Project - mine")), ("writer", "@say No."), thread=thread, owner=owner, **READ_ONLY)
    assert researcher.thread(thread) is None
    assert written_below(researcher, thread, owner) == []


def written_below(application: Application, thread: str, owner: str) -> list[tuple[str, str]]:
    """The keys of what the table holds of a thread's sub-agents: their threads, their memory."""
    rows = application.quiet()
    return [
        key
        for key in rows
        if f"T#{thread}-" in key[0] or f"R#{owner}/" in key[0] or (key[1].startswith("S#") and owner in key[0])
    ]
