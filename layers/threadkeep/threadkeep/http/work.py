"""The worker behind `send-message`: runs what was sent to a thread and tells subscribers what is said (DESIGN 7).

A worker holds the thread's runs by a lease that it renews. When it dies, the next one, which Lambda starts by
itself, waits for the lease to end and begins the run again: a turn is stored at its end or not at all, so nothing is
stored twice. A run over which two workers died is given up.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

from threadkeep import clock, ids
from threadkeep.clock import Millis
from threadkeep.config import settings
from threadkeep.errors import Conflict, NotFound, StoreUnavailable
from threadkeep.http import wire
from threadkeep.http.app import App
from threadkeep.http.approvals import DecisionBody, DecisionQuery, decided
from threadkeep.http.chunks import Chunk, Chunks
from threadkeep.http.generate import GenerateBody, turn_of
from threadkeep.http.identity import Identity, Kind
from threadkeep.http.route import Call
from threadkeep.http.serve import parsed
from threadkeep.http.stream import chunks_of, told
from threadkeep.jsontext import Json, as_object
from threadkeep.storage.live import Channel, Claim, Held, Place
from threadkeep.storage.port import Storage
from threadkeep.turn import receipts
from threadkeep.turn.approvals import let_go
from threadkeep.turn.request import Services, TurnAgent, TurnRequest

Q = TypeVar("Q")
B = TypeVar("B")

LEASE: Millis = 10_000
RENEWAL_SECONDS = 3.0
ATTEMPTS = 2
SHORTEST_RUN = 300.0  # seconds that a worker must have left to begin one more run
ENDING = 30.0  # seconds of them that it keeps for the end
_REPEAT = 1.0  # seconds before output is told again that the store did not take
_FIRST_PACE, _PACE = 0.02, 0.15  # seconds between two rows of output; the second once a run is under way
_MESSAGE = "data-user-message"
_OPENING: set[Json] = {_MESSAGE, "start", "step-start"}  # what may be told again without a word about it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a worker needs of messages that were sent: them, options of their turn, and who sent them.

    `signal_id` and `metadata` are those of the one message of a user; results of tools have none.
    """

    messages: list[Json]
    options: dict[str, Json]
    context: dict[str, Json]
    kind: Kind
    resource: str | None
    signal_id: str = ""
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    def told(self, run_id: str, at: Millis) -> Chunk:
        """The chunk that tells subscribers of a user's message (spec-http 5, "Which mode to serve")."""
        data = signal(self.signal_id, self.messages[0]["content"], self.metadata or None, at)
        return {"type": _MESSAGE, "data": data, "transient": True, "runId": run_id}


def signal(id: str, contents: Json, metadata: dict[str, Json] | None, at: Millis) -> dict[str, Json]:
    """A user's message as senders and subscribers are told of it."""
    told: dict[str, Json] = {
        "id": id,
        "type": "user",
        "tagName": "user",
        "contents": contents,
        "createdAt": clock.iso(at),
        "acceptedAt": clock.iso(at),
    }
    return told if metadata is None else told | {"metadata": metadata}


@dataclass(frozen=True, slots=True)
class SentDecision:
    """What a worker needs of a decision on a call that waits for one, and of who took it."""

    run_id: str
    call_id: str
    approved: bool
    reason: str | None
    context: dict[str, Json]
    kind: Kind
    resource: str | None

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


async def turn_of_sent(
    app: App, channel: Channel, agent_id: str, run_id: str, sent: Sent, at: Millis, deadline: float
) -> tuple[TurnAgent, TurnRequest]:
    """The turn that a sent message asks for. Raises what refuses it."""
    options = as_object(sent.options.get("memory")) or {}
    thread = as_object(options.get("thread")) or {}
    memory = options | {"thread": thread | {"id": channel.thread_id}, "resource": channel.resource_id}
    body = sent.options | {"messages": sent.messages, "memory": memory, "runId": run_id}
    query = wire.ContextQuery(request_context=sent.context)
    call = _call(app, agent_id, sent, query, parsed(GenerateBody, body, "request body"), at)
    agent, request = await turn_of(call, "work", deadline)
    said = tuple(replace(m, metadata=sent.metadata) if sent.metadata else m for m in request.messages)
    return agent, replace(request, messages=said)


