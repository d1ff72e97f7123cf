"""What all parts of the adapter share: the table, the clock, and reading one thread."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep.clock import Millis
from threadkeep.errors import Conflict, NotFound, ThreadGone, TooLarge
from threadkeep.storage import rules, working_memory
from threadkeep.storage.dynamodb import items, keys, requests
from threadkeep.storage.dynamodb.bucket import Bucket, Kind, Owner
from threadkeep.storage.dynamodb.table import Table
from threadkeep.storage.port import Message, Thread

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

T = TypeVar("T")

RENUMBERINGS = 100  # each one means that another writer was served; more is a runaway


class Part:
    """Base of the adapter's parts. `DynamoDBStorage` is all of them together."""

    _table: Table
    _now: Callable[[], Millis]
    _bucket: Bucket | None

    async def _row(self, thread_id: str) -> "Item | None":
        return await self._table.get(items.thread_key(thread_id))

    async def _with_memory(self, thread_id: str, *more: "Item") -> "tuple[Item | None, Item | None, list[Item]]":
        """A thread's row, the item of its working memory, and what there is of `more` keys, in one request."""
        row, memory = items.thread_key(thread_id), items.thread_memory_key(thread_id)
        found = await self._table.batch_get([row, memory, *more])
        return items.find(found, row), items.find(found, memory), found

    async def _ready(self, thread_id: str) -> Thread | None:
        row = await self._row(thread_id)
        return items.thread_from(row) if row is not None and items.is_ready(row) else None

    async def _owned(self, thread_id: str, resource_id: str | None) -> Thread:
        """A thread to write to. Raises `NotFound`, `AccessDenied`, `Conflict` while it is being cloned."""
        return owned(thread_id, await self._row(thread_id), resource_id)

    async def _homes(self, message_id: str) -> "list[Item]":
        """The key rows of a message id: one for each thread that has such a message."""
        return await self._first(None, requests.partition(keys.message_key(message_id)))

    async def _stow(self, kind: Kind, within: str, bodies: Mapping[str, str]) -> "list[Item]":
        """Where each body will be, of a thread's messages by id or of a journal's entries by name.

        That is its item, or the bucket, where it is from now on. Raises `TooLarge` for what needs a bucket where
        there is none.
        """
        away = rules.outsourced([len(body.encode()) for body in bodies.values()])
        if away and self._bucket is None:
            raise TooLarge(f"Without a bucket a body may have {rules.MAX_BODY_BYTES} bytes")

        async def place(n: int, own: str, body: str) -> "Item":
            if self._bucket is None or n not in away:
                return items.inline(body)
            return items.elsewhere(await self._bucket.put(Owner(kind, within, own), body), len(body.encode()))

        return list(await asyncio.gather(*(place(n, *pair) for n, pair in enumerate(bodies.items()))))

    async def _open(self, rows: "Sequence[Item]") -> list[Message]:
        """The messages of rows; bodies in the bucket are read together. Raises `TooLarge` above 50 MB."""
        rules.check_page(sum(len(items.get_text(row, "content")) + items.get_number(row, "size") for row in rows))
        return list(await asyncio.gather(*map(self._message, rows)))

    async def _message(self, row: "Item") -> Message:
        return items.message_from(row, await self._content(row))

    async def _content(self, row: "Item") -> str:
        """The JSON text of a row's body, from the row or from the bucket; empty if there is none."""
        if self._bucket is None or "blob" not in row:
            return items.get_text(row, "content")
        return await self._bucket.get(items.get_text(row, "blob"))

    async def _first(self, end: int | None, query: dict[str, Any]) -> list["Item"]:
        """The first `end` items of a Query, all of them if None."""
        return await first(self._table.query(query, limit=end), end)


def seen(thread: Thread, memory: "Item | None") -> Thread:
    """The thread with its view of its own memory."""
    return replace(thread, memory=working_memory.view(items.memory_from(memory, thread.created_at)))


def owned(thread_id: str, row: "Item | None", resource_id: str | None) -> Thread:
    """The thread of a row, if it is ready. Raises `NotFound`, `AccessDenied`, `Conflict` while it is being cloned."""
    if row is None or items.is_deleting(row):
        raise NotFound("Thread not found")
    thread = rules.check_owner(items.thread_from(row), resource_id)
    if not items.is_ready(row):
        raise Conflict(f"Thread {thread_id} is still being cloned")
    return thread


def same(loaded: Thread, row: "Item | None") -> Thread:
    """The thread of a row that was met instead of `loaded`. Raises `ThreadGone` if it is not the same any more."""
    if row is None or not items.is_ready(row):
        raise ThreadGone(loaded.id)
    stored = items.thread_from(row)
    if not rules.same_thread(stored, loaded):
        raise ThreadGone(loaded.id)
    return stored


def home_of(key_row: "Item") -> str:
    """The thread of a message's key row."""
    return keys.decode(items.get_text(key_row, "sk"))


async def first(rows: AsyncIterator[T], end: int | None) -> list[T]:
    """The first `end` of the rows; reads no further."""
    found: list[T] = []
    if end == 0:
        return found
    async for row in rows:
        found.append(row)
        if len(found) == end:
            break
    return found
