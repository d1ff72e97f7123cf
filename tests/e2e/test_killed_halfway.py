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
    """How many rows the thread's own partition has; quicker than a look at the whole table."""
    counted = application.stack.client("dynamodb").query(
        TableName=application.stack.outputs["TableName"],
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues={":pk": {"S": f"T#{thread}"}},
        Select="COUNT",
        ConsistentRead=True,
    )
    return int(counted["Count"])


def kill_once(application: Application, function: str, begun: Callable[[], bool]) -> None:
    """Kill a function as soon as its work has begun."""
    deadline = time.monotonic() + 30
    while not begun():
        assert time.monotonic() < deadline, f"{function} did not begin"
        time.sleep(0.01)
    kill(application, function)


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
    kill_once(application, "AfterTurnFunction", lambda: rows(application, long.id) <= LENGTH)  # with the thread's own
    assert 0 < rows(application, long.id) <= LENGTH
    assert application.thread(long.id) is None
    eventually(lambda: not application.rows_of(long.id), seconds=90)
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
