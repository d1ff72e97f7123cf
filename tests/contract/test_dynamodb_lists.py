"""Lists of threads on the table: what they read, where they refuse, and an index that lags behind."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from local.stack import Stack
from tests.counting import Counter
from threadkeep.errors import InvalidInput
from threadkeep.storage.dynamodb import DynamoDBStorage, listing
from threadkeep.storage.port import NewThread


@pytest.fixture
def client(emulator: Stack) -> Iterator[Any]:
    client = emulator.client("dynamodb")
    yield client
    client.close()


async def threads(storage: DynamoDBStorage, owner: str, count: int) -> list[str]:
    """Threads of one owner, oldest first."""
    for n in range(count):
        await storage.create_thread(NewThread(f"{owner}-{n:02}", owner, "x" * 500))
        await asyncio.sleep(0.002)
    return [f"{owner}-{n:02}" for n in range(count)]


async def test_a_page_of_threads_reads_no_more_than_it_needs(client: Any, table: str) -> None:
    storage, counter = DynamoDBStorage(table_name=table, client=client), Counter(latency=0)
    made = await threads(storage, "ana", 30)
    counter.register(client)
    read: dict[tuple[int, int | None], int] = {}
    for page, per_page in ((0, 1), (0, 2), (1, 2), (0, None)):
        counter.clear()
        found = await storage.list_threads("ana", page=page, per_page=per_page)
        assert [t.id for t in found.items] == (made[::-1] if per_page is None else made[::-1][page * 2 :][:per_page])
        read[page, per_page] = counter.bytes_read
    one = read[0, 2] - read[0, 1]  # a thread of the list and its row
    assert read[0, None] > 25 * one
    assert read[1, 2] < read[0, 2] + one
    assert read[0, 2] < 4 * one


async def test_threads_of_all_owners_by_update_have_a_limit_and_by_creation_none(
    client: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DynamoDBStorage(table_name=table, client=client)
    assert listing._WALK_LIMIT == 10_000
    monkeypatch.setattr(listing, "_WALK_LIMIT", 3)
    await threads(storage, "ana", 3)
    assert (await storage.list_threads(None, order_by="updatedAt")).total == 3
    await threads(storage, "bo", 1)
    with pytest.raises(InvalidInput, match="orderBy"):
        await storage.list_threads(None, order_by="updatedAt")
    assert (await storage.list_threads(None, per_page=1)).total == 4
    assert (await storage.list_threads("ana", order_by="updatedAt")).total == 3


@pytest.mark.parametrize("owner", ["ana", None])
async def test_what_an_index_still_shows_of_a_deleted_thread_is_left_out(
    client: Any, table: str, monkeypatch: pytest.MonkeyPatch, owner: str | None
) -> None:
    storage = DynamoDBStorage(table_name=table, client=client)
    await threads(storage, "ana", 3)
    shown = storage._first

    async def late(end: int | None, query: dict[str, Any]) -> list[Any]:
        rows = await shown(end, query)
        await storage.delete_thread("ana-01", resource_id=None)
        return rows

    monkeypatch.setattr(storage, "_first", late)
    found = await storage.list_threads(owner, order_by="updatedAt")
    assert [t.id for t in found.items] == ["ana-02", "ana-00"]
