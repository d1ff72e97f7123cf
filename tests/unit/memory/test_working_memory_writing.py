"""Writers of one working memory lose nothing, get through, and cost few requests. On a clock that only counts."""

import asyncio
import json
import random
import selectors
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from threadkeep.errors import PreconditionFailed, VersionMismatch
from threadkeep.memory.working_memory.writing import ATTEMPTS, Written, changed
from threadkeep.storage.port import MemoryMoved, MemoryTarget, MemoryWrite, WorkingMemory

T = TypeVar("T")
TARGET = MemoryTarget("resource", "ana")


class Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait: what it was to wait for has passed."""

    seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.seconds += timeout or 0
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """Sleeps take no time: the clock jumps to when the next one ends."""

    def __init__(self) -> None:
        self.passed = Selector()
        super().__init__(self.passed)

    def time(self) -> float:
        return self.passed.seconds


@dataclass
class Store:
    """Each request takes `latency` seconds, give or take half of it, and happens in the middle of that."""

    chance: random.Random
    latency: float = 0.005
    memory: WorkingMemory = WorkingMemory()
    requests: int = 0

    async def get_working_memory(self, target: MemoryTarget) -> WorkingMemory:
        return await self._request(lambda: self.memory)

    async def put_working_memory(self, write: MemoryWrite) -> WorkingMemory:
        def put() -> WorkingMemory:
            if write.read.version != self.memory.version:
                raise MemoryMoved(self.memory)
            self.memory = WorkingMemory(write.text, write.read.version + 1)
            return self.memory

        return await self._request(put)

    async def _request(self, act: Callable[[], T]) -> T:
        self.requests += 1
        half = self.latency * self.chance.uniform(0.25, 0.75)
        await asyncio.sleep(half)
        try:
            return act()
        finally:
            await asyncio.sleep(half)


@pytest.fixture
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _the_same_chances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadkeep.memory.working_memory.writing.random", random.Random(7))


def adding(field: str, value: Any = 1) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text or "{}") | {field: value})


def write(store: Any, change: Callable[[str], str], **options: Any) -> Coroutine[Any, Any, Written]:
    return changed(store, TARGET, change, writer="test", **options)


async def together(store: Store, writers: int) -> list[Written]:
    return await asyncio.gather(*(write(store, adding(f"k{n}")) for n in range(writers)))


@pytest.mark.parametrize("latency", [0.005, 0.02])
@pytest.mark.parametrize(
    ("writers", "requests", "seconds"), [(1, 2, 1), (2, 3, 1), (10, 7, 3), (50, 11, 8), (200, 16, 20)]
)
def test_h09_all_get_through_and_none_is_lost(
    loop: Loop, latency: float, writers: int, requests: int, seconds: int
) -> None:
    """A writer needs so many requests on average, and all are through after so many seconds."""
    store = Store(random.Random(writers), latency)
    done = loop.run_until_complete(together(store, writers))
    assert json.loads(store.memory.text) == {f"k{n}": 1 for n in range(writers)}
    assert sorted(w.memory.version for w in done) == list(range(1, writers + 1))
    assert all(w.read + 1 == w.memory.version for w in done)
    assert store.requests / writers <= requests
    assert max(w.attempts for w in done) <= ATTEMPTS / 8
    assert loop.time() <= seconds


def test_h09_who_loses_for_too_long_is_told_the_version_that_is_stored(loop: Loop) -> None:
    class Busy(Store):
        async def put_working_memory(self, write: MemoryWrite) -> WorkingMemory:
            self.memory = WorkingMemory("{}", self.memory.version + 1)
            return await super().put_working_memory(write)

    store = Busy(random.Random(1))
    with pytest.raises(VersionMismatch, match="other writers kept winning") as caught:
        loop.run_until_complete(write(store, adding("a"), seconds=25))
    assert caught.value.version == store.memory.version
    assert 25 <= loop.time() <= 25.1


async def test_two_writers_that_collide_need_one_request_more() -> None:
    store = Store(random.Random(1), 0)
    one, two = await together(store, 2)
    assert sorted((one.attempts, two.attempts)) == [1, 2]
    assert store.requests == 5


async def test_what_is_as_it_should_be_is_not_written() -> None:
    store = Store(random.Random(1), 0, WorkingMemory('{"k": 1}', 4))
    assert await write(store, adding("k")) == Written(store.memory, 4, 0)
    assert store.requests == 1


async def test_a_caller_that_has_read_already_writes_with_one_request() -> None:
    store = Store(random.Random(1), 0, WorkingMemory("{}", 4))
    assert (await write(store, adding("k"), known=store.memory)).memory == WorkingMemory('{"k": 1}', 5)
    assert store.requests == 1


async def test_that_nothing_needs_a_change_is_not_judged_by_an_old_reading() -> None:
    """Another writer has changed the value since; leaving it would lose this update."""
    store = Store(random.Random(1), 0, WorkingMemory('{"town": "Lyon"}', 2))
    known = WorkingMemory('{"town": "Nice"}', 1)
    assert (await write(store, adding("town", "Nice"), known=known)).memory.text == '{"town": "Nice"}'
    assert store.memory.version == 3
    assert (await write(store, adding("town", "Nice"), known=known)).memory.version == 3


@pytest.mark.parametrize(
    ("option", "error"), [("expected", VersionMismatch), ("match", PreconditionFailed)], ids=["409", "412"]
)
async def test_a_stale_version_is_refused_with_the_stored_one(option: str, error: type[VersionMismatch]) -> None:
    store = Store(random.Random(1), 0, WorkingMemory("{}", 4))
    with pytest.raises(VersionMismatch) as refused:
        await write(store, adding("k"), **{option: 3})
    assert (type(refused.value), refused.value.version, store.memory.version) == (error, 4, 4)
    assert (await write(store, adding("k"), **{option: 4})).memory.version == 5


async def test_of_writers_that_name_one_version_one_gets_it() -> None:
    store = Store(random.Random(1), 0, WorkingMemory("{}", 4))
    writes = (write(store, adding(f"k{n}"), expected=4) for n in range(5))
    told = await asyncio.gather(*writes, return_exceptions=True)
    assert [t.version for t in told if isinstance(t, VersionMismatch)] == [5] * 4
    assert [t.memory.version for t in told if isinstance(t, Written)] == [5]


async def test_a_stale_version_is_refused_even_where_nothing_needs_a_change() -> None:
    store = Store(random.Random(1), 0, WorkingMemory('{"k": 1}', 4))
    with pytest.raises(VersionMismatch):
        await write(store, adding("k"), known=WorkingMemory('{"k": 1}', 3), expected=3)


class Busy(Store):
    """Another writer is always faster."""

    async def put_working_memory(self, write: MemoryWrite) -> WorkingMemory:
        self.memory = WorkingMemory("{}", self.memory.version + 1)
        return await super().put_working_memory(write)


def test_a_writer_that_always_loses_gives_up(loop: Loop) -> None:
    store = Busy(random.Random(1))
    with pytest.raises(VersionMismatch, match="too busy") as refused:
        loop.run_until_complete(write(store, adding("k")))
    assert refused.value.version == store.memory.version == ATTEMPTS == 200


def test_pauses_begin_after_the_second_loss_and_double_up_to_five_seconds(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[tuple[float, float]] = []

    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            pauses.append((a, b))
            return b

    monkeypatch.setattr("threadkeep.memory.working_memory.writing.random", Longest())
    store = Busy(random.Random(1), 0)
    with pytest.raises(VersionMismatch):
        loop.run_until_complete(write(store, adding("k")))
    assert pauses == [(0, min(5.0, 0.1 * 2**n)) for n in range(199)]
    assert loop.time() == pytest.approx(sum(longest for _, longest in pauses))
    assert store.requests == 1 + 200 + 199


async def test_what_the_change_raises_ends_the_attempt() -> None:
    store = Store(random.Random(1), 0)
    with pytest.raises(ZeroDivisionError):
        await write(store, lambda text: str(1 // 0))
    assert store.memory == WorkingMemory()
