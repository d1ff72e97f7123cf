"""A conversation through the deployed application: what the model is shown, what is kept, named and deleted."""

import json
from typing import Any

import pytest

from tests.e2e.application import THREADS, Application, eventually, new_id
from tests.scripted.server import ScriptedModel


def shown(reply: Any) -> Any:
    """What the model was sent in a turn whose last directive was `@dump`."""
    return json.loads(reply["steps"][-1]["text"])


def test_the_model_is_shown_what_was_said_before(application: Application, thread: str, owner: str) -> None:
    application.say("My boat is called Petrel.\n@say A fine name.", thread, owner)
    application.say("It is teal.\n@say Noted.", thread, owner)
    prompt = shown(application.say("What do you know?\n@dump", thread, owner))
    assert prompt["roles"] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [m["content"] for m in prompt["messages"][1:]] == [
        "My boat is called Petrel.\n@say A fine name.", "A fine name.",
        "It is teal.\n@say Noted.", "Noted.",
        "What do you know?\n@dump",
    ]  # fmt: skip
    assert prompt["system"] == [application.http.get("/api/agents/assistant").json()["instructions"]]


def test_a_tool_call_is_answered_in_the_turn_and_shown_in_the_next(
    application: Application, thread: str, owner: str
) -> None:
    first = application.say('@call current_time {"time_zone": "Europe/Paris"}\n@dump', thread, owner)
    assert [step["finishReason"] for step in first["steps"]] == ["tool-calls", "stop"]
    assert "CE" in first["toolResults"][0]["payload"]["result"]
    assert shown(first)["roles"] == ["system", "user", "assistant", "tool"]
    call, result = shown(application.say("@dump", thread, owner))["messages"][2:4]
    assert call["tool_calls"][0]["function"]["name"] == "current_time"
    assert (result["tool_call_id"], result["content"]) == (
        call["tool_calls"][0]["id"], first["toolResults"][0]["payload"]["result"],
    )  # fmt: skip


def test_threads_of_an_owner_do_not_mix(application: Application, owner: str) -> None:
    threads = [new_id() for _ in range(3)]
    for thread in threads:
        application.say(f"I am in {thread}\n@say ok", thread, owner)
    assert application.threads_of(owner) == threads[::-1]
    for thread in threads:
        prompt = shown(application.say("@dump", thread, owner))
        assert prompt["user"] == [f"I am in {thread}\n@say ok", "@dump"]


def test_messages_are_listed_as_they_were_stored(application: Application, thread: str, owner: str) -> None:
    replies = [application.say(f"Turn {n}\n@say Answer {n}", thread, owner) for n in range(3)]
    stored = [message for reply in replies for message in reply["messages"]]
    listed = application.http.get(f"{THREADS}/{thread}/messages", params={"agentId": "assistant"}).json()
    assert listed["messages"] == stored
    assert (listed["total"], listed["page"], listed["perPage"], listed["hasMore"]) == (6, 0, 40, False)
    assert {(m["threadId"], m["resourceId"]) for m in stored} == {(thread, owner)}
    assert [m["createdAt"] for m in stored] == sorted({m["createdAt"] for m in stored})
    newest = application.http.get(f"{THREADS}/{thread}/messages?perPage=2&agentId=assistant").json()
    assert (newest["messages"], newest["hasMore"]) == (stored[4:], True)
    read = application.thread(thread)
    assert (read["resourceId"], read["metadata"]) == (owner, None)
    assert read["updatedAt"] == stored[-1]["createdAt"]


def test_a_thread_is_named_once_after_its_first_turn(
    application: Application, scripted: ScriptedModel, thread: str, owner: str
) -> None:
    marker = new_id("sentence")
    assert application.say(f"{marker}\n@say Hello", thread, owner)["text"] == "Hello"
    title = eventually(lambda: application.thread(thread)["title"])
    assert title.startswith(f"You said: User: {marker}")
    application.say("Once more\n@say Hello again", thread, owner)
    application.quiet()
    assert application.thread(thread)["title"] == title
    transcripts = [r for r in scripted.requests if r["messages"][-1]["content"].startswith(f"User: {marker}")]
    assert len(transcripts) == 1


def test_a_title_that_somebody_gave_stays(application: Application, thread: str, owner: str) -> None:
    assert application.create(thread, owner, title="Mine").status_code == 200
    application.say("@say Hello", thread, owner)
    application.quiet()
    assert application.thread(thread)["title"] == "Mine"


def test_a_title_that_the_model_refuses_stays_empty(application: Application, thread: str, owner: str) -> None:
    failing = {"generateTitle": {"instructions": "@fail 400 no"}}
    assert application.say("@say Hello", thread, owner, options=failing)["text"] == "Hello"
    application.quiet()
    assert application.thread(thread)["title"] == ""


