"""Bodies of megabytes go the same ways as small ones."""

import pytest

from threadkeep.errors import TooLarge
from threadkeep.storage.port import (
    Budget,
    CloneRequest,
    Include,
    MessageChange,
    MessageFilter,
    MessageUpdate,
    NewThread,
    SavedMessage,
    Storage,
    Thread,
    TurnCommit,
)
from threadkeep.testing.storage_base import FAITHFUL, StorageBase, ids_of, message

MEGABYTES = "x\u2028é" * 500_000  # 3 MB of UTF-8


@pytest.mark.asyncio
class BodiesContract(StorageBase):
    async def test_three_megabytes_come_back_as_they_went_in(self, storage: Storage, thread: Thread):
        new = (message("small"), message("big", "assistant", pad=MEGABYTES, f=FAITHFUL, metadata={"a": 1}))
        done = await storage.commit_turn(TurnCommit(thread, new))
        assert done.messages[1].content == new[1].content
        assert (await storage.load_turn(thread.id, last_messages=9)).history == done.messages
        weighed = Budget(10, lambda m: len(m.content.get("pad", "")))
        assert (await storage.load_turn(thread.id, last_messages=9, budget=weighed)).history == done.messages[1:]
        assert (await storage.list_messages(thread.id)).page.items == done.messages
        assert (await storage.list_resource_messages(thread.resource_id)).items == done.messages
        for match in (MessageFilter(metadata={"a": 1}), MessageFilter(roles=frozenset({"assistant"}))):
            assert (await storage.list_messages(thread.id, match=match)).page.items == done.messages[1:]
        near = await storage.list_messages(thread.id, per_page=0, include=[Include("small", 0, 1)])
        assert near.page.items == done.messages

    async def test_a_message_grows_and_shrinks(self, storage: Storage, thread: Thread):
        first = await storage.save_messages(
            thread.id, [SavedMessage("user", {"format": 2, "pad": size * "x"}, str(size)) for size in (1, 400_000)],
            resource_id=None,
        )  # fmt: skip
        assert (await storage.list_messages(thread.id)).page.items == first
        changes = [MessageChange("1", content={"pad": MEGABYTES}), MessageChange("400000", content={"pad": ""})]
        second = await storage.update_messages(thread.id, changes, resource_id=None)
        assert [m.content["pad"] for m in second] == [MEGABYTES, ""]
        assert (await storage.list_messages(thread.id)).page.items == second
        loaded = await storage.get_thread(thread.id)
        assert loaded is not None
        update = MessageUpdate(second[0], {"format": 2, "pad": "small again"})
        third = await storage.commit_turn(TurnCommit(loaded, (), updates=(update,)))
        assert (await storage.list_messages(thread.id)).page.items == (third.updated[0], second[1])
        with pytest.raises(TooLarge):
            grown = MessageChange("1", content={"more": "x" * 5_000_000})
            await storage.update_messages(thread.id, [grown], resource_id=None)
        assert (await storage.list_messages(thread.id)).page.items == (third.updated[0], second[1])

    async def test_a_copy_has_bodies_of_its_own(self, storage: Storage, thread: Thread, unique: str):
        await storage.commit_turn(TurnCommit(thread, (message("big", pad=MEGABYTES), message("small"))))
        clone = await storage.clone_thread(CloneRequest(thread.id, NewThread(f"copy-{unique}", thread.resource_id)))
        await storage.delete_thread(thread.id, resource_id=None)
        await storage.purge_thread(thread.id)
        listed = await storage.list_messages(f"copy-{unique}")
        assert listed.page.items == clone.messages
        assert listed.page.items[0].content["pad"] == MEGABYTES
        assert await storage.delete_messages(ids_of(clone.messages), resource_id=None) == 2

    async def test_a_page_that_no_process_could_hold_is_refused_by_name(self, storage: Storage, thread: Thread):
        for n in range(12):
            await storage.save_messages(
                thread.id, [SavedMessage("user", {"pad": "x" * 4_900_000}, f"m{n:02}")], resource_id=None
            )
        with pytest.raises(TooLarge, match="perPage"):
            await storage.list_messages(thread.id)
        assert ids_of((await storage.list_messages(thread.id, per_page=1)).page.items) == ["m11"]
