"""The rest of a deleted thread: its rows, what is kept with it, and the threads of sub-agents that came from it.

Each part is removed before what leads to it, so that a purge that stops halfway finds the rest again.
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from threadkeep.storage.dynamodb import items, keys, requests, suspended
from threadkeep.storage.dynamodb.items import get_number, get_text, number, text
from threadkeep.storage.dynamodb.part import Part
from threadkeep.storage.dynamodb.table import Cancelled
from threadkeep.storage.port import Thread

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

_HOUR = 3_600_000
_PURGE_ROWS = 500  # rows that are read before they are deleted
_A_THREAD = 25  # rows that are deleted in the time that the delete of a thread takes


class Purges(Part):
    async def purge_thread(self, thread_id: str, *, limit: int | None = None) -> bool:
        row = await self._row(thread_id)
        if row is None or not items.is_deleting(row):
            return True
        if not await self._empty(thread_id, limit):
            await self._touch(thread_id)
            return False
        await self._forget_live(get_text(row, "resourceId"), thread_id)
        await suspended.forget(self._table, thread_id, get_text(row, "resourceId"))
        if source := get_text(row, "source"):
            await self._table.delete(items.key(keys.thread(source), keys.clone(thread_id)))
        if parent := get_text(row, "parent"):
            await self._table.delete(items.key(keys.thread(parent), keys.sub(thread_id)))
        await self._table.delete(items.thread_key(thread_id), **_if_deleting())
        return True

    async def forget_run(self, run_id: str) -> None:
        if await self._table.get(items.key(keys.run(run_id), keys.RECORD)) is None:
            await self._drop(keys.run(run_id), math.inf, self._delete_rows, _is_of_journal)

    async def resume_deletes(self, *, older_than: int = _HOUR) -> int:
        """Have the clean-up of threads taken up again that were deleted so many milliseconds ago and are still there.

        Returns how many there were. A clean-up takes minutes; what is older ended among the dead letters.
        """
        latest, resumed = keys.moment(self._now() - older_than, ""), 0
        async for row in self._table.query(requests.index("g2", keys.DELETING, "ASC")):
            if get_text(row, "g2sk") >= latest:
                break
            await self._touch(keys.thread_of(get_text(row, "pk")))
            resumed += 1
        return resumed

    async def _bury(self, thread: Thread) -> None:
        """Make a thread a tombstone. Raises `Cancelled` if it is not that thread any more, or not ready."""
        change = "SET #state = :deleting, g2pk = :g2pk, g2sk = :g2sk REMOVE g1pk, g1sk, title, metadata"
        place = {":g2pk": text(keys.DELETING), ":g2sk": text(keys.moment(self._now(), thread.id))}
        tombstone = requests.if_alive(thread, change, {":deleting": text(items.DELETING), **place})
        await self._table.transact([tombstone, *requests.leave(thread)])

    async def _touch(self, thread_id: str) -> None:
        """Change a tombstone, so that the table's stream asks for the rest of its purge."""
        condition = _if_deleting()
        condition["ExpressionAttributeValues"] |= {":one": number(1)}
        await self._table.update(
            items.thread_key(thread_id), UpdateExpression="SET version = version + :one", **condition
        )

    async def _empty(self, thread_id: str, limit: int | None) -> bool:
        """Remove all that hangs on a thread, a bounded number of rows; False if `limit` of them are gone."""
        left = math.inf if limit is None else limit
        for part in (self._bury_subs, self._forget_journals, self._clear):
            left = await part(thread_id, left)
            if left <= 0:
                return False
        return True

    async def _bury_subs(self, thread_id: str, left: float) -> float:
        """Delete the sub-agents' threads that came from a thread, then their links; returns what is left of `left`.

        One that was deleted already, or given to another resource, is left alone.
        """
        async for link in self._table.query(requests.prefix(keys.thread(thread_id), keys.SUB, "ASC")):
            born, owner = get_number(link, "createdAt"), get_text(link, "resourceId")
            with suppress(Cancelled):
                await self._bury(Thread(get_text(link, "threadId"), owner, "", None, created_at=born, updated_at=born))
            await self._table.delete(_key(link))
            left -= _A_THREAD
            if left <= 0:
                break
        return left

    async def _forget_journals(self, thread_id: str, left: float) -> float:
        """Delete the journals and durable runs that are kept with a thread; returns what is left of `left`."""
        async for pointer in self._table.query(requests.prefix(keys.thread(thread_id), keys.JOURNAL, "ASC")):
            left = await self._drop(keys.run(get_text(pointer, "journal")), left, self._delete_rows, _is_of_journal)
            if left <= 0:
                break
            await self._table.delete(_key(pointer))
            left -= 1
        return left

    async def _clear(self, thread_id: str, left: float) -> float:
        """Delete all rows of a thread but its own; returns what is left of `left`.

        The keys of its messages go first, because they are found by the messages.
        """

        async def delete(rows: "list[Item]") -> None:
            messages = [items.message_key(thread_id, get_text(row, "id")) for row in rows if "id" in row]
            await self._table.delete_all(messages)
            await self._delete_rows(rows)

        return await self._drop(keys.thread(thread_id), left, delete, lambda row: get_text(row, "sk") != keys.SELF)

    async def _drop(
        self,
        pk: str,
        left: float,
        delete: "Callable[[list[Item]], Awaitable[None]]",
        wanted: "Callable[[Item], bool]",
    ) -> float:
        """Delete the wanted rows of a partition, at most `left` of them, a bounded number at a time."""
        query = requests.partition(pk) | {"ProjectionExpression": "pk, sk, id"}
        rows: list[Item] = []
        async for row in self._table.query(query):
            if wanted(row):
                rows.append(row)
            if len(rows) >= min(_PURGE_ROWS, left):
                await delete(rows)
                left, rows = left - len(rows), []
            if left <= 0:
                return left
        await delete(rows)
        return left - len(rows)

    async def _delete_rows(self, rows: "list[Item]") -> None:
        await self._table.delete_all([_key(row) for row in rows])

    async def _forget_live(self, resource_id: str, thread_id: str) -> None:
        """Delete what subscribers of a thread were told, and what waits to be; a run that is live ends."""
        query = requests.partition(keys.live(resource_id, thread_id)) | {"ProjectionExpression": "pk, sk"}
        await self._table.delete_all([row async for row in self._table.query(query)])


def _key(row: "Item") -> "Item":
    return {"pk": row["pk"], "sk": row["sk"]}


def _is_of_journal(row: "Item") -> bool:
    sk = get_text(row, "sk")
    return sk == keys.RECORD or sk.startswith(keys.ENTRY)


def _if_deleting() -> dict[str, Any]:
    return {
        "ConditionExpression": "#state = :deleting",
        "ExpressionAttributeNames": {"#state": "state"},
        "ExpressionAttributeValues": {":deleting": text(items.DELETING)},
    }
