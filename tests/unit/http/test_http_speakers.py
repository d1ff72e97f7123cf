"""Who speaks, over HTTP: the user of the token, or whom a service names (MUT-7); working memory in a turn's options."""

from typing import Any

import pytest

from tests.unit.http.house import SERVICE, House, user
from threadkeep import Agent, Memory, Speaker, SpeakerTurns, as_user_turn

GENERATE = "/api/agents/{agentId}/generate"


@pytest.fixture
def room() -> House:
    return House(
        agents=[
            Agent(id="room", model="fake/m", memory=Memory(), input_processors=[SpeakerTurns()]),
            Agent(id="knows", model="fake/m", memory=Memory(working_memory=True)),
            Agent(id="reads", model="fake/m", memory=Memory(working_memory=True), read_only=True),
        ]
    )


def say(room: House, caller: dict[str, str], agent: str = "room", options: Any = None, **body: Any) -> tuple[int, Any]:
    memory = {"thread": "t", "resource": "doc_42"} | ({"options": options} if options else {})
    return room.call(
        "POST", GENERATE, path={"agentId": agent}, caller=caller, body={"messages": "hi", "memory": memory} | body
    )


def prompted(room: House) -> str:
    return room.model.requests[-1].messages[-1].text


def test_mut7_a_service_names_the_speaker(room):
    speaker = {"authorId": "u-1", "authorName": "Ana", "functionalRole": "editor"}
    assert say(room, SERVICE, speaker=speaker)[0] == 200
    assert prompted(room) == as_user_turn(Speaker("u-1", "Ana", "editor"), "hi")
    assert say(room, SERVICE, speaker={"authorId": "u-2"})[0] == 200
    assert prompted(room) == as_user_turn(Speaker("u-2"), "hi")
    assert say(room, SERVICE)[0] == 200 and prompted(room) == "hi"


def test_mut7_a_user_speaks_as_the_tokens_subject(room):
    forged = {"mastra__speaker": {"authorId": "boss", "authorName": "", "functionalRole": ""}}
    assert say(room, user("u-7"), requestContext=forged)[0] == 200
    assert prompted(room) == as_user_turn(Speaker("u-7"), "hi")


def test_mut7_a_user_who_names_a_speaker_is_refused(room):
    status, reply = say(room, user("u-7"), speaker={"authorId": "u-7"})
    assert (status, room.model.calls) == (403, 0)
    assert "only a service may name the speaker" in str(reply)


@pytest.mark.parametrize(
    ("speaker", "field"),
    [
        ({}, "speaker.authorId"),
        ({"authorId": ""}, "speaker.authorId"),
        ({"authorId": "a\nb"}, "speaker.authorId"),
        ({"authorId": "a", "authorName": "x" * 257}, "speaker.authorName"),
        ({"authorId": "a", "functionalRole": 3}, "speaker.functionalRole"),
    ],
)
def test_a_wrong_speaker_is_400_and_names_the_field(room, speaker, field):
    status, reply = say(room, SERVICE, speaker=speaker)
    assert (status, reply["issues"][0]["field"]) == (400, field)


def test_cfg8_the_options_of_a_call_reach_its_working_memory(room):
    assert say(room, SERVICE, "knows")[0] == 200
    assert [t.name for t in room.model.requests[-1].tools] == ["updateWorkingMemory"]
    say(room, SERVICE, "knows", {"workingMemory": {"useStateSignals": True}})
    assert [t.name for t in room.model.requests[-1].tools] == ["setWorkingMemory"]
    say(room, SERVICE, "knows", {"readOnly": True})
    assert room.model.requests[-1].tools == ()
    status, reply = say(room, SERVICE, "knows", {"workingMemory": {"template": "# A", "schema": {"type": "object"}}})
    assert (status, reply["issues"][0]["field"]) == (400, "memory.options.workingMemory")


def test_h14_nothing_is_written_through_an_agent_that_only_reads(room):
    room.add_thread("t", "ana")
    assert say(room, user("ana"), "reads", {"readOnly": False})[0] == 200
    assert room.model.requests[-1].tools == () and "READ-ONLY" in room.model.requests[-1].messages[0].text
    status, _ = room.call(
        "POST",
        "/api/memory/threads/{threadId}/working-memory",
        path={"threadId": "t"},
        query={"agentId": "reads", "resourceId": "ana"},
        body={"workingMemory": "# Ana", "resourceId": "ana"},
    )
    assert status == 400


def test_a_call_may_choose_the_memorys_tool(room):
    choice = {"type": "tool", "toolName": "updateWorkingMemory"}
    assert say(room, SERVICE, "knows", toolChoice=choice)[0] == 200
    assert room.model.requests[-1].tool_choice == "updateWorkingMemory"
    assert say(room, SERVICE, "room", toolChoice=choice)[0] == 400


def test_ms5_saved_messages_are_stripped_too(room):
    room.add_thread("t", "doc_42")
    part = {
        "type": "tool-invocation",
        "toolInvocation": {"state": "call", "toolCallId": "c", "toolName": "updateWorkingMemory"},
    }
    said = {"format": 2, "parts": [{"type": "text", "text": "a <working_memory>x</working_memory> b"}, part]}
    rows = [
        {"threadId": "t", "resourceId": "doc_42", "role": "assistant", "content": content}
        for content in (said, {"format": 2, "parts": [part]}, " kept as it is ")
    ]
    status, reply = room.call("POST", "/api/memory/save-messages", body={"messages": rows})
    assert status == 200
    assert [m["content"]["parts"] for m in reply["messages"]] == [
        [{"type": "text", "text": "a  b"}], [{"type": "text", "text": " kept as it is "}],
    ]  # fmt: skip


def test_wm20_a_seed_in_the_thread_of_a_turn_that_cannot_be_one_names_its_field(room):
    memory = {"thread": {"id": "new", "metadata": {"workingMemory": 7}}, "resource": "ana"}
    status, reply = room.call("POST", GENERATE, path={"agentId": "knows"}, body={"messages": "hi", "memory": memory})
    assert (status, reply["issues"][0]["field"]) == (400, "memory.thread.metadata.workingMemory")
    assert room.threads() == []