def test_a_deleted_thread_is_gone_at_once_and_its_rows_soon(application: Application, thread: str, owner: str) -> None:
    kept = new_id()
    for n in range(3):
        application.say(f"Secret {n}\n@say Noted", thread, owner)
    application.say("Keep me\n@say Kept", kept, owner)
    assert len(application.rows_of(thread)) >= 14  # the thread, its directory entry, six messages and their keys
    deleted = application.delete(thread, owner)
    assert (deleted.status_code, deleted.json()) == (200, {"result": "Thread deleted"})
    for method, path in [("GET", ""), ("GET", "/messages"), ("DELETE", "")]:
        answer = application.http.request(method, f"{THREADS}/{thread}{path}")
        assert (answer.status_code, answer.json()) == (404, {"error": "Thread not found"})
    assert application.threads_of(owner) == [kept]
    eventually(lambda: not application.rows_of(thread), seconds=15)
    assert application.texts(kept) == [("user", "Keep me\n@say Kept"), ("assistant", "Kept")]


def test_the_id_of_a_deleted_thread_can_be_used_again(application: Application, thread: str, owner: str) -> None:
    application.say("Secret\n@say Noted", thread, owner)
    assert application.delete(thread, owner).status_code == 200
    eventually(lambda: not application.rows_of(thread), seconds=15)
    other = new_id("owner")
    assert shown(application.say("@dump", thread, other))["user"] == ["@dump"]
    assert application.thread(thread)["resourceId"] == other
    assert (application.threads_of(owner), application.threads_of(other)) == ([], [thread])


def test_a_turn_on_somebody_elses_thread_never_reaches_the_model(
    application: Application, scripted: ScriptedModel, thread: str, owner: str
) -> None:
    """Case H01."""
    application.say("first\n@say ok", thread, owner)
    before, intruder, marker = application.quiet(), new_id("owner"), new_id("marker")
    refused = application.say(f"{marker}\n@call current_time\n@say second", thread, intruder, status=403)
    assert refused == {"error": "Access denied: thread belongs to a different resource"}
    assert not any(marker in json.dumps(request) for request in scripted.requests)
    assert application.rows() == before
    assert application.texts(thread) == [("user", "first\n@say ok"), ("assistant", "ok")]
    assert (application.thread(thread)["resourceId"], application.threads_of(intruder)) == (owner, [])


ODD_IDS = ["{}:a", "{}|a", "{}@a", "{}+a", "{}=a", "{},a", "{}~a", "{}.a", "{}-a", "{}_a", ":{}", "@{}", "{}..", "{}:@"]


def test_ids_with_odd_characters_are_all_different(application: Application) -> None:
    """Case H03 for what is legal over HTTP: as a thread's id, and as its owner's."""
    stem = new_id("odd")
    ids = [pattern.format(stem) for pattern in ODD_IDS]
    for n, odd in enumerate(ids):
        application.say(f"Message {n}\n@say Answer {n}", odd, odd)
    application.quiet()
    for n, odd in enumerate(ids):
        assert application.texts(odd) == [("user", f"Message {n}\n@say Answer {n}"), ("assistant", f"Answer {n}")]
        assert application.threads_of(odd) == [odd]
        assert application.thread(odd)["id"] == odd
    assert application.delete(ids[0], ids[0]).status_code == 200
    application.quiet()
    assert [application.thread(odd) is None for odd in ids] == [True] + [False] * (len(ids) - 1)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("a%7Cb", "a|b"), ("a%40b", "a@b"), ("a%2Bb", "a+b"), ("a+b", "a+b"), ("a%3Db", "a=b"), ("a%2Cb", "a,b")],
)
def test_an_encoded_id_in_a_path_is_decoded_once(application: Application, sent: str, kept: str, owner: str) -> None:
    """Case H32."""
    stem = new_id("path")
    application.create(f"{stem}{kept}", owner)
    assert application.http.get(f"{THREADS}/{stem}{sent}").json()["id"] == f"{stem}{kept}"
    messages = application.http.get(f"{THREADS}/{stem}{sent}/messages")
    assert (messages.status_code, messages.json()["total"]) == (200, 0)
    assert application.http.delete(f"{THREADS}/{stem}{sent}").status_code == 200
    assert application.thread(f"{stem}{kept}") is None


@pytest.mark.parametrize("bad", ["a%2520b", "a%252Fb", "a%2Fb", "a%20b", "a%23b", "a%3Fb", "t%C3%BCr", "%25", "a%0Ab"])
def test_an_illegal_id_in_a_path_is_refused(application: Application, bad: str) -> None:
    """Case H32: none of them may be taken for another id. To the front door some are no path at all."""
    answer = application.http.get(f"{THREADS}/{bad}")
    if bad in ("a%2Fb", "a%0Ab"):
        assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})
        return
    assert answer.status_code == 400
    assert answer.json()["error"] == "Invalid path parameters"
    assert [issue["field"] for issue in answer.json()["issues"]] == ["threadId"]
