"""Writing messages outside of turns: save, change, delete."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from threadkeep.errors import StoreUnavailable
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import contents, items, keys, requests
from threadkeep.storage.dynamodb.part import RENUMBERINGS, Part, home_of, owned
from threadkeep.storage.dynamodb.table import BUSY, Cancelled
from threadkeep.storage.port import Message, MessageChange, SavedMessage, Thread

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

_LOOKUPS = 25  # messages that are looked for at the same time
_NAMED = 10  # ids in an error


class Edits(Part):
    async def save_messages(
        self, thread_id: str, messages: Sequence[SavedMessage], *, resource_id: str | None
    ) -> tuple[Message, ...]:
        wanted = list(rules.with_ids(messages, self._now()).items())
        if not wanted:
            await self._owned(thread_id, resource_id)
        done: list[Message] = []
        for chunk in rules.chunks(wanted):
            try:
                done += await self._save(thread_id, dict(chunk), resource_id)
            except StoreUnavailable as error:
                raise StoreUnavailable(_unfinished(str(error), [i for i, _ in wanted], len(done))) from error
        return tuple(done)

    async def _save(
        self, thread_id: str, messages: Mapping[str, SavedMessage], resource_id: str | None
    ) -> tuple[Message, ...]:
        bodies: list[Item] = []
        for _ in range(RENUMBERINGS):
            thread, stored = await self._stored(thread_id, messages, resource_id)
            after, rows = rules.saved(thread, stored, messages, self._now())
            bodies = bodies or await self._stow("message", thread_id, _texts(rows))
            if await self._write(thread, after, rows, bodies):
                return rows
        raise StoreUnavailable(BUSY)

    async def update_messages(
        self, thread_id: str, changes: Sequence[MessageChange], *, resource_id: str | None
    ) -> tuple[Message, ...]:
        by_id: dict[str, list[MessageChange]] = {}
        for change in changes:
            by_id.setdefault(change.id, []).append(change)
        if not by_id:
            await self._owned(thread_id, resource_id)
        done: list[Message] = []
        for chunk in rules.chunks(list(by_id.values())):
            done += await self._update(thread_id, [c for part in chunk for c in part], resource_id)
        return tuple(done)

    async def _update(
        self, thread_id: str, changes: Sequence[MessageChange], resource_id: str | None
    ) -> tuple[Message, ...]:
        for _ in range(RENUMBERINGS):
            thread, stored = await self._stored(thread_id, {c.id for c in changes}, resource_id)
            rows = rules.edited(stored, changes)
            after = replace(thread, **rules.touched(thread, self._now()))
            bodies = await self._stow("message", thread_id, _texts(rows))
            if not rows or await self._write(thread, after, rows, bodies):
                return rows
        raise StoreUnavailable(BUSY)

    async def _stored(
        self, thread_id: str, ids: Iterable[str], resource_id: str | None
    ) -> tuple[Thread, dict[str, Message]]:
        """A thread to write to, and those of the messages that it has."""
        wanted = [items.message_key(thread_id, i) for i in ids]
        found = await self._table.batch_get([items.thread_key(thread_id), *wanted])
        row = next((i for i in found if items.get_text(i, "sk") == keys.SELF and "state" in i), None)
        thread = owned(thread_id, row, resource_id)
        places = [items.place_of(i) for i in found if i is not row]
        rows = await self._open(await self._table.batch_get(places)) if places else []
        return thread, {row.id: row for row in rows}

    async def _write(self, stored: Thread, after: Thread, rows: Sequence[Message], bodies: "Sequence[Item]") -> bool:
        """Write a thread with some of its messages; False if anything has changed since they were read."""
        try:
            await self._table.transact([requests.rewrite(stored, after), *contents.writes(rows, bodies)])
        except Cancelled:
            return False
        return True

    async def delete_messages(
        self, ids: Sequence[str], *, resource_id: str | None, thread_id: str | None = None
    ) -> int:
        wanted = list(dict.fromkeys(ids))
        if thread_id is None:
            doomed = rules.doomed(await self._threads_with(wanted), resource_id)
        else:
            await self._owned(thread_id, resource_id)
            doomed = {thread_id: wanted}
        deleted = 0
        for home, message_ids in doomed.items():
            for chunk in rules.chunks(message_ids):
                deleted += await self._delete(home, chunk, resource_id)
        return deleted

    async def _threads_with(self, ids: Sequence[str]) -> dict[str, list[Thread]]:
        """The live threads that hold each of the messages."""
        homes: list[list[str]] = []
        for chunk in rules.chunks(ids, _LOOKUPS):
            homes += [[*map(home_of, rows)] for rows in await asyncio.gather(*map(self._homes, chunk))]
        rows = await self._table.batch_get([items.thread_key(t) for t in {t for part in homes for t in part}])
        alive = {t.id: t for t in map(items.thread_from, filter(items.is_ready, rows))}
        return {i: [alive[t] for t in part if t in alive] for i, part in zip(ids, homes, strict=True)}

    async def _delete(self, thread_id: str, ids: Sequence[str], resource_id: str | None) -> int:
        """Delete those of the messages that are in the thread; none if it is gone, and they with it."""
        keys_of = [items.message_key(thread_id, i) for i in ids]
        for _ in range(RENUMBERINGS):
            row, found = await asyncio.gather(self._row(thread_id), self._table.batch_get(keys_of))
            if row is None or items.is_deleting(row) or not found:
                return 0
            thread = owned(thread_id, row, resource_id)
            gone = [
                action
                for home in found
                for action in contents.deletes(
                    thread_id, keys.message_id_of(items.get_text(home, "pk")), items.get_text(home, "order")
                )
            ]
            try:
                await self._table.transact(
                    [requests.rewrite(thread, rules.without(thread, len(found), self._now())), *gone]
                )
                return len(found)
            except Cancelled:
                continue
        raise StoreUnavailable(BUSY)


def _texts(rows: Sequence[Message]) -> dict[str, str]:
    """The JSON text of each message's content, by its id. Raises `TooLarge`."""
    return {row.id: rules.content_text(row.content) for row in rows}


def _unfinished(reason: str, ids: Sequence[str], done: int) -> str:
    """Says what a save did not store; it stores in order."""
    left = ids[done:]
    named = ", ".join(left[:_NAMED]) + (f" and {len(left) - _NAMED} more" if len(left) > _NAMED else "")
    return f"{reason}; {done} of {len(ids)} messages are stored, not stored: {named}"