def _call(app: App, agent_id: str, sent: Sent | SentDecision, query: Q, body: B, at: Millis) -> Call[Q, B]:
    """The call that the sender made, as it would be now."""
    return Call({"agentId": agent_id}, query, body, b"", {}, Identity(sent.kind, sent.resource), at, app)


async def work(
    app: App, channel: Channel, remaining: Callable[[], float], again: Callable[[], Awaitable[None]]
) -> None:
    """Run what was sent to a thread, one message after another, while `remaining` seconds allow; then start `again`.

    Raises `StoreUnavailable`. A run that another worker took over is that one's.
    """
    worker, begun = ids.new_id(), False
    while True:
        if begun and remaining() < SHORTEST_RUN:
            if (await app.storage.live_state(channel)).is_live:
                await again()
            return
        claim = await _claimed(app.storage, channel, worker)
        if claim is None:
            return
        begun = True
        try:
            await _run(app, claim, min(settings().stream_deadline_seconds, remaining() - ENDING))
        except Conflict:
            _log.warning("run %s is not this worker's any more", claim.run_id, exc_info=True)
            return


async def _claimed(storage: Storage, channel: Channel, worker: str) -> Claim | None:
    """The live run, once nobody holds it; None if there is none, or another worker is alive and goes on."""
    met: Held | None = None
    while isinstance(found := await storage.claim_run(channel, worker, LEASE), Held):
        if met not in (None, found):
            return None
        met = found
        await asyncio.sleep(max(found.until - clock.now(), 0) / 1000 + 0.1)
    return found


