"""What the fake promises beyond the contract: its clock, and use from many threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import NewMessage, NewThread, TurnCommit


def test_the_clock_can_be_set():
    async def scenario() -> None:
        storage = InMemoryStorage(clock=lambda: 1000)
        made = await storage.create_thread(NewThread("a", "r"))
        assert (made.created_at, made.updated_at) == (1000, 1000)
        storage.clock = lambda: 500
        made = await storage.create_thread(NewThread("b", "r"))
        assert made.created_at == 500

    asyncio.run(scenario())


def test_a_thread_that_takes_a_purged_id_is_younger_although_the_clock_stands_still():
    async def scenario() -> None:
        storage = InMemoryStorage(clock=lambda: 1000)
        births: list[int] = []
        for _ in range(3):
            births.append((await storage.create_thread(NewThread("a", "r"))).created_at)
            await storage.delete_thread("a", resource_id=None)
            await storage.purge_thread("a")
        assert births == [1000, 1001, 1002]

    asyncio.run(scenario())


def test_threads_of_one_millisecond_are_listed_by_id():
    async def scenario() -> None:
        storage = InMemoryStorage(clock=lambda: 1000)
        for name in ("b", "c", "a"):
            await storage.create_thread(NewThread(name, "r"))
        assert [t.id for t in (await storage.list_threads("r", direction="ASC")).items] == ["a", "b", "c"]
        assert [t.id for t in (await storage.list_threads("r")).items] == ["c", "b", "a"]

    asyncio.run(scenario())


def test_one_store_serves_many_event_loops_in_many_threads():
    storage = InMemoryStorage()
    thread = asyncio.run(storage.create_thread(NewThread("t", "r")))

    def worker(number: int) -> None:
        async def turns() -> None:
            for n in range(20):
                pair = tuple(NewMessage(f"{number}-{n}-{side}", "user", {"format": 2}, 0) for side in "ab")
                await storage.commit_turn(TurnCommit(thread, pair))

        asyncio.run(turns())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(worker, range(8)))
    page = asyncio.run(storage.list_messages("t", per_page=None)).page
    assert page.total == len(page.items) == 8 * 20 * 2
    names = [m.id for m in page.items]
    assert all(first[:-1] == second[:-1] for first, second in zip(names[::2], names[1::2], strict=True))
