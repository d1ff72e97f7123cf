"""Threads: create, read, change, give away, delete. What a delete leaves is for `purges.py`."""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from threadkeep.errors import AccessDenied, Conflict, StoreUnavailable, ThreadGone
from threadkeep.storage import rules, working_memory
from threadkeep.storage.dynamodb import items, requests
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.part import RENUMBERINGS, owned, seen
from threadkeep.storage.dynamodb.purges import Purges
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.dynamodb.table import BUSY, Cancelled
from threadkeep.storage.port import MemorySeed, MemoryTarget, NewThread, Thread, ThreadChange

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item


class Threads(Purges):
    async def create_thread(self, new: NewThread) -> Thread:
        rules.check_thread(new.title, new.metadata)
        now = self._now()
        thread = Thread(new.id, new.resource_id, new.title, new.metadata, created_at=now, updated_at=now)
        row = items.thread_item(thread)
        origin = new.origin
        parent = origin.thread_id if origin else None
        if parent is not None:
            row["parent"] = text(parent)
        put = {"Item": row, **requests.NEW, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        links = requests.link(new, origin, now) if origin else []
        actions = [{"Put": put}, *links, *requests.enter(thread)]
        memory: Item | None = None
        if new.memory and new.memory.scope == "resource":
            memory = await self._table.get(items.memory_key(working_memory.owner(new.memory, thread)))
        for _ in range(RENUMBERINGS):
            shown, writes = self._seed(new.memory, thread, memory)
            try:
                await self._table.transact([*actions, *writes])
                return shown
            except Cancelled as cancelled:
                if parent is not None and cancelled.failed(1):
                    raise ThreadGone(parent) from cancelled
                if cancelled.failed(0):
                    return await self._existing(new, cancelled.old(0))
                memory = cancelled.old(len(actions))
        raise StoreUnavailable(BUSY)

    def _seed(self, seed: MemorySeed | None, thread: Thread, memory: "Item | None") -> tuple[Thread, list[Action]]:
        """The thread as it is shown once the seed has come, and the write that this takes.

        `memory` is the item that stands where the seed goes; without a seed that of the thread itself.
        """
        if seed is None:
            return seen(thread, memory), []
        target = working_memory.owner(seed, thread)
        current = items.memory_from(memory, thread.created_at if seed.scope == "thread" else None)
        after = working_memory.seeded(current, seed, self._now())
        shown = replace(thread, memory=working_memory.view(after))
        return shown, [] if after is current else [requests.remember(target, current, after, thread)]

    async def _existing(self, new: NewThread, row: "Item | None") -> Thread:
        """What stands where a thread was to be created."""
        if row is None or items.is_deleting(row):
            raise ThreadGone(new.id)
        if items.get_text(row, "resourceId") != new.resource_id:
            raise AccessDenied
        if not items.is_ready(row):
            raise Conflict(f"Thread {new.id} is still being cloned")
        return seen(items.thread_from(row), await self._table.get(items.thread_memory_key(new.id)))

    async def get_thread(self, thread_id: str) -> Thread | None:
        row, memory, _ = await self._with_memory(thread_id)
        return seen(items.thread_from(row), memory) if row is not None and items.is_ready(row) else None

    async def update_thread(self, thread_id: str, change: ThreadChange, *, resource_id: str | None) -> Thread:
        for _ in range(RENUMBERINGS):
            stored, memory = await self._to_update(thread_id, change.memory, resource_id)
            after = rules.changed(stored, change, self._now())
            shown, writes = self._seed(change.memory, after, memory)
            with suppress(Cancelled):
                await self._table.transact([requests.rewrite(stored, after), *writes])
                return shown
        raise StoreUnavailable(BUSY)

    async def _to_update(
        self, thread_id: str, seed: MemorySeed | None, resource_id: str | None
    ) -> "tuple[Thread, Item | None]":
        """A thread, and the memory that its seed goes to or that it shows: together, if its owner is known."""
        by_owner = seed is not None and seed.scope == "resource"
        expected = items.memory_key(MemoryTarget("resource", resource_id)) if by_owner and resource_id else None
        row, memory, found = await self._with_memory(thread_id, *([expected] if expected else []))
        thread = owned(thread_id, row, resource_id)
        if not by_owner:
            return thread, memory
        if expected:
            return thread, items.find(found, expected)
        return thread, await self._table.get(items.memory_key(MemoryTarget("resource", thread.resource_id)))

    async def transfer_thread(self, thread_id: str, to: str, *, resource_id: str | None) -> Thread:
        row, memory, _ = await self._with_memory(thread_id)
        for _ in range(RENUMBERINGS):
            stored = owned(thread_id, row, resource_id)
            if stored.resource_id == to:
                return seen(stored, memory)
            after = replace(stored, resource_id=to, **rules.touched(stored, self._now()))
            try:
                await self._table.transact(
                    [requests.rewrite(stored, after), *requests.leave(stored), *requests.enter(after)]
                )
                return seen(after, memory)
            except Cancelled as cancelled:
                row = cancelled.old(0)
        raise StoreUnavailable(BUSY)

    async def delete_thread(self, thread_id: str, *, resource_id: str | None) -> bool:
        row = await self._row(thread_id)
        for _ in range(RENUMBERINGS):
            if row is None:
                return False
            if items.is_deleting(row):
                await self._touch(thread_id)  # a clean-up that failed for good is taken up again
                return False
            thread = owned(thread_id, row, resource_id)
            try:
                await self._bury(thread)
                return True
            except Cancelled as cancelled:
                row = cancelled.old(0)
        raise StoreUnavailable(BUSY)

    async def set_title(self, thread: Thread, title: str) -> bool:
        values = {":title": text(title), ":empty": text(""), ":one": number(1)}
        change = "SET title = :title, version = version + :one"
        update = requests.if_alive(thread, change, values, also="title = :empty")["Update"]
        update.pop("ReturnValuesOnConditionCheckFailure")
        return await self._table.update(update.pop("Key"), **update)
