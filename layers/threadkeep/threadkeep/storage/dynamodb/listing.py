"""Lists of threads."""

import asyncio
from collections.abc import Sequence

from threadkeep.errors import InvalidInput, Issue
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import items, keys, requests
from threadkeep.storage.dynamodb.part import Part, seen
from threadkeep.storage.port import Direction, Page, Thread, ThreadField

_WALK_LIMIT = 10_000  # threads that an unindexed list may read


class ThreadLists(Part):
    async def list_threads(
        self,
        resource_id: str | None,
        *,
        page: int = 0,
        per_page: int | None = 100,
        order_by: ThreadField = "createdAt",
        direction: Direction = "DESC",
    ) -> Page[Thread]:
        end = None if per_page is None else (page + 1) * per_page
        if resource_id is None:
            total, found = await self._all_owners(end, order_by, direction)
        else:
            listed = self._directory if order_by == "createdAt" else self._by_update
            total, found = await asyncio.gather(self._thread_count(resource_id), listed(resource_id, end, direction))
        threads = await self._threads(rules.cut(found, page, per_page), resource_id)
        return rules.page_of(threads, total=total, page=page, per_page=per_page)

    async def list_sub_resources(self, resource_id: str) -> tuple[str, ...]:
        query = requests.prefix(keys.resource(resource_id), keys.SUB, "ASC")
        links = await self._first(None, query | {"ProjectionExpression": "sk"})
        return tuple(sorted(keys.decode(items.get_text(link, "sk").removeprefix(keys.SUB)) for link in links))

    async def _thread_count(self, resource_id: str) -> int:
        row = await self._table.get(items.key(keys.resource(resource_id), keys.SELF))
        return items.get_number(row, "threadCount") if row else 0

    async def _directory(self, resource_id: str, end: int | None, direction: Direction) -> list[str]:
        query = requests.prefix(keys.resource(resource_id), keys.DIRECTORY, direction)
        return [items.get_text(row, "threadId") for row in await self._first(end, query)]

    async def _by_update(self, resource_id: str, end: int | None, direction: Direction) -> list[str]:
        rows = await self._first(end, requests.index("g1", keys.resource(resource_id), direction))
        return [keys.thread_of(items.get_text(row, "pk")) for row in rows]

    async def _all_owners(self, end: int | None, order_by: ThreadField, direction: Direction) -> tuple[int, list[str]]:
        shards = [requests.index("g2", keys.shard_name(n), direction) for n in range(keys.SHARDS)]
        total = sum(await asyncio.gather(*(self._table.count(query) for query in shards)))
        if order_by == "updatedAt":
            if total > _WALK_LIMIT:
                message = f"updatedAt over all resources works up to {_WALK_LIMIT} threads; name a resourceId"
                raise InvalidInput(Issue("orderBy", message), where="query parameters")
            end = None
        parts = await asyncio.gather(*(self._first(end, query) for query in shards))
        rows = sorted((row for part in parts for row in part), key=lambda row: items.get_text(row, "g2sk"))
        ids = [keys.thread_of(items.get_text(row, "pk")) for row in rows]
        if order_by == "updatedAt":
            ids = [t.id for t in sorted(await self._threads(ids, view=False), key=lambda t: (t.updated_at, t.id))]
        return total, ids if direction == "ASC" else ids[::-1]

    async def _threads(self, ids: Sequence[str], resource_id: str | None = None, *, view: bool = True) -> list[Thread]:
        """The live threads of these ids, in this order; only the resource's own, whatever a list said that is older.

        An index that changes while its pages are read may name a thread twice. `view` reads their memories too.
        """
        ids = list(dict.fromkeys(ids))
        memories = [items.thread_memory_key(i) for i in ids] if view else []
        rows = await self._table.batch_get([*(items.thread_key(i) for i in ids), *memories])
        of = {items.get_text(row, "pk"): row for row in rows if items.get_text(row, "sk") == keys.MEMORY}
        ready = (row for row in rows if items.get_text(row, "sk") == keys.SELF and items.is_ready(row))
        threads = (seen(items.thread_from(row), of.get(items.get_text(row, "pk"))) for row in ready)
        found = {t.id: t for t in threads}
        return [found[i] for i in ids if i in found and resource_id in (None, found[i].resource_id)]
