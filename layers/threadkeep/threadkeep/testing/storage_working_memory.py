"""Working memory: versions without gaps, no lost update, seeds that do not come back, and the view (WM, H09)."""

import asyncio
from dataclasses import replace
from hashlib import sha256

import pytest

from threadkeep import clock
from threadkeep.errors import AccessDenied, NotFound, ThreadGone, TooLarge
from threadkeep.storage.port import (
    CloneRequest,
    MemoryMoved,
    MemoryScope,
    MemorySeed,
    MemoryTarget,
    MemoryWrite,
    NewThread,
    Receipt,
    Storage,
    Thread,
    ThreadChange,
    TurnCommit,
    WorkingMemory,
)
from threadkeep.testing.storage_base import ODD_IDS, StorageBase, eventually, message, turn

NOTHING = WorkingMemory()
SCOPES = pytest.mark.parametrize("scope", ["thread", "resource"])


def target_of(thread: Thread, scope: MemoryScope) -> MemoryTarget:
    return MemoryTarget(scope, thread.id if scope == "thread" else thread.resource_id)


def seeded(unique: str, scope: MemoryScope, text: str, **more: object) -> NewThread:
    return NewThread(f"seeded-{unique}", unique, memory=MemorySeed(scope, text, "http"), **more)  # type: ignore[arg-type]


async def write(
    storage: Storage, thread: Thread, scope: MemoryScope, text: str, read: WorkingMemory | None = None
) -> WorkingMemory:
    """Write a text on top of what is stored, or of `read`."""
    target = target_of(thread, scope)
    read = await storage.get_working_memory(target) if read is None else read
    return await storage.put_working_memory(MemoryWrite(target, text, read, "library", thread))


async def text_of(storage: Storage, thread: Thread, scope: MemoryScope) -> str:
    return (await storage.get_working_memory(target_of(thread, scope))).text


