"""A deleted thread whose clean-up failed for good is taken up again: by another delete, and by the daily sweep."""

from collections.abc import Iterator
from typing import Any

import pytest

from local.stack import Stack
from threadkeep import clock
from threadkeep.storage.dynamodb import DynamoDBStorage, items
from threadkeep.storage.dynamodb.stream import Task, task_of
from threadkeep.storage.port import NewThread, TurnCommit
from threadkeep.testing.storage_base import message

HOUR = 3_600_000


@pytest.fixture
def client(emulator: Stack) -> Iterator[Any]:
    client = emulator.client("dynamodb")
    yield client
    client.close()


@pytest.fixture
async def deleted(client: Any, table: str) -> DynamoDBStorage:
    """A store with a live thread and a deleted one whose clean-up never came."""
    storage = DynamoDBStorage(table, client)
    for name in ("live", "gone#1"):
        thread = await storage.create_thread(NewThread(name, "ana"))
        await storage.commit_turn(TurnCommit(thread, (message("m"),)))
    assert await storage.delete_thread("gone#1", resource_id="ana")
    return storage


def row(client: Any, table: str, thread: str) -> Any:
    return client.get_item(TableName=table, Key=items.thread_key(thread), ConsistentRead=True).get("Item")


def asked(image: Any) -> Task | None:
    """What the stream would ask for after a change to this image."""
    return task_of({"eventName": "MODIFY", "eventID": "1", "dynamodb": {"NewImage": image}})


async def test_another_delete_asks_for_the_clean_up_again(deleted: DynamoDBStorage, client: Any, table: str):
    before = row(client, table, "gone#1")
    assert await deleted.delete_thread("gone#1", resource_id="ana") is False
    after = row(client, table, "gone#1")
    assert after != before and asked(after) == Task("purge", "gone#1")


async def test_the_sweep_takes_up_old_deletes_and_nothing_else(deleted: DynamoDBStorage, client: Any, table: str):
    live, gone = row(client, table, "live"), row(client, table, "gone#1")
    assert await deleted.resume_deletes() == 0  # it is young: its clean-up may be on its way
    assert (row(client, table, "live"), row(client, table, "gone#1")) == (live, gone)
    deleted._now = lambda: clock.now() + HOUR + 1_000
    assert await deleted.resume_deletes() == 1
    assert row(client, table, "live") == live
    assert asked(row(client, table, "gone#1")) == Task("purge", "gone#1")
    await deleted.purge_thread("gone#1")
    assert await deleted.resume_deletes() == 0


async def test_a_tombstone_is_in_no_list(deleted: DynamoDBStorage):
    for owner in (None, "ana"):
        for order in ("createdAt", "updatedAt"):
            page = await deleted.list_threads(owner, order_by=order)
            assert ([t.id for t in page.items], page.total) == (["live"], 1)
