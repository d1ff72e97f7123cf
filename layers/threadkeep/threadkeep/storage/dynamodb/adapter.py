"""The storage port on one DynamoDB table. Keys: `keys.py`; items: `items.py`; retries: `table.py`.

Each write carries the condition that makes it safe, so no call depends on what an earlier read saw:
later writes to a thread require that it still exists, with the same owner and creation time, and is
not being deleted.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep import clock, jsontext
from threadkeep.clock import Millis
from threadkeep.errors import AccessDenied, Conflict, InvalidInput, Issue, NotFound, StoreUnavailable, ThreadGone
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import items, keys
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.table import Cancelled, Table
from threadkeep.storage.port import (
    Budget,
    Committed,
    Direction,
    Job,
    Message,
    NewThread,
    Page,
    Thread,
    ThreadField,
    TurnCommit,
    TurnState,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from threadkeep.storage.dynamodb.items import Item

RENUMBERINGS = 100  # each one means that another turn was stored; more is a runaway
WALK_LIMIT = 10_000  # threads that an unindexed list may read
MESSAGES_PER_READ = 1000
MESSAGES_PER_BUDGETED_READ = 100  # how many fill a budget is known only when they are read

_ALIVE = "resourceId = :owner AND createdAt = :born AND #state = :ready"


class DynamoDBStorage:
    """`Storage` on DynamoDB. `client` is a boto3 client of service `dynamodb`; `now` tells the time."""

    def __init__(self, table_name: str, client: "DynamoDBClient", *, now: Callable[[], Millis] = clock.now):
        self._table = Table(client, table_name)
        self._now = now

    async def load_turn(
        self, thread_id: str, *, last_messages: int, message_ids: Sequence[str] = (), budget: Budget | None = None
    ) -> TurnState:
        wanted = [items.message_key(thread_id, m) for m in dict.fromkeys(message_ids)]
        history, found = await asyncio.gather(
            self._history(thread_id, last_messages, budget),
            self._table.batch_get([items.thread_key(thread_id), *wanted]),
        )
        row = next((i for i in found if items.get_text(i, "sk") == keys.SELF and "state" in i), None)
        if row is None or not items.is_ready(row):
            return TurnState(thread=None, deleting=row is not None)
        stored = frozenset(keys.message_id_of(items.get_text(i, "pk")) for i in found if i is not row)
        return TurnState(items.thread_from(row), history, stored)

    async def _history(self, thread_id: str, last_messages: int, budget: Budget | None) -> tuple[Message, ...]:
        """The window of history, read from the newest row on until it is full."""
        window = rules.Window(last_messages, budget)
        if not window.full:
            limit = min(last_messages, MESSAGES_PER_BUDGETED_READ if budget else MESSAGES_PER_READ)
            async for item in self._table.query(self._messages(thread_id, "DESC"), limit=limit):
                window.add(items.message_from(item))
                if window.full:
                    break
        return window.ascending

    async def create_thread(self, new: NewThread) -> Thread:
        now = self._now()
        thread = Thread(new.id, new.resource_id, new.title, new.metadata, created_at=now, updated_at=now)
        try:
            await self._table.transact(
                [
                    {
                        "Put": {
                            "Item": items.thread_item(thread),
                            "ConditionExpression": "attribute_not_exists(pk)",
                            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                        }
                    },
                    {"Put": {"Item": self._directory_key(thread)}},
                    self._count_threads(thread.resource_id, 1),
                ]
            )
        except Cancelled as cancelled:
            return self._existing(new, cancelled.old(0))
        return thread

    @staticmethod
    def _existing(new: NewThread, row: "Item | None") -> Thread:
        if row is None or not items.is_ready(row):
            raise ThreadGone(new.id)
        stored = items.thread_from(row)
        if stored.resource_id != new.resource_id:
            raise AccessDenied
        return stored

    async def get_thread(self, thread_id: str) -> Thread | None:
        row = await self._table.get(items.thread_key(thread_id))
        return items.thread_from(row) if row is not None and items.is_ready(row) else None

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
        elif order_by == "createdAt":
            total, found = await asyncio.gather(
                self._thread_count(resource_id), self._directory(resource_id, end, direction)
            )
        else:
            total, found = await asyncio.gather(
                self._thread_count(resource_id), self._by_update(resource_id, end, direction)
            )
        start = 0 if per_page is None else page * per_page
        threads = await self._threads(found[start:end])
        return rules.page_of(threads, total=total, page=page, per_page=per_page)

    async def _thread_count(self, resource_id: str) -> int:
        row = await self._table.get(items.key(keys.resource(resource_id), keys.SELF))
        return items.get_number(row, "threadCount") if row else 0

    async def _directory(self, resource_id: str, end: int | None, direction: Direction) -> list[str]:
        query = self._prefix(keys.resource(resource_id), keys.DIRECTORY, direction) | {"ConsistentRead": True}
        return [items.get_text(row, "threadId") for row in await self._first(end, query)]

    async def _by_update(self, resource_id: str, end: int | None, direction: Direction) -> list[str]:
        rows = await self._first(end, self._index("g1", keys.resource(resource_id), direction))
        return [keys.thread_of(items.get_text(row, "pk")) for row in rows]

    async def _all_owners(self, end: int | None, order_by: ThreadField, direction: Direction) -> tuple[int, list[str]]:
        shards = [self._index("g2", keys.shard_name(n), direction) for n in range(keys.SHARDS)]
        total = sum(await asyncio.gather(*(self._table.count(query) for query in shards)))
        if order_by == "updatedAt":
            if total > WALK_LIMIT:
                message = f"updatedAt over all resources works up to {WALK_LIMIT} threads; name a resourceId"
                raise InvalidInput(Issue("orderBy", message), where="query parameters")
            end = None
        parts = await asyncio.gather(*(self._first(end, query) for query in shards))
        rows = sorted((row for part in parts for row in part), key=lambda row: items.get_text(row, "g2sk"))
        ids = [keys.thread_of(items.get_text(row, "pk")) for row in rows]
        if order_by == "updatedAt":
            ids = [t.id for t in sorted(await self._threads(ids), key=lambda t: (t.updated_at, t.id))]
        return total, ids if direction == "ASC" else ids[::-1]

    async def _first(self, end: int | None, query: dict[str, Any]) -> list["Item"]:
        rows: list[Item] = []
        if end == 0:
            return rows
        async for row in self._table.query(query, limit=end):
            rows.append(row)
            if len(rows) == end:
                break
        return rows

    async def _threads(self, ids: Sequence[str]) -> list[Thread]:
        """The live threads of these ids, in this order."""
        rows = await self._table.batch_get([items.thread_key(i) for i in ids])
        found = {t.id: t for t in map(items.thread_from, filter(items.is_ready, rows))}
        return [found[i] for i in ids if i in found]

    async def delete_thread(self, thread_id: str, *, resource_id: str | None) -> bool:
        thread = await self.get_thread(thread_id)
        if thread is None:
            return False
        if resource_id not in (None, thread.resource_id):
            raise AccessDenied
        try:
            await self._table.transact(
                [
                    self._if_alive(thread, "SET #state = :deleting REMOVE g1pk, g1sk, g2pk, g2sk, title, metadata"),
                    {"Delete": {"Key": self._directory_key(thread, bare=True)}},
                    self._count_threads(thread.resource_id, -1),
                ]
            )
        except Cancelled:
            return False
        return True

    async def purge_thread(self, thread_id: str) -> None:
        row = await self._table.get(items.thread_key(thread_id))
        if row is None or items.is_ready(row):
            return
        await self._empty(thread_id)
        await self._table.delete(
            items.thread_key(thread_id),
            ConditionExpression="#state = :deleting",
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues={":deleting": text(items.DELETING)},
        )

    async def _empty(self, thread_id: str) -> None:
        """Delete all rows of a thread but its own, the keys of its messages first: they are found by the messages."""
        query = self._prefix(keys.thread(thread_id), "", "ASC") | {
            "ProjectionExpression": "pk, sk, id",
            "ConsistentRead": True,
        }
        rows = [row async for row in self._table.query(query) if items.get_text(row, "sk") != keys.SELF]
        await self._table.delete_all([items.message_key(thread_id, items.get_text(r, "id")) for r in rows if "id" in r])
        await self._table.delete_all([{"pk": row["pk"], "sk": row["sk"]} for row in rows])

    async def list_messages(
        self, thread_id: str, *, page: int = 0, per_page: int | None = 40, direction: Direction = "DESC"
    ) -> Page[Message]:
        end = None if per_page is None else (page + 1) * per_page
        start = 0 if per_page is None else page * per_page
        thread, rows = await asyncio.gather(
            self.get_thread(thread_id), self._first(end, self._messages(thread_id, direction))
        )
        if thread is None:
            raise NotFound("Thread not found")
        found = [items.message_from(row) for row in rows[start:end]]
        ascending = found if direction == "ASC" else found[::-1]
        return rules.page_of(ascending, total=thread.message_count, page=page, per_page=per_page)

    async def commit_turn(self, commit: TurnCommit) -> Committed:
        loaded = commit.thread
        bodies = rules.turn_bodies(commit.messages, commit.updates)
        updated = tuple(map(rules.updated, commit.updates))
        for _ in range(RENUMBERINGS):
            thread, rows = rules.number(loaded, commit.messages, commit.thread_metadata)
            written = tuple(zip((*rows, *updated), bodies, strict=True))
            try:
                await self._table.transact(self._turn_actions(loaded, thread, written, commit.job))
                return Committed(thread, rows, updated)
            except Cancelled as cancelled:
                loaded = self._moved(loaded, cancelled)
        raise StoreUnavailable("The thread is too busy: other turns kept winning")

    @staticmethod
    def _moved(loaded: Thread, cancelled: Cancelled) -> Thread:
        """The row to number from next, after another turn came first; or the reason why there is none."""
        if not cancelled.failed(0):
            raise Conflict(
                f"A message of this turn is stored in thread {loaded.id} already, "
                "or one that the turn updates was changed or deleted meanwhile"
            )
        row = cancelled.old(0)
        if row is None or not items.is_ready(row):
            raise ThreadGone(loaded.id)
        moved = items.thread_from(row)
        if not rules.same_thread(moved, loaded):
            raise ThreadGone(loaded.id)
        return moved

    def _turn_actions(
        self, loaded: Thread, thread: Thread, rows: Sequence[tuple[Message, str]], job: Job | None
    ) -> list[dict[str, dict[str, Any]]]:
        new = {"ConditionExpression": "attribute_not_exists(pk)"}
        actions: list[dict[str, dict[str, Any]]] = [self._thread_update(loaded, thread)]
        for row, body in rows:
            if row.revision > 1:
                actions.append(self._content_update(row, body))
                continue
            actions.append({"Put": {"Item": items.message_key_item(row), **new}})
            actions.append({"Put": {"Item": items.message_item(row, body)}})
        if job is not None:
            actions.append({"Put": {"Item": items.job_item(job, self._now())}})
        return actions

    @staticmethod
    def _content_update(row: Message, body: str) -> dict[str, dict[str, Any]]:
        """New content for a stored message that still has the revision before this one."""
        return {
            "Update": {
                "Key": items.message_row_key(row),
                "UpdateExpression": "SET content = :content, revision = :revision",
                "ConditionExpression": "revision = :before",
                "ExpressionAttributeValues": {
                    ":content": text(body),
                    ":revision": number(row.revision),
                    ":before": number(row.revision - 1),
                },
            }
        }

    def _thread_update(self, loaded: Thread, thread: Thread) -> dict[str, dict[str, Any]]:
        change = (
            "SET seq = :seq, lastAt = :lastAt, updatedAt = :updatedAt, messageCount = messageCount + :added, "
            "version = version + :one, g1sk = :g1sk"
        )
        values: Item = {}
        also = " AND seq = :loaded"
        if thread.metadata != loaded.metadata:  # merged onto the row as it was read, so that row must be the stored one
            change += ", metadata = :metadata"
            also += " AND version = :version"
            values = {":metadata": text(jsontext.dumps(thread.metadata)), ":version": number(loaded.version)}
        action = self._if_alive(loaded, change, also=also)
        action["Update"]["ExpressionAttributeValues"] |= values | {
            ":seq": number(thread.seq),
            ":loaded": number(loaded.seq),
            ":lastAt": number(thread.last_at),
            ":updatedAt": number(thread.updated_at),
            ":added": number(thread.message_count - loaded.message_count),
            ":one": number(1),
            ":g1sk": text(keys.moment(thread.updated_at, thread.id)),
        }
        return action

    async def get_job(self, thread_id: str, run_id: str) -> Job | None:
        row = await self._table.get(items.key(keys.thread(thread_id), keys.job(run_id)))
        return items.job_from(row) if row else None

    async def delete_job(self, thread_id: str, run_id: str) -> None:
        await self._table.delete(items.key(keys.thread(thread_id), keys.job(run_id)))

    async def set_title(self, thread: Thread, title: str) -> bool:
        change = self._if_alive(thread, "SET title = :title, version = version + :one", also=" AND title = :empty")
        update = change["Update"]
        update["ExpressionAttributeValues"] |= {":title": text(title), ":empty": text(""), ":one": number(1)}
        update.pop("ReturnValuesOnConditionCheckFailure")
        return await self._table.update(update.pop("Key"), **update)

    @staticmethod
    def _if_alive(thread: Thread, change: str, also: str = "") -> dict[str, dict[str, Any]]:
        """An Update of a thread that only happens while it is the same thread and not being deleted."""
        values = {":owner": text(thread.resource_id), ":born": number(thread.created_at), ":ready": text(items.READY)}
        if ":deleting" in change:
            values[":deleting"] = text(items.DELETING)
        return {
            "Update": {
                "Key": items.thread_key(thread.id),
                "UpdateExpression": change,
                "ConditionExpression": _ALIVE + also,
                "ExpressionAttributeNames": {"#state": "state"},
                "ExpressionAttributeValues": values,
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    @staticmethod
    def _directory_key(thread: Thread, *, bare: bool = False) -> "Item":
        row = items.key(keys.resource(thread.resource_id), keys.directory(thread.created_at, thread.id))
        return row if bare else row | {"threadId": text(thread.id)}

    @staticmethod
    def _count_threads(resource_id: str, by: int) -> dict[str, dict[str, Any]]:
        return {
            "Update": {
                "Key": items.key(keys.resource(resource_id), keys.SELF),
                "UpdateExpression": "ADD threadCount :by",
                "ExpressionAttributeValues": {":by": number(by)},
            }
        }

    @classmethod
    def _messages(cls, thread_id: str, direction: Direction) -> dict[str, Any]:
        return cls._prefix(keys.thread(thread_id), keys.MESSAGE, direction) | {"ConsistentRead": True}

    @staticmethod
    def _prefix(pk: str, sk: str, direction: Direction) -> dict[str, Any]:
        condition = "pk = :pk AND begins_with(sk, :sk)" if sk else "pk = :pk"
        values = {":pk": text(pk)} | ({":sk": text(sk)} if sk else {})
        return {
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ScanIndexForward": direction == "ASC",
        }

    @staticmethod
    def _index(name: str, partition: str, direction: Direction) -> dict[str, Any]:
        return {
            "IndexName": f"{name}-index",
            "KeyConditionExpression": f"{name}pk = :pk",
            "ExpressionAttributeValues": {":pk": text(partition)},
            "ScanIndexForward": direction == "ASC",
        }
