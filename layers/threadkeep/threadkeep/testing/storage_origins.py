"""Threads of sub-agents: whose they are, and with what they go (DEL-6, case H17)."""

from dataclasses import replace

import pytest

from threadkeep.errors import AccessDenied, ThreadGone
from threadkeep.ids import nobodys_resource, sub_resource
from threadkeep.storage.port import (
    CloneRequest,
    MemorySeed,
    MemoryTarget,
    NewThread,
    Origin,
    Storage,
    Thread,
    TurnCommit,
)
from threadkeep.testing.storage_base import StorageBase, ids_of, message
from threadkeep.testing.storage_journals import gone


def sub_of(parent: Thread, sub_id: str = "", key: str = "researcher") -> NewThread:
    """A thread of a sub-agent that works for the owner of `parent`."""
    origin = Origin(parent.resource_id, key, parent.id)
    return NewThread(sub_id or f"{parent.id}-sub", sub_resource(parent.resource_id, key), origin=origin)


async def purged(storage: Storage, *thread_ids: str) -> None:
    """Do what the deletes of these threads ask for."""
    for thread_id in thread_ids:
        while not await storage.purge_thread(thread_id):
            pass


@pytest.mark.asyncio
class OriginsContract(StorageBase):
    async def test_del6_a_sub_agents_thread_belongs_to_a_pair(self, storage: Storage, thread: Thread):
        new = replace(sub_of(thread), title="Sub", metadata={"a": 1})
        made = await storage.create_thread(new)
        assert (made.id, made.resource_id, made.title) == (new.id, new.resource_id, "Sub")
        assert await storage.get_thread(new.id) == made
        await storage.commit_turn(TurnCommit(made, (message("m"),)))
        for owner, found in ((thread.resource_id, [thread.id]), (new.resource_id, [new.id])):
            page = await storage.list_threads(owner)
            assert (ids_of(page.items), page.total) == (found, 1)
        assert ids_of((await storage.list_resource_messages(thread.resource_id)).items) == []
        assert ids_of((await storage.list_resource_messages(new.resource_id)).items) == ["m"]

    async def test_h17_no_other_id_is_the_pairs(self, storage: Storage, thread: Thread, unique: str):
        owner, key = thread.resource_id, "a/b"
        new = replace(sub_of(thread, key=key), memory=MemorySeed("resource", "secret", "test"))
        await storage.create_thread(new)
        for other in (
            f"{owner}-{key}", f"{owner}/{key}", f"{owner}%2F{key}", f"{owner}/a%2Fb", f"{owner}#{key}", owner,
            sub_resource(f"{owner}/a", "b"), sub_resource(sub_resource(owner, "a"), "b"),
        ):  # fmt: skip
            assert new.id not in ids_of((await storage.list_threads(other)).items)
            assert (await storage.get_working_memory(MemoryTarget("resource", other))).text == ""
            with pytest.raises(AccessDenied):
                await storage.create_thread(NewThread(new.id, other))
        assert (await storage.get_working_memory(MemoryTarget("resource", new.resource_id))).text == "secret"

    async def test_created_again_it_is_the_same_thread(self, storage: Storage, thread: Thread):
        made = await storage.create_thread(sub_of(thread))
        assert await storage.create_thread(replace(sub_of(thread), title="other")) == made
        with pytest.raises(AccessDenied):
            await storage.create_thread(sub_of(thread, made.id, key="other"))

    async def test_without_parent_that_is_there_it_is_not_created(self, storage: Storage, thread: Thread, unique: str):
        other = replace(thread, resource_id=f"other-{unique}")
        missing = replace(thread, id=f"none-{unique}")
        for parent in (other, missing):
            with pytest.raises(ThreadGone, match=parent.id):
                await storage.create_thread(sub_of(parent, f"s-{unique}"))
        await storage.create_thread(sub_of(thread, f"before-{unique}"))
        await storage.delete_thread(thread.id, resource_id=None)
        for sub_id in (f"s-{unique}", f"before-{unique}"):
            with pytest.raises(ThreadGone, match=thread.id):
                await storage.create_thread(sub_of(thread, sub_id))
        assert await storage.get_thread(f"s-{unique}") is None
        assert await storage.list_sub_resources(other.resource_id) == ()

    async def test_sub_resources_are_known(self, storage: Storage, thread: Thread, unique: str):
        assert await storage.list_sub_resources(thread.resource_id) == ()
        for n, key in enumerate(("writer", "a/b#%", "writer", "é")):
            await storage.create_thread(sub_of(thread, f"s{n}-{unique}", key))
        pair, origin = sub_resource(thread.resource_id, "alone"), Origin(thread.resource_id, "alone")
        await storage.create_thread(NewThread(f"alone-{unique}", pair, origin=origin))
        assert await storage.list_sub_resources(thread.resource_id) == ("a/b#%", "alone", "writer", "é")
        await gone(storage, thread)
        assert await storage.list_sub_resources(thread.resource_id) == ("a/b#%", "alone", "writer", "é")
        assert await storage.list_sub_resources(sub_resource(thread.resource_id, "writer")) == ()

    async def test_sub_agents_have_sub_agents_of_their_own(self, storage: Storage, thread: Thread, unique: str):
        sub = await storage.create_thread(sub_of(thread))
        lower = await storage.create_thread(sub_of(sub, f"lower-{unique}", "writer"))
        assert await storage.list_sub_resources(thread.resource_id) == ("researcher",)
        assert await storage.list_sub_resources(sub.resource_id) == ("writer",)
        assert ids_of((await storage.list_threads(lower.resource_id)).items) == [lower.id]
        await gone(storage, thread)
        assert await storage.get_thread(sub.id) is None
        await purged(storage, sub.id)
        assert await storage.get_thread(lower.id) is None

    async def test_nobodys_sub_agents_are_apart_from_each_other(self, storage: Storage, unique: str):
        owners = [nobodys_resource("agent", f"run-{n}-{unique}") for n in range(2)]
        for n, owner in enumerate(owners):
            new = NewThread(f"{n}-{unique}", sub_resource(owner, "researcher"), origin=Origin(owner, "researcher"))
            await storage.create_thread(new)
        for n, owner in enumerate(owners):
            page = await storage.list_threads(sub_resource(owner, "researcher"))
            assert ids_of(page.items) == [f"{n}-{unique}"]
        assert await storage.list_sub_resources("agent") == ()

    async def test_with_a_thread_go_those_of_its_sub_agents(self, storage: Storage, thread: Thread, unique: str):
        other = await storage.create_thread(NewThread(f"o-{unique}", thread.resource_id))
        subs = [await storage.create_thread(sub_of(thread, f"s{n}-{unique}")) for n in range(3)]
        kept = await storage.create_thread(sub_of(other, f"k-{unique}"))
        await storage.commit_turn(TurnCommit(subs[0], (message("m"),)))
        await storage.delete_thread(subs[1].id, resource_id=None)
        await gone(storage, thread)
        assert [await storage.get_thread(sub.id) for sub in subs] == [None] * 3
        page = await storage.list_threads(kept.resource_id)
        assert (ids_of(page.items), page.total) == ([kept.id], 1)
        for sub in subs:
            with pytest.raises(ThreadGone):
                await storage.create_thread(NewThread(sub.id, sub.resource_id))
        await purged(storage, *(sub.id for sub in subs))
        again = await storage.create_thread(NewThread(subs[0].id, "new owner"))
        assert (await storage.list_messages(again.id)).page.total == 0
        assert await storage.get_thread(kept.id) == kept

    async def test_a_thread_that_took_a_sub_threads_id_stays(self, storage: Storage, thread: Thread, unique: str):
        sub = await storage.create_thread(sub_of(thread))
        await gone(storage, sub)
        stranger = await storage.create_thread(NewThread(sub.id, f"stranger-{unique}"))
        await gone(storage, thread)
        assert await storage.get_thread(sub.id) == stranger

    async def test_a_sub_thread_that_was_given_away_stays(self, storage: Storage, thread: Thread, unique: str):
        subs = [await storage.create_thread(sub_of(thread, f"s{n}-{unique}")) for n in range(2)]
        for sub in subs:
            await storage.transfer_thread(sub.id, f"new-{unique}", resource_id=None)
        await storage.transfer_thread(subs[1].id, subs[1].resource_id, resource_id=None)
        await gone(storage, thread)
        given = await storage.get_thread(subs[0].id)
        assert given is not None and given.resource_id == f"new-{unique}"
        assert await storage.get_thread(subs[1].id) is None

    async def test_sub_threads_of_a_thread_that_is_given_away_stay_with_their_owner(
        self, storage: Storage, thread: Thread, unique: str
    ):
        sub = await storage.create_thread(sub_of(thread))
        moved = await storage.transfer_thread(thread.id, f"new-{unique}", resource_id=None)
        assert await storage.get_thread(sub.id) == sub
        assert await storage.list_sub_resources(moved.resource_id) == ()
        with pytest.raises(ThreadGone, match=thread.id):
            await storage.create_thread(sub_of(thread, f"more-{unique}"))
        await storage.create_thread(sub_of(moved, f"more-{unique}"))
        assert await storage.list_sub_resources(moved.resource_id) == ("researcher",)
        await gone(storage, moved)
        assert await storage.get_thread(sub.id) is None

    async def test_a_seed_comes_with_a_sub_agents_thread(self, storage: Storage, thread: Thread):
        made = await storage.create_thread(replace(sub_of(thread), memory=MemorySeed("thread", "notes", "test")))
        assert made.memory == "notes"
        assert (await storage.get_working_memory(MemoryTarget("thread", made.id))).text == "notes"

    async def test_a_copy_of_a_sub_agents_thread_goes_its_own_way(self, storage: Storage, thread: Thread, unique: str):
        sub = await storage.create_thread(sub_of(thread))
        copy = (await storage.clone_thread(CloneRequest(sub.id, NewThread(f"c-{unique}", sub.resource_id)))).thread
        await gone(storage, thread)
        assert await storage.get_thread(copy.id) == copy