async def _run(app: App, claim: Claim, deadline: float) -> None:
    outlet = Outlet(app.storage, claim)
    holding, pouring = asyncio.create_task(_hold(app.storage, claim)), asyncio.create_task(outlet.pour())
    running = asyncio.create_task(_tell(app, claim, outlet, deadline))
    try:
        await asyncio.wait({holding, pouring, running}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():  # the run is lost, or nothing can be told any more
            running.cancel()
            await asyncio.wait({running})
            for task in (holding, pouring):
                if task.done():
                    task.result()
        running.result()
        outlet.close()
        await pouring
        await app.storage.finish_run(outlet.claim, outlet.rest)
    finally:
        for task in (holding, pouring, running):
            task.cancel()
        await asyncio.gather(holding, pouring, running, return_exceptions=True)


async def _hold(storage: Storage, claim: Claim) -> None:
    """Renew the lease for as long as the run takes. Raises `Conflict` once the run is another worker's."""
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        try:
            await storage.renew_run(claim, LEASE)
        except StoreUnavailable:
            _log.warning("lease not renewed", exc_info=True)


async def _tell(app: App, claim: Claim, outlet: "Outlet", deadline: float) -> None:
    """Do what was sent and tell what is said; whatever goes wrong is told too."""
    try:
        if claim.attempt > ATTEMPTS:
            raise Conflict("The run was cut off again and again; it is given up")
        async with aclosing(_chunks(app, claim, deadline)) as chunks:
            async for chunk in chunks:
                outlet.tell(chunk)
    except Exception as error:
        if isinstance(error, StoreUnavailable) and claim.attempt < ATTEMPTS:
            raise  # nothing has begun: Lambda tries again
        for chunk in Chunks(claim.run_id).failed(error):
            outlet.tell(chunk)


async def _chunks(app: App, claim: Claim, deadline: float) -> AsyncGenerator[Chunk]:
    before = await _told_before(app.storage, claim)
    if "finish" in before:  # a worker died between this and saying that the run is over
        return
    match claim.request:
        case {"sent": given}:
            sent = Sent(**given)
            if sent.signal_id and _MESSAGE not in before:
                yield sent.told(claim.run_id, claim.at)
            said = _answer(app, claim, sent, deadline)
        case {"decision": given}:
            said = _decided(app, claim, SentDecision(**given), deadline)
        case _:
            raise NotFound("What was sent is not there any more")
    if before - _OPENING:
        yield _cut_off(claim.run_id)
    async with aclosing(said) as chunks:
        async for chunk in chunks:
            yield chunk


async def _answer(app: App, claim: Claim, sent: Sent, deadline: float) -> AsyncGenerator[Chunk]:
    agent, request = await turn_of_sent(app, claim.channel, claim.agent_id, claim.run_id, sent, claim.at, deadline)
    if claim.attempt > 1 and request.repeat is not None:
        await receipts.let_go(app.storage, request.repeat)
    request = replace(request, stopped=lambda: app.storage.is_stopped(claim))
    async with aclosing(told(agent, request, Services(app.storage, app.models))) as chunks:
        async for chunk in chunks:
            yield chunk


async def _decided(app: App, claim: Claim, sent: SentDecision, deadline: float) -> AsyncGenerator[Chunk]:
    query = DecisionQuery(request_context=sent.context, resource_id=claim.channel.resource_id)
    body = DecisionBody(run_id=sent.run_id, tool_call_id=sent.call_id, reason=sent.reason)
    call = _call(app, claim.agent_id, sent, query, body, claim.at)
    taken = await decided(call, approved=sent.approved, deadline=deadline)
    if claim.attempt > 1:
        await let_go(app.storage, taken.suspended)
    taken = replace(taken, request=replace(taken.request, stopped=lambda: app.storage.is_stopped(claim)))
    async with aclosing(chunks_of(taken.suspended.run_id, taken.run)) as chunks:
        async for chunk in chunks:
            yield chunk


async def _told_before(storage: Storage, claim: Claim) -> set[Json]:
    """The types of the chunks that a worker that died has told of this run."""
    types: set[Json] = set()
    place = Place(claim.ticket, 0)
    while claim.rows and (outputs := await storage.read_output(claim.channel, place)):
        types |= {chunk.get("type") for output in outputs for chunk in output.chunks}
        place = outputs[-1].place
    return types


def _cut_off(run_id: str) -> Chunk:
    error: Json = {"message": "The run was cut off and begins again", "name": "Conflict"}
    return {"type": "error", "runId": run_id, "from": "AGENT", "payload": {"error": error}}


class Outlet:
    """Tells the chunks of a run in batches: the run never waits for the store. `rest` is what is not told yet."""

    def __init__(self, storage: Storage, claim: Claim):
        self.claim = claim
        self.rest: list[Chunk] = []
        self._storage = storage
        self._news = asyncio.Event()
        self._closed = asyncio.Event()

    def tell(self, chunk: Chunk) -> None:
        self.rest.append(chunk)
        self._news.set()

    def close(self) -> None:
        """Have `pour` return; what is left is for the end of the run."""
        self._closed.set()
        self._news.set()

    async def pour(self) -> None:
        """Append what was told, as soon as it is and then in a steady pace. Raises `Conflict`, and `StoreUnavailable`
        at the end: until then the store has time to come back."""
        pace = _FIRST_PACE
        while True:
            await self._news.wait()
            if self._closed.is_set():
                return
            self._news.clear()
            batch, self.rest = self.rest, []
            await self._append(batch)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), pace)
            pace = min(pace * 2, _PACE)

    async def _append(self, batch: list[Chunk]) -> None:
        """Append a batch as it is: an attempt that failed may have been stored, and the next takes its place."""
        while True:
            is_last = self._closed.is_set()
            try:
                self.claim = await self._storage.append_output(self.claim, batch)
                return
            except StoreUnavailable:
                if is_last:
                    raise
                _log.warning("output not told yet", exc_info=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), _REPEAT)
