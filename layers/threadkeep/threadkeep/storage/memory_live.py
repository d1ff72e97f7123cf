"""The part of the in-memory store that carries live output (see `storage.live`)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.errors import Conflict
from threadkeep.jsontext import Json
from threadkeep.storage import rules
from threadkeep.storage.live import (
    LIVE_MILLIS,
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


@dataclass(slots=True)
class _Lane:
    """A channel: its runs that wait or are live, by ticket, and what was told, with the time of each row."""

    head: Head = Head()
    queue: dict[int, tuple[NewRun, Millis]] = field(default_factory=dict[int, tuple[NewRun, Millis]])
    rows: list[tuple[Row, Millis]] = field(default_factory=list[tuple[Row, Millis]])


class LiveInMemory:
    """`LiveRuns` under the lock and the clock of the store that it is a part of."""

    clock: Callable[[], Millis]
    _lock: Lock
    _lanes: dict[Channel, _Lane]
    _accepted: dict[str, tuple[str, Millis]]  # request hash and time of every run, by its id

    async def queue_run(self, run: NewRun) -> Accepted:
        request = jsontext.loads(rules.body_text(run.request))
        await asyncio.sleep(0)
        with self._lock:
            now, lane = self.clock(), self._lanes.setdefault(run.channel, _Lane())
            head = lane.head
            if head.joined(run, now):
                return Accepted(head.last_run, head.last_hash, head.last_at, head.needs_worker(now))
            if known := self._accepted.get(run.run_id):
                return Accepted(run.run_id, *known, head.needs_worker(now))
            ticket = head.next_ticket(now)
            lane.queue[ticket] = replace(run, request=request), now
            self._accepted[run.run_id] = run.request_hash, now
            lane.head = replace(head, last_ticket=ticket, last_run=run.run_id, last_hash=run.request_hash, last_at=now)
            if not head.ticket:
                lane.head = _begun(lane.head, ticket, run.run_id)
            return Accepted(run.run_id, run.request_hash, now, lane.head.needs_worker(now))

    async def claim_run(self, channel: Channel, worker: str, lease: Millis) -> Claim | Held | None:
        await asyncio.sleep(0)
        with self._lock:
            now, lane = self.clock(), self._lanes.get(channel, _Lane())
            head = lane.head
            if not head.ticket:
                return None
            if head.lease > now and head.worker != worker:
                return Held(head.worker, head.lease)
            attempt = head.attempt + (head.worker != worker)
            lane.head = replace(head, worker=worker, lease=now + lease, attempt=attempt)
            run, at = lane.queue[head.ticket]
            return Claim(
                channel,
                head.ticket,
                run.run_id,
                run.agent_id,
                jsontext.loads(jsontext.dumps(run.request)),
                at,
                worker,
                attempt,
                head.rows,
            )

    async def renew_run(self, claim: Claim, lease: Millis) -> None:
        await asyncio.sleep(0)
        with self._lock:
            lane = self._held(claim)
            lane.head = replace(lane.head, lease=self.clock() + lease)

    async def append_output(self, claim: Claim, chunks: Sequence[dict[str, Json]]) -> Claim:
        rows = rows_of(claim, chunks)
        await asyncio.sleep(0)
        with self._lock:
            return self._tell(self._held(claim), claim, rows)

    async def finish_run(self, claim: Claim, chunks: Sequence[dict[str, Json]]) -> None:
        rows = rows_of(claim, chunks, last=True)
        await asyncio.sleep(0)
        with self._lock:
            lane = self._held(claim)
            self._tell(lane, claim, rows)
            del lane.queue[claim.ticket]
            ticket = min(lane.queue, default=0)
            lane.head = _begun(lane.head, ticket, lane.queue[ticket][0].run_id if ticket else "")

    async def stop_run(self, channel: Channel, run_id: str | None = None) -> bool:
        await asyncio.sleep(0)
        with self._lock:
            lane = self._lanes.get(channel, _Lane())
            if not lane.head.ticket or run_id not in (None, lane.head.run_id):
                return False
            lane.head = replace(lane.head, stop=True)
            return True

    async def is_stopped(self, claim: Claim) -> bool:
        await asyncio.sleep(0)
        with self._lock:
            head = self._lanes.get(claim.channel, _Lane()).head
            return head.stop or (head.ticket, head.worker) != (claim.ticket, claim.worker)

    async def live_state(self, channel: Channel) -> LiveState:
        await asyncio.sleep(0)
        with self._lock:
            return self._lanes.get(channel, _Lane()).head.state(self.clock())

    async def read_output(self, channel: Channel, after: Place) -> tuple[Output, ...]:
        await asyncio.sleep(0)
        with self._lock:
            oldest = self.clock() - LIVE_MILLIS
            told = self._lanes.get(channel, _Lane()).rows
            return outputs([row for row, at in told if at > oldest and row.place > after])

    def _forget_live(self, resource_id: str, thread_id: str) -> None:
        self._lanes.pop(Channel(resource_id, thread_id), None)

    def _held(self, claim: Claim) -> _Lane:
        lane = self._lanes.get(claim.channel)
        if lane is None or (lane.head.ticket, lane.head.worker) != (claim.ticket, claim.worker):
            raise Conflict(rules.TAKEN_OVER)
        return lane

    def _tell(self, lane: _Lane, claim: Claim, rows: Sequence[Row]) -> Claim:
        lane.rows += [(row, self.clock()) for row in rows]
        lane.head = replace(lane.head, rows=rows[-1].place.row)
        return replace(claim, rows=rows[-1].place.row)


def _begun(head: Head, ticket: int, run_id: str) -> Head:
    return replace(head, ticket=ticket, run_id=run_id, worker="", lease=0, attempt=0, rows=0, stop=False)
