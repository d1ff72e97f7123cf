"""Long work on a thread of 2,500 messages that is killed half-way is finished by what the stream started (H11, H29)."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from tests.e2e.application import THREADS, Application, eventually, kill, new_id
from tests.e2e.long_thread import LENGTH, Long


@pytest.fixture
def long(api: httpx.Client) -> Long:
    thread = Long(api)
    thread.fill()
    return thread


def rows(application: Application, thread: str) -> int:
    return len(application.rows_of(thread))


def test_a_clone_that_was_killed_is_finished(
    application: Application, long: Long, aside: Callable[..., Future[Any]]
) -> None:
    copy = new_id("copy")
    request = {"newThreadId": copy, "resourceId": long.owner}
    cut = aside(long.http.post, f"{THREADS}/{long.id}/clone?agentId=assistant", json=request)
    eventually(lambda: rows(application, copy) > 20)
    kill(application, "ThreadsFunction")
    assert cut.result(60).status_code >= 500
    assert application.thread(copy) is None
    found = eventually(lambda: application.thread(copy), seconds=90)
    assert found["metadata"]["clone"]["sourceThreadId"] == long.id
    page = long.http.get(f"{THREADS}/{copy}/messages", params={"perPage": "false"}).json()
    texts = [m["content"]["parts"][0]["text"] for m in page["messages"]]
    assert (page["total"], texts) == (LENGTH, [f"message {n}" for n in range(LENGTH)])
    assert set(application.threads_of(long.owner)) == {long.id, copy}


@pytest.mark.usefixtures("impatient")
def test_a_delete_whose_clean_up_was_killed_is_finished(application: Application, long: Long) -> None:
    assert application.delete(long.id, long.owner).status_code == 200
    before = 2 * LENGTH
    eventually(lambda: rows(application, long.id) < before)
    kill(application, "AfterTurnFunction")
    left = rows(application, long.id)
    assert 0 < left < before
    assert application.thread(long.id) is None
    eventually(lambda: rows(application, long.id) == 0, seconds=90)
    assert application.threads_of(long.owner) == []


def test_a_transfer_that_was_killed_has_happened_or_not(
    application: Application, long: Long, aside: Callable[..., Future[Any]]
) -> None:
    """It is one transaction: wherever the kill hits, the thread has one owner, and its messages are that owner's."""
    heir = new_id("heir")
    transfer = aside(long.http.post, f"{THREADS}/{long.id}/transfer", json={"resourceId": heir})
    time.sleep(0.02)
    kill(application, "ThreadsFunction")
    transfer.result(60)
    owner = application.thread(long.id)["resourceId"]
    assert owner in (heir, long.owner)
    assert [application.threads_of(heir), application.threads_of(long.owner)] == (
        [[long.id], []] if owner == heir else [[], [long.id]]
    )
    page = long.http.get(f"{THREADS}/{long.id}/messages", params={"resourceId": owner, "perPage": "1"}).json()
    assert page["total"] == LENGTH
