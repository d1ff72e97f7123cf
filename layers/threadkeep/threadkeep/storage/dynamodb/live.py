"""Live output: a partition for each thread and owner, with one row that orders its runs (see `storage.live`).

`H` is that row, `Q#<ticket>` a run that waits or is live, `C#<ticket>#<row>` what a run has told. Every write of a
worker goes along with a change of `H` that requires the worker to hold the run.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.errors import Conflict, StoreUnavailable
from threadkeep.jsontext import Json
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import items, keys, requests
from threadkeep.storage.dynamodb.items import get_number, get_text, number, text
from threadkeep.storage.dynamodb.part import RENUMBERINGS, Part, first
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.dynamodb.table import BUSY, Cancelled
from threadkeep.storage.live import (
    KNOWN_MILLIS,
    LIVE_MILLIS,
    QUEUED_MILLIS,
    Accepted,
    Channel,
    Claim,
    Head,
    Held,
    LiveState,
    NewRun,
    Output,
    Place,
    Row,
    outputs,
    rows_of,
)

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

_READ = 20  # rows of output in one read


class Lives(Part):
    async def queue_run(self, run: NewRun) -> Accepted:
        request = rules.body_text(run.request)
        for _ in range(RENUMBERINGS):
            now, row = self._now(), await self._table.get(_key(run.channel))
            head = _head(row)
            if head.joined(run, now):
                return Accepted(head.last_run, head.last_hash, head.last_at, head.needs_worker(now))
            ticket = head.next_ticket(now)
            told = {
                "last_ticket": ticket,
                "last_run": run.run_id,
                "last_hash": run.request_hash,
                "last_at": now,
            } | ({} if head.ticket else _begun(ticket, run.run_id))
            known = {"Item": _known_item(run, now), **requests.NEW, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
            waiting: Action = {"Put": {"Item": _queued_item(run, request, ticket, now)}}
            try:
                await self._table.transact([_if_same(run.channel, head, told, now), {"Put": known}, waiting])
                return Accepted(run.run_id, run.request_hash, now, head.ticket == 0 or head.needs_worker(now))
            except Cancelled as cancelled:
                if stored := cancelled.old(1):
                    return _accepted(stored, head.needs_worker(now))
        raise StoreUnavailable(BUSY)

    async def claim_run(self, channel: Channel, worker: str, lease: Millis) -> Claim | Held | None:
        for _ in range(RENUMBERINGS):
            now, head = self._now(), _head(await self._table.get(_key(channel)))
            if not head.ticket:
                return None
            if head.lease > now and head.worker != worker:
                return Held(head.worker, head.lease)
            attempt = head.attempt + (head.worker != worker)
            update = _if_same(channel, head, {"worker": worker, "lease": now + lease, "attempt": attempt}, now)[
                "Update"
            ]
            if await self._table.update(update.pop("Key"), **update):
                waiting = await self._table.get(items.key(_pk(channel), keys.queued(head.ticket)))
                return _claim(channel, replace(head, attempt=attempt), waiting or {}, worker)
        raise StoreUnavailable(BUSY)

    async def renew_run(self, claim: Claim, lease: Millis) -> None:
        update = _if_held(claim, {"lease": self._now() + lease}, self._now())["Update"]
        if not await self._table.update(update.pop("Key"), **update):
            raise Conflict(rules.TAKEN_OVER)

    async def append_output(self, claim: Claim, chunks: Sequence[dict[str, Json]]) -> Claim:
        for row in rows_of(claim, chunks):
            claim = await self._append(claim, row)
        return claim

    async def finish_run(self, claim: Claim, chunks: Sequence[dict[str, Json]]) -> None:
        *rows, last = rows_of(claim, chunks, last=True)
        for row in rows:
            claim = await self._append(claim, row)
        own = {"Delete": {"Key": items.key(_pk(claim.channel), keys.queued(claim.ticket))}}
        for _ in range(RENUMBERINGS):
            head = _head(await self._table.get(_key(claim.channel)))
            if not _holds(head, claim):
                raise Conflict(rules.TAKEN_OVER)
            following = await self._following(claim, head)
            try:
                change = _if_same(claim.channel, head, following, self._now())
                await self._table.transact([change, self._put(claim, last), own])
                return
            except Cancelled:
                continue
        raise StoreUnavailable(BUSY)

    async def stop_run(self, channel: Channel, run_id: str | None = None) -> bool:
        head = _head(await self._table.get(_key(channel)))
        if not head.ticket or run_id not in (None, head.run_id):
            return False
        same = {":ticket": number(head.ticket)}
        update = _update(channel, {"stop": True}, self._now(), "ticket = :ticket", same)
        return await self._table.update(update.pop("Key"), **update)  # not if that run has ended meanwhile

    async def is_stopped(self, claim: Claim) -> bool:
        head = _head(await self._table.get(_key(claim.channel)))
        return head.stop or not _holds(head, claim)

    async def live_state(self, channel: Channel) -> LiveState:
        return _head(await self._table.get(_key(channel))).state(self._now())

    async def read_output(self, channel: Channel, after: Place) -> tuple[Output, ...]:
        query = requests.between(_pk(channel), keys.output(after.ticket, after.row) + "#", f"{keys.OUTPUT}~", "ASC")
        rows: list[Row] = []
        async for item in self._table.query(query, limit=_READ):
            rows.append(_row(item))
            if len(rows) >= _READ and (found := outputs(rows)):
                return found
        return outputs(rows)

    async def _append(self, claim: Claim, row: Row) -> Claim:
        held = _if_held(claim, {"rows": row.place.row}, self._now())
        try:
            await self._table.transact([held, self._put(claim, row)])
        except Cancelled as cancelled:
            raise Conflict(rules.TAKEN_OVER) from cancelled
        return replace(claim, rows=row.place.row)

    def _put(self, claim: Claim, row: Row) -> Action:
        item = items.key(_pk(claim.channel), keys.output(row.place.ticket, row.place.row)) | {
            "text": text(row.text),
            "number": number(row.number),
            "count": number(row.count),
            "last": {"BOOL": row.last},
            "expiresAt": number((self._now() + LIVE_MILLIS) // 1000),
        }
        return {"Put": {"Item": item}}

    async def _following(self, claim: Claim, head: Head) -> dict[str, Any]:
        """What the head shall say once the run is finished: the next run is live, or none is."""
        if head.last_ticket == claim.ticket:
            return _begun(0, "")
        behind = keys.queued(claim.ticket) + "#"
        query = requests.between(_pk(claim.channel), behind, f"{keys.QUEUED}~", "ASC")
        found = await first(self._table.query(query, limit=1), 1)
        return _begun(_ticket(found[0]), get_text(found[0], "runId")) if found else _begun(0, "")


def _pk(channel: Channel) -> str:
    return keys.live(channel.resource_id, channel.thread_id)


def _key(channel: Channel) -> "Item":
    return items.key(_pk(channel), keys.LIVE)


_NAMES = {
    "last_ticket": "lastTicket",
    "last_run": "lastRun",
    "last_hash": "lastHash",
    "last_at": "lastAt",
    "ticket": "ticket",
    "run_id": "runId",
    "worker": "worker",
    "lease": "lease",
    "attempt": "attempt",
    "rows": "rows",
    "stop": "stop",
}


def _head(item: "Item | None") -> Head:
    if item is None:
        return Head()
    return Head(
        last_ticket=get_number(item, "lastTicket"),
        last_run=get_text(item, "lastRun"),
        last_hash=get_text(item, "lastHash"),
        last_at=get_number(item, "lastAt"),
        ticket=get_number(item, "ticket"),
        run_id=get_text(item, "runId"),
        worker=get_text(item, "worker"),
        lease=get_number(item, "lease"),
        attempt=get_number(item, "attempt"),
        rows=get_number(item, "rows"),
        stop=item.get("stop", {}).get("BOOL", False),
    )


def _begun(ticket: int, run_id: str) -> dict[str, Any]:
    """The live run as it begins: nobody has it yet, nothing is told."""
    return {"ticket": ticket, "run_id": run_id, "worker": "", "lease": 0, "attempt": 0, "rows": 0, "stop": False}


def _holds(head: Head, claim: Claim) -> bool:
    return (head.ticket, head.worker) == (claim.ticket, claim.worker)


def _value(value: str | int | bool) -> Any:
    if isinstance(value, bool):
        return {"BOOL": value}
    return text(value) if isinstance(value, str) else number(value)


def _update(channel: Channel, change: dict[str, Any], now: Millis, condition: str, values: "Item") -> dict[str, Any]:
    """An Update of a channel's head under a condition."""
    change_items = {f":{name}": _value(value) for name, value in change.items()}
    names = {f"#{name}": _NAMES[name] for name in change}
    expires = {":expires": number((now + KNOWN_MILLIS) // 1000)}
    return {
        "Key": _key(channel),
        "UpdateExpression": "SET expiresAt = :expires, " + ", ".join(f"#{name} = :{name}" for name in change),
        "ConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": {**change_items, **expires, **values},
    }


def _if_same(channel: Channel, head: Head, change: dict[str, Any], now: Millis) -> Action:
    """Change the head, if which runs there are and who holds the live one is as it was read."""
    if not head.last_ticket:
        return {"Update": _update(channel, change, now, "attribute_not_exists(pk)", {})}
    same = {
        ":same_last": number(head.last_ticket),
        ":same_ticket": number(head.ticket),
        ":same_worker": text(head.worker),
        ":same_attempt": number(head.attempt),
        ":same_lease": number(head.lease),
    }
    condition = (
        "lastTicket = :same_last AND ticket = :same_ticket AND worker = :same_worker "
        "AND attempt = :same_attempt AND lease = :same_lease"
    )
    return {"Update": _update(channel, change, now, condition, same)}


def _if_held(claim: Claim, change: dict[str, Any], now: Millis) -> Action:
    """Change the head, if the worker still holds the live run."""
    held = {":own_ticket": number(claim.ticket), ":own_worker": text(claim.worker)}
    return {"Update": _update(claim.channel, change, now, "ticket = :own_ticket AND worker = :own_worker", held)}


def _known_item(run: NewRun, now: Millis) -> "Item":
    return items.key(keys.run(run.run_id), keys.ACCEPTED) | {
        "requestHash": text(run.request_hash),
        "at": number(now),
        "expiresAt": number((now + KNOWN_MILLIS) // 1000),
    }


def _accepted(known: "Item", needs_worker: bool) -> Accepted:
    run_id = keys.run_of(get_text(known, "pk"))
    return Accepted(run_id, get_text(known, "requestHash"), get_number(known, "at"), needs_worker)


def _queued_item(run: NewRun, request: str, ticket: int, now: Millis) -> "Item":
    return items.key(_pk(run.channel), keys.queued(ticket)) | {
        "runId": text(run.run_id),
        "agentId": text(run.agent_id),
        "request": text(request),
        "at": number(now),
        "expiresAt": number((now + QUEUED_MILLIS) // 1000),
    }


def _ticket(queued: "Item") -> int:
    return int(get_text(queued, "sk").removeprefix(keys.QUEUED))


def _claim(channel: Channel, head: Head, queued: "Item", worker: str) -> Claim:
    return Claim(
        channel,
        head.ticket,
        head.run_id,
        get_text(queued, "agentId"),
        jsontext.loads(get_text(queued, "request") or "{}"),
        get_number(queued, "at"),
        worker,
        head.attempt,
        head.rows,
    )


def _row(item: "Item") -> Row:
    ticket, row = get_text(item, "sk").removeprefix(keys.OUTPUT).split("#")
    last = bool(item.get("last", {}).get("BOOL", False))
    place = Place(int(ticket), int(row))
    return Row(place, get_text(item, "text"), get_number(item, "number"), get_number(item, "count"), last)
