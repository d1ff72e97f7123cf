"""What every adapter of the storage port must do: one suite, run on each of them.

To run it on an adapter, subclass `StorageContract` in a test module and give it a
fixture `storage`::

    class TestMyStorage(StorageContract):
        machine_examples = 5  # a slow store: fewer random histories

        @pytest.fixture
        def storage(self) -> Storage:
            return MyStorage(...)

The store may be new for each test or shared by all of them, and may hold other data: the suite makes
its own ids and looks at nothing else. Lists that the port lets lag are awaited for `lag_seconds`.
"""

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest

from threadkeep.errors import AccessDenied, Conflict, NotFound, ThreadGone, TooLarge
from threadkeep.storage.order import order_key
from threadkeep.storage.port import (
    Budget,
    Committed,
    Direction,
    Job,
    Message,
    MessageUpdate,
    NewMessage,
    NewThread,
    Page,
    SavedMessage,
    Storage,
    Thread,
    ThreadChange,
    TurnCommit,
)
from threadkeep.testing.storage_base import (
    FAITHFUL,
    ODD_IDS,
    SEPARATORS,
    eventually,
    faithful_text,
    ids_of,
    message,
    turn,
)
from threadkeep.testing.storage_bodies import BodiesContract
from threadkeep.testing.storage_changes import ChangesContract
from threadkeep.testing.storage_clones import ClonesContract
from threadkeep.testing.storage_journals import JournalsContract
from threadkeep.testing.storage_live import LiveContract
from threadkeep.testing.storage_machine import run_random_histories
from threadkeep.testing.storage_origins import OriginsContract
from threadkeep.testing.storage_reading import ReadingContract
from threadkeep.testing.storage_receipts import ReceiptsContract
from threadkeep.testing.storage_suspended import SuspendedContract
from threadkeep.testing.storage_working_memory import WorkingMemoryContract


