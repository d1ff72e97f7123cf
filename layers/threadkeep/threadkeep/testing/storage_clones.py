"""Copies of threads (TH-10, M-DISC-4, case H29)."""

import asyncio
from dataclasses import replace

import pytest

from threadkeep import clock
from threadkeep.errors import AccessDenied, Conflict, InvalidInput, NotFound
from threadkeep.storage.order import order_key
from threadkeep.storage.port import CloneRequest, NewThread, SavedMessage, Storage, Thread, TurnCommit
from threadkeep.testing.storage_base import FAITHFUL, StorageBase, faithful_text, ids_of, message, turn


def to(unique: str, **more: object) -> NewThread:
    return NewThread(f"copy-{unique}", f"r-{unique}", **more)  # type: ignore[arg-type]


@pytest.mark.asyncio
class ClonesContract(StorageBase):
    async def test_h29_a_copy_has_new_ids_and_the_old_contents_times_and_order(
        self, storage: Storage, thread: Thread, unique: str
    ):
        rows = await self.fill(storage, thread, 100)
        await storage.save_messages(
            thread.id, [SavedMessage("signal", {"f": FAITHFUL}, "odd", "note", 50)], resource_id=None
        )
        source = (await storage.list_messages(thread.id, per_page=None)).page.items
        before = clock.now()
        clone = await storage.clone_thread(CloneRequest(thread.id, to(unique)))
        assert len(clone.messages) == len(clone.ids) == 101
        assert list(clone.ids) == ids_of(source)
        assert [clone.ids[m.id] for m in source] == ids_of(clone.messages)
        assert not set(ids_of(clone.messages)) & set(ids_of(source))
        for n, (old, new) in enumerate(zip(source, clone.messages, strict=True), 1):
            order = order_key(old.created_at, n)
            assert new == replace(old, id=new.id, thread_id=f"copy-{unique}", order=order, revision=1)
            assert faithful_text(new.content) == faithful_text(old.content)
        made = clone.thread
        assert (made.resource_id, made.title, made.message_count, made.seq) == (f"r-{unique}", "", 101, 101)
        assert made.created_at >= before - 1
        assert made.last_at == rows[-1].created_at
        assert made.metadata == {
            "clone": {
                "sourceThreadId": thread.id,
                "clonedAt": clock.iso(made.created_at),
                "lastMessageId": source[-1].id,
            }
        }
        listed = await storage.list_messages(made.id, per_page=None)
        assert (listed.thread, listed.page.items, listed.page.total) == (made, clone.messages, 101)
        assert (await storage.list_threads(f"r-{unique}")).total == 2
        state = await storage.load_turn(made.id, last_messages=1, message_ids=[*clone.ids.values(), "odd"])
        assert state.stored_ids == set(clone.ids.values())

    async def test_h29_source_and_copy_live_apart(self, storage: Storage, thread: Thread, unique: str):
        await self.fill(storage, thread, 5)
        clone = await storage.clone_thread(CloneRequest(thread.id, to(unique)))
        before = await storage.list_messages(thread.id)
        done = await storage.commit_turn(TurnCommit(clone.thread, turn()))
        await storage.delete_messages([clone.ids["m000"]], resource_id=None)
        assert await storage.list_messages(thread.id) == before
        await storage.delete_thread(thread.id, resource_id=None)
        await storage.purge_thread(thread.id)
        listed = await storage.list_messages(f"copy-{unique}")
        assert listed.page.items == (*clone.messages[1:], *done.messages)

    async def test_th10_mdisc4_the_title_says_of_what_it_is_a_copy(self, storage: Storage, unique: str):
        source = await storage.create_thread(NewThread(f"t-{unique}", unique, "Plans", {"own": 1}))
        given = NewThread(f"a-{unique}", unique, "Given", {"mine": 2, "clone": "no"})
        first = await storage.clone_thread(CloneRequest(source.id, given))
        assert (first.thread.title, first.messages, first.ids) == ("Given", (), {})
        origin = {"sourceThreadId": source.id, "clonedAt": clock.iso(first.thread.created_at)}
        assert first.thread.metadata == {"mine": 2, "clone": origin}  # not the source's (M-DISC-4)
        second = await storage.clone_thread(CloneRequest(source.id, NewThread(f"b-{unique}", unique)))
        assert second.thread.title == "Clone of Plans"
        third = await storage.clone_thread(CloneRequest(second.thread.id, NewThread(f"c-{unique}", unique)))
        assert third.thread.title == "Clone of Clone of Plans"
        assert await storage.list_clones(source.id) == (f"a-{unique}", f"b-{unique}")
        assert await storage.list_clones(second.thread.id) == (f"c-{unique}",)
        assert await storage.list_clones(f"none-{unique}") == ()

    @pytest.mark.parametrize(
        ("limit", "since", "until", "ids", "copied"),
        [
            (7, None, None, None, range(53, 60)),
            (0, None, None, None, ()),
            (99, None, None, None, range(60)),
            (None, 1010, 1019, None, range(10, 20)),
            (3, None, 1019, None, (17, 18, 19)),
            (None, 1005, None, (2, 5, 50, 99), (5, 50)),
            (1, 1005, None, (2, 5, 50, 99), (50,)),
            (None, None, None, (), ()),
            (2, None, None, (99,), ()),
            (None, 1020, 1010, None, ()),
            (5, None, -1, None, ()),
            (None, -9, 10**18, range(0, 60, 3), range(0, 60, 3)),
        ],
    )
    async def test_th10_filters_add_up_and_the_limit_takes_the_newest(
        self, storage: Storage, thread: Thread, unique: str, limit, since, until, ids, copied
    ):
        rows = [SavedMessage("user", {"n": n}, f"m{n}", None, 1000 + n) for n in range(60)]
        await storage.save_messages(thread.id, rows, resource_id=None)
        names = None if ids is None else frozenset(f"m{n}" for n in ids)
        clone = await storage.clone_thread(CloneRequest(thread.id, to(unique), limit, since, until, names))
        assert [m.content["n"] for m in clone.messages] == list(copied)
        assert list(clone.ids) == [f"m{n}" for n in copied]
        assert (clone.thread.message_count, clone.thread.seq) == (len(copied),) * 2
        assert clone.thread.last_at == (1000 + copied[-1] if copied else 0)
        assert clone.thread.metadata is not None
        assert clone.thread.metadata["clone"].get("lastMessageId") == (f"m{copied[-1]}" if copied else None)

    async def test_th10_an_unknown_source_and_an_existing_copy_are_refused(
        self, storage: Storage, thread: Thread, unique: str
    ):
        with pytest.raises(NotFound, match="Source thread not found"):
            await storage.clone_thread(CloneRequest(f"none-{unique}", to(unique)))
        with pytest.raises(AccessDenied):
            await storage.clone_thread(CloneRequest(thread.id, to(unique)), resource_id=f"other-{unique}")
        with pytest.raises(InvalidInput):
            ids = frozenset(map(str, range(1001)))
            await storage.clone_thread(CloneRequest(thread.id, to(unique), message_ids=ids))
        assert await storage.get_thread(f"copy-{unique}") is None
        with pytest.raises(Conflict):
            await storage.clone_thread(CloneRequest(thread.id, NewThread(thread.id, thread.resource_id)))
        clone = await storage.clone_thread(CloneRequest(thread.id, to(unique)), resource_id=thread.resource_id)
        with pytest.raises(Conflict):
            await storage.clone_thread(CloneRequest(thread.id, to(unique)))
        assert await storage.get_thread(f"copy-{unique}") == clone.thread
        assert await storage.list_clones(thread.id) == (f"copy-{unique}",)
        await storage.delete_thread(f"copy-{unique}", resource_id=None)
        with pytest.raises(Conflict):
            await storage.clone_thread(CloneRequest(thread.id, to(unique)))
        assert await storage.list_clones(thread.id) == ()
        await storage.purge_thread(f"copy-{unique}")
        again = await storage.clone_thread(CloneRequest(thread.id, to(unique)))
        assert again.thread.created_at > clone.thread.created_at

    async def test_of_racing_copies_to_one_id_one_wins(self, storage: Storage, thread: Thread, unique: str):
        await self.fill(storage, thread, 50)
        answers = await asyncio.gather(
            *(storage.clone_thread(CloneRequest(thread.id, to(unique))) for _ in range(4)), return_exceptions=True
        )
        assert sorted(type(a).__name__ for a in answers) == ["Clone"] + ["Conflict"] * 3
        assert (await storage.list_threads(f"r-{unique}")).total == 2
        assert len((await storage.list_messages(f"copy-{unique}", per_page=None)).page.items) == 50

    async def test_a_copy_for_another_owner_is_that_owners(self, storage: Storage, thread: Thread, unique: str):
        await self.fill(storage, thread, 3)
        clone = await storage.clone_thread(CloneRequest(thread.id, NewThread(f"copy-{unique}", f"other-{unique}")))
        assert (await storage.list_threads(f"other-{unique}")).items == (clone.thread,)
        with pytest.raises(AccessDenied):
            await storage.list_messages(f"copy-{unique}", resource_id=thread.resource_id)

    async def test_finishing_what_is_no_unfinished_copy_has_no_effect(
        self, storage: Storage, thread: Thread, unique: str
    ):
        clone = await storage.clone_thread(CloneRequest(thread.id, to(unique)))
        for name in (thread.id, clone.thread.id, f"none-{unique}"):
            await storage.finish_clone(name)
        assert await storage.get_thread(thread.id) == thread
        assert await storage.get_thread(clone.thread.id) == clone.thread

    async def test_a_purged_copy_leaves_no_link(self, storage: Storage, thread: Thread, unique: str):
        await storage.clone_thread(CloneRequest(thread.id, to(unique)))
        await storage.delete_thread(f"copy-{unique}", resource_id=None)
        await storage.purge_thread(f"copy-{unique}")
        await storage.create_thread(NewThread(f"copy-{unique}", f"r-{unique}"))
        assert await storage.list_clones(thread.id) == ()

    async def test_turns_beside_a_copy_are_in_the_source_and_not_torn(
        self, storage: Storage, thread: Thread, unique: str
    ):
        await self.fill(storage, thread, 90)
        loaded = await storage.get_thread(thread.id)
        assert loaded is not None
        clone, *_ = await asyncio.gather(
            storage.clone_thread(CloneRequest(thread.id, to(unique))),
            *(storage.commit_turn(TurnCommit(loaded, (message(), message()))) for _ in range(3)),
        )
        source = await storage.list_messages(thread.id, per_page=None)
        assert source.page.total == 96
        assert list(clone.ids) == ids_of(source.page.items)[: len(clone.ids)]
        assert len(clone.ids) in (90, 92, 94, 96)
