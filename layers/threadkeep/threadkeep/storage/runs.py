"""Runs that outlive a request: the record of a durable run, and journals, in which runs keep what they did.

A journal is a set of entries, each written once. Whoever does a piece of work writes what came of it as an entry; a
repeat of the work finds the entry and does not do it again. A durable run's journal has the id of the run; that of a
buffered run's delegations an id of its own. Everything here is forgotten a week after it was written, or with the
thread that it belongs to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from threadkeep.clock import Millis
from threadkeep.jsontext import Json

RunState = Literal["running", "succeeded", "failed", "cancelled"]

JOURNAL_MILLIS = 7 * 86_400_000  # how long a journal is kept after its last run record or entry was written


@dataclass(frozen=True, slots=True)
class DurableRun:
    """A run that goes on in steps, each in whatever process (DESIGN 6).

    `resource_id` is the owner, None for a run that a service began for nobody. `thread_id` is None without memory.
    `request` is what each step needs to know of the call. `result` is set once it has `succeeded`, `error`
    (`{"name", "message"}`) once it has `failed`.
    """

    run_id: str
    agent_id: str
    resource_id: str | None
    thread_id: str | None
    request_hash: str
    request: dict[str, Json] = field(default_factory=dict[str, Json])
    state: RunState = "running"
    result: dict[str, Json] | None = None
    error: dict[str, Json] | None = None
    created_at: Millis = 0
    updated_at: Millis = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a journal. `name` sorts it: letters, digits, `#`, `.`, `-` and `_`, at most 200 bytes."""

    name: str
    body: Json


@dataclass(frozen=True, slots=True)
class RunGuard:
    """A durable run that a commit is part of: it is stored only while the run is `running`.

    With `result` the commit is the run's last one: in the same transaction the run has `succeeded` with it.
    """

    run_id: str
    result: dict[str, Json] | None = None


class Journals(Protocol):
    """The part of the storage port that carries durable runs and journals."""

    async def create_run(self, run: DurableRun) -> DurableRun:
        """Store a new run; of an id that is known, the stored one is returned unchanged.

        The store sets the times. The run is forgotten with its thread, which need not be there yet. Raises `Conflict`
        if another agent or owner has the id, `ThreadGone` while the thread is being deleted, `TooLarge` above 350 KB
        of request or 40 KB of result or error.
        """
        ...

    async def get_run(self, run_id: str) -> DurableRun | None:
        """A run, read consistently."""
        ...

    async def list_runs(
        self, thread_id: str, *, agent_id: str, resource_id: str, limit: int = 100
    ) -> tuple[DurableRun, ...]:
        """The newest runs of an agent on a thread of this owner, newest first, without `request` and `result`."""
        ...

    async def end_run(
        self,
        run_id: str,
        state: RunState,
        *,
        result: dict[str, Json] | None = None,
        error: dict[str, Json] | None = None,
    ) -> DurableRun:
        """Bring a running run to another state, or one that has failed back to `running` (a redrive).

        Returns the run as it is then. One that is in another state already stays as it is. Raises `NotFound`,
        `TooLarge` above 40 KB of result or error.
        """
        ...

    async def forget_run(self, run_id: str) -> None:
        """Delete the entries of a durable run that is gone: its tasks may have written after it was forgotten.

        Those of a run that is still there stay.
        """
        ...

    async def write_entries(
        self, journal: str, entries: Sequence[Entry], *, thread_id: str | None
    ) -> tuple[Entry, ...]:
        """Write entries that are not there yet; returns all as they stand, in the order of `entries`.

        They are written together, but for those that others wrote meanwhile. Big bodies go to the bucket. `thread_id`
        is the thread with which the journal is forgotten; one write must name it, the first one if possible, and later
        ones are cheaper without it. A durable run's journal is forgotten with the thread of the run. Raises
        `ThreadGone` if that thread is not there (any more), `InvalidInput` for a name that may not be, `TooLarge` above
        44 entries or 25 MB in one body.
        """
        ...

    async def read_entries(self, journal: str, names: Sequence[str]) -> dict[str, Json]:
        """The bodies of those of these entries that exist, by name, read consistently."""
        ...

    async def list_entries(self, journal: str, prefix: str) -> tuple[Entry, ...]:
        """All entries whose names begin so, sorted by name."""
        ...