@pytest.mark.asyncio
class StorageContract(
    BodiesContract,
    ChangesContract,
    ClonesContract,
    JournalsContract,
    LiveContract,
    OriginsContract,
    ReadingContract,
    ReceiptsContract,
    SuspendedContract,
    WorkingMemoryContract,
):
    """The whole contract."""

    # create_thread, get_thread

    async def test_th1_th2_a_created_thread_is_what_was_asked_for(self, storage: Storage, unique: str):
        made = await storage.create_thread(NewThread(f"t-{unique}", f"r-{unique}", "Title", {"a": 1}))
        assert (made.id, made.resource_id, made.title, made.metadata) == (
            f"t-{unique}",
            f"r-{unique}",
            "Title",
            {"a": 1},
        )
        assert made.created_at == made.updated_at > 0
        assert (made.seq, made.last_at, made.message_count, made.version) == (0, 0, 0, 1)
        assert await storage.get_thread(made.id) == made

    async def test_th2_a_thread_without_title_and_metadata_has_an_empty_title_and_none(
        self, storage: Storage, thread: Thread
    ):
        assert (thread.title, thread.metadata) == ("", None)
        assert await storage.get_thread(thread.id) == thread

    async def test_empty_metadata_is_not_the_same_as_none(self, storage: Storage, unique: str):
        await storage.create_thread(NewThread(f"t-{unique}", f"r-{unique}", metadata={}))
        stored = await storage.get_thread(f"t-{unique}")
        assert stored is not None
        assert stored.metadata == {}

    async def test_th3_creating_again_returns_the_stored_thread_unchanged(self, storage: Storage, thread: Thread):
        await storage.commit_turn(TurnCommit(thread, turn()))
        stored = await storage.get_thread(thread.id)
        again = await storage.create_thread(NewThread(thread.id, thread.resource_id, "Other", {"other": True}))
        assert again == stored == await storage.get_thread(thread.id)
        assert (await storage.list_threads(thread.resource_id)).total == 1

    async def test_th3_mdisc11_an_id_of_another_owner_is_denied_and_nothing_changes(
        self, storage: Storage, thread: Thread, unique: str
    ):
        with pytest.raises(AccessDenied):
            await storage.create_thread(NewThread(thread.id, f"other-{unique}", "Mine now"))
        assert await storage.get_thread(thread.id) == thread
        assert (await storage.list_threads(f"other-{unique}")).total == 0

    async def test_of_racing_creations_one_owner_wins(self, storage: Storage, unique: str):
        owners = [f"{'ab'[n % 2]}-{unique}" for n in range(20)]
        answers = await asyncio.gather(
            *(storage.create_thread(NewThread(f"t-{unique}", o, f"title {n}")) for n, o in enumerate(owners)),
            return_exceptions=True,
        )
        stored = await storage.get_thread(f"t-{unique}")
        assert stored is not None
        for owner, answer in zip(owners, answers, strict=True):
            if owner == stored.resource_id:
                assert answer == stored
            else:
                assert isinstance(answer, AccessDenied)
        for owner in set(owners):
            assert (await storage.list_threads(owner)).total == int(owner == stored.resource_id)

    async def test_a_thread_that_was_never_made_is_none(self, storage: Storage, unique: str):
        assert await storage.get_thread(f"t-{unique}") is None

    async def test_callers_and_store_share_no_objects(self, storage: Storage, unique: str):
        metadata, body = {"list": [1]}, {"list": [1]}
        made = await storage.create_thread(NewThread(f"t-{unique}", f"r-{unique}", metadata=metadata))
        job = Job("run", made.id, "agent", body)
        done = await storage.commit_turn(TurnCommit(made, (message("m", list=body["list"]),), job))
        metadata["list"].append(2)
        body["list"].append(2)
        assert made.metadata
        assert done.thread.metadata
        for seen in (made.metadata, done.thread.metadata, done.messages[0].content):
            seen["list"].append(3)
        for _ in range(2):
            state = await storage.load_turn(made.id, last_messages=1)
            stored = await storage.get_job(made.id, "run")
            assert state.thread
            assert state.thread.metadata
            assert stored
            for seen in (state.thread.metadata, state.history[0].content, stored.body):
                assert seen["list"] == [1]
                seen["list"].append(4)

    # list_threads

    async def threads(self, storage: Storage, owner: str, count: int) -> list[Thread]:
        """Threads of one owner, each created in a millisecond of its own, oldest first."""
        made: list[Thread] = []
        for n in range(count):
            made.append(await storage.create_thread(NewThread(f"{owner}-{n}", owner)))
            await asyncio.sleep(0.003)
        return made

    async def test_th5_threads_are_listed_newest_first(self, storage: Storage, unique: str):
        made = await self.threads(storage, unique, 4)
        page = await storage.list_threads(unique)
        assert page == Page(tuple(reversed(made)), total=4, page=0, per_page=100, has_more=False)
        ascending = await storage.list_threads(unique, direction="ASC")
        assert list(ascending.items) == made

    @pytest.mark.parametrize("direction", ["ASC", "DESC"])
    async def test_pages_of_threads_are_exact(self, storage: Storage, unique: str, direction: Direction):
        made = await self.threads(storage, unique, 5)
        expected = ids_of(made if direction == "ASC" else made[::-1])
        for page, (found, more) in enumerate([(expected[:2], True), (expected[2:4], True), (expected[4:], False)]):
            answer = await storage.list_threads(unique, page=page, per_page=2, direction=direction)
            assert (ids_of(answer.items), answer.total, answer.has_more) == (found, 5, more)
            assert (answer.page, answer.per_page) == (page, 2)

    async def test_th6_page_sizes_zero_all_exact_and_pages_past_the_end(self, storage: Storage, unique: str):
        await self.threads(storage, unique, 3)
        for per_page, page, count, more in [(0, 0, 0, True), (None, 0, 3, False), (3, 0, 3, False), (2, 7, 0, False)]:
            answer = await storage.list_threads(unique, page=page, per_page=per_page)
            assert (len(answer.items), answer.total, answer.has_more) == (count, 3, more)
            assert (answer.page, answer.per_page) == (page, per_page)

    async def test_an_owner_without_threads_has_an_empty_list(self, storage: Storage, unique: str):
        for per_page in (0, 5, None):
            answer = await storage.list_threads(unique, per_page=per_page)
            assert (answer.items, answer.total, answer.has_more) == ((), 0, False)

    async def test_a_turn_moves_a_thread_to_the_front_by_update(self, storage: Storage, unique: str):
        made = await self.threads(storage, unique, 3)
        await storage.commit_turn(TurnCommit(made[0], turn(at=made[-1].updated_at + 10)))

        async def check():
            page = await storage.list_threads(unique, order_by="updatedAt")
            assert ids_of(page.items) == [f"{unique}-0", f"{unique}-2", f"{unique}-1"]
            assert page.total == 3
            page = await storage.list_threads(unique, order_by="updatedAt", direction="ASC", per_page=2)
            assert ids_of(page.items) == [f"{unique}-1", f"{unique}-2"]
            assert (page.total, page.has_more) == (3, True)

        await eventually(check, self.lag_seconds)
        assert ids_of((await storage.list_threads(unique)).items) == ids_of(made[::-1])

    async def test_lists_show_each_thread_as_it_is(self, storage: Storage, unique: str):
        made = await storage.create_thread(NewThread(f"t-{unique}", unique, "Title", FAITHFUL))
        done = await storage.commit_turn(TurnCommit(made, turn()))
        for order_by in ("createdAt", "updatedAt"):

            async def check():
                page = await storage.list_threads(unique, order_by=order_by)  # noqa: B023
                assert page.items == (done.thread,)

            await eventually(check, self.lag_seconds)

    @pytest.mark.parametrize("order_by", ["createdAt", "updatedAt"])
    async def test_without_an_owner_all_threads_are_listed(self, storage: Storage, unique: str, order_by: Any):
        first = (await self.threads(storage, f"a-{unique}", 2)) + (await self.threads(storage, f"b-{unique}", 2))
        await storage.delete_thread(first[3].id, resource_id=None)

        async def check():
            found = await storage.list_threads(None, per_page=None, order_by=order_by)
            assert [t.id for t in found.items if unique in t.id] == ids_of(first[2::-1])
            assert (found.total, found.has_more) == (len(found.items), False)
            found = await storage.list_threads(None, per_page=None, order_by=order_by, direction="ASC")
            assert [t.id for t in found.items if unique in t.id] == ids_of(first[:3])
            newest = await storage.list_threads(None, per_page=2, order_by=order_by)
            assert len(newest.items) == 2
            assert newest.total >= 3

        await eventually(check, self.lag_seconds)

    async def test_th5_threads_of_all_owners_by_update(self, storage: Storage, unique: str):
        made = await self.threads(storage, unique, 4)
        await storage.commit_turn(TurnCommit(made[1], turn(at=made[-1].updated_at + 10)))

        async def check():
            found = await storage.list_threads(None, per_page=None, order_by="updatedAt")
            assert [t.id for t in found.items if unique in t.id] == [f"{unique}-{n}" for n in (1, 3, 2, 0)]
            page = await storage.list_threads(None, per_page=2, page=1, order_by="updatedAt")
            assert page.items == found.items[2:4]
            found = await storage.list_threads(None, per_page=None)
            assert [t.id for t in found.items if unique in t.id] == [f"{unique}-{n}" for n in (3, 2, 1, 0)]

        await eventually(check, self.lag_seconds)

    # delete_thread, purge_thread

    async def test_th9_a_deleted_thread_reads_as_missing(self, storage: Storage, thread: Thread, unique: str):
        await storage.commit_turn(TurnCommit(thread, (message("m"),)))
        keeper = await storage.create_thread(NewThread(f"keep-{unique}", thread.resource_id))
        assert await storage.delete_thread(thread.id, resource_id=thread.resource_id) is True
        await self.assert_missing(storage, thread, deleting=True)
        page = await storage.list_threads(thread.resource_id)
        assert (page.items, page.total) == ((keeper,), 1)

        async def check():
            page = await storage.list_threads(thread.resource_id, order_by="updatedAt")
            assert (page.items, page.total) == ((keeper,), 1)

        await eventually(check, self.lag_seconds)

    async def assert_missing(self, storage: Storage, thread: Thread, *, deleting: bool) -> None:
        assert await storage.get_thread(thread.id) is None
        state = await storage.load_turn(thread.id, last_messages=10, message_ids=["m"])
        assert (state.thread, state.history, state.stored_ids, state.deleting) == (None, (), frozenset(), deleting)
        with pytest.raises(NotFound):
            await storage.list_messages(thread.id)

    async def test_deleting_without_naming_the_owner(self, storage: Storage, thread: Thread):
        assert await storage.delete_thread(thread.id, resource_id=None) is True
        assert await storage.get_thread(thread.id) is None

    async def test_th9_deleting_again_or_nothing_says_that_there_was_none(
        self, storage: Storage, thread: Thread, unique: str
    ):
        await storage.delete_thread(thread.id, resource_id=None)
        assert await storage.delete_thread(thread.id, resource_id=thread.resource_id) is False
        assert await storage.delete_thread(f"none-{unique}", resource_id=thread.resource_id) is False
        await storage.purge_thread(thread.id)
        assert await storage.delete_thread(thread.id, resource_id=None) is False
        assert (await storage.list_threads(thread.resource_id)).total == 0

    async def test_of_racing_deletes_one_says_that_it_did_it(self, storage: Storage, thread: Thread):
        deletes = (storage.delete_thread(thread.id, resource_id=thread.resource_id) for _ in range(8))
        assert sorted(await asyncio.gather(*deletes)) == [False] * 7 + [True]
        assert (await storage.list_threads(thread.resource_id)).total == 0

    async def test_another_owner_cannot_delete(self, storage: Storage, thread: Thread, unique: str):
        with pytest.raises(AccessDenied):
            await storage.delete_thread(thread.id, resource_id=f"other-{unique}")
        assert await storage.get_thread(thread.id) == thread
        assert (await storage.list_threads(thread.resource_id)).total == 1

    async def test_an_id_cannot_be_taken_while_its_thread_is_being_deleted(
        self, storage: Storage, thread: Thread, unique: str
    ):
        await storage.delete_thread(thread.id, resource_id=None)
        for owner in (thread.resource_id, f"other-{unique}"):
            with pytest.raises(ThreadGone):
                await storage.create_thread(NewThread(thread.id, owner))
            assert (await storage.list_threads(owner)).total == 0
        await self.assert_missing(storage, thread, deleting=True)

    async def test_th9_after_a_purge_nothing_is_left_and_the_id_is_free(
        self, storage: Storage, thread: Thread, unique: str
    ):
        commit = TurnCommit(thread, (message("m"), *turn(), *turn()), Job("run", thread.id, "agent"))
        await storage.commit_turn(commit)
        await storage.delete_thread(thread.id, resource_id=None)
        await storage.purge_thread(thread.id)
        await self.assert_missing(storage, thread, deleting=False)
        again = await storage.create_thread(NewThread(thread.id, f"other-{unique}"))
        assert again.created_at > thread.created_at
        assert (again.seq, again.message_count, again.version) == (0, 0, 1)
        state = await storage.load_turn(thread.id, last_messages=10, message_ids=["m"])
        assert (state.thread, state.history, state.stored_ids, state.deleting) == (again, (), frozenset(), False)
        assert await storage.get_job(thread.id, "run") is None
        assert (await storage.list_messages(thread.id)).page.total == 0
        assert (await storage.list_threads(thread.resource_id)).total == 0
        assert (await storage.list_threads(f"other-{unique}")).items == (again,)
        done = await storage.commit_turn(TurnCommit(again, (message("m"),)))
        assert ids_of(done.messages) == ["m"]

    async def test_purging_a_long_thread_leaves_nothing(self, storage: Storage, thread: Thread):
        for _ in range(3):
            thread = (await storage.commit_turn(TurnCommit(thread, tuple(message() for _ in range(40))))).thread
        await storage.delete_thread(thread.id, resource_id=None)
        await storage.purge_thread(thread.id)
        again = await storage.create_thread(NewThread(thread.id, thread.resource_id))
        assert (await storage.load_turn(again.id, last_messages=200)).history == ()

    async def test_a_purge_in_parts_is_whole_in_the_end(self, storage: Storage, thread: Thread, unique: str):
        for _ in range(3):
            thread = (await storage.commit_turn(TurnCommit(thread, tuple(message() for _ in range(20))))).thread
        assert await storage.purge_thread(thread.id, limit=25) is True  # it lives: there is nothing to remove
        await storage.delete_thread(thread.id, resource_id=None)
        for left in (True, True, False):
            await self.assert_missing(storage, thread, deleting=True)
            assert await storage.purge_thread(thread.id, limit=25) is not left
        await self.assert_missing(storage, thread, deleting=False)
        assert await storage.purge_thread(thread.id, limit=25) is True
        again = await storage.create_thread(NewThread(thread.id, thread.resource_id))
        assert (await storage.load_turn(again.id, last_messages=200)).history == ()

    async def test_purging_a_live_thread_has_no_effect(self, storage: Storage, thread: Thread, unique: str):
        done = await storage.commit_turn(TurnCommit(thread, turn(), Job("run", thread.id, "agent")))
        await storage.purge_thread(thread.id)
        await storage.purge_thread(f"none-{unique}")
        assert await storage.get_thread(thread.id) == done.thread
        assert (await storage.list_messages(thread.id)).page.items == done.messages
        assert await storage.get_job(thread.id, "run") is not None

    async def test_purging_twice_is_the_same_as_once(self, storage: Storage, thread: Thread):
        await storage.commit_turn(TurnCommit(thread, turn()))
        await storage.delete_thread(thread.id, resource_id=None)
        await asyncio.gather(storage.purge_thread(thread.id), storage.purge_thread(thread.id))
        await storage.purge_thread(thread.id)
        await self.assert_missing(storage, thread, deleting=False)

    async def test_a_purge_leaves_threads_with_similar_ids_alone(self, storage: Storage, unique: str):
        names = [unique, f"{unique}#", f"{unique}#M", f"{unique}%23", f"{unique}0"]
        for name in names:
            made = await storage.create_thread(NewThread(name, f"r-{unique}"))
            await storage.commit_turn(TurnCommit(made, (message("m", of=name),), Job("run", name, "agent")))
        await storage.delete_thread(unique, resource_id=f"r-{unique}")
        await storage.purge_thread(unique)
        for name in names[1:]:
            assert [m.content["of"] for m in (await storage.list_messages(name)).page.items] == [name]
            assert await storage.get_job(name, "run") == Job("run", name, "agent")
        assert (await storage.list_threads(f"r-{unique}")).total == len(names) - 1

    # commit_turn

    async def test_a_committed_turn_is_stored_as_returned(self, storage: Storage, thread: Thread):
        at = thread.created_at + 5
        user, answer = turn(at)
        done = await storage.commit_turn(TurnCommit(thread, (user, answer)))
        assert done.messages == (
            Message(user.id, thread.id, "user", user.content, at, order_key(at, 1)),
            Message(answer.id, thread.id, "assistant", answer.content, at + 1, order_key(at + 1, 2)),
        )
        assert done.thread == replace(thread, seq=2, last_at=at + 1, message_count=2, updated_at=at + 1, version=2)
        assert await storage.get_thread(thread.id) == done.thread
        assert (await storage.list_messages(thread.id)).page.items == done.messages
        state = await storage.load_turn(thread.id, last_messages=5, message_ids=[user.id])
        assert (state.thread, state.history) == (done.thread, done.messages)

    async def test_a_turn_merges_metadata_into_the_row_as_it_is_then(self, storage: Storage, thread: Thread):
        await storage.commit_turn(TurnCommit(thread, (message("a"),), thread_metadata={"one": {"a": 1}, "two": 2}))
        assert await storage.set_title(thread, "meanwhile")
        done = await storage.commit_turn(TurnCommit(thread, (message("b"),), thread_metadata={"one": FAITHFUL}))
        assert done.thread.metadata == {**(thread.metadata or {}), "one": FAITHFUL, "two": 2}
        assert done.thread.title == "meanwhile"
        assert await storage.get_thread(thread.id) == done.thread

    @pytest.mark.parametrize("role", ["user", "assistant", "system", "signal"])
    @pytest.mark.parametrize("kind", [None, "", "text", "working-memory"])
    async def test_role_and_type_are_kept(self, storage: Storage, thread: Thread, role: str, kind: str | None):
        await storage.commit_turn(TurnCommit(thread, (replace(message(role=role), type=kind),)))
        (stored,) = (await storage.list_messages(thread.id)).page.items
        assert (stored.role, stored.type) == (role, kind)

    async def test_time_rises_although_clocks_run_backwards(self, storage: Storage, thread: Thread):
        now = thread.created_at + 1000
        for at in (now, now - 500, now - 900_000, 0, now + 50):
            thread = (await storage.commit_turn(TurnCommit(thread, turn(at)))).thread
        rows = (await storage.list_messages(thread.id)).page.items
        assert [m.created_at - now for m in rows] == [0, 1, 2, 3, 4, 5, 6, 7, 50, 51]
        assert [m.order for m in rows] == [order_key(m.created_at, n) for n, m in enumerate(rows, 1)]
        stored = await storage.get_thread(thread.id)
        assert stored
        assert (stored.last_at, stored.updated_at, stored.seq) == (now + 51, now + 51, 10)

    async def test_updated_at_never_falls(self, storage: Storage, thread: Thread):
        done = await storage.commit_turn(TurnCommit(thread, turn(at=thread.created_at - 5000)))
        assert done.thread.last_at < done.thread.updated_at == thread.updated_at
        assert await storage.get_thread(thread.id) == done.thread

    async def test_of_two_turns_from_one_loaded_row_the_second_is_renumbered(self, storage: Storage, thread: Thread):
        now = thread.created_at + 1000
        first = await storage.commit_turn(TurnCommit(thread, turn(now)))
        second = await storage.commit_turn(TurnCommit(thread, turn(now - 700)))
        assert [m.created_at - now for m in (*first.messages, *second.messages)] == [0, 1, 2, 3]
        assert [m.order for m in second.messages] == [order_key(now + 2, 3), order_key(now + 3, 4)]
        page = (await storage.list_messages(thread.id)).page
        assert page.items == first.messages + second.messages
        assert page.total == 4
        stored = await storage.get_thread(thread.id)
        assert stored is not None
        assert (stored.seq, stored.last_at, stored.message_count, stored.version) == (4, now + 3, 4, 3)
        assert (second.thread.seq, second.thread.last_at, second.thread.message_count) == (4, now + 3, 4)

    async def test_racing_turns_are_all_stored_each_in_one_piece(self, storage: Storage, thread: Thread):
        commits = [TurnCommit(thread, (message(), message(), message())) for _ in range(10)]
        done = await asyncio.gather(*(storage.commit_turn(c) for c in commits))
        page = (await storage.list_messages(thread.id, per_page=None)).page
        assert page.total == len(page.items) == 30
        for commit, answer in zip(commits, done, strict=True):
            start = ids_of(page.items).index(commit.messages[0].id)
            assert page.items[start : start + 3] == answer.messages
            assert ids_of(answer.messages) == [m.id for m in commit.messages]
        assert [m.order for m in page.items] == sorted(m.order for m in page.items)
        assert len({m.created_at for m in page.items}) == 30
        stored = await storage.get_thread(thread.id)
        assert stored
        assert (stored.seq, stored.message_count, stored.version) == (30, 30, 11)

    async def test_a_turn_without_messages_stores_its_job(self, storage: Storage, thread: Thread):
        done = await storage.commit_turn(TurnCommit(thread, (), Job("run", thread.id, "agent", {"a": 1})))
        assert done.messages == ()
        assert await storage.get_job(thread.id, "run") == Job("run", thread.id, "agent", {"a": 1})
        assert (await storage.list_messages(thread.id)).page.total == 0

    @pytest.mark.parametrize("then", ["deleted", "purged", "replaced", "replaced by another owner's"])
    async def test_a_late_turn_does_not_revive_a_thread(self, storage: Storage, thread: Thread, unique: str, then: str):
        loaded = (await storage.commit_turn(TurnCommit(thread, turn()))).thread
        await storage.delete_thread(thread.id, resource_id=thread.resource_id)
        again: Thread | None = None
        if then != "deleted":
            await storage.purge_thread(thread.id)
        if then.startswith("replaced"):
            owner = thread.resource_id if then == "replaced" else f"other-{unique}"
            again = await storage.create_thread(NewThread(thread.id, owner))
        for row in (thread, loaded):
            with pytest.raises(ThreadGone):
                await storage.commit_turn(TurnCommit(row, (message("late"),), Job("late", thread.id, "agent")))
        assert await storage.get_thread(thread.id) == again
        assert await storage.get_job(thread.id, "late") is None
        if again is None:
            await self.assert_missing(storage, thread, deleting=then == "deleted")
            await storage.purge_thread(thread.id)
            again = await storage.create_thread(NewThread(thread.id, thread.resource_id))
        state = await storage.load_turn(thread.id, last_messages=9, message_ids=["late"])
        assert (state.thread, state.history, state.stored_ids) == (again, (), frozenset())

    async def test_a_turn_on_a_thread_that_never_was_is_refused(self, storage: Storage, unique: str):
        never = Thread(f"t-{unique}", f"r-{unique}", "", None, created_at=1, updated_at=1)
        with pytest.raises(ThreadGone):
            await storage.commit_turn(TurnCommit(never, turn(), Job("run", never.id, "agent")))
        await self.assert_missing(storage, never, deleting=False)
        assert await storage.get_job(never.id, "run") is None

    async def test_a_turn_in_another_owners_name_is_refused(self, storage: Storage, thread: Thread, unique: str):
        with pytest.raises((ThreadGone, AccessDenied)):
            await storage.commit_turn(TurnCommit(replace(thread, resource_id=f"other-{unique}"), turn()))
        assert await storage.get_thread(thread.id) == thread
        assert (await storage.list_messages(thread.id)).page.items == ()

    async def test_a_delete_races_turns_and_is_final(self, storage: Storage, thread: Thread):
        answers = await asyncio.gather(
            *(storage.commit_turn(TurnCommit(thread, turn())) for _ in range(4)),
            storage.delete_thread(thread.id, resource_id=None),
            *(storage.commit_turn(TurnCommit(thread, turn())) for _ in range(4)),
            return_exceptions=True,
        )
        assert answers[4] is True
        assert all(isinstance(a, Committed | ThreadGone | bool) for a in answers), answers
        await self.assert_missing(storage, thread, deleting=True)
        await storage.purge_thread(thread.id)
        again = await storage.create_thread(NewThread(thread.id, thread.resource_id))
        assert (await storage.load_turn(again.id, last_messages=9)).history == ()

    async def test_a_stored_message_id_refuses_the_whole_turn(self, storage: Storage, thread: Thread):
        done = await storage.commit_turn(TurnCommit(thread, (message("m", text="first"),)))
        for row in (thread, done.thread):
            late = TurnCommit(row, (message("n"), message("m", text="second")), Job("run", thread.id, "agent"))
            with pytest.raises(Conflict) as caught:
                await storage.commit_turn(late)
            assert not isinstance(caught.value, ThreadGone)
        assert await storage.get_thread(thread.id) == done.thread
        assert (await storage.list_messages(thread.id)).page.items == done.messages
        assert await storage.get_job(thread.id, "run") is None
        assert (await storage.load_turn(thread.id, last_messages=1, message_ids=["n"])).stored_ids == frozenset()

    async def test_one_turn_cannot_hold_a_message_id_twice(self, storage: Storage, thread: Thread):
        with pytest.raises(Conflict):
            await storage.commit_turn(TurnCommit(thread, (message("m"), message("m"))))
        assert (await storage.list_messages(thread.id)).page.items == ()

    async def test_repeating_a_turn_after_an_unknown_outcome_stores_it_once(self, storage: Storage, thread: Thread):
        commit = TurnCommit(thread, turn())
        done = await storage.commit_turn(commit)
        with pytest.raises(Conflict):
            await storage.commit_turn(commit)
        assert (await storage.list_messages(thread.id)).page.items == done.messages
        assert await storage.get_thread(thread.id) == done.thread

    async def test_of_one_turn_sent_many_times_at_once_one_is_stored(self, storage: Storage, thread: Thread):
        commit = TurnCommit(thread, turn())
        answers = await asyncio.gather(*(storage.commit_turn(commit) for _ in range(6)), return_exceptions=True)
        assert sorted(type(a).__name__ for a in answers) == ["Committed"] + ["Conflict"] * 5
        assert (await storage.list_messages(thread.id)).page.total == 2

    async def test_a_turn_replaces_the_content_of_a_message_and_nothing_else_of_it(
        self, storage: Storage, thread: Thread
    ):
        first = await storage.commit_turn(TurnCommit(thread, (message("q"), message("a", "assistant"))))
        old = first.messages[1]
        update = MessageUpdate(old, {**old.content, "faithful": FAITHFUL})
        done = await storage.commit_turn(TurnCommit(first.thread, (message("b", "assistant"),), updates=(update,)))
        (new,) = done.updated
        assert faithful_text(new.content["faithful"]) == faithful_text(FAITHFUL)
        assert new == replace(old, content=new.content, revision=2)
        assert (await storage.list_messages(thread.id)).page.items == (first.messages[0], new, *done.messages)
        assert (await storage.load_turn(thread.id, last_messages=9)).history[1] == new
        stored = await storage.get_thread(thread.id)
        assert stored == done.thread and stored.message_count == 3
        again = await storage.commit_turn(TurnCommit(done.thread, (), updates=(MessageUpdate(new, old.content),)))
        assert (again.updated[0].content, again.updated[0].revision) == (old.content, 3)

    async def test_an_update_of_a_message_that_changed_meanwhile_refuses_the_whole_turn(
        self, storage: Storage, thread: Thread
    ):
        first = await storage.commit_turn(TurnCommit(thread, (message("a", "assistant"),)))
        update = MessageUpdate(first.messages[0], {"format": 2, "parts": []})
        done = await storage.commit_turn(TurnCommit(first.thread, (message("b"),), updates=(update,)))
        for row in (first.thread, done.thread):
            late = TurnCommit(row, (message("c"),), Job("run", thread.id, "agent"), updates=(update,))
            with pytest.raises(Conflict) as caught:
                await storage.commit_turn(late)
            assert not isinstance(caught.value, ThreadGone)
        assert (await storage.list_messages(thread.id)).page.items == (*done.updated, *done.messages)
        assert await storage.get_job(thread.id, "run") is None

    async def test_an_update_of_a_message_that_is_not_there_refuses_the_whole_turn(
        self, storage: Storage, thread: Thread
    ):
        ghost = Message("ghost", thread.id, "assistant", {"format": 2}, 1, order_key(1, 1))
        with pytest.raises(Conflict):
            await storage.commit_turn(TurnCommit(thread, (message(),), updates=(MessageUpdate(ghost, {"format": 2}),)))
        assert (await storage.list_messages(thread.id)).page.items == ()

    async def test_of_racing_updates_of_one_message_one_is_stored(self, storage: Storage, thread: Thread):
        first = await storage.commit_turn(TurnCommit(thread, (message("a", "assistant"),)))
        commits = [
            TurnCommit(first.thread, (message(),), updates=(MessageUpdate(first.messages[0], {"format": 2, "n": n}),))
            for n in range(4)
        ]
        answers = await asyncio.gather(*map(storage.commit_turn, commits), return_exceptions=True)
        assert sorted(type(a).__name__ for a in answers) == ["Committed"] + ["Conflict"] * 3
        assert (await storage.list_messages(thread.id)).page.total == 2

    async def test_updates_count_towards_the_size_of_a_turn(self, storage: Storage, thread: Thread):
        first = await storage.commit_turn(TurnCommit(thread, (message("a", "assistant"),)))
        huge = MessageUpdate(first.messages[0], {"format": 2, "text": "x" * 5_000_000})
        with pytest.raises(TooLarge):
            await storage.commit_turn(TurnCommit(first.thread, (message(),), updates=(huge,)))
        with pytest.raises(Conflict):
            same = MessageUpdate(first.messages[0], {"format": 2})
            await storage.commit_turn(TurnCommit(first.thread, (), updates=(same, same)))

    async def test_a_message_id_is_the_threads_own(self, storage: Storage, unique: str):
        for owner in ("a", "b"):
            made = await storage.create_thread(NewThread(f"{owner}-{unique}", owner + unique))
            await storage.commit_turn(TurnCommit(made, (message("same", of=owner),)))
        for owner in ("a", "b"):
            (stored,) = (await storage.list_messages(f"{owner}-{unique}")).page.items
            assert (stored.id, stored.content["of"]) == ("same", owner)

    async def test_a_turn_leaves_a_title_alone_that_was_written_meanwhile(self, storage: Storage, thread: Thread):
        assert await storage.set_title(thread, "Title")
        await storage.commit_turn(TurnCommit(thread, turn()))
        stored = await storage.get_thread(thread.id)
        assert stored
        assert (stored.title, stored.message_count) == ("Title", 2)

    async def test_a_turn_keeps_the_metadata(self, storage: Storage, unique: str):
        made = await storage.create_thread(NewThread(f"t-{unique}", unique, "Title", FAITHFUL))
        done = await storage.commit_turn(TurnCommit(made, turn()))
        for seen in (done.thread, await storage.get_thread(made.id)):
            assert seen
            assert (seen.title, faithful_text(seen.metadata)) == ("Title", faithful_text(FAITHFUL))

    async def test_the_version_grows_with_each_change(self, storage: Storage, thread: Thread):
        versions = [thread.version]
        for step in range(4):
            if step == 2:
                await storage.set_title(thread, "Title")
            else:
                await storage.commit_turn(TurnCommit(thread, turn()))
            stored = await storage.get_thread(thread.id)
            assert stored is not None
            versions.append(stored.version)
        assert versions == sorted(set(versions))

    async def test_forty_four_messages_fit_and_no_more(self, storage: Storage, thread: Thread):
        with pytest.raises(TooLarge):
            await storage.commit_turn(TurnCommit(thread, tuple(message() for _ in range(45))))
        assert await storage.get_thread(thread.id) == thread
        job = Job("run", thread.id, "agent")
        done = await storage.commit_turn(TurnCommit(thread, tuple(message() for _ in range(44)), job))
        assert (await storage.list_messages(thread.id, per_page=None)).page.items == done.messages
        assert len(done.messages) == 44

    @pytest.mark.parametrize(("count", "size"), [(1, 5_000_001), (1, 9_000_000), (5, 4_100_000)])
    async def test_what_is_too_large_is_refused_whole(self, storage: Storage, thread: Thread, count: int, size: int):
        with pytest.raises(TooLarge):
            await storage.commit_turn(TurnCommit(thread, tuple(message(pad="x" * size) for _ in range(count))))
        assert await storage.get_thread(thread.id) == thread
        assert (await storage.list_messages(thread.id)).page.items == ()

    @pytest.mark.parametrize(
        ("letter", "size", "count"),
        [
            ("x", 349_900, 10),
            ("é", 174_900, 3),
            ('"', 174_900, 3),
            ("x", 350_001, 2),
            ("é", 300_000, 20),
            ("x", 4_999_900, 4),
        ],
    )
    async def test_what_is_just_not_too_large_is_stored(
        self, storage: Storage, thread: Thread, letter: str, size: int, count: int
    ):
        done = await storage.commit_turn(TurnCommit(thread, tuple(message(pad=letter * size) for _ in range(count))))
        page = (await storage.list_messages(thread.id)).page
        assert page.items == done.messages
        assert page.total == count

    @pytest.mark.parametrize(
        ("letter", "size"), [("x", 4_999_950), ("é", 2_499_975), ("日", 1_666_650), ('"', 2_499_975)]
    )
    async def test_a_body_is_measured_as_stored(self, storage: Storage, thread: Thread, letter: str, size: int):
        with pytest.raises(TooLarge):
            await storage.commit_turn(TurnCommit(thread, (message(pad=letter * size),)))
        assert (await storage.list_messages(thread.id)).page.items == ()

    async def test_a_thread_of_several_megabytes_is_read_whole(self, storage: Storage, thread: Thread):
        for _ in range(2):
            pads = tuple(message(pad="x" * 300_000) for _ in range(9))
            thread = (await storage.commit_turn(TurnCommit(thread, pads))).thread
        assert len((await storage.list_messages(thread.id, per_page=None)).page.items) == 18
        newest = (await storage.list_messages(thread.id, page=0, per_page=12)).page
        state = await storage.load_turn(thread.id, last_messages=12)
        assert state.history == newest.items
        assert len(newest.items) == 12

    # fidelity

    async def test_json_comes_back_as_it_went_in(self, storage: Storage, unique: str):
        text = faithful_text(FAITHFUL)
        made = await storage.create_thread(NewThread(f"t-{unique}", unique, metadata=copy.deepcopy(FAITHFUL)))
        again = await storage.create_thread(NewThread(f"t-{unique}", unique))
        job = Job("run", made.id, "agent", copy.deepcopy(FAITHFUL))
        content = {"format": 2, "parts": [{"args": FAITHFUL}], "content": "", "metadata": FAITHFUL}
        done = await storage.commit_turn(TurnCommit(made, (NewMessage("m", "user", content, 0),), job))
        stored, state = await storage.get_thread(made.id), await storage.load_turn(made.id, last_messages=1)
        due, rows = await storage.get_job(made.id, "run"), (await storage.list_messages(made.id)).page
        assert stored
        assert due
        assert state.thread
        for metadata in (made.metadata, again.metadata, stored.metadata, state.thread.metadata, due.body):
            assert faithful_text(metadata) == text
        for row in (*done.messages, *state.history, *rows.items):
            assert faithful_text(row.content) == faithful_text(content)

    @pytest.mark.parametrize("title", ["", " ", "null", "日本 🧵", "a\nb\u0000c", "x" * 5000])
    async def test_titles_come_back_as_they_went_in(self, storage: Storage, unique: str, title: str):
        await storage.create_thread(NewThread(f"t-{unique}", unique, title))
        stored = await storage.get_thread(f"t-{unique}")
        assert stored
        assert stored.title == title

    # ids (case H03)

    @pytest.mark.parametrize("mark", SEPARATORS)
    async def test_ids_with_separators_do_not_collide(self, storage: Storage, unique: str, mark: str):
        left, right = f"{unique}a", f"c{unique}"
        pairs = [(right, f"{left}{mark}b"), (f"b{mark}{right}", left)]  # equal once joined with the mark
        for thread_id, owner in pairs:
            made = await storage.create_thread(NewThread(thread_id, owner))
            job = Job(f"{mark}run", thread_id, "agent", {"of": owner})
            await storage.commit_turn(TurnCommit(made, (message(f"m{mark}1", of=owner),), job))
        for thread_id, owner in pairs:
            page = await storage.list_threads(owner)
            assert ids_of(page.items) == [thread_id]
            assert page.total == 1
            (row,) = (await storage.list_messages(thread_id)).page.items
            assert (row.id, row.thread_id, row.content["of"]) == (f"m{mark}1", thread_id, owner)
            assert await storage.get_job(thread_id, f"{mark}run") == Job(
                f"{mark}run", thread_id, "agent", {"of": owner}
            )
        (gone, _), (kept, owner) = pairs
        assert await storage.delete_thread(gone, resource_id=None)
        await storage.purge_thread(gone)
        state = await storage.load_turn(kept, last_messages=9, message_ids=[f"m{mark}1"])
        assert state.thread
        assert state.thread.resource_id == owner
        assert len(state.history) == 1
        assert state.stored_ids == {f"m{mark}1"}

    async def test_ids_that_differ_only_in_escapes_are_different(self, storage: Storage, unique: str):
        names = [f"{unique}{tail}" for tail in ("#", "%23", "%2523", "%", "%25", "/", "%2F", "%2f", "", "##")]
        made = [await storage.create_thread(NewThread(name, name)) for name in names]
        for row in made:
            commit = TurnCommit(row, tuple(message(name) for name in names), Job(row.id, row.id, "agent"))
            await storage.commit_turn(commit)
        for row in made:
            assert ids_of((await storage.list_threads(row.id)).items) == [row.id]
            assert ids_of((await storage.list_messages(row.id)).page.items) == names
            state = await storage.load_turn(row.id, last_messages=0, message_ids=names[::2])
            assert state.stored_ids == set(names[::2])

    @pytest.mark.parametrize("form", ODD_IDS)
    async def test_odd_ids_come_back_as_they_went_in(self, storage: Storage, unique: str, form: str):
        odd = form.format(unique)
        made = await storage.create_thread(NewThread(odd, odd))
        done = await storage.commit_turn(TurnCommit(made, (message(odd),), Job(odd, odd, odd)))
        assert (done.thread.id, done.thread.resource_id) == (odd, odd)
        for page in (await storage.list_threads(odd), await storage.list_threads(odd, direction="ASC")):
            assert page.items == (done.thread,)
        state = await storage.load_turn(odd, last_messages=1, message_ids=[odd])
        assert (state.thread, state.history, state.stored_ids) == (done.thread, done.messages, {odd})
        assert await storage.get_job(odd, odd) == Job(odd, odd, odd)
        await storage.delete_job(odd, odd)
        assert await storage.get_job(odd, odd) is None
        assert await storage.set_title(done.thread, odd)
        assert await storage.delete_thread(odd, resource_id=odd)
        await storage.purge_thread(odd)
        assert (await storage.list_threads(odd)).total == 0

    async def test_ids_of_the_greatest_length_fit(self, storage: Storage, unique: str):
        for fill in ("x", "é"):
            longest = (unique + fill * 256).encode()[:256].decode(errors="ignore")
            made = await storage.create_thread(NewThread(longest, longest))
            done = await storage.commit_turn(TurnCommit(made, (message(longest),), Job(longest, longest, "agent")))
            assert (await storage.list_threads(longest)).items == (done.thread,)
            assert (await storage.list_messages(longest)).page.items == done.messages

    # load_turn

    async def test_an_unknown_thread_loads_as_nothing(self, storage: Storage, unique: str):
        state = await storage.load_turn(f"t-{unique}", last_messages=10, message_ids=["m"])
        assert (state.thread, state.history, state.stored_ids, state.deleting) == (None, (), frozenset(), False)

    @pytest.mark.parametrize("last", [0, 1, 2, 5, 6, 7, 100])
    async def test_history_is_the_newest_messages_ascending(self, storage: Storage, thread: Thread, last: int):
        rows: tuple[Message, ...] = ()
        for _ in range(3):
            rows += (await storage.commit_turn(TurnCommit(thread, turn()))).messages
        state = await storage.load_turn(thread.id, last_messages=last)
        assert state.history == (rows[-last:] if last else ())
        assert state.thread == await storage.get_thread(thread.id)
        assert state.deleting is False

    async def roles(self, storage: Storage, thread: Thread, roles: str) -> None:
        """Store one message per letter: user, assistant, signal or x = system, named by its place and letter."""
        names = {"u": "user", "a": "assistant", "s": "signal", "x": "system"}
        for start in range(0, len(roles), 40):
            part = enumerate(roles[start : start + 40], start)
            await storage.commit_turn(TurnCommit(thread, tuple(message(f"{n}{r}", names[r]) for n, r in part)))

    @pytest.mark.parametrize(
        ("roles", "last", "history"),
        [
            ("uassssssu", 3, "0u 1a 2s 3s 4s 5s 6s 7s 8u"),  # H18, first recipe
            ("uassssssu", 2, "1a 2s 3s 4s 5s 6s 7s 8u"),
            ("uassssssu", 1, "8u"),
            ("uaxuaxxu", 3, "3u 4a 7u"),  # H19: system rows are never history
            ("uaxuaxxu", 9, "0u 1a 3u 4a 7u"),
            ("uasusa", 2, "3u 4s 5a"),
        ],
    )
    async def test_h18_other_roles_do_not_count_in_history(
        self, storage: Storage, thread: Thread, roles: str, last: int, history: str
    ):
        await self.roles(storage, thread, roles)
        state = await storage.load_turn(thread.id, last_messages=last)
        assert ids_of(state.history) == history.split()

    @pytest.mark.parametrize("marker", ["s", "x"])
    async def test_h18_many_markers_do_not_push_the_conversation_out(
        self, storage: Storage, thread: Thread, marker: str
    ):
        await self.roles(storage, thread, "ua" + marker * 60)  # H18, second recipe
        state = await storage.load_turn(thread.id, last_messages=2)
        assert [i for i in ids_of(state.history) if i[-1] in "ua"] == ["0u", "1a"]

    async def test_of_the_asked_for_ids_the_stored_ones_are_told(self, storage: Storage, unique: str, thread: Thread):
        other = await storage.create_thread(NewThread(f"other-{unique}", thread.resource_id))
        await storage.commit_turn(TurnCommit(thread, (message("a"), message("b"))))
        await storage.commit_turn(TurnCommit(other, (message("c"),)))
        for asked, stored in [([], set()), (["a", "c", "a", "x"], {"a"}), (["x"], set()), (["b", "a"], {"a", "b"})]:
            state = await storage.load_turn(thread.id, last_messages=0, message_ids=asked)
            assert state.stored_ids == stored
            assert state.thread
            assert state.thread.id == thread.id

    async def test_many_ids_can_be_asked_for(self, storage: Storage, thread: Thread):
        await self.roles(storage, thread, "u" * 120)
        asked = [f"{n}u" for n in range(60, 260)]
        state = await storage.load_turn(thread.id, last_messages=3, message_ids=asked)
        assert state.stored_ids == {f"{n}u" for n in range(60, 120)}
        assert ids_of(state.history) == ["117u", "118u", "119u"]

    async def test_a_budget_ends_history_with_the_first_message_that_does_not_fit(
        self, storage: Storage, thread: Thread
    ):
        await self.roles(storage, thread, "ua" * 60)
        for last, limit, length in [(120, 0, 1), (120, 10, 3), (2, 10, 2), (120, 10_000, 120), (120, 523, 105)]:
            state = await storage.load_turn(thread.id, last_messages=last, budget=Budget(limit, lambda m: 5))
            assert len(state.history) == length
            assert state.history[-1].id == "119a"

    # list_messages

    @pytest.mark.parametrize(
        ("direction", "page", "places", "more"),
        [
            ("DESC", 0, range(12, 16), True),  # M-RC-4
            ("DESC", 1, range(8, 12), True),
            ("DESC", 3, range(1, 4), False),
            ("DESC", 4, range(0), False),
            ("ASC", 0, range(1, 5), True),
            ("ASC", 2, range(9, 13), True),
            ("ASC", 3, range(13, 16), False),
            ("ASC", 99, range(0), False),
        ],
    )
    async def test_mrc2_mrc4_mdisc14_pages_are_cut_from_either_end_and_ascend(
        self, storage: Storage, thread: Thread, direction: Direction, page: int, places: range, more: bool
    ):
        await storage.commit_turn(TurnCommit(thread, tuple(message(f"m{n:02}") for n in range(1, 16))))
        answer = (await storage.list_messages(thread.id, page=page, per_page=4, direction=direction)).page
        assert ids_of(answer.items) == [f"m{n:02}" for n in places]
        assert (answer.total, answer.page, answer.per_page, answer.has_more) == (15, page, 4, more)

    @pytest.mark.parametrize("direction", ["ASC", "DESC"])
    @pytest.mark.parametrize(
        ("per_page", "count", "more"), [(0, 0, True), (None, 8, False), (8, 8, False), (100, 8, False)]
    )
    async def test_mrc3_message_page_sizes_zero_all_and_exact(
        self,
        storage: Storage,
        thread: Thread,
        direction: Direction,
        per_page: int | None,
        count: int,
        more: bool,
    ):
        for _ in range(4):
            await storage.commit_turn(TurnCommit(thread, turn()))
        answer = (await storage.list_messages(thread.id, per_page=per_page, direction=direction)).page
        assert (len(answer.items), answer.total, answer.has_more) == (count, 8, more)
        assert [m.order for m in answer.items] == sorted(m.order for m in answer.items)

    async def test_mrc10_by_default_the_newest_forty_messages_are_listed(self, storage: Storage, thread: Thread):
        await self.roles(storage, thread, "u" * 50)
        answer = (await storage.list_messages(thread.id)).page
        assert ids_of(answer.items) == [f"{n}u" for n in range(10, 50)]
        assert (answer.total, answer.per_page, answer.has_more) == (50, 40, True)

    async def test_rows_of_all_roles_are_listed(self, storage: Storage, thread: Thread):
        await self.roles(storage, thread, "uasxu")
        answer = (await storage.list_messages(thread.id)).page
        assert (ids_of(answer.items), answer.total) == (["0u", "1a", "2s", "3x", "4u"], 5)

    async def test_an_empty_thread_has_an_empty_page(self, storage: Storage, thread: Thread):
        for per_page in (0, 40, None):
            answer = (await storage.list_messages(thread.id, per_page=per_page)).page
            assert (answer.items, answer.total, answer.has_more) == ((), 0, False)

    async def test_th13_messages_of_an_unknown_thread_are_not_found(self, storage: Storage, unique: str):
        for per_page in (0, 40, None):
            with pytest.raises(NotFound):
                await storage.list_messages(f"t-{unique}", per_page=per_page)

    async def test_th13_messages_of_another_owners_thread_are_denied(
        self, storage: Storage, thread: Thread, unique: str
    ):
        done = await storage.commit_turn(TurnCommit(thread, turn()))
        for per_page in (0, 40, None):
            with pytest.raises(AccessDenied):
                await storage.list_messages(thread.id, resource_id=f"other-{unique}", per_page=per_page)
        listed = await storage.list_messages(thread.id, resource_id=thread.resource_id)
        assert (listed.thread, listed.page.items) == (done.thread, done.messages)

    async def test_mrc10_equal_times_are_listed_as_they_were_stored(self, storage: Storage, thread: Thread):
        rows = [SavedMessage("user", {"format": 2}, name, None, 5) for name in ("z", "a", "m", "b")]
        await storage.save_messages(thread.id, rows, resource_id=None)
        for direction in ("ASC", "DESC"):
            listed = await storage.list_messages(thread.id, direction=direction)
            assert ids_of(listed.page.items) == ["z", "a", "m", "b"]
        newest = await storage.list_messages(thread.id, per_page=2)
        assert ids_of(newest.page.items) == ["m", "b"]

    # jobs

    async def test_a_job_lasts_until_it_is_deleted(self, storage: Storage, thread: Thread, unique: str):
        job = Job(f"run-{unique}", thread.id, "agent", {"options": {"title": True}, "context": None})
        await storage.commit_turn(TurnCommit(thread, turn(), job))
        for _ in range(2):
            assert await storage.get_job(thread.id, job.run_id) == job
        await storage.delete_job(thread.id, job.run_id)
        assert await storage.get_job(thread.id, job.run_id) is None
        await storage.delete_job(thread.id, job.run_id)
        assert (await storage.list_messages(thread.id)).page.total == 2

    async def test_a_job_belongs_to_its_thread_and_run(self, storage: Storage, unique: str):
        jobs = [Job(run, f"{name}-{unique}", "agent", {"of": name + run}) for name in "ab" for run in ("1", "2")]
        for job in jobs:
            made = await storage.create_thread(NewThread(job.thread_id, unique))
            await storage.commit_turn(TurnCommit(made, turn(), job))
        await storage.delete_job(f"a-{unique}", "1")
        found = [await storage.get_job(j.thread_id, j.run_id) for j in jobs]
        assert found == [None, *jobs[1:]]

    async def test_a_job_that_was_never_made_is_none(self, storage: Storage, thread: Thread, unique: str):
        assert await storage.get_job(thread.id, "run") is None
        assert await storage.get_job(f"none-{unique}", "run") is None
        await storage.delete_job(f"none-{unique}", "run")
        assert await storage.get_thread(f"none-{unique}") is None

    # set_title (case H34)

    async def test_tt6_mdisc6_a_title_changes_nothing_else(self, storage: Storage, unique: str):
        made = await storage.create_thread(NewThread(f"t-{unique}", unique, metadata={"workingMemory": "INITIAL"}))
        changed = ThreadChange(metadata={"workingMemory": "UPDATED"})
        updated = await storage.update_thread(made.id, changed, resource_id=None)
        assert await storage.set_title(made, "Title") is True
        stored = await storage.get_thread(made.id)
        assert stored
        assert (stored.title, stored.metadata, stored.created_at) == ("Title", updated.metadata, made.created_at)

    async def test_a_title_is_written_once(self, storage: Storage, thread: Thread):
        assert await storage.set_title(thread, "First") is True
        assert await storage.set_title(thread, "Second") is False
        stored = await storage.get_thread(thread.id)
        assert stored
        assert stored.title == "First"
        assert replace(stored, title="", version=1, updated_at=thread.updated_at) == thread

    async def test_a_title_of_ones_own_is_never_replaced(self, storage: Storage, unique: str):
        made = await storage.create_thread(NewThread(f"t-{unique}", unique, "Mine"))
        assert await storage.set_title(made, "Generated") is False
        assert await storage.set_title(replace(made, title=""), "Generated") is False
        assert await storage.get_thread(made.id) == made

    async def test_of_racing_titles_one_wins(self, storage: Storage, thread: Thread):
        titles = [f"title {n}" for n in range(8)]
        answers = await asyncio.gather(*(storage.set_title(thread, title) for title in titles))
        assert sum(answers) == 1
        stored = await storage.get_thread(thread.id)
        assert stored
        assert stored.title == titles[answers.index(True)]

    async def test_a_title_follows_a_thread_that_moved_on(self, storage: Storage, thread: Thread):
        done = await storage.commit_turn(TurnCommit(thread, turn()))
        assert await storage.set_title(thread, "Title") is True
        stored = await storage.get_thread(thread.id)
        assert stored
        assert (stored.title, stored.message_count, stored.seq) == ("Title", 2, 2)
        assert (await storage.list_messages(thread.id)).page.items == done.messages

    async def test_a_late_title_does_not_revive_a_thread(self, storage: Storage, thread: Thread):
        await storage.delete_thread(thread.id, resource_id=None)
        assert await storage.set_title(thread, "Late") is False
        await self.assert_missing(storage, thread, deleting=True)
        await storage.purge_thread(thread.id)
        assert await storage.set_title(thread, "Late") is False
        await self.assert_missing(storage, thread, deleting=False)
        again = await storage.create_thread(NewThread(thread.id, thread.resource_id))
        assert await storage.set_title(thread, "Late") is False
        assert await storage.get_thread(thread.id) == again

    # counters

    async def test_counters_stay_exact(self, storage: Storage, unique: str):
        made = [await storage.create_thread(NewThread(f"{unique}-{n}", unique)) for n in range(6)]
        await asyncio.gather(
            *(storage.create_thread(NewThread(t.id, unique)) for t in made),
            *(storage.delete_thread(t.id, resource_id=unique) for t in made[:3]),
            *(storage.delete_thread(t.id, resource_id=None) for t in made[:3]),
            return_exceptions=True,
        )
        assert (await storage.list_threads(unique)).total == 3
        for t in made[:2]:
            await storage.purge_thread(t.id)
            await storage.create_thread(NewThread(t.id, unique))
        page = await storage.list_threads(unique, per_page=None)
        assert page.total == len(page.items) == 5
        assert {t.id for t in page.items} == {f"{unique}-{n}" for n in (0, 1, 3, 4, 5)}

    # random histories against a model

    async def test_random_histories(self, storage: Storage):
        await asyncio.to_thread(run_random_histories, storage, self.machine_examples)
