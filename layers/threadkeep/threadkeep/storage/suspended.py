"""Rules of suspended runs that need no store."""

from collections.abc import Iterable
from dataclasses import asdict, replace

from threadkeep import jsontext
from threadkeep.errors import Conflict
from threadkeep.storage import rules
from threadkeep.storage.port import Page, SuspendedCall, SuspendedFilter, SuspendedRun


def text(run: SuspendedRun) -> str:
    """A record as JSON text. Raises `TooLarge` above 350 KB."""
    return rules.body_text(asdict(run))


def read(body: str) -> SuspendedRun:
    fields = jsontext.loads(body)
    calls = tuple(SuspendedCall(**call) for call in fields.pop("calls"))
    return SuspendedRun(**fields | {"calls": calls, "message_ids": tuple(fields["message_ids"])})


def check(stored: SuspendedRun | None, run: SuspendedRun) -> None:
    """Raises `Conflict` unless `run` may take the place of what is stored."""
    if run.revision > 1:
        allowed = stored is not None and stored.revision == run.revision - 1
    else:
        allowed = stored is None or (not stored.open and _place(stored) == _place(run))
    if not allowed:
        raise Conflict(rules.RUN_MOVED)


def listed(runs: Iterable[SuspendedRun], match: SuspendedFilter, page: int, per_page: int | None) -> Page[SuspendedRun]:
    """One page of those that wait and pass the filter, newest first."""
    found = sorted((r for r in runs if r.waiting and _passes(r, match)), key=lambda r: (r.at, r.run_id), reverse=True)
    items = [replace(run, request={}) for run in rules.cut(found, page, per_page)]
    return rules.page_of(items, total=len(found), page=page, per_page=per_page)


def _passes(run: SuspendedRun, match: SuspendedFilter) -> bool:
    return (
        match.agent_id in (None, run.agent_id)
        and match.thread_id in (None, run.thread_id)
        and match.resource_id in (None, run.resource_id)
        and (match.since is None or run.at >= match.since)
        and (match.until is None or run.at <= match.until)
    )


def _place(run: SuspendedRun) -> tuple[str, str]:
    return run.thread_id, run.resource_id
