"""Changes of threads and of messages outside of turns (TH-8, TH-15, MS-4 to MS-8)."""

import asyncio
from dataclasses import replace

import pytest

from threadkeep import clock
from threadkeep.errors import AccessDenied, Conflict, InvalidInput, NotFound, ThreadGone, ThreadkeepError, TooLarge
from threadkeep.storage.order import order_key
from threadkeep.storage.port import MessageChange, NewThread, SavedMessage, Storage, Thread, ThreadChange, TurnCommit
from threadkeep.testing.storage_base import (
    FAITHFUL,
    StorageBase,
    eventually,
    faithful_text,
    ids_of,
    message,
    turn,
)


def saved(message_id: str | None = None, text: str = "hello", role: str = "user", **more: object) -> SavedMessage:
    content = {"format": 2, "parts": [{"type": "text", "text": text}]}
    return SavedMessage(role, content, message_id, **more)  # type: ignore[arg-type]


@pytest.mark.asyncio
class ChangesContract(StorageBase):
    # update_thread (TH-8)

    async def test_th8_absent_fields_are_left_and_empty_ones_written(self, storage: Storage, unique: str):
        made = await storage.create_thread(NewThread(f"t-{unique}", f"r-{unique}", "Title", {"a": 1}))
        titled = await storage.update_thread(made.id, ThreadChange(title=""), resource_id=made.resource_id)
        assert (titled.title, titled.metadata) == ("", {"a": 1})
        emptied = await storage.update_thread(made.id, ThreadChange(metadata={}), resource_id=None)
        assert (emptied.title, emptied.metadata) == ("", {})
        same = await storage.update_thread(made.id, ThreadChange(), resource_id=None)
        assert (same.title, same.metadata, same.created_at) == ("", {}, made.created_at)
        assert made.updated_at < titled.updated_at < emptied.updated_at < same.updated_at
        assert await storage.get_thread(made.id) == same

    async def test_th8_metadata_is_replaced_or_merged_by_top_level_key(self, storage: Storage, unique: str):
        made = await storage.create_thread(NewThread(f"t-{unique}", f"r-{unique}", metadata={"a": {"x": 1}, "b": 2}))
        change = ThreadChange(metadata={"a": {"y": 1}, "f": FAITHFUL}, merge=True)
        merged = await storage.update_thread(made.id, change, resource_id=None)
        assert merged.metadata == {"a": {"y": 1}, "b": 2, "f": FAITHFUL}
        assert faithful_text(merged.metadata["f"]) == faithful_text(FAITHFUL)
        replaced = await storage.update_thread(made.id, ThreadChange(metadata={"c": None}), resource_id=None)
        assert replaced.metadata == {"c": None}
        assert await storage.get_thread(made.id) == replaced

    async def test_th8_racing_merges_all_take_effect(self, storage: Storage, thread: Thread):
        changes = [ThreadChange(metadata={f"key{n}": n}, merge=True) for n in range(8)]
        await asyncio.gather(*(storage.update_thread(thread.id, c, resource_id=None) for c in changes))
        stored = await storage.get_thread(thread.id)
        assert stored is not None
        assert stored.metadata == {f"key{n}": n for n in range(8)}
        assert stored.version == thread.version + 8

    async def test_th8_a_change_beside_turns_loses_neither(self, storage: Storage, thread: Thread):
        await asyncio.gather(
            *(storage.commit_turn(TurnCommit(thread, turn())) for _ in range(4)),
            *(
                storage.update_thread(thread.id, ThreadChange(metadata={str(n): n}, merge=True), resource_id=None)
                for n in range(4)
            ),
        )
        stored = await storage.get_thread(thread.id)
        assert stored is not None
        assert (stored.message_count, stored.metadata) == (8, {str(n): n for n in range(4)})
        assert stored.updated_at >= stored.last_at

    async def test_th8_a_changed_thread_moves_to_the_front_by_update(self, storage: Storage, unique: str):
        first = await storage.create_thread(NewThread(f"a-{unique}", unique))
        await storage.create_thread(NewThread(f"b-{unique}", unique))
        await asyncio.sleep(0.005)
        await storage.update_thread(first.id, ThreadChange(title="new"), resource_id=None)

        async def check():
            page = await storage.list_threads(unique, order_by="updatedAt")
            assert [(t.id, t.title) for t in page.items] == [(first.id, "new"), (f"b-{unique}", "")]

        await eventually(check, self.lag_seconds)

    async def test_changes_of_what_is_not_there_or_anothers_are_refused(
        self, storage: Storage, thread: Thread, unique: str
    ):
        calls = [
            lambda i, r: storage.update_thread(i, ThreadChange(title="x"), resource_id=r),
            lambda i, r: storage.transfer_thread(i, f"to-{unique}", resource_id=r),
            lambda i, r: storage.save_messages(i, [saved("m")], resource_id=r),
            lambda i, r: storage.save_messages(i, [], resource_id=r),
            lambda i, r: storage.update_messages(i, [MessageChange("m", role="user")], resource_id=r),
            lambda i, r: storage.update_messages(i, [], resource_id=r),
            lambda i, r: storage.delete_messages(["m"], resource_id=r, thread_id=i),
            lambda i, r: storage.list_messages(i, resource_id=r),
        ]
        for call in calls:
            with pytest.raises(NotFound):
                await call(f"none-{unique}", None)
            with pytest.raises(AccessDenied):
                await call(thread.id, f"other-{unique}")
        assert await storage.get_thread(thread.id) == thread
        assert (await storage.list_messages(thread.id)).page.total == 0
        await storage.delete_thread(thread.id, resource_id=None)
        for call in calls:
            with pytest.raises(NotFound):
                await call(thread.id, None)
        assert (await storage.load_turn(thread.id, last_messages=5)).deleting is True

    async def test_a_title_or_metadata_that_fits_no_row_is_refused(self, storage: Storage, thread: Thread, unique: str):
        big = {"text": "x" * 360_000}
        with pytest.raises(TooLarge):
            await storage.update_thread(thread.id, ThreadChange(metadata=big), resource_id=None)
        with pytest.raises(TooLarge):
            await storage.update_thread(thread.id, ThreadChange(title="x" * 360_000), resource_id=None)
        with pytest.raises(TooLarge):
            await storage.create_thread(NewThread(f"big-{unique}", "r", metadata=big))
        with pytest.raises(TooLarge):
            await storage.commit_turn(TurnCommit(thread, turn(), thread_metadata=big))
        assert await storage.get_thread(thread.id) == thread

    # transfer_thread (TH-15)

    async def test_th15_a_transfer_moves_the_thread_with_its_messages(
        self, storage: Storage, thread: Thread, unique: str
    ):
        stored = await storage.commit_turn(TurnCommit(thread, turn()))
        moved = await storage.transfer_thread(thread.id, f"to-{unique}", resource_id=thread.resource_id)
        assert moved == replace(
            stored.thread, resource_id=f"to-{unique}", updated_at=moved.updated_at, version=stored.thread.version + 1
        )
        assert moved.updated_at > stored.thread.updated_at
        assert await storage.get_thread(thread.id) == moved
        assert (await storage.list_messages(thread.id, resource_id=f"to-{unique}")).page.items == stored.messages
        with pytest.raises(AccessDenied):
            await storage.list_messages(thread.id, resource_id=thread.resource_id)
        for order_by in ("createdAt", "updatedAt"):

            async def check():
                page = await storage.list_threads(thread.resource_id, order_by=order_by)  # noqa: B023
                assert (page.items, page.total) == ((), 0)
                page = await storage.list_threads(f"to-{unique}", order_by=order_by)  # noqa: B023
                assert (page.items, page.total) == ((moved,), 1)

            await eventually(check, self.lag_seconds)

    async def test_th15_a_transfer_to_the_owner_changes_nothing(self, storage: Storage, thread: Thread):
        assert await storage.transfer_thread(thread.id, thread.resource_id, resource_id=None) == thread
        assert await storage.get_thread(thread.id) == thread
        assert (await storage.list_threads(thread.resource_id)).total == 1

    async def test_th15_a_turn_loaded_before_a_transfer_is_refused(self, storage: Storage, thread: Thread, unique: str):
        await storage.transfer_thread(thread.id, f"to-{unique}", resource_id=None)
        with pytest.raises(ThreadGone):
            await storage.commit_turn(TurnCommit(thread, turn()))
        assert (await storage.list_messages(thread.id)).page.total == 0

    async def test_th15_of_racing_transfers_and_a_delete_the_counts_stay_exact(
        self, storage: Storage, thread: Thread, unique: str
    ):
        owners = [f"{n}-{unique}" for n in range(5)]
        answers = await asyncio.gather(
            *(storage.transfer_thread(thread.id, owner, resource_id=None) for owner in owners),
            storage.delete_thread(thread.id, resource_id=None),
            return_exceptions=True,
        )
        assert all(isinstance(a, Thread | NotFound | bool) for a in answers), answers
        assert answers[-1] is True
        for owner in (*owners, thread.resource_id):
            assert (await storage.list_threads(owner)).total == 0

    # save_messages (MS-4, MS-6)

    async def test_ms4_saved_messages_go_behind_what_is_stored(self, storage: Storage, thread: Thread):
        first = await storage.commit_turn(TurnCommit(thread, turn(at=thread.created_at + 60_000)))
        rows = await storage.save_messages(thread.id, [saved("a"), saved(), saved("c", type="note")], resource_id=None)
        assert (rows[0].id, rows[2].id, rows[2].type) == ("a", "c", "note")
        assert rows[1].id not in ("a", "c", "")
        assert [m.created_at for m in rows] == [first.thread.last_at + n for n in (1, 2, 3)]
        listed = await storage.list_messages(thread.id)
        assert listed.page.items == (*first.messages, *rows)
        assert (listed.page.total, listed.thread.seq, listed.thread.last_at) == (5, 5, rows[2].created_at)
        assert listed.thread.updated_at > first.thread.updated_at
        late = await storage.commit_turn(TurnCommit(first.thread, turn()))
        assert (await storage.list_messages(thread.id)).page.items == (*first.messages, *rows, *late.messages)

    async def test_ms4_a_time_of_its_own_puts_a_message_among_those_of_that_time(
        self, storage: Storage, thread: Thread
    ):
        past = thread.created_at - 1000
        later = await storage.save_messages(thread.id, [saved("now")], resource_id=None)
        await storage.save_messages(
            thread.id, [saved("b", created_at=past + 2), saved("a", created_at=past)], resource_id=None
        )
        await storage.save_messages(thread.id, [saved("b2", created_at=past + 2)], resource_id=None)
        listed = await storage.list_messages(thread.id)
        assert ids_of(listed.page.items) == ["a", "b", "b2", "now"]
        assert [m.created_at for m in listed.page.items] == [past, past + 2, past + 2, later[0].created_at]
        assert listed.thread.last_at == later[0].created_at
        assert [m.order for m in listed.page.items] == sorted(m.order for m in listed.page.items)

    @pytest.mark.parametrize("at", [-1, 10**15, clock.now() + 2 * 86_400_000])
    async def test_ms4_times_that_cannot_be_are_refused(self, storage: Storage, thread: Thread, at: int):
        with pytest.raises(InvalidInput) as caught:
            await storage.save_messages(thread.id, [saved("a"), saved("b", created_at=at)], resource_id=None)
        assert caught.value.issues[0].field == "createdAt"
        assert await storage.get_thread(thread.id) == thread

    async def test_ms4_h19_system_messages_are_left_out_and_none_becomes_one(self, storage: Storage, thread: Thread):
        rows = await storage.save_messages(
            thread.id, [saved("a"), saved("s", role="system"), saved("b", role="signal")], resource_id=None
        )
        assert ids_of(rows) == ["a", "b"]
        assert await storage.save_messages(thread.id, [saved("s", role="system")], resource_id=None) == ()
        with pytest.raises(InvalidInput, match="role"):
            await storage.update_messages(thread.id, [MessageChange("a", role="system")], resource_id=None)
        listed = await storage.list_messages(thread.id)
        assert (listed.page.items, listed.page.total) == (rows, 2)

    async def test_ms6_content_metadata_that_is_not_in_the_new_version_is_lost(self, storage: Storage, thread: Thread):
        old = SavedMessage("user", {"format": 2, "parts": [], "metadata": {"a": 1}}, "m", None, 5)
        new = SavedMessage("assistant", {"format": 2, "parts": [], "metadata": {"b": 2}}, "m", "text", 9)
        await storage.save_messages(thread.id, [old], resource_id=None)
        (row,) = await storage.save_messages(thread.id, [new], resource_id=None)
        assert (row.content, row.role, row.type, row.created_at) == (new.content, "assistant", "text", 5)

    async def test_ms4_an_empty_list_is_fine(self, storage: Storage, thread: Thread):
        assert await storage.save_messages(thread.id, [], resource_id=None) == ()
        assert await storage.update_messages(thread.id, [], resource_id=None) == ()
        assert await storage.delete_messages([], resource_id=None) == 0
        assert await storage.get_thread(thread.id) == thread

    async def test_ms6_a_save_of_a_known_id_replaces_the_content_and_keeps_the_place(
        self, storage: Storage, thread: Thread
    ):
        rows = await storage.save_messages(
            thread.id, [saved("a", type="note"), saved("b"), saved("c")], resource_id=None
        )
        again = SavedMessage("assistant", {"format": 2, "parts": [], "f": FAITHFUL}, "a", created_at=5)
        (after,) = await storage.save_messages(thread.id, [again], resource_id=None)
        assert after == replace(
            rows[0], role="assistant", type=None, content=after.content, revision=rows[0].revision + 1
        )
        assert faithful_text(after.content["f"]) == faithful_text(FAITHFUL)
        listed = await storage.list_messages(thread.id)
        assert listed.page.items == (after, *rows[1:])
        assert (listed.page.total, listed.thread.seq, listed.thread.message_count) == (3, 3, 3)

    async def test_h12_saving_again_multiplies_nothing(self, storage: Storage, thread: Thread):
        batch = [saved(f"m{n:02}", role=("user", "assistant")[n % 2]) for n in range(60)]
        first = await storage.save_messages(thread.id, batch, resource_id=None)
        for _ in range(2):
            again = await storage.save_messages(thread.id, batch, resource_id=None)
            assert [(m.id, m.order) for m in again] == [(m.id, m.order) for m in first]
        listed = await storage.list_messages(thread.id, per_page=None)
        assert [(m.id, m.order) for m in listed.page.items] == [(m.id, m.order) for m in first]
        assert (listed.page.total, listed.thread.seq) == (60, 60)

    async def test_ms6_of_several_with_one_id_the_last_counts(self, storage: Storage, thread: Thread):
        rows = await storage.save_messages(
            thread.id, [saved("a", "one"), saved("b"), saved("a", "two")], resource_id=None
        )
        assert ids_of(rows) == ["a", "b"]
        assert rows[0].content["parts"][0]["text"] == "two"
        assert (await storage.list_messages(thread.id)).page.items == rows

    async def test_racing_saves_of_the_same_ids_store_each_once(self, storage: Storage, thread: Thread):
        batches = [[saved(f"m{n}", f"by {b}") for n in range(6)] + [saved(f"own{b}")] for b in range(5)]
        await asyncio.gather(*(storage.save_messages(thread.id, b, resource_id=None) for b in batches))
        listed = await storage.list_messages(thread.id)
        assert sorted(ids_of(listed.page.items)) == sorted([f"m{n}" for n in range(6)] + [f"own{b}" for b in range(5)])
        assert (listed.page.total, listed.thread.message_count, listed.thread.seq) == (11, 11, 11)
        by_text = {m.content["parts"][0]["text"] for m in listed.page.items if m.id.startswith("m")}
        assert len(by_text) == 1  # each save is one effect

    # update_messages (MS-7)

    async def test_ms7_given_fields_replace_and_content_is_merged(self, storage: Storage, thread: Thread):
        content = {"format": 2, "parts": [1], "content": "x", "metadata": {"a": {"deep": 1}, "b": 2}}
        (old,) = await storage.save_messages(thread.id, [SavedMessage("user", content, "m", "t")], resource_id=None)
        changes = [
            MessageChange("none", role="user"),
            MessageChange("m", content={"parts": [2], "metadata": {"a": {"other": 1}, "f": FAITHFUL}}),
            MessageChange("m", role="assistant"),
        ]
        (new,) = await storage.update_messages(thread.id, changes, resource_id=None)
        assert new == replace(old, role="assistant", content=new.content, revision=new.revision)
        assert new.content == {
            "format": 2,
            "parts": [2],
            "content": "x",
            "metadata": {"a": {"other": 1}, "b": 2, "f": FAITHFUL},
        }
        listed = await storage.list_messages(thread.id)
        assert listed.page.items == (new,)
        (typed,) = await storage.update_messages(thread.id, [MessageChange("m", type="")], resource_id=None)
        assert (typed.type, typed.role, typed.content) == ("", "assistant", new.content)

    async def test_ms7_unknown_ids_change_nothing(self, storage: Storage, thread: Thread):
        assert await storage.update_messages(thread.id, [MessageChange("x", role="user")], resource_id=None) == ()
        assert await storage.get_thread(thread.id) == thread

    async def test_ms7_racing_changes_of_one_message_are_all_kept(self, storage: Storage, thread: Thread):
        await storage.save_messages(thread.id, [saved("m")], resource_id=None)
        changes = [MessageChange("m", content={"metadata": {f"k{n}": n}}) for n in range(6)]
        await asyncio.gather(*(storage.update_messages(thread.id, [c], resource_id=None) for c in changes))
        (stored,) = (await storage.list_messages(thread.id)).page.items
        metadata = {f"k{n}": n for n in range(6)}
        assert stored.content["metadata"] == metadata

    async def test_ms7_many_changes_take_effect(self, storage: Storage, thread: Thread):
        await self.fill(storage, thread, 100)
        changes = [MessageChange(f"m{n:03}", content={"n": -n}) for n in range(100)]
        rows = await storage.update_messages(thread.id, changes, resource_id=None)
        assert [m.content["n"] for m in rows] == [-n for n in range(100)]
        assert (await storage.list_messages(thread.id, per_page=None)).page.items == rows

    # delete_messages (MS-8)

    async def test_ms8_deleted_messages_are_gone_and_counted(self, storage: Storage, thread: Thread):
        rows = await self.fill(storage, thread, 5)
        gone = await storage.delete_messages(
            ["m001", "m003", "none", "m001"], resource_id=thread.resource_id, thread_id=thread.id
        )
        assert gone == 2
        listed = await storage.list_messages(thread.id)
        assert listed.page.items == (rows[0], rows[2], rows[4])
        assert (listed.page.total, listed.thread.message_count, listed.thread.seq) == (3, 3, 5)
        assert listed.thread.updated_at > rows[-1].created_at
        state = await storage.load_turn(thread.id, last_messages=9, message_ids=["m001", "m002"])
        assert state.stored_ids == {"m002"}
        assert await storage.delete_messages(["m001"], resource_id=None) == 0
        assert (await storage.list_messages(thread.id)).thread == listed.thread

    async def test_ms8_threads_are_found_by_the_messages(self, storage: Storage, unique: str):
        for name in "ab":
            made = await storage.create_thread(NewThread(f"{name}-{unique}", f"r-{unique}"))
            await storage.save_messages(made.id, [saved(f"{name}{n}-{unique}") for n in range(60)], resource_id=None)
        doomed = [f"{name}{n}-{unique}" for name in "ab" for n in range(0, 60, 2)]
        assert await storage.delete_messages(doomed, resource_id=f"r-{unique}") == 60
        for name in "ab":
            listed = await storage.list_messages(f"{name}-{unique}", per_page=None)
            assert ids_of(listed.page.items) == [f"{name}{n}-{unique}" for n in range(1, 60, 2)]
            assert listed.page.total == 30

    async def test_ms8_a_message_of_another_owner_denies_the_whole_call(
        self, storage: Storage, thread: Thread, unique: str
    ):
        other = await storage.create_thread(NewThread(f"other-{unique}", f"other-{unique}"))
        await storage.commit_turn(TurnCommit(thread, (message(f"mine-{unique}"),)))
        await storage.commit_turn(TurnCommit(other, (message(f"theirs-{unique}"),)))
        both = [f"mine-{unique}", f"theirs-{unique}"]
        with pytest.raises(AccessDenied):
            await storage.delete_messages(both, resource_id=thread.resource_id)
        for home in (thread, other):
            assert (await storage.list_messages(home.id)).page.total == 1
        assert await storage.delete_messages(both, resource_id=None) == 2

    async def test_ms8_an_id_that_others_have_too_means_ones_own(self, storage: Storage, thread: Thread, unique: str):
        shared = f"shared-{unique}"
        other = await storage.create_thread(NewThread(f"other-{unique}", f"other-{unique}"))
        for home in (thread, other):
            await storage.commit_turn(TurnCommit(home, (message(shared),)))
        with pytest.raises(Conflict):
            await storage.delete_messages([shared], resource_id=None)
        assert await storage.delete_messages([shared], resource_id=thread.resource_id) == 1
        assert (await storage.list_messages(thread.id)).page.total == 0
        assert (await storage.list_messages(other.id)).page.total == 1
        assert await storage.delete_messages([shared], resource_id=None, thread_id=other.id) == 1

    async def test_ms8_a_deleted_id_may_be_stored_again_at_the_end(self, storage: Storage, thread: Thread):
        await self.fill(storage, thread, 3)
        await storage.delete_messages(["m000"], resource_id=None, thread_id=thread.id)
        (again,) = await storage.save_messages(thread.id, [saved("m000")], resource_id=None)
        assert ids_of((await storage.list_messages(thread.id)).page.items) == ["m001", "m002", "m000"]
        assert again.order == order_key(again.created_at, 4)

    async def test_ms8_racing_deletes_saves_and_turns_keep_the_count_exact(self, storage: Storage, thread: Thread):
        await self.fill(storage, thread, 12)
        stored = await storage.get_thread(thread.id)
        assert stored is not None
        answers = await asyncio.gather(
            *(
                storage.delete_messages([f"m{n:03}" for n in range(k, 12, 2)], resource_id=None, thread_id=thread.id)
                for k in (0, 1, 0, 1)
            ),
            storage.save_messages(thread.id, [saved("m000"), saved("new")], resource_id=None),
            storage.commit_turn(TurnCommit(stored, turn())),
            return_exceptions=True,
        )
        assert not [a for a in answers if isinstance(a, Exception) and not isinstance(a, ThreadkeepError)], answers
        listed = await storage.list_messages(thread.id, per_page=None)
        assert listed.page.total == len(listed.page.items) == listed.thread.message_count

    async def test_ms8_messages_of_a_deleted_thread_are_unknown(self, storage: Storage, thread: Thread, unique: str):
        await storage.commit_turn(TurnCommit(thread, (message(f"m-{unique}"),)))
        await storage.delete_thread(thread.id, resource_id=None)
        assert await storage.delete_messages([f"m-{unique}"], resource_id="someone else") == 0
