"""Copies of threads, made in steps that can be taken up again.

The copy's row is there first, in state `cloning`, with what is to be copied; then come the messages, 44
in one transaction that also moves the row's cursor; last the row becomes `ready` and is listed. Every
step requires the row as the one before left it, so two processes that work on one copy do each step once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from threadkeep.errors import Conflict, NotFound, StoreUnavailable, ThreadGone
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import copying as steps
from threadkeep.storage.dynamodb import items, keys, requests
from threadkeep.storage.dynamodb.bucket import Owner
from threadkeep.storage.dynamodb.copying import Copying, Selection
from threadkeep.storage.dynamodb.items import text
from threadkeep.storage.dynamodb.part import RENUMBERINGS, Part, seen
from threadkeep.storage.dynamodb.table import BUSY, Cancelled
from threadkeep.storage.order import MAX_MILLIS, MAX_SEQ, bounds, order_key
from threadkeep.storage.port import Clone, CloneRequest, Direction, MessageFilter, Thread

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

WATCH_SECONDS = 2.0  # a copy that makes no step for so long has been left
_PAGE = 100  # rows of the source that are read at once
_NO_SOURCE = "Source thread not found"


class Clones(Part):
    async def clone_thread(self, request: CloneRequest, *, resource_id: str | None = None) -> Clone:
        source = await self._ready(request.source_id)
        if source is None:
            raise NotFound(_NO_SOURCE)
        rules.check_owner(source, resource_id)
        target = rules.clone_target(source, request, self._now())
        copying = Copying(target, await self._select(source, request))
        await self._begin(copying)
        await self._finish(copying)
        return await self._finished(target)

    async def _select(self, source: Thread, request: CloneRequest) -> Selection:
        since, until = rules.time_range(MessageFilter(since=request.since, until=request.until))
        first, last = bounds(since, max(until, 0)) if since <= until else bounds(1, 0)
        memory_of = source.resource_id if request.resource_memory else None
        chosen = Selection(source.id, source.created_at, source.seq, first, last, request.message_ids, memory_of)
        return chosen if request.limit is None else replace(chosen, first=await self._newest(chosen, request.limit))

    async def _newest(self, chosen: Selection, limit: int) -> str:
        """The order from which on the newest `limit` messages of a selection are."""
        start, left = order_key(MAX_MILLIS, MAX_SEQ), limit
        async for row in self._range(chosen, "DESC", "id, #order"):
            if left <= 0:
                break
            if chosen.takes(row):
                left, start = left - 1, items.get_text(row, "order")
        return start

    async def _range(
        self, chosen: Selection, direction: Direction, attributes: str | None = None, after: str = ""
    ) -> AsyncIterator["Item"]:
        first, last = keys.messages_from(chosen.first), keys.messages_to(chosen.last)
        if after:
            first = max(first, keys.messages_to(after))
        if first <= last:
            query = requests.between(keys.thread(chosen.source_id), first, last, direction)
            if attributes:
                query |= {"ProjectionExpression": attributes, "ExpressionAttributeNames": {"#order": "order"}}
            async for row in self._table.query(query, limit=None if attributes else _PAGE):
                yield row

    async def _begin(self, copying: Copying) -> None:
        """Write the copy's row, and the link by which the source knows it."""
        source_id, target = copying.selection.source_id, copying.thread
        put = {"Item": steps.row_of(copying), **requests.NEW, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        link = items.key(keys.thread(source_id), keys.clone(target.id)) | {"threadId": text(target.id)}
        try:
            await self._table.transact([{"Put": put}, steps.source_lives(copying.selection), {"Put": {"Item": link}}])
        except Cancelled as cancelled:
            if not cancelled.failed(0):
                raise NotFound(_NO_SOURCE) from cancelled
            raise Conflict(f"Thread {target.id} exists already") from cancelled

    async def finish_clone(self, thread_id: str) -> None:
        row = await self._row(thread_id)
        while row is not None and items.get_text(row, "state") == items.CLONING:
            seen = items.get_number(row, "version")
            await asyncio.sleep(WATCH_SECONDS)
            row = await self._row(thread_id)
            if row is not None and steps.is_left(row, seen):
                await self._finish(steps.copying_of(row))
                return

    async def _finish(self, copying: Copying) -> None:
        """Take the steps that are left. Raises `NotFound` if the source went, `ThreadGone` if the copy did.

        A last step that meets another writer of a working memory is taken again.
        """
        last_steps = 0
        while last_steps < RENUMBERINGS:
            rows = await self._next(copying)
            after = steps.advanced(copying, rows) if rows else copying
            try:
                if not rows:
                    last_steps += 1
                    await self._list(copying)
                    return
                blobs = await self._duplicates(copying.thread, rows)
                await self._table.transact([*steps.step(copying, after), *steps.copies(copying, rows, blobs)])
                copying = after
            except Cancelled as cancelled:
                row = cancelled.old(0) if cancelled.failed(0) else await self._row(copying.thread.id)
                if row is not None and items.is_ready(row):
                    return
                if row is None or items.is_deleting(row):
                    raise ThreadGone(copying.thread.id) from cancelled
                copying = steps.copying_of(row)
                if cancelled.failed(1):
                    await self._abandon(copying)
                    raise NotFound(_NO_SOURCE) from cancelled
        raise StoreUnavailable(BUSY)

    async def _list(self, copying: Copying) -> None:
        """The last step: the copy is a thread like any other, and its working memory is there with it."""
        found = await self._table.batch_get(steps.memory_keys(copying))
        memories = steps.memories(copying, found, self._now())
        lives = steps.source_lives(copying.selection)
        await self._table.transact([steps.ready(copying), lives, *requests.enter(copying.thread), *memories])

    async def _duplicates(self, target: Thread, rows: "list[Item]") -> dict[str, str]:
        """A copy of each body that is in the bucket, by the body: the two messages live and die apart."""
        old = [items.get_text(row, "blob") for row in rows if "blob" in row]
        ids = [rules.copy_id(target, items.get_text(row, "id")) for row in rows if "blob" in row]
        if not old or self._bucket is None:
            return {}
        owners = [Owner("message", target.id, i) for i in ids]
        new = await asyncio.gather(*map(self._bucket.copy, old, owners))
        return dict(zip(old, new, strict=True))

    async def _next(self, copying: Copying) -> "list[Item]":
        """The next messages to copy: as many as fit one transaction."""
        rows: list[Item] = []
        size = 0
        async for row in self._range(copying.selection, "ASC", after=copying.cursor):
            if copying.selection.takes(row):
                size += len(items.get_text(row, "content").encode())
                if rows and size > rules.MAX_TURN_BYTES:
                    break
                rows.append(row)
                if len(rows) == rules.MAX_TURN_MESSAGES:
                    break
        return rows

    async def _abandon(self, copying: Copying) -> None:
        """Without its source a copy cannot become whole: it goes the way of a deleted thread."""
        change = {":deleting": text(items.DELETING)}
        update = steps.while_cloning(copying.thread, "SET #state = :deleting REMOVE cloning, title, metadata", change)
        with suppress(Cancelled):
            await self._table.transact([update])

    async def _finished(self, target: Thread) -> Clone:
        row, memory, _ = await self._with_memory(target.id)
        if row is None or not items.is_ready(row):
            raise ThreadGone(target.id)
        thread = seen(items.thread_from(row), memory)
        rows = await self._first(None, requests.prefix(keys.thread(target.id), keys.MESSAGE, "ASC"))
        ids = {items.get_text(row, "copyOf"): items.get_text(row, "id") for row in rows if "copyOf" in row}
        return Clone(thread, tuple([await self._message(row) for row in rows]), ids)

    async def list_clones(self, source_id: str) -> tuple[str, ...]:
        source, links = await asyncio.gather(
            self._ready(source_id),
            self._first(None, requests.prefix(keys.thread(source_id), keys.CLONE, "ASC")),
        )
        rows = await self._table.batch_get([items.thread_key(items.get_text(link, "threadId")) for link in links])
        return tuple(sorted(items.thread_from(row).id for row in rows if items.is_ready(row))) if source else ()
