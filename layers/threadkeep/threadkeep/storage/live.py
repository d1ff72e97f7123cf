"""Live output (DESIGN 7): the runs of a thread that subscribers see, and the queue in which they wait.

A run that is sent to a thread gets a ticket, which tells its place among the thread's runs. One run is live at a
time; a worker holds it by a lease that it renews. What the run says is appended in rows; a subscriber reads them in
order, run after run, so that one query finds all news. Everything here is forgotten within hours: what a
conversation is made of is the thread's messages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.jsontext import Json

ROW_CHARACTERS = 90_000  # of output in one row; four bytes each at most, of an item's 400 KB
LIVE_MILLIS = 3_600_000  # how long output is kept after it was told
KNOWN_MILLIS = 86_400_000  # how long the id of a run is known
QUEUED_MILLIS = 2 * KNOWN_MILLIS  # longer than its channel is kept
EQUAL_MILLIS = 5_000  # how long an equal request counts as sent again after it was accepted

_SKEW: Millis = 60_000  # between the clocks of two machines, at most


@dataclass(frozen=True, slots=True)
class Channel:
    """Where the runs of a thread are told. The owner is a part of it, so no other ever reads them."""

    resource_id: str
    thread_id: str


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in a channel: the ticket of a run and the number of a row of its output, from 1."""

    ticket: int
    row: int

    def __str__(self) -> str:
        return f"{self.ticket}.{self.row}"


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to send to a thread. `request` is what a worker needs to run it.

    `joins` says that an equal request, by `request_hash`, to the same thread is this one sent again, as long as
    its run waits or is live, or was accepted less than 5 seconds ago.
    """

    channel: Channel
    run_id: str
    agent_id: str
    request_hash: str
    request: dict[str, Json]
    joins: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run that has its place. `at` is when it was accepted, `request_hash` that of the request that was.

    `needs_worker` tells that no worker holds the thread's runs.
    """

    run_id: str
    request_hash: str
    at: Millis
    needs_worker: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """A live run in the hands of a worker. `attempt` counts the workers that have had it, `rows` what is told of it."""

    channel: Channel
    ticket: int
    run_id: str
    agent_id: str
    request: dict[str, Json]
    at: Millis
    worker: str
    attempt: int
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """Another worker holds the live run, until its lease ends if it does not renew it."""

    worker: str
    until: Millis


@dataclass(frozen=True, slots=True)
class Output:
    """Chunks of a run, whole, up to `place`. After the `last` of a run nothing more of it comes."""

    place: Place
    chunks: tuple[dict[str, Json], ...]
    last: bool = False


@dataclass(frozen=True, slots=True)
class LiveState:
    """Where a subscriber that comes now begins: before the live run, or behind everything. `lease` is its end."""

    start: Place
    is_live: bool = False
    lease: Millis = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of output: the part of a text that `number` says, of `count`."""

    place: Place
    text: str
    number: int = 0
    count: int = 1
    last: bool = False


class LiveRuns(Protocol):
    """The part of the storage port that carries live output. A worker's methods raise `Conflict` once it has lost
    its run to another worker, or the thread was deleted."""

    async def queue_run(self, run: NewRun) -> Accepted:
        """Put a run behind those that its thread has; it is live at once if there is none.

        A run whose id is known, or that joins an equal one, changes nothing and is answered as that one was.
        Raises `TooLarge` above 350 KB of request.
        """
        ...

    async def claim_run(self, channel: Channel, worker: str, lease: Millis) -> Claim | Held | None:
        """Take the live run for so many milliseconds, if no other worker holds it; None if no run is live.

        `worker` names one invocation; the same again gets the claim that it has.
        """
        ...

    async def renew_run(self, claim: Claim, lease: Millis) -> None:
        """Hold the run for so many milliseconds from now."""
        ...

    async def append_output(self, claim: Claim, chunks: Sequence[dict[str, Json]]) -> Claim:
        """Tell chunks to subscribers; the claim to go on with."""
        ...

    async def finish_run(self, claim: Claim, chunks: Sequence[dict[str, Json]]) -> None:
        """Tell the last chunks, at least one, and make the next run of the thread live, if one waits."""
        ...

    async def stop_run(self, channel: Channel, run_id: str | None = None) -> bool:
        """Ask the live run to end, if there is one and it is `run_id` where that is given."""
        ...

    async def is_stopped(self, claim: Claim) -> bool:
        """Whether the run was asked to end, or is not the worker's any more."""
        ...

    async def live_state(self, channel: Channel) -> LiveState: ...

    async def read_output(self, channel: Channel, after: Place) -> tuple[Output, ...]:
        """The next output behind a place, in order, read consistently; a bounded part of it."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """The row that orders a channel. `ticket` and `run_id` are those of the live run, 0 and empty if there is none.

    `last_*` tell of the run that was queued last. `rows` counts the live run's rows of output.
    """

    last_ticket: int = 0
    last_run: str = ""
    last_hash: str = ""
    last_at: Millis = 0
    ticket: int = 0
    run_id: str = ""
    worker: str = ""
    lease: Millis = 0
    attempt: int = 0
    rows: int = 0
    stop: bool = False

    def joined(self, run: NewRun, now: Millis) -> bool:
        """Whether a new run is the one that was queued last, sent again."""
        waits = self.ticket != 0 or now - self.last_at < EQUAL_MILLIS
        return run.joins and run.request_hash == self.last_hash and waits

    def needs_worker(self, now: Millis) -> bool:
        return self.ticket != 0 and self.lease <= now

    def next_ticket(self, now: Millis) -> int:
        """Tickets rise for good: by time, so that a head that was forgotten does not begin again."""
        return max(now, self.last_ticket + 1)

    def state(self, now: Millis) -> LiveState:
        if self.ticket:
            return LiveState(Place(self.ticket, 0), True, self.lease)
        return LiveState(Place(self.last_ticket + 1 if self.last_ticket else now - _SKEW, 0))


def rows_of(claim: Claim, chunks: Sequence[dict[str, Json]], *, last: bool = False) -> list[Row]:
    """The rows that hold chunks, behind what is told already."""
    text = jsontext.dumps(list(chunks))
    parts = [text[start : start + ROW_CHARACTERS] for start in range(0, len(text), ROW_CHARACTERS)]
    count = len(parts)
    return [
        Row(Place(claim.ticket, claim.rows + n + 1), part, n, count, last and n + 1 == count)
        for n, part in enumerate(parts)
    ]


def outputs(rows: Iterable[Row]) -> tuple[Output, ...]:
    """Whole output of rows in their order. What a worker was killed over before it was whole is left out."""
    found: list[Output] = []
    texts: list[str] = []
    for row in rows:
        if row.number == 0:
            texts = []
        texts.append(row.text)
        if row.number + 1 == row.count == len(texts):
            found.append(Output(row.place, tuple(jsontext.loads("".join(texts))), row.last))
            texts = []
    return tuple(found)
