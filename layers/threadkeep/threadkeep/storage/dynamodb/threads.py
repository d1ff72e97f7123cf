"""Threads: create, read, change, give away, delete."""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from threadkeep.errors import AccessDenied, Conflict, StoreUnavailable, ThreadGone
from threadkeep.storage import rules, working_memory
from threadkeep.storage.dynamodb import items, keys, requests, suspended
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.part import RENUMBERINGS, Part, owned, seen
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.dynamodb.table import BUSY, Cancelled
from threadkeep.storage.port import MemorySeed, MemoryTarget, NewThread, Thread, ThreadChange

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

_HOUR = 3_600_000
_PURGE_ROWS = 500  # rows that are read before they are deleted


class Threads(Part):
    async def create_thread(self, new: NewThread) -> Thread:
        rules.check_thread(new.title, new.metadata)
        now = self._now()
        thread = Thread(new.id, new.resource_id, new.title, new.metadata, created_at=now, updated_at=now)
        put = {"Item": items.thread_item(thread), **requests.NEW, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        actions = [{"Put": put}, *requests.enter(thread)]
        memory: Item | None = None
        if new.memory and new.memory.scope == "resource":
            memory = await self._table.get(items.memory_key(working_memory.owner(new.memory, thread)))
        for _ in range(RENUMBERINGS):
            shown, writes = self._seed(new.memory, thread, memory)
            try:
                await self._table.transact([*actions, *writes])
                return shown
            except Cancelled as cancelled:
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
            change = "SET #state = :deleting, g2pk = :g2pk, g2sk = :g2sk REMOVE g1pk, g1sk, title, metadata"
            place = {":g2pk": text(keys.DELETING), ":g2sk": text(keys.moment(self._now(), thread_id))}
            tombstone = requests.if_alive(thread, change, {":deleting": text(items.DELETING), **place})
            try:
                await self._table.transact([tombstone, *requests.leave(thread)])
                return True
            except Cancelled as cancelled:
                row = cancelled.old(0)
        raise StoreUnavailable(BUSY)

    async def purge_thread(self, thread_id: str, *, limit: int | None = None) -> bool:
        row = await self._row(thread_id)
        if row is None or not items.is_deleting(row):
            return True
        if not await self._empty(thread_id, limit):
            await self._touch(thread_id)
            return False
        await self._forget_live(items.get_text(row, "resourceId"), thread_id)
        await suspended.forget(self._table, thread_id, items.get_text(row, "resourceId"))
        if source := items.get_text(row, "source"):
            await self._table.delete(items.key(keys.thread(source), keys.clone(thread_id)))
        await self._table.delete(items.thread_key(thread_id), **_if_deleting())
        return True

    async def resume_deletes(self, *, older_than: int = _HOUR) -> int:
        """Have the clean-up of threads taken up again that were deleted so many milliseconds ago and are still there.

        Returns how many there were. A clean-up takes minutes; what is older ended among the dead letters.
        """
        latest, resumed = keys.moment(self._now() - older_than, ""), 0
        async for row in self._table.query(requests.index("g2", keys.DELETING, "ASC")):
            if items.get_text(row, "g2sk") >= latest:
                break
            await self._touch(keys.thread_of(items.get_text(row, "pk")))
            resumed += 1
        return resumed

    async def _touch(self, thread_id: str) -> None:
        """Change a tombstone, so that the table's stream asks for the rest of its purge."""
        condition = _if_deleting()
        condition["ExpressionAttributeValues"] |= {":one": number(1)}
        await self._table.update(
            items.thread_key(thread_id), UpdateExpression="SET version = version + :one", **condition
        )

    async def _empty(self, thread_id: str, limit: int | None) -> bool:
        """Delete all rows of a thread but its own, a bounded number at a time; False if `limit` of them are gone."""
        query = requests.partition(keys.thread(thread_id)) | {"ProjectionExpression": "pk, sk, id"}
        rows: list[Item] = []
        gone = 0
        async for row in self._table.query(query):
            if items.get_text(row, "sk") != keys.SELF:
                rows.append(row)
            enough = gone + len(rows) == limit
            if enough or len(rows) == _PURGE_ROWS:
                await self._drop(thread_id, rows)
                gone, rows = gone + len(rows), []
            if enough:
                return False
        await self._drop(thread_id, rows)
        return True

    async def _drop(self, thread_id: str, rows: "list[Item]") -> None:
        """Delete rows of a thread; the keys of its messages first, because they are found by the messages."""
        await self._table.delete_all([items.message_key(thread_id, items.get_text(r, "id")) for r in rows if "id" in r])
        await self._table.delete_all([{"pk": row["pk"], "sk": row["sk"]} for row in rows])

    async def _forget_live(self, resource_id: str, thread_id: str) -> None:
        """Delete what subscribers of a thread were told, and what waits to be; a run that is live ends."""
        query = requests.partition(keys.live(resource_id, thread_id)) | {"ProjectionExpression": "pk, sk"}
        await self._table.delete_all([row async for row in self._table.query(query)])

    async def set_title(self, thread: Thread, title: str) -> bool:
        values = {":title": text(title), ":empty": text(""), ":one": number(1)}
        change = "SET title = :title, version = version + :one"
        update = requests.if_alive(thread, change, values, also="title = :empty")["Update"]
        update.pop("ReturnValuesOnConditionCheckFailure")
        return await self._table.update(update.pop("Key"), **update)


def _if_deleting() -> dict[str, Any]:
    return {
        "ConditionExpression": "#state = :deleting",
        "ExpressionAttributeNames": {"#state": "state"},
        "ExpressionAttributeValues": {":deleting": text(items.DELETING)},
    }
