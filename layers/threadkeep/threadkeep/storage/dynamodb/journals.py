"""Durable runs and journals: a partition for each, with a record `R` if a run has it, and entries `E#<name>`.

An entry is put where there is none yet, so the first writer wins and each later one is told what stands there, by the
failure of its condition. Pointers in a thread's partition lead to what goes with the thread: those of runs sort by the
time of the run, those of journals without one before them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.errors import NotFound, StoreUnavailable, ThreadGone
from threadkeep.jsontext import Json
from threadkeep.storage import journals, rules
from threadkeep.storage.dynamodb import items, keys, requests
from threadkeep.storage.dynamodb.items import get_number, get_text, number, text
from threadkeep.storage.dynamodb.part import RENUMBERINGS, Part
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.dynamodb.table import BUSY, Cancelled
from threadkeep.storage.runs import JOURNAL_MILLIS, DurableRun, Entry, RunGuard, RunState

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

_WALK = 1_000  # runs of a thread that one list looks at
_BRIEF = (
    "pk", "sk", "agentId", "resourceId", "threadId", "requestHash", "state", "error", "createdAt", "updatedAt",
    "expiresAt",
)  # fmt: skip


class RunJournals(Part):
    async def create_run(self, run: DurableRun) -> DurableRun:
        now = self._now()
        item = _record(run, now)
        actions: list[Action] = [{"Put": {"Item": item, **_free(now)}}]
        if run.thread_id is not None:
            actions += [requests.not_deleting(run.thread_id), {"Put": {"Item": _pointer(item, run.thread_id, now)}}]
        try:
            await self._table.transact(actions)
        except Cancelled as cancelled:
            if stored := cancelled.old(0):
                return journals.known(_run(stored), run)
            raise ThreadGone(run.thread_id or "") from cancelled
        return _run(item)

    async def get_run(self, run_id: str) -> DurableRun | None:
        row = await self._table.get(_key(run_id))
        return _run(row) if row and self._stands(row) else None

    async def list_runs(
        self, thread_id: str, *, agent_id: str, resource_id: str, limit: int = 100
    ) -> tuple[DurableRun, ...]:
        query = requests.between(keys.thread(thread_id), keys.journal(1, ""), f"{keys.JOURNAL}~", "DESC")
        about = {"agentId": text(agent_id), "resourceId": text(resource_id)}
        pointers = [row for row in await self._first(_WALK, query) if about.items() <= row.items()]
        ids = [get_text(row, "journal") for row in pointers]
        found: list[DurableRun] = []
        for chunk in rules.chunks(ids, limit):
            rows = await self._table.batch_get([_key(run_id) for run_id in chunk], _BRIEF)
            runs = {run.run_id: run for run in map(_run, filter(self._stands, rows))}
            found += [runs[run_id] for run_id in chunk if run_id in runs]
            if len(found) >= limit:
                break
        return tuple(found[:limit])

    async def end_run(
        self,
        run_id: str,
        state: RunState,
        *,
        result: dict[str, Json] | None = None,
        error: dict[str, Json] | None = None,
    ) -> DurableRun:
        row = await self._table.get(_key(run_id))
        for _ in range(RENUMBERINGS):
            if row is None or not self._stands(row):
                raise NotFound("Run not found")
            run, now = _run(row), self._now()
            if not journals.may_become(run.state, state):
                return run
            ended = journals.ended(run, state, result, error, now)
            actions: list[Action] = [_change(run_id, run.state, state, result, error, now)]
            if run.thread_id is not None:
                actions.append({"Put": {"Item": _pointer(row, run.thread_id, now)}})
            try:
                await self._table.transact(actions)
                return ended
            except Cancelled as cancelled:
                row = cancelled.old(0)
        raise StoreUnavailable(BUSY)

    async def write_entries(
        self, journal: str, entries: Sequence[Entry], *, thread_id: str | None
    ) -> tuple[Entry, ...]:
        texts = journals.entry_texts(entries)
        bodies = dict(zip(texts, await self._stow("entry", journal, texts), strict=True))
        if not bodies:
            return ()
        met = await self._put_entries(journal, bodies, thread_id)
        standing = dict(zip(met, await self._bodies(list(met.values())), strict=True))
        return tuple(Entry(e.name, standing.get(e.name, e.body)) for e in entries)

    async def _put_entries(
        self, journal: str, bodies: "Mapping[str, Item]", thread_id: str | None
    ) -> "dict[str, Item]":
        """Put entries where there are none; the rows of those that were there, by name."""
        now = self._now()
        met: dict[str, Item] = {}
        follow = [] if thread_id is None else [requests.is_ready(thread_id), _lead(journal, thread_id, now)]
        while left := [name for name in bodies if name not in met]:
            puts = [{"Item": _entry(journal, name, bodies[name], now), **_free(now)} for name in left]
            if len(puts) == 1 and not follow:
                stored = await self._table.put(puts[0].pop("Item"), **puts[0])
                return met | ({left[0]: stored} if stored else {})
            try:
                await self._table.transact([*({"Put": put} for put in puts), *follow])
                return met
            except Cancelled as cancelled:
                if thread_id is not None and cancelled.failed(len(puts)):
                    raise ThreadGone(thread_id) from cancelled
                met |= {name: row for n, name in enumerate(left) if (row := cancelled.old(n))}
        return met

    async def read_entries(self, journal: str, names: Sequence[str]) -> dict[str, Json]:
        rows = await self._table.batch_get([items.entry_key(journal, name) for name in dict.fromkeys(names)])
        return {entry.name: entry.body for entry in await self._entries(rows)}

    async def list_entries(self, journal: str, prefix: str) -> tuple[Entry, ...]:
        query = requests.prefix(keys.run(journal), keys.entry(prefix), "ASC")
        return await self._entries(await self._first(None, query))

    async def _entries(self, rows: "Sequence[Item]") -> tuple[Entry, ...]:
        standing = [row for row in rows if self._stands(row)]
        bodies = await self._bodies(standing)
        return tuple(Entry(items.entry_name(row), body) for row, body in zip(standing, bodies, strict=True))

    async def _bodies(self, rows: "Sequence[Item]") -> list[Json]:
        """The bodies of entries; those in the bucket are read together."""
        return [jsontext.loads(body) for body in await asyncio.gather(*map(self._content, rows))]

    def _stands(self, row: "Item") -> bool:
        return get_number(row, "expiresAt") > self._now() // 1000


def guarded(guard: RunGuard, now: Millis) -> Action:
    """What a commit does to the run that it is part of: it requires it to run, and with a result ends it."""
    if guard.result is not None:
        return _change(guard.run_id, "running", "succeeded", guard.result, None, now)
    return {"ConditionCheck": {"Key": _key(guard.run_id), **_if_in("running", now)}}


def _change(
    run_id: str,
    before: RunState,
    after: RunState,
    result: dict[str, Json] | None,
    error: dict[str, Json] | None,
    now: Millis,
) -> Action:
    """Bring a run from one state to another. Raises `TooLarge`."""
    outcome = {"result": result, "error": error}
    kept = {name: text(journals.outcome_text(part)) for name, part in outcome.items() if part is not None}
    gone = [name for name in outcome if name not in kept]
    sets = {"state": text(after), "updatedAt": number(now), "expiresAt": _expiry(now, JOURNAL_MILLIS), **kept}
    condition = _if_in(before, now)
    condition["ExpressionAttributeNames"] |= {f"#{name}": name for name in (*sets, *gone)}
    condition["ExpressionAttributeValues"] |= {f":{name}": value for name, value in sets.items()}
    change = "SET " + ", ".join(f"#{name} = :{name}" for name in sets)
    if gone:
        change += " REMOVE " + ", ".join(f"#{name}" for name in gone)
    told = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {"Update": {"Key": _key(run_id), "UpdateExpression": change, **condition, **told}}


def _if_in(state: RunState, now: Millis) -> dict[str, Any]:
    return {
        "ConditionExpression": "#state = :before AND expiresAt > :now",
        "ExpressionAttributeNames": {"#state": "state"},
        "ExpressionAttributeValues": {":before": text(state), ":now": number(now // 1000)},
    }


def _free(now: Millis) -> dict[str, Any]:
    """The condition that a row is not there, or is one whose time is over and that only was not removed yet."""
    return {
        "ConditionExpression": "attribute_not_exists(pk) OR expiresAt <= :now",
        "ExpressionAttributeValues": {":now": number(now // 1000)},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _expiry(now: Millis, kept: Millis) -> Any:
    return number((now + kept) // 1000)


def _key(run_id: str) -> "Item":
    return items.key(keys.run(run_id), keys.RECORD)


def _record(run: DurableRun, now: Millis) -> "Item":
    """The row of a new run. Raises `TooLarge`."""
    named = {"resourceId": run.resource_id, "threadId": run.thread_id}
    outcome = {"result": run.result, "error": run.error}
    return _key(run.run_id) | {
        "agentId": text(run.agent_id),
        **{name: text(value) for name, value in named.items() if value is not None},
        "requestHash": text(run.request_hash),
        "request": text(rules.body_text(run.request)),
        "state": text(run.state),
        **{name: text(journals.outcome_text(part)) for name, part in outcome.items() if part is not None},
        "createdAt": number(now),
        "updatedAt": number(now),
        "expiresAt": _expiry(now, JOURNAL_MILLIS),
    }


def _run(row: "Item") -> DurableRun:
    request, result, error = (get_text(row, name) for name in ("request", "result", "error"))
    return DurableRun(
        run_id=keys.run_of(get_text(row, "pk")),
        agent_id=get_text(row, "agentId"),
        resource_id=get_text(row, "resourceId") if "resourceId" in row else None,
        thread_id=get_text(row, "threadId") if "threadId" in row else None,
        request_hash=get_text(row, "requestHash"),
        request=jsontext.loads(request) if request else {},
        state=cast(RunState, get_text(row, "state")),
        result=jsontext.loads(result) if result else None,
        error=jsontext.loads(error) if error else None,
        created_at=get_number(row, "createdAt"),
        updated_at=get_number(row, "updatedAt"),
    )


def _pointer(record: "Item", thread_id: str, now: Millis) -> "Item":
    """What leads from a thread to a run of its."""
    run_id = keys.run_of(get_text(record, "pk"))
    place = items.key(keys.thread(thread_id), keys.journal(get_number(record, "createdAt"), run_id))
    about = {name: record[name] for name in ("agentId", "resourceId") if name in record}
    return place | about | {"journal": text(run_id), "expiresAt": _expiry(now, journals.POINTER_MILLIS)}


def _lead(journal: str, thread_id: str, now: Millis) -> Action:
    """Have a journal go with a thread."""
    pointer = items.key(keys.thread(thread_id), keys.journal(0, journal))
    return {"Put": {"Item": pointer | {"journal": text(journal), "expiresAt": _expiry(now, journals.POINTER_MILLIS)}}}


def _entry(journal: str, name: str, body: "Item", now: Millis) -> "Item":
    return items.entry_key(journal, name) | body | {"expiresAt": _expiry(now, JOURNAL_MILLIS)}
