"""Which thread is a copy of which (TH-11a)."""

from dataclasses import replace

import pytest

from threadkeep.memory.clones import clone_history, clone_origin, clones, is_clone, source_thread
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import CloneRequest, NewThread, Thread


@pytest.fixture
async def store() -> InMemoryStorage:
    """`root`, its copy `one` of the same owner, `hers` of another, and `two`, a copy of `one`."""
    ticks = iter(range(1000, 9000))
    storage = InMemoryStorage(clock=lambda: next(ticks))
    await storage.create_thread(NewThread("root", "ana"))
    for source, copy, owner in (("root", "one", "ana"), ("root", "hers", "bo"), ("one", "two", "ana")):
        await storage.clone_thread(CloneRequest(source, NewThread(copy, owner)))
    return storage


def ids(threads: tuple[Thread, ...]) -> list[str]:
    return [t.id for t in threads]


async def test_th11a_a_copy_knows_its_source(store: InMemoryStorage):
    root, one = await store.get_thread("root"), await store.get_thread("one")
    assert root and one
    assert (is_clone(root), clone_origin(root), is_clone(one)) == (False, None, True)
    assert clone_origin(one) == {"sourceThreadId": "root", "clonedAt": "1970-01-01T00:00:01.001Z"}
    assert await source_thread(store, "one") == root
    assert await source_thread(store, "root") is None
    assert await source_thread(store, "unknown") is None


@pytest.mark.parametrize(
    "clone", ["no", None, [], {}, {"sourceThreadId": "root"}, {"sourceThreadId": 1, "clonedAt": "x"}]
)
def test_th11a_other_metadata_makes_no_copy(clone: object):
    thread = Thread("t", "ana", "", {"clone": clone}, 1, 1)  # type: ignore[dict-item]
    assert not is_clone(thread) and not is_clone(replace(thread, metadata=None))


async def test_th11a_copies_are_listed_by_owner(store: InMemoryStorage):
    assert ids(await clones(store, "root")) == ["one"]
    assert ids(await clones(store, "root", "bo")) == ["hers"]
    assert await clones(store, "unknown") == ()


async def test_th11a_history_goes_from_the_first_source_to_the_copy(store: InMemoryStorage):
    assert ids(await clone_history(store, "two")) == ["root", "one", "two"]
    assert ids(await clone_history(store, "root")) == ["root"]
    assert await clone_history(store, "unknown") == ()


async def test_th11a_another_thread_that_took_the_sources_id_is_no_source(store: InMemoryStorage):
    await store.delete_thread("root", resource_id=None)
    await store.purge_thread("root")
    assert ids(await clone_history(store, "two")) == ["one", "two"]
    await store.create_thread(NewThread("root", "eve"))
    assert await source_thread(store, "one") is None
    assert await clones(store, "root") == ()


async def test_th11a_a_circle_in_the_metadata_has_an_end(store: InMemoryStorage):
    origin = {"sourceThreadId": "b", "clonedAt": "9999"}
    await store.create_thread(NewThread("a", "ana", metadata={"clone": origin}))
    await store.create_thread(NewThread("b", "ana", metadata={"clone": origin | {"sourceThreadId": "a"}}))
    assert ids(await clone_history(store, "a")) == ["b", "a"]
