"""Races, kills and deletes on the deployed application: everybody gets the right answer, nothing is half done."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.e2e.application import Application, Row, eventually, kill, new_id
from tests.e2e.racers import race
from tests.scripted.server import ScriptedModel

PROCESSES = 4
GENERATE = "/api/agents/assistant/generate"


def kept(rows: dict[tuple[str, str], Row]) -> dict[tuple[str, str], Row]:
    """The rows that last: a run that was killed leaves its receipt until its deadline (case H21)."""
    return {key: row for key, row in rows.items() if not key[0].startswith("I#")}


# --- one thread, many at once ---


def test_of_200_racing_creations_with_two_owners_one_owner_wins(application: Application, thread: str) -> None:
    ana, bo = new_id("ana"), new_id("bo")
    path = "/api/memory/threads?agentId=assistant"
    plans = [
        [(path, {"threadId": thread, "resourceId": owner, "title": owner}) for owner in (ana, bo) * 25]
        for _ in range(PROCESSES)
    ]
    answers = [answer for plan in race(application.http, plans) for answer in plan]
    asked = [body["resourceId"] for plan in plans for _, body in plan]
    winner = application.thread(thread)["resourceId"]
    loser = bo if winner == ana else ana
    assert len(answers) == 200
    assert [answer.status for answer in answers] == [200 if owner == winner else 403 for owner in asked]
    created = [answer.body for answer in answers if answer.status == 200]
    assert created == [created[0]] * 100
    assert (created[0]["resourceId"], created[0]["title"]) == (winner, winner)
    rows = application.quiet()
    assert sorted(key for key in rows if thread in "".join(key)) == sorted(
        [(f"T#{thread}", "@"), (f"R#{winner}", next(sk for pk, sk in rows if pk == f"R#{winner}" and thread in sk))]
    )
    assert rows[f"R#{winner}", "@"]["threadCount"] == {"N": "1"}
    assert not [key for key in rows if loser in key[0]]


def test_turns_from_several_processes_are_all_stored_each_in_one_piece(
    application: Application, thread: str, owner: str
) -> None:
    """The first turns also race to create the thread."""
    memory = {"thread": thread, "resource": owner}
    plans = [
        [(GENERATE, {"messages": f"{process}-{n}\n@say Answer {process}-{n}", "memory": memory}) for n in range(8)]
        for process in range(PROCESSES)
    ]
    answers = race(application.http, plans)
    every = [answer for plan in answers for answer in plan]
    assert {answer.status for answer in every} == {200}
    rows = application.quiet()
    listed = application.http.get(f"/api/memory/threads/{thread}/messages?perPage=false").json()
    stored = listed["messages"]
    assert listed["total"] == len(stored) == 2 * 8 * PROCESSES
    position = {message["id"]: n for n, message in enumerate(stored)}
    for answer in every:
        asked, answered = answer.body["messages"]
        assert position[answered["id"]] == position[asked["id"]] + 1
        assert [stored[position[m["id"]]] for m in (asked, answered)] == [asked, answered]
    for earlier in every:  # who had an answer before another asked comes before it
        for later in every:
            if earlier.ended < later.began:
                assert position[earlier.body["messages"][1]["id"]] < position[later.body["messages"][0]["id"]]
    assert [message["createdAt"] for message in stored] == sorted({message["createdAt"] for message in stored})
    orders = sorted(row["order"]["S"] for (pk, sk), row in rows.items() if pk == f"T#{thread}" and sk[:2] == "M#")
    assert [int(order.partition("-")[2]) for order in orders] == list(range(1, len(stored) + 1))
    row = rows[f"T#{thread}", "@"]
    assert (row["seq"], row["messageCount"]) == ({"N": str(len(stored))}, {"N": str(len(stored))})
    assert row["title"]["S"].startswith("You said: User: ")
    assert rows[f"R#{owner}", "@"]["threadCount"] == {"N": "1"}


# --- killed ---


def test_a_turn_killed_between_model_and_commit_leaves_the_thread_as_it_was(
    application: Application,
    scripted: ScriptedModel,
    hold: str,
    aside: Callable[..., Future[Any]],
    thread: str,
    owner: str,
) -> None:
    application.say("Before\n@say ok", thread, owner)
    before = kept(application.quiet())
    turn = aside(application.say, f"Lost\n@call current_time\n@hold {hold}\n@say Lost", thread, owner, status=502)
    eventually(lambda: hold in scripted.held)
    kill(application, "GenerateFunction")
    assert list(turn.result(timeout=60)) == ["error"]
    scripted.release(hold)
    assert kept(application.rows()) == before
    assert application.say("After\n@say Still here", thread, owner)["text"] == "Still here"
    assert [text for _, text in application.texts(thread)] == [
        "Before\n@say ok", "ok", "After\n@say Still here", "Still here",
    ]  # fmt: skip


def test_a_title_needs_nothing_of_the_process_that_answered(application: Application, thread: str, owner: str) -> None:
    """Case H30: the process may be frozen or gone as soon as it has answered."""
    application.say("Hello\n@say ok", thread, owner)
    kill(application, "GenerateFunction")
    assert eventually(lambda: application.thread(thread)["title"]).startswith("You said: User: Hello")


@pytest.mark.usefixtures("impatient")
def test_a_title_job_that_was_killed_is_done_again_and_once(
    application: Application, scripted: ScriptedModel, hold: str, thread: str, owner: str
) -> None:
    """Case H30."""
    options = {"generateTitle": {"instructions": f"@hold {hold}\n@say A fine title"}}
    application.say("Hello\n@say ok", thread, owner, options=options)
    eventually(lambda: hold in scripted.held)
    kill(application, "AfterTurnFunction")
    assert application.thread(thread)["title"] == ""
    scripted.release(hold)
    assert eventually(lambda: application.thread(thread)["title"], seconds=60) == "A fine title"
    rows = application.quiet()
    assert rows[f"T#{thread}", "@"]["version"] == {"N": "3"}  # created, one turn, one title
    asked = [r for r in scripted.requests if f"@hold {hold}" in r["messages"][0]["content"]]
    assert len(asked) == 2


# --- deleted meanwhile (case H10) ---


@pytest.mark.parametrize("first", [True, False], ids=["first turn", "later turn"])
def test_a_delete_during_a_turn_is_final(
    application: Application, scripted: ScriptedModel, hold: str, aside: Callable[..., Future[Any]], thread: str,
    owner: str, first: bool,
) -> None:  # fmt: skip
    if not first:
        application.say("Before\n@say ok", thread, owner)
    turn = aside(application.say, f"Late\n@hold {hold}\n@say Late", thread, owner, status=409)
    eventually(lambda: hold in scripted.held)
    assert application.delete(thread, owner).status_code == 200
    scripted.release(hold)
    assert "deleted" in turn.result(timeout=60)["error"]
    assert application.thread(thread) is None
    eventually(lambda: not application.rows_of(thread))
    application.quiet()
    assert application.rows_of(thread) == []
    assert application.threads_of(owner) == []
    assert application.delete(thread, owner).status_code == 404


def test_a_late_turn_does_not_reach_the_thread_that_took_the_id(
    application: Application,
    scripted: ScriptedModel,
    hold: str,
    aside: Callable[..., Future[Any]],
    thread: str,
    owner: str,
) -> None:
    application.say("Before\n@say ok", thread, owner)
    turn = aside(application.say, f"Late\n@hold {hold}\n@say Late", thread, owner, status=409)
    eventually(lambda: hold in scripted.held)
    assert application.delete(thread, owner).status_code == 200
    eventually(lambda: not application.rows_of(thread))
    application.say("New\n@say Fresh", thread, owner)
    before = kept(application.quiet())
    scripted.release(hold)
    assert "deleted" in turn.result(timeout=60)["error"]
    assert kept(application.rows()) == before
    assert application.texts(thread) == [("user", "New\n@say Fresh"), ("assistant", "Fresh")]


def test_a_thread_that_is_being_deleted_takes_nothing_and_its_late_title_is_dropped(
    application: Application, scripted: ScriptedModel, hold: str, thread: str, owner: str
) -> None:
    """The tasks of one thread are done one after another: the clean-up waits for the title, which is held."""
    options = {"generateTitle": {"instructions": f"@hold {hold}\n@say Late title"}}
    application.say("Hello\n@say ok", thread, owner, options=options)
    eventually(lambda: hold in scripted.held)
    assert application.delete(thread, owner).status_code == 200
    calls = scripted.calls
    assert "deleted" in application.say("Late\n@say Late", thread, owner, status=409)["error"]
    assert application.create(thread, owner).status_code == 409
    assert application.create(thread, new_id("owner")).status_code == 409
    assert application.thread(thread) is None
    assert application.delete(thread, owner).status_code == 404
    assert scripted.calls == calls
    scripted.release(hold)
    eventually(lambda: not application.rows_of(thread))
    assert application.create(thread, owner).json()["title"] == ""
    application.quiet()
    assert application.thread(thread)["title"] == ""
