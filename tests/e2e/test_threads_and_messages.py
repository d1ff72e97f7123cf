"""Long threads through the deployed application: saved in bulk, paged, filtered, copied, transferred, deleted."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from local.stack import Stack
from tests.conftest import client_of
from tests.e2e.application import THREADS, Application, eventually, new_id
from tests.e2e.long_thread import DELETE, LENGTH, SAVE, START, Long, row


@pytest.fixture(scope="module")
def long(stack: Stack) -> Iterator[Long]:
    with client_of(stack) as http:
        thread = Long(http)
        thread.fill()
        yield thread


@pytest.mark.parametrize("direction", ["ASC", "DESC"])
def test_2500_messages_are_paged_both_ways_with_exact_totals(long: Long, direction: str) -> None:
    size, pages = 400, []
    for number in range(LENGTH // size + 1):
        page = long.page(page=number, perPage=size, **{"orderBy[direction]": direction})
        assert (page["total"], page["page"], page["perPage"]) == (LENGTH, number, size)
        assert page["hasMore"] is (number < LENGTH // size)
        pages.append([int(m["id"].rpartition("-")[2]) for m in page["messages"]])
    assert sum(pages if direction == "ASC" else pages[::-1], []) == list(range(LENGTH))
    assert long.numbers(page=99, perPage=size) == ([], LENGTH)


def test_all_messages_in_one_reply_are_as_they_were_saved(long: Long) -> None:
    page = long.page(perPage="false")
    assert (page["total"], page["perPage"], page["hasMore"]) == (LENGTH, False, False)
    for n, message in enumerate(page["messages"]):
        saved = row(n, long.id, long.owner)
        assert message.pop("createdAt").startswith("2023-11-")
        del saved["createdAt"]
        assert message == saved


def test_saving_all_again_changes_nothing_but_contents(long: Long) -> None:
    before = long.page(perPage="false")
    long.save(range(1200, 1300))
    assert long.page(perPage="false") == before


def test_filters_find_the_same_from_both_ends(long: Long) -> None:
    dates = f'{{"start":{START + 100_000},"end":"2023-11-14T22:15:09Z","endExclusive":true}}'
    last = (1_700_000_109_000 - START) // 1000
    assert long.numbers(filter=f'{{"dateRange":{dates}}}') == (list(range(100, last)), last - 100)
    odd = [n for n in range(100, last) if n % 2]
    both = f'{{"dateRange":{dates},"roles":["assistant"]}}'
    assert long.numbers(filter=both, perPage=2) == (odd[-2:], len(odd))
    assert long.numbers(filter=both, perPage=2, orderBy='{"direction":"ASC"}') == (odd[:2], len(odd))
    assert long.numbers(**{"filter[metadata][decade]": "7"}) == ([], 0)
    assert long.numbers(filter='{"metadata":{"decade":7}}') == ([70], 1)
    found, total = long.numbers(filter='{"roles":["assistant"]}', perPage="100", page="1")
    assert (found[-1], total) == (LENGTH - 1 - 200, LENGTH // 2)


def test_messages_are_found_with_their_neighbours(long: Long) -> None:
    include = f'[{{"id":"{long.id}-1700","withPreviousMessages":2,"withNextMessages":1}},{{"id":"none"}}]'
    assert long.numbers(perPage=0, include=include) == ([1698, 1699, 1700, 1701], LENGTH)
    assert long.numbers(perPage=2, include=include)[0] == [1698, 1699, 1700, 1701, 2498, 2499]


def copy(long: Long, **body: Any) -> tuple[Any, Long]:
    """The reply to a copy of the long thread, and the copy. Where the machine is slow it is asked for again."""
    key = {"Idempotency-Key": new_id("key")}

    def asked() -> httpx.Response | None:
        answer = long.http.post(f"{THREADS}/{long.id}/clone?agentId=assistant", json=body, headers=key)
        assert answer.status_code == 200 or "still being copied" in answer.text, answer.text
        return answer if answer.status_code == 200 else None

    answer = eventually(asked, 180)
    assert answer is not None
    found = Long(long.http)
    found.id = answer.json()["thread"]["id"]
    return answer.json(), found


def test_a_long_thread_is_copied_transferred_and_deleted(application: Application, long: Long) -> None:
    before = long.page(perPage="false")
    reply, clone = copy(long)
    assert list(reply["messageIdMap"]) == [m["id"] for m in before["messages"]]
    assert reply["clonedMessages"] == clone.page(perPage="false")["messages"]
    assert [m["content"] for m in reply["clonedMessages"]] == [m["content"] for m in before["messages"]]
    assert clone.page(perPage=1)["total"] == LENGTH

    other = new_id("owner")
    moved = long.http.post(f"{THREADS}/{clone.id}/transfer", json={"resourceId": other})
    assert moved.json() == reply["thread"] | {"resourceId": other, "updatedAt": moved.json()["updatedAt"]}
    assert clone.id in application.threads_of(other)
    assert clone.id not in application.threads_of(long.owner)
    page = clone.page(resourceId=other, perPage=3)
    assert ({m["resourceId"] for m in page["messages"]}, page["total"]) == ({other}, LENGTH)
    assert long.http.get(f"{THREADS}/{clone.id}", params={"resourceId": long.owner}).status_code == 403

    assert application.delete(clone.id, other).json() == {"result": "Thread deleted"}
    assert application.thread(clone.id) is None
    assert clone.id not in application.threads_of(other)
    eventually(lambda: not [key for key in application.rows_of(clone.id) if not key[1].startswith("C#")], 120)
    assert long.page(perPage="false") == before


def test_a_copy_of_the_newest(long: Long) -> None:
    reply, clone = copy(long, title="Short", options={"messageLimit": 3})
    assert list(reply["messageIdMap"]) == [f"{long.id}-{n}" for n in range(LENGTH - 3, LENGTH)]
    assert (clone.page()["total"], reply["thread"]["title"]) == (3, "Short")
    taken = long.http.post(f"{THREADS}/{long.id}/clone", json={"newThreadId": clone.id})
    assert (taken.status_code, taken.json()) == (409, {"error": f"Thread {clone.id} exists already"})


def test_deleted_messages_are_gone_and_the_total_is_exact(long: Long) -> None:
    _, clone = copy(long, options={"messageLimit": 100})
    ids = [m["id"] for m in clone.page(perPage="false")["messages"]]
    answer = long.http.post(f"{DELETE}?agentId=assistant", json={"messageIds": [*ids[10:90], "no-such-id"]})
    assert answer.json() == {"success": True, "message": "81 messages deleted successfully"}
    page = clone.page(perPage="false")
    assert ([m["id"] for m in page["messages"]], page["total"]) == (ids[:10] + ids[90:], 20)


def test_a_message_of_3_mb_makes_the_round_trip_also_as_a_copy(
    application: Application, thread: str, owner: str
) -> None:
    application.create(thread, owner)
    text = "3 MB of text. " * 220_000
    rows = [row(n, thread, owner) for n in range(3)]
    rows[1]["content"] = {"format": 2, "parts": [{"type": "text", "text": text}]}
    saved = application.http.post(f"{SAVE}?agentId=assistant", json={"messages": rows})
    assert saved.status_code == 200, saved.text[:200]
    clone = application.http.post(f"{THREADS}/{thread}/clone", json={}).json()["thread"]["id"]
    for found in (thread, clone):
        listed = application.http.get(f"{THREADS}/{found}/messages").json()
        assert [m["content"] for m in listed["messages"]] == [r["content"] for r in rows]
    application.delete(thread, owner)
    eventually(lambda: not [key for key in application.rows_of(thread) if not key[1].startswith("C#")], 60)
    assert application.http.get(f"{THREADS}/{clone}/messages").json()["messages"][1]["content"] == rows[1]["content"]


def test_a_changed_thread_keeps_what_is_not_named(application: Application, thread: str, owner: str) -> None:
    created = application.create(thread, owner, title="First", metadata={"n": 0.1}).json()
    time.sleep(0.002)
    changed = application.http.patch(f"{THREADS}/{thread}?agentId=assistant", json={"title": "Renamed"})
    assert changed.json() == created | {"title": "Renamed", "updatedAt": changed.json()["updatedAt"]}
    again = application.http.patch(f"{THREADS}/{thread}?agentId=assistant", json={"metadata": {"a": [None, 3]}})
    assert again.json()["metadata"] == {"a": [None, 3]}
    assert application.thread(thread) == again.json()


def test_requests_under_one_key_are_answered_with_what_they_made(
    application: Application, thread: str, owner: str
) -> None:
    application.create(thread, owner)
    message = {"threadId": thread, "resourceId": owner, "role": "user", "content": "once"}
    calls: list[tuple[str, Any]] = [
        (f"{THREADS}?agentId=assistant", {"resourceId": owner}),
        (f"{SAVE}?agentId=assistant", {"messages": [message, message]}),
        (f"{THREADS}/{thread}/clone?agentId=assistant", {}),
    ]
    key = {"Idempotency-Key": new_id("key")}
    for path, body in calls:
        first, second = (application.http.post(path, json=body, headers=key) for _ in range(2))
        assert first.status_code == 200, first.text
        assert second.json() == first.json()
    assert len(application.threads_of(owner)) == 3
    assert application.texts(thread) == [("user", "once")] * 2


def test_what_is_about_agents_and_not_about_one(application: Application) -> None:
    """Paths that a parameter would also match."""
    get = application.http.get
    assert get("/api/agents/providers").json() == {"providers": []}
    assert get("/api/agents/assistant/voice/speakers").json() == []
    assert get("/api/agents/assistant/voice/listener").json() == {"enabled": False}
    assert get("/api/memory/status?agentId=assistant").json() == {"result": True, "memoryType": "local"}
    assert get("/api/memory/network/status?networkId=assistant").json() == {"result": True, "memoryType": "local"}
    assert get("/api/memory/config?agentId=assistant").json()["config"]["workingMemory"] == {"enabled": False}
