"""Threads: create, read, change, give away, delete."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from threadkeep.errors import AccessDenied, Conflict, StoreUnavailable, ThreadGone
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import items, keys, requests
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.part import RENUMBERINGS, Part, owned
from threadkeep.storage.dynamodb.table import BUSY, Cancelled
from threadkeep.storage.port import NewThread, Thread, ThreadChange

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
        try:
            await self._table.transact([{"Put": put}, *requests.enter(thread)])
        except Cancelled as cancelled:
            return _existing(new, cancelled.old(0))
        return thread

    async def get_thread(self, thread_id: str) -> Thread | None:
        return await self._ready(thread_id)

    async def update_thread(self, thread_id: str, change: ThreadChange, *, resource_id: str | None) -> Thread:
        row = await self._row(thread_id)
        for _ in range(RENUMBERINGS):
            stored = owned(thread_id, row, resource_id)
            after = rules.changed(stored, change, self._now())
            try:
                await self._table.transact([requests.rewrite(stored, after)])
                return after
            except Cancelled as cancelled:
                row = cancelled.old(0)
        raise StoreUnavailable(BUSY)

    async def transfer_thread(self, thread_id: str, to: str, *, resource_id: str | None) -> Thread:
        row = await self._row(thread_id)
        for _ in range(RENUMBERINGS):
            stored = owned(thread_id, row, resource_id)
            if stored.resource_id == to:
                return stored
            after = replace(stored, resource_id=to, **rules.touched(stored, self._now()))
            try:
                await self._table.transact(
                    [requests.rewrite(stored, after), *requests.leave(stored), *requests.enter(after)]
                )
                return after
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


def _existing(new: NewThread, row: "Item | None") -> Thread:
    """What stands where a thread was to be created."""
    if row is None or items.is_deleting(row):
        raise ThreadGone(new.id)
    if items.get_text(row, "resourceId") != new.resource_id:
        raise AccessDenied
    if not items.is_ready(row):
        raise Conflict(f"Thread {new.id} is still being cloned")
    return items.thread_from(row)
