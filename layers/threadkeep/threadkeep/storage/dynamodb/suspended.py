"""Runs that wait for approvals: a record under the run's id, and a pointer among its resource's items while it is open.

Both are written in the transaction of the turn that suspends the run, decides a call of it or ends it.
"""

from typing import TYPE_CHECKING

from threadkeep.clock import Millis
from threadkeep.storage import rules, suspended
from threadkeep.storage.dynamodb import items, keys, requests
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.part import Part
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.dynamodb.table import Table
from threadkeep.storage.port import Page, SuspendedFilter, SuspendedRun

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

_WALK = 10_000  # runs that one list looks at

_NEW = (
    "attribute_not_exists(pk) OR expiresAt <= :now OR (#open = :over AND threadId = :thread AND resourceId = :resource)"
)


class SuspendedRuns(Part):
    async def get_suspended_run(self, run_id: str) -> SuspendedRun | None:
        row = await self._table.get(_key(run_id))
        return suspended.read(items.get_text(row, "body")) if row and self._holds(row) else None

    async def list_suspended_runs(
        self, match: SuspendedFilter, *, page: int = 0, per_page: int | None = 100
    ) -> Page[SuspendedRun]:
        rows = await self._table.batch_get([_key(run_id) for run_id in await self._waiting(match)])
        runs = [suspended.read(items.get_text(row, "body")) for row in rows if self._holds(row)]
        found = await self._table.batch_get([items.thread_key(i) for i in dict.fromkeys(r.thread_id for r in runs)])
        owners = {t.id: t.resource_id for t in map(items.thread_from, filter(items.is_ready, found))}
        alive = [run for run in runs if owners.get(run.thread_id) == run.resource_id]
        return suspended.listed(alive, match, page, per_page)

    async def _waiting(self, match: SuspendedFilter) -> list[str]:
        """The ids of the runs that may pass: those of a resource, of the owner of a thread, or of an agent."""
        resource_id = match.resource_id
        if resource_id is None and match.thread_id is not None:
            thread = await self._ready(match.thread_id)
            if thread is None:
                return []
            resource_id = thread.resource_id
        if resource_id is not None:
            query = requests.prefix(keys.resource(resource_id), keys.APPROVAL, "DESC")
            rows = await self._first(_WALK, query)
            return [_run_id(row) for row in rows]
        if match.agent_id is None:
            return []
        rows = await self._first(_WALK, requests.index("g2", keys.waiting(match.agent_id), "DESC"))
        return [keys.run_of(items.get_text(row, "pk")) for row in rows]

    def _holds(self, row: "Item") -> bool:
        return items.get_number(row, "expiresAt") > self._now() // 1000


def writes(run: SuspendedRun, now: Millis) -> tuple[Action, Action]:
    """The record, which must follow the stored one; then its pointer."""
    expires = number((now + rules.SUSPENDED_MILLIS) // 1000)
    item = _key(run.run_id) | {
        "threadId": text(run.thread_id),
        "resourceId": text(run.resource_id),
        "open": text("yes" if run.open else "no"),
        "revision": number(run.revision),
        "body": text(suspended.text(run)),
        "expiresAt": expires,
    }
    if run.waiting:
        item |= {"g2pk": text(keys.waiting(run.agent_id)), "g2sk": text(keys.moment(run.at, run.run_id))}
    pointer = items.key(keys.resource(run.resource_id), keys.approval(run.run_id))
    held = pointer | {"threadId": text(run.thread_id), "expiresAt": expires}
    return _record(run, item, now), {"Put": {"Item": held}} if run.open else {"Delete": {"Key": pointer}}


async def forget(table: Table, thread_id: str, resource_id: str) -> None:
    """Delete what there is of the open runs of a thread that is gone, the pointers last."""
    query = requests.prefix(keys.resource(resource_id), keys.APPROVAL, "ASC")
    found = [row async for row in table.query(query) if items.get_text(row, "threadId") == thread_id]
    await table.delete_all([_key(_run_id(row)) for row in found])
    await table.delete_all([{"pk": row["pk"], "sk": row["sk"]} for row in found])


def _run_id(pointer: "Item") -> str:
    return keys.decode(items.get_text(pointer, "sk").removeprefix(keys.APPROVAL))


def _record(run: SuspendedRun, item: "Item", now: Millis) -> Action:
    if run.revision > 1:
        condition = {
            "ConditionExpression": "revision = :before AND expiresAt > :now",
            "ExpressionAttributeValues": {":before": number(run.revision - 1), ":now": number(now // 1000)},
        }
        return {"Put": {"Item": item, **condition}}
    values = {
        ":now": number(now // 1000),
        ":over": text("no"),
        ":thread": text(run.thread_id),
        ":resource": text(run.resource_id),
    }
    names = {"#open": "open"}
    return {
        "Put": {
            "Item": item,
            "ConditionExpression": _NEW,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }
    }


def _key(run_id: str) -> "Item":
    return items.key(keys.run(run_id), keys.SELF)