@pytest.mark.asyncio
class WorkingMemoryContract(StorageBase):
    # get_working_memory, put_working_memory

    @SCOPES
    async def test_wm1_each_write_makes_the_version_one_higher_and_remembers_the_last_eight(
        self, storage: Storage, thread: Thread, scope: MemoryScope
    ):
        target = target_of(thread, scope)
        assert await storage.get_working_memory(target) == NOTHING
        memory, before = NOTHING, clock.now()
        for n in range(1, 12):
            writer = f"run {n}"
            memory = await storage.put_working_memory(MemoryWrite(target, f"# é {n}\n", memory, writer, thread))
            assert (memory.text, memory.version, memory.seeds) == (f"# é {n}\n", n, ())
            assert memory == await storage.get_working_memory(target)
            assert [r.version for r in memory.past] == list(range(n, 0, -1))[:8]
            newest = memory.past[0]
            assert (newest.writer, newest.digest) == (writer, sha256(memory.text.encode()).hexdigest())
            assert before - 1 <= newest.at <= clock.now() + 1
        assert [r.writer for r in memory.past] == [f"run {n}" for n in range(11, 3, -1)]

    @SCOPES
    async def test_wm11_an_empty_text_is_a_version_like_any_other(
        self, storage: Storage, thread: Thread, scope: MemoryScope
    ):
        first = await write(storage, thread, scope, "text")
        cleared = await write(storage, thread, scope, "", first)
        assert (cleared.text, cleared.version) == ("", 2)
        assert await storage.get_working_memory(target_of(thread, scope)) == cleared

    @SCOPES
    async def test_h09_a_write_that_read_another_version_meets_what_stands_there(
        self, storage: Storage, thread: Thread, scope: MemoryScope
    ):
        target = target_of(thread, scope)
        first = await write(storage, thread, scope, "one", NOTHING)
        with pytest.raises(MemoryMoved) as moved:
            await write(storage, thread, scope, "lost", NOTHING)
        assert moved.value.current == first
        second = await write(storage, thread, scope, "two", first)
        with pytest.raises(MemoryMoved) as moved:
            await write(storage, thread, scope, "lost", first)
        assert moved.value.current == second == await storage.get_working_memory(target)

    async def test_h09_a_write_that_read_what_was_never_written_meets_nothing(
        self, storage: Storage, thread: Thread, unique: str
    ):
        target = MemoryTarget("resource", unique)
        with pytest.raises(MemoryMoved) as moved:
            await storage.put_working_memory(MemoryWrite(target, "x", WorkingMemory("y", 3), "library"))
        assert moved.value.current == NOTHING == await storage.get_working_memory(target)

    @SCOPES
    async def test_h09_of_writers_at_the_same_time_none_is_lost(
        self, storage: Storage, thread: Thread, scope: MemoryScope
    ):
        async def add(word: str) -> None:
            read = await storage.get_working_memory(target_of(thread, scope))
            while True:
                try:
                    await write(storage, thread, scope, f"{read.text} {word}", read)
                    return
                except MemoryMoved as moved:
                    read = moved.current

        await asyncio.gather(*(add(f"w{n}") for n in range(12)))
        memory = await storage.get_working_memory(target_of(thread, scope))
        assert sorted(memory.text.split()) == sorted(f"w{n}" for n in range(12))
        assert memory.version == 12

    async def test_wm2_the_scopes_and_their_owners_never_see_each_other(self, storage: Storage, unique: str):
        names = [odd.format(unique) for odd in ODD_IDS]
        threads = [await storage.create_thread(NewThread(name, name)) for name in names]
        for thread in threads:
            await write(storage, thread, "thread", f"thread {thread.id}", NOTHING)
            await write(storage, thread, "resource", f"resource {thread.id}", NOTHING)
        for thread in threads:
            assert await text_of(storage, thread, "thread") == f"thread {thread.id}"
            assert await text_of(storage, thread, "resource") == f"resource {thread.id}"

    async def test_wm6_a_resource_needs_no_thread(self, storage: Storage, unique: str):
        target = MemoryTarget("resource", unique)
        made = await storage.put_working_memory(MemoryWrite(target, "text", NOTHING, "http"))
        assert (made.version, made.past[0].writer) == (1, "http")
        assert await storage.get_working_memory(target) == made
        assert (await storage.list_threads(unique)).total == 0

    async def test_wm6_the_memory_of_a_thread_needs_the_thread(self, storage: Storage, thread: Thread, unique: str):
        with pytest.raises(NotFound):
            await storage.get_working_memory(MemoryTarget("thread", f"none-{unique}"))
        for loaded in (None, thread):
            with pytest.raises(ValueError, match="needs that thread"):
                other = MemoryTarget("thread", f"none-{unique}")
                await storage.put_working_memory(MemoryWrite(other, "x", NOTHING, "http", loaded))

    @SCOPES
    async def test_h10_a_write_needs_the_very_thread_that_was_loaded(
        self, storage: Storage, thread: Thread, unique: str, scope: MemoryScope
    ):
        first = await write(storage, thread, scope, "one")
        target = target_of(thread, scope)
        moved = await storage.transfer_thread(thread.id, f"to-{unique}", resource_id=None)
        with pytest.raises(ThreadGone):
            await write(storage, thread, scope, "two", first)
        assert await storage.get_working_memory(target) == first
        await storage.delete_thread(thread.id, resource_id=None)
        with pytest.raises(ThreadGone):
            await storage.put_working_memory(MemoryWrite(target, "two", first, "library", moved))
        await storage.purge_thread(thread.id)
        with pytest.raises(ThreadGone):
            await storage.put_working_memory(MemoryWrite(target, "two", first, "library", moved))
        await storage.create_thread(NewThread(thread.id, moved.resource_id))
        with pytest.raises(ThreadGone):
            await storage.put_working_memory(MemoryWrite(target, "two", first, "library", moved))
        with pytest.raises(ThreadGone):
            await storage.put_working_memory(MemoryWrite(target, "two", NOTHING, "library", moved))
        assert await storage.get_working_memory(target) == (first if scope == "resource" else NOTHING)

    @SCOPES
    async def test_a_memory_must_fit_an_item(self, storage: Storage, thread: Thread, scope: MemoryScope):
        text = '"\n' * 174_900
        memory = await write(storage, thread, scope, text)
        assert await text_of(storage, thread, scope) == text
        with pytest.raises(TooLarge):
            await write(storage, thread, scope, "é" * 175_000, memory)
        assert await text_of(storage, thread, scope) == text

    async def test_h24_what_is_no_character_does_not_stop_a_write(self, storage: Storage, thread: Thread):
        memory = await write(storage, thread, "thread", "a\ud800b\u0000")
        assert memory == await storage.get_working_memory(target_of(thread, "thread"))
        assert memory.text == "a\ufffdb\u0000"

    @SCOPES
    async def test_a_write_leaves_the_thread_as_it_is(self, storage: Storage, thread: Thread, scope: MemoryScope):
        await write(storage, thread, scope, "text")
        done = await storage.commit_turn(TurnCommit(thread, turn()))
        assert (done.thread.version, done.thread.metadata) == (thread.version + 1, None)
        assert await text_of(storage, thread, scope) == "text"
        listed = await storage.list_messages(thread.id)
        assert listed.page.items == done.messages

    # load_turn

    @SCOPES
    async def test_a_turn_loads_the_memory_that_it_asks_for(self, storage: Storage, thread: Thread, scope: MemoryScope):
        await storage.commit_turn(TurnCommit(thread, (message("W"), message("@"))))
        memory = await write(storage, thread, scope, "text")
        target = target_of(thread, scope)
        claim = Receipt(f"key-{thread.id}", "run", "hash", "running", clock.now() + 60_000)
        state = await storage.load_turn(
            thread.id, last_messages=5, message_ids=["W", "@", "x"], memory=target, claim=claim
        )
        assert (state.memory, state.stored_ids, len(state.history)) == (memory, {"W", "@"}, 2)
        state = await storage.load_turn(thread.id, last_messages=5)
        assert (state.memory, len(state.history)) == (NOTHING, 2)

    async def test_messages_of_a_thread_that_is_called_as_a_memory_are_messages(self, storage: Storage, unique: str):
        """Sort keys of message keys are ids of threads, which may look like any other sort key."""
        thread = await storage.get_thread("W") or await storage.create_thread(NewThread("W", unique))
        await storage.commit_turn(TurnCommit(thread, (message(unique),)))
        memory = await write(storage, thread, "thread", unique)
        state = await storage.load_turn(
            "W", last_messages=1, message_ids=[unique, "no"], memory=MemoryTarget("thread", "W")
        )
        assert (state.memory, state.stored_ids) == (memory, {unique})

    async def test_a_resource_is_remembered_before_there_is_a_thread(
        self, storage: Storage, thread: Thread, unique: str
    ):
        memory = await write(storage, thread, "resource", "text")
        target = target_of(thread, "resource")
        state = await storage.load_turn(f"new-{unique}", last_messages=1, memory=target)
        assert (state.thread, state.memory) == (None, memory)
        await storage.delete_thread(thread.id, resource_id=None)
        state = await storage.load_turn(thread.id, last_messages=1, memory=target)
        assert (state.thread, state.deleting, state.memory) == (None, True, memory)

    # the life of a thread

    async def test_th9_the_memory_of_a_thread_ends_with_it_and_that_of_its_owner_stays(
        self, storage: Storage, thread: Thread
    ):
        own, owners = target_of(thread, "thread"), target_of(thread, "resource")
        await write(storage, thread, "thread", "own")
        kept = await write(storage, thread, "resource", "owner's")
        await storage.delete_thread(thread.id, resource_id=None)
        for purge in (False, True):
            if purge:
                assert await storage.purge_thread(thread.id)
            with pytest.raises(NotFound):
                await storage.get_working_memory(own)
            assert (await storage.load_turn(thread.id, last_messages=1, memory=own)).memory == NOTHING
            assert await storage.get_working_memory(owners) == kept
        again = await storage.create_thread(NewThread(thread.id, thread.resource_id))
        assert (again.memory, await storage.get_working_memory(own)) == (None, NOTHING)

    async def test_th15_a_transferred_thread_keeps_its_memory_and_changes_its_owners(
        self, storage: Storage, thread: Thread, unique: str
    ):
        memory = await write(storage, thread, "thread", "own")
        kept = await write(storage, thread, "resource", "old owner's")
        moved = await storage.transfer_thread(thread.id, f"to-{unique}", resource_id=None)
        assert moved.memory == "own"
        assert await storage.transfer_thread(thread.id, f"to-{unique}", resource_id=None) == moved
        assert await storage.get_working_memory(target_of(moved, "thread")) == memory
        assert await storage.get_working_memory(target_of(thread, "resource")) == kept
        assert await storage.get_working_memory(target_of(moved, "resource")) == NOTHING
        assert (await write(storage, moved, "thread", "new")).version == 2

    # the view

    async def test_a_thread_shows_its_own_memory_and_not_its_owners(self, storage: Storage, thread: Thread):
        await write(storage, thread, "resource", "owner's")
        assert await storage.get_thread(thread.id) == thread
        for text, shown in (("own", "own"), ("", None)):
            await write(storage, thread, "thread", text)
            read = await storage.get_thread(thread.id)
            assert read is not None
            assert (read.memory, read.metadata, read.version) == (shown, None, thread.version)
            again = await storage.create_thread(NewThread(thread.id, thread.resource_id))
            assert again == read
        await write(storage, thread, "thread", "own")
        changed = await storage.update_thread(thread.id, ThreadChange(metadata={"a": 1}), resource_id=None)
        assert (changed.memory, changed.metadata) == ("own", {"a": 1})
        assert await storage.get_thread(thread.id) == changed

    @pytest.mark.parametrize("field", ["createdAt", "updatedAt"])
    async def test_a_list_shows_the_memory_of_each_thread(self, storage: Storage, unique: str, field):
        threads = [await storage.create_thread(NewThread(f"t{n}-{unique}", unique)) for n in range(4)]
        for thread in threads[1:3]:
            await write(storage, thread, "thread", f"memory of {thread.id}")

        async def check() -> None:
            page = await storage.list_threads(unique, order_by=field)
            assert {t.id: t.memory for t in page.items} == {
                t.id: f"memory of {t.id}" if t in threads[1:3] else None for t in threads
            }

        await eventually(check, self.lag_seconds)

    # seeds

    @SCOPES
    async def test_wm20_a_thread_is_created_with_the_text_that_came_with_it(
        self, storage: Storage, unique: str, scope: MemoryScope
    ):
        made = await storage.create_thread(seeded(unique, scope, "text", metadata={"a": 1}))
        assert (made.memory, made.metadata, made.version) == ("text", {"a": 1}, 1)
        memory = await storage.get_working_memory(target_of(made, scope))
        digest = sha256(b"text").hexdigest()
        assert (memory.text, memory.version, memory.seeds) == ("text", 1, (digest,))
        assert [(r.version, r.writer, r.digest) for r in memory.past] == [(1, "http", digest)]
        stored = await storage.get_thread(made.id)
        assert stored == replace(made, memory="text" if scope == "thread" else None)
        other: MemoryScope = "resource" if scope == "thread" else "thread"
        assert await storage.get_working_memory(target_of(made, other)) == NOTHING

    @SCOPES
    async def test_wm20_a_seed_of_a_thread_that_exists_is_not_looked_at(
        self, storage: Storage, unique: str, scope: MemoryScope
    ):
        first = await storage.create_thread(seeded(unique, scope, "one"))
        again = await storage.create_thread(seeded(unique, scope, "two"))
        assert again == await storage.get_thread(first.id)
        assert await text_of(storage, first, scope) == "one"
        with pytest.raises(AccessDenied):
            await storage.create_thread(replace(seeded(unique, scope, "three"), resource_id=f"other-{unique}"))
        assert await storage.get_working_memory(MemoryTarget("resource", f"other-{unique}")) == NOTHING
        await storage.delete_thread(first.id, resource_id=None)
        with pytest.raises(ThreadGone):
            await storage.create_thread(seeded(unique, scope, "four"))
        assert (await storage.get_working_memory(MemoryTarget("resource", unique))).text in ("", "one")

    @SCOPES
    async def test_wm20_an_update_brings_a_text_and_replacing_metadata_leaves_it(
        self, storage: Storage, thread: Thread, scope: MemoryScope
    ):
        before = await write(storage, thread, scope, "old")
        seed = MemorySeed(scope, "new", "http")
        after = await storage.update_thread(
            thread.id, ThreadChange(metadata={"a": 1}, memory=seed), resource_id=thread.resource_id
        )
        assert (after.memory, after.metadata, after.version) == ("new", {"a": 1}, thread.version + 1)
        assert after.updated_at > thread.updated_at
        memory = await storage.get_working_memory(target_of(thread, scope))
        assert (memory.text, memory.version, memory.past[1:]) == ("new", 2, before.past)
        after = await storage.update_thread(
            thread.id, ThreadChange(memory=MemorySeed(scope, "newer", "http")), resource_id=None
        )
        assert (after.memory, after.metadata, after.title) == ("newer", {"a": 1}, "")
        await storage.update_thread(thread.id, ThreadChange(metadata={}), resource_id=None)
        assert await text_of(storage, thread, scope) == "newer"

    @SCOPES
    async def test_mdisc6_a_text_that_was_there_before_does_not_come_back(
        self, storage: Storage, unique: str, scope: MemoryScope
    ):
        async def seed(text: str) -> Thread:
            change = ThreadChange(memory=MemorySeed(scope, text, "http"))
            return await storage.update_thread(thread.id, change, resource_id=thread.resource_id)

        thread = await storage.create_thread(seeded(unique, scope, "initial"))
        memory = NOTHING
        for n in range(9):
            memory = await write(storage, thread, scope, f"by tool {n}")
        for stale in ("initial", "by tool 1", "by tool 8"):
            assert (await seed(stale)).memory == "by tool 8"
        assert await storage.get_working_memory(target_of(thread, scope)) == memory
        assert (await seed("by tool 0")).memory == "by tool 0"  # written so long ago that nobody remembers
        for n in range(8):
            await seed(f"seed {n}")
        assert (await seed("initial")).memory == "initial"  # the oldest of nine seeds

    async def test_mdisc6_a_new_thread_of_the_owner_does_not_bring_an_old_text_back(
        self, storage: Storage, unique: str
    ):
        first = await storage.create_thread(seeded(unique, "resource", "initial"))
        memory = await write(storage, first, "resource", "by tool")
        second = await storage.create_thread(replace(seeded(unique, "resource", "initial"), id=f"second-{unique}"))
        assert second.memory == "by tool"
        assert await storage.get_working_memory(MemoryTarget("resource", unique)) == memory
        assert (await storage.list_threads(unique)).total == 2

    @SCOPES
    async def test_a_refused_update_brings_no_text(
        self, storage: Storage, thread: Thread, unique: str, scope: MemoryScope
    ):
        change = ThreadChange(memory=MemorySeed(scope, "text", "http"))
        with pytest.raises(AccessDenied):
            await storage.update_thread(thread.id, change, resource_id=f"other-{unique}")
        with pytest.raises(NotFound):
            await storage.update_thread(f"none-{unique}", change, resource_id=None)
        with pytest.raises(TooLarge):
            big = ThreadChange("new", memory=MemorySeed(scope, "x" * 350_001, "http"))
            await storage.update_thread(thread.id, big, resource_id=None)
        with pytest.raises(TooLarge):
            await storage.create_thread(replace(seeded(unique, scope, "x" * 350_001), id=f"big-{unique}"))
        assert await storage.get_thread(f"big-{unique}") is None
        for owner in (thread.resource_id, f"other-{unique}"):
            assert await storage.get_working_memory(MemoryTarget("resource", owner)) == NOTHING
        assert await storage.get_thread(thread.id) == thread

    @SCOPES
    async def test_seeds_and_writes_at_the_same_time_leave_no_gap(
        self, storage: Storage, thread: Thread, scope: MemoryScope
    ):
        async def tool(n: int) -> None:
            read = await storage.get_working_memory(target_of(thread, scope))
            while True:
                try:
                    await write(storage, thread, scope, f"tool {n}", read)
                    return
                except MemoryMoved as moved:
                    read = moved.current

        async def update(n: int) -> None:
            change = ThreadChange(memory=MemorySeed(scope, f"seed {n}", "http"))
            await storage.update_thread(thread.id, change, resource_id=thread.resource_id if n % 2 else None)

        async def create(n: int) -> None:
            new = NewThread(f"{thread.id}-{n}", thread.resource_id, memory=MemorySeed("resource", f"new {n}", "http"))
            await storage.create_thread(new)

        calls = [
            call(n) for n in range(4) for call in ((tool, update, create) if scope == "resource" else (tool, update))
        ]
        await asyncio.gather(*calls)
        memory = await storage.get_working_memory(target_of(thread, scope))
        assert memory.version == len(calls)
        assert [r.version for r in memory.past] == list(range(len(calls), 0, -1))[:8]
        assert len(memory.seeds) == len(calls) - 4

    # copies

    async def test_th11_a_copy_has_the_memory_of_its_source_as_its_first_version(
        self, storage: Storage, thread: Thread, unique: str
    ):
        await self.fill(storage, thread, 50)
        await storage.update_thread(
            thread.id, ThreadChange(memory=MemorySeed("thread", "initial", "http")), resource_id=None
        )
        await write(storage, thread, "thread", "old")
        source = await write(storage, thread, "thread", "text")
        new = replace(seeded(unique, "thread", "not looked at"), id=f"copy-{unique}")
        clone = await storage.clone_thread(CloneRequest(thread.id, new))
        assert clone.thread.memory == "text"
        assert await storage.get_thread(clone.thread.id) == clone.thread
        copy = await storage.get_working_memory(target_of(clone.thread, "thread"))
        assert (copy.text, copy.version, copy.seeds) == ("text", 1, source.seeds)
        assert [(r.version, r.writer, r.digest) for r in copy.past] == [
            (1, f"clone of {thread.id}", source.past[0].digest)
        ]
        stale = ThreadChange(memory=MemorySeed("thread", "initial", "http"))
        assert (await storage.update_thread(clone.thread.id, stale, resource_id=None)).memory == "text"
        await write(storage, clone.thread, "thread", "apart")
        assert await storage.get_working_memory(target_of(thread, "thread")) == source
        await write(storage, thread, "thread", "gone")
        await storage.delete_thread(thread.id, resource_id=None)
        await storage.purge_thread(thread.id)
        assert await text_of(storage, clone.thread, "thread") == "apart"

    async def test_th11_an_empty_memory_gives_a_copy_without(self, storage: Storage, thread: Thread, unique: str):
        await write(storage, thread, "thread", "text")
        await write(storage, thread, "thread", "")
        clone = await storage.clone_thread(CloneRequest(thread.id, NewThread(f"copy-{unique}", unique)))
        assert clone.thread.memory is None
        assert await storage.get_working_memory(target_of(clone.thread, "thread")) == NOTHING

    async def test_th11_a_copy_for_another_owner_overwrites_that_owners_memory_if_asked_to(
        self, storage: Storage, thread: Thread, unique: str
    ):
        theirs = await write(storage, thread, "resource", "text")
        target, ours = MemoryTarget("resource", unique), NOTHING
        for n in range(2):
            ours = await storage.put_working_memory(MemoryWrite(target, f"own {n}", ours, "http"))
        await storage.clone_thread(CloneRequest(thread.id, NewThread(f"a-{unique}", unique)))
        assert await storage.get_working_memory(target) == ours
        clone = await storage.clone_thread(
            CloneRequest(thread.id, NewThread(f"b-{unique}", unique), resource_memory=True)
        )
        assert clone.thread.memory is None
        after = await storage.get_working_memory(target)
        assert (after.text, after.version, after.past[1:]) == ("text", 3, ours.past)
        assert (after.past[0].writer, after.past[0].digest) == (f"clone of {thread.id}", theirs.past[0].digest)
        await storage.clone_thread(CloneRequest(thread.id, NewThread(f"c-{unique}", unique), resource_memory=True))
        assert await storage.get_working_memory(target) == after
        assert await storage.get_working_memory(target_of(thread, "resource")) == theirs

    async def test_th11_a_copy_for_the_same_owner_or_of_an_empty_memory_overwrites_nothing(
        self, storage: Storage, thread: Thread, unique: str
    ):
        kept = await storage.put_working_memory(MemoryWrite(MemoryTarget("resource", unique), "own", NOTHING, "http"))
        same = NewThread(f"same-{unique}", thread.resource_id)
        written = await write(storage, thread, "resource", "text")
        await storage.clone_thread(CloneRequest(thread.id, same, resource_memory=True))
        assert await storage.get_working_memory(target_of(thread, "resource")) == written
        await write(storage, thread, "resource", "")
        await storage.clone_thread(CloneRequest(thread.id, NewThread(f"c-{unique}", unique), resource_memory=True))
        assert await storage.get_working_memory(MemoryTarget("resource", unique)) == kept

    async def test_th11_copies_and_writes_at_the_same_time_lose_nothing(
        self, storage: Storage, thread: Thread, unique: str
    ):
        await write(storage, thread, "resource", "text")
        target = MemoryTarget("resource", unique)

        async def tool(n: int) -> None:
            read = await storage.get_working_memory(target)
            while True:
                try:
                    await storage.put_working_memory(MemoryWrite(target, f"tool {n}", read, "http"))
                    return
                except MemoryMoved as moved:
                    read = moved.current

        request = CloneRequest(thread.id, NewThread(f"copy-{unique}", unique), resource_memory=True)
        await asyncio.gather(*map(tool, range(4)), storage.clone_thread(request))
        memory = await storage.get_working_memory(target)
        assert memory.version == 5
        assert sorted(r.writer for r in memory.past) == [f"clone of {thread.id}", *["http"] * 4]
