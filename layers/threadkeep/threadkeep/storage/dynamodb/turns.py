"""Turns: what one starts from, and the one transaction that stores it; jobs and receipts."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.errors import Conflict, RunEnded, StoreUnavailable
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import contents, items, journals, keys, requests, suspended
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.part import RENUMBERINGS, Part, same
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.dynamodb.table import Cancelled
from threadkeep.storage.port import (
    Budget,
    Committed,
    Job,
    MemoryTarget,
    Message,
    Receipt,
    Thread,
    TurnCommit,
    TurnState,
    WorkingMemory,
)

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

_READ = 1000  # messages in one read
_BUDGETED_READ = 100  # how many fill a budget is known only when they are read
_OURS = "runId = :run AND #status = :running"


class Turns(Part):
    async def load_turn(
        self,
        thread_id: str,
        *,
        last_messages: int,
        message_ids: Sequence[str] = (),
        budget: Budget | None = None,
        claim: Receipt | None = None,
        memory: MemoryTarget | None = None,
    ) -> TurnState:
        wanted = [items.message_key(thread_id, m) for m in dict.fromkeys(message_ids)]
        own, memories = items.thread_key(thread_id), [items.memory_key(memory)] if memory else []
        claiming = asyncio.create_task(self._claim(claim))
        try:
            history, found = await asyncio.gather(
                self._history(thread_id, last_messages, budget),
                self._table.batch_get([own, *wanted, *memories]),
            )
        finally:  # where that fails the caller gives its claim back, so it must have been made by then
            claimed = await claiming
        row = items.find(found, own)
        thread = items.thread_from(row) if row is not None and items.is_ready(row) else None
        remembered = _memory(memory, thread, found)
        if thread is None:
            deleting = row is not None and items.is_deleting(row)
            return TurnState(None, deleting=deleting, claimed=claimed, memory=remembered)
        stored = frozenset(keys.message_id_of(items.get_text(i, "pk")) for i in found if items.is_message_key(i))
        return TurnState(thread, history, stored, claimed=claimed, memory=remembered)

    async def _history(self, thread_id: str, last_messages: int, budget: Budget | None) -> tuple[Message, ...]:
        """The window of history, read from the newest row on until it is full.

        Bodies in the bucket are read together once the window is known; a budget must weigh each at once.
        """
        window = rules.Window(last_messages, budget)
        away: list[Item] = []
        if not window.full:
            limit = min(last_messages, _BUDGETED_READ if budget else _READ)
            query = requests.prefix(keys.thread(thread_id), keys.MESSAGE, "DESC")
            async for item in self._table.query(query, limit=limit):
                if budget is None and "blob" in item:
                    away.append(item)
                window.add(await self._message(item) if budget else items.message_from(item))
                if window.full:
                    break
        opened = {m.id: m for m in await self._open(away)}
        return tuple(opened.get(m.id, m) for m in window.ascending)

    async def commit_turn(self, commit: TurnCommit) -> Committed:
        loaded = commit.thread
        ids = [m.id for m in commit.messages] + [u.message.id for u in commit.updates]
        texts = rules.turn_bodies(commit.messages, commit.updates)
        followers = self._followers(commit)
        bodies = await self._stow("message", loaded.id, dict(zip(ids, texts, strict=True)))
        updated = tuple(map(rules.updated, commit.updates))
        for _ in range(RENUMBERINGS):
            thread, rows = rules.number(loaded, commit.messages, commit.thread_metadata)
            written = contents.writes((*rows, *updated), bodies)
            try:
                more = (action for action, _ in followers)
                await self._table.transact([requests.rewrite(loaded, thread), *written, *more])
                return Committed(thread, rows, updated)
            except Cancelled as cancelled:
                loaded = _moved(loaded, cancelled, [refusal for _, refusal in followers])
        raise StoreUnavailable("The thread is too busy: other turns kept winning")

    def _followers(self, commit: TurnCommit) -> list[tuple[Action, Conflict | None]]:
        """What is written behind thread and messages, each with the refusal that its condition means, if it has one."""
        now, followers = self._now(), list[tuple[Action, Conflict | None]]()
        if commit.receipt is not None:
            put = {"Item": items.receipt_item(commit.receipt, now), **_if_ours(commit.receipt)}
            followers.append(({"Put": put}, Conflict(rules.TAKEN_OVER)))
        if commit.within is not None:
            followers.append((journals.guarded(commit.within, now), RunEnded()))
        if commit.suspended is not None:
            record, pointer = suspended.writes(commit.suspended, now)
            followers += [(record, Conflict(rules.RUN_MOVED)), (pointer, None)]
        if commit.job is not None:
            followers.append(({"Put": {"Item": items.job_item(commit.job, now)}}, None))
        return followers

    async def _claim(self, claim: Receipt | None) -> Receipt | None:
        if claim is None:
            return None
        now = self._now()
        stored = await self._table.put(
            items.receipt_item(claim, now),
            ConditionExpression="attribute_not_exists(pk) OR expiresAt <= :seconds OR deadline < :now",
            ExpressionAttributeValues={":now": number(now), ":seconds": number(now // 1000)},
        )
        receipt = items.receipt_from(stored) if stored else None
        return None if receipt == claim else receipt

    async def get_receipt(self, key: str) -> Receipt | None:
        row = await self._table.get(items.receipt_key(key))
        expired = row is not None and items.get_number(row, "expiresAt") <= self._now() // 1000
        return None if row is None or expired else items.receipt_from(row)

    async def drop_receipt(self, receipt: Receipt) -> None:
        await self._table.delete(items.receipt_key(receipt.key), **_if_ours(receipt))

    async def get_job(self, thread_id: str, run_id: str) -> Job | None:
        row = await self._table.get(items.key(keys.thread(thread_id), keys.job(run_id)))
        return items.job_from(row) if row else None

    async def delete_job(self, thread_id: str, run_id: str) -> None:
        await self._table.delete(items.key(keys.thread(thread_id), keys.job(run_id)))


def _memory(target: MemoryTarget | None, thread: Thread | None, found: "Sequence[Item]") -> WorkingMemory:
    """The memory that was asked for; that of a thread which is not ready is not there for anybody."""
    if target is None or (target.scope == "thread" and (thread is None or thread.id != target.id)):
        return WorkingMemory()
    born = thread.created_at if thread and target.scope == "thread" else None
    return items.memory_from(items.find(found, items.memory_key(target)), born)


def _if_ours(receipt: Receipt) -> dict[str, Any]:
    return {
        "ConditionExpression": _OURS,
        "ExpressionAttributeNames": {"#status": "status"},
        "ExpressionAttributeValues": {":run": text(receipt.run_id), ":running": text("running")},
    }


def _moved(loaded: Thread, cancelled: Cancelled, refusals: Sequence[Conflict | None]) -> Thread:
    """The row to number from next, after another turn came first; or the reason why there is none.

    `refusals` belong to the transaction's last actions.
    """
    for place, refusal in enumerate(refusals, len(cancelled.reasons) - len(refusals)):
        if refusal is not None and cancelled.failed(place):
            raise refusal
    if not cancelled.failed(0):
        raise Conflict(
            f"A message of this turn is stored in thread {loaded.id} already, "
            "or one that the turn updates was changed or deleted meanwhile"
        )
    return same(loaded, cancelled.old(0))
