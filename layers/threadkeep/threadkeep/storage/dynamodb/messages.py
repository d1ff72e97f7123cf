"""Reading messages: pages, filters, neighbours."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threadkeep.clock import Millis
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import items, keys, requests
from threadkeep.storage.dynamodb.part import Part, home_of, owned
from threadkeep.storage.order import bounds
from threadkeep.storage.port import ALL, Direction, Include, Message, MessageFilter, Page, Thread, ThreadMessages

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item


class Messages(Part):
    async def list_messages(
        self,
        thread_id: str,
        *,
        resource_id: str | None = None,
        page: int = 0,
        per_page: int | None = 40,
        direction: Direction = "DESC",
        match: MessageFilter = ALL,
        include: Sequence[Include] = (),
    ) -> ThreadMessages:
        listed = self._matching if rules.is_filter(match) else self._unfiltered
        row, (total, found), homes = await asyncio.gather(
            self._row(thread_id),
            listed(thread_id, page, per_page, direction, match),
            asyncio.gather(*(self._homes(wanted.id) for wanted in include)),
        )
        thread = owned(thread_id, row, resource_id)
        total = thread.message_count if total is None else total
        answer = rules.page_of(found, total=total, page=page, per_page=per_page)
        if include:
            answer = rules.merged(answer, await self._included(thread, include, homes))
        return ThreadMessages(thread, answer)

    async def _unfiltered(
        self, thread_id: str, page: int, per_page: int | None, direction: Direction, _: MessageFilter
    ) -> tuple[int | None, list[Message]]:
        """One page, ascending; the thread's own counter is the total."""
        rows = await self._cut(requests.prefix(keys.thread(thread_id), keys.MESSAGE, direction), page, per_page)
        return None, ascending(await self._open(rows), direction)

    async def _cut(self, query: dict[str, Any], page: int, per_page: int | None) -> "list[Item]":
        behind = await self._table.skip(query, page * (per_page or 0))
        return [] if behind is None else await self._first(per_page, behind)

    async def _matching(
        self, thread_id: str, page: int, per_page: int | None, direction: Direction, match: MessageFilter
    ) -> tuple[int | None, list[Message]]:
        """One page of the messages that pass a filter, ascending, and how many pass."""
        window = Window(page, per_page)
        async for row in self._walk(thread_id, direction, match, Seen("filter")):
            window.add(row)
        return window.total, ascending(await self._open(window.rows), direction)

    async def _walk(
        self, thread_id: str, direction: Direction, match: MessageFilter, seen: "Seen"
    ) -> AsyncIterator["Item"]:
        """The rows of a thread that pass a filter."""
        since, until = rules.time_range(match)
        if since > until:
            return
        low, high = bounds(since, until)
        query = requests.between(keys.thread(thread_id), keys.messages_from(low), keys.messages_to(high), direction)
        async for row in self._table.query(query):
            seen.one_more()
            message = await self._message(row) if match.metadata else items.message_from(row)
            if rules.passes(message, match):
                yield row

    async def list_resource_messages(
        self,
        resource_id: str,
        *,
        page: int = 0,
        per_page: int | None = 40,
        direction: Direction = "ASC",
        match: MessageFilter = ALL,
    ) -> Page[Message]:
        directory = requests.prefix(keys.resource(resource_id), keys.DIRECTORY, "ASC")
        seen = Seen("resourceId")
        found: list[tuple[tuple[Millis, str, str, str], Item]] = []
        for entry in await self._first(None, directory):
            async for row in self._walk(items.get_text(entry, "threadId"), "ASC", match, seen):
                found.append((rules.position(items.message_from(row)), row))
        found.sort(key=lambda pair: pair[0], reverse=direction == "DESC")
        rows = [row for _, row in rules.cut(found, page, per_page)]
        part = ascending(await self._open(rows), direction)
        return rules.page_of(part, total=len(found), page=page, per_page=per_page)

    async def _included(
        self, thread: Thread, include: Sequence[Include], homes: "Sequence[list[Item]]"
    ) -> list[Message]:
        """The wanted messages and their neighbours: in this thread, or else in the owner's other ones (M-RC-7)."""
        here = [[row for row in rows if home_of(row) == thread.id] or rows for rows in homes]
        others = {home_of(row) for rows in here for row in rows} - {thread.id}
        found = await self._table.batch_get([items.thread_key(i) for i in others])
        own = {
            t.id for t in map(items.thread_from, filter(items.is_ready, found)) if t.resource_id == thread.resource_id
        }
        parts = await asyncio.gather(
            *(
                self._around(row, wanted)
                for wanted, rows in zip(include, here, strict=True)
                for row in rows
                if home_of(row) in own | {thread.id}
            )
        )
        return [message for part in parts for message in part]

    async def _around(self, home: "Item", wanted: Include) -> list[Message]:
        pk, order = keys.thread(home_of(home)), items.get_text(home, "order")
        before = requests.between(pk, keys.MESSAGE, keys.messages_to(order), "DESC")
        after = requests.between(pk, keys.messages_to(order), keys.messages_end(), "ASC")
        parts = await asyncio.gather(self._first(wanted.before + 1, before), self._first(wanted.after, after))
        return await self._open([row for part in parts for row in part])


def ascending(rows: list[Message], direction: Direction) -> list[Message]:
    return rows if direction == "ASC" else rows[::-1]


@dataclass(slots=True)
class Seen:
    """Counts the messages that a list has looked at; `what` names what makes it look."""

    what: str
    count: int = 0

    def one_more(self) -> None:
        self.count += 1
        rules.check_walk(self.count, self.what)


@dataclass(slots=True)
class Window:
    """Keeps the rows of one page out of a stream of them, and counts all."""

    page: int
    per_page: int | None
    total: int = 0
    rows: "list[Item]" = field(default_factory=list["Item"])

    def add(self, row: "Item") -> None:
        if self.per_page is None or self.page * self.per_page <= self.total < (self.page + 1) * self.per_page:
            self.rows.append(row)
        self.total += 1
