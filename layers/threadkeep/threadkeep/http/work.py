"""The worker behind `send-message`: runs what was sent to a thread and tells subscribers what is said (DESIGN 7).

A worker holds the thread's runs by a lease that it renews. When it dies, the next one, which Lambda starts by
itself, waits for the lease to end and begins the run again: a turn is stored at its end or not at all, so nothing is
stored twice. A run over which two workers died is given up.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace

from threadkeep import clock, ids
from threadkeep.clock import Millis
from threadkeep.config import settings
from threadkeep.errors import Conflict, NotFound, StoreUnavailable
from threadkeep.http import wire
from threadkeep.http.app import App
from threadkeep.http.chunks import Chunk, Chunks
from threadkeep.http.generate import GenerateBody, turn_of
from threadkeep.http.identity import Identity, Kind
from threadkeep.http.route import Call
from threadkeep.http.serve import parsed
from threadkeep.http.stream import told
from threadkeep.jsontext import Json, as_object
from threadkeep.storage.live import Channel, Claim, Held, Place
from threadkeep.storage.port import Storage
from threadkeep.turn import receipts
from threadkeep.turn.request import Services, TurnAgent, TurnRequest

LEASE: Millis = 10_000
RENEWAL_SECONDS = 3.0
ATTEMPTS = 2
SHORTEST_RUN = 300.0  # seconds that a worker must have left to begin one more run
ENDING = 30.0  # seconds of them that it keeps for the end
_FIRST_PACE, _PACE = 0.02, 0.15  # seconds between two rows of output; the second once a run is under way
_MESSAGE = "data-user-message"
_OPENING: set[Json] = {_MESSAGE, "start", "step-start"}  # what may be told again without a word about it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a worker needs of a message that was sent: the message, options of its turn, and who sent it."""

    signal_id: str
    contents: Json
    metadata: dict[str, Json]
    options: dict[str, Json]
    context: dict[str, Json]
    kind: Kind
    resource: str | None

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    def told(self, run_id: str, at: Millis) -> Chunk:
        """The chunk that tells subscribers of the message (spec-http 5, "Which mode to serve")."""
        data: dict[str, Json] = {
            "id": self.signal_id,
            "type": "user",
            "tagName": "user",
            "contents": self.contents,
            "createdAt": clock.iso(at),
            "acceptedAt": clock.iso(at),
        }
        if self.metadata:
            data["metadata"] = self.metadata
        return {"type": _MESSAGE, "data": data, "transient": True, "runId": run_id}


async def turn_of_sent(
    app: App, channel: Channel, agent_id: str, run_id: str, sent: Sent, at: Millis, deadline: float
) -> tuple[TurnAgent, TurnRequest]:
    """The turn that a sent message asks for. Raises what refuses it."""
    options = as_object(sent.options.get("memory")) or {}
    thread = as_object(options.get("thread")) or {}
    memory = options | {"thread": thread | {"id": channel.thread_id}, "resource": channel.resource_id}
    message: Json = {"role": "user", "id": sent.signal_id, "content": sent.contents}
    body = sent.options | {"messages": [message], "memory": memory, "runId": run_id}
    call = Call(
        path={"agentId": agent_id},
        query=wire.ContextQuery(request_context=sent.context),
        body=parsed(GenerateBody, body, "request body"),
        raw=b"",
        headers={},
        identity=Identity(sent.kind, sent.resource),
        arrived=at,
        app=app,
    )
    agent, request = await turn_of(call, "work", deadline)
    [said] = request.messages
    return agent, replace(request, messages=(replace(said, metadata=sent.metadata or None),))


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
    """Run a message and tell what it says; whatever goes wrong is told too."""
    try:
        if claim.attempt > ATTEMPTS:
            raise Conflict("The run was cut off again and again; it is given up")
        sent = Sent(**claim.request) if claim.request else None
        if sent is None:
            raise NotFound("The message is not there any more")
        before = await _told_before(app.storage, claim)
        if _MESSAGE not in before:
            outlet.tell(sent.told(claim.run_id, claim.at))
        if before - _OPENING:
            outlet.tell(_cut_off(claim.run_id))
        agent, request = await turn_of_sent(app, claim.channel, claim.agent_id, claim.run_id, sent, claim.at, deadline)
        await _let_go(app.storage, claim, request)
        request = replace(request, stopped=lambda: app.storage.is_stopped(claim))
        async with aclosing(told(agent, request, Services(app.storage, app.models))) as chunks:
            async for chunk in chunks:
                outlet.tell(chunk)
    except Exception as error:
        if isinstance(error, StoreUnavailable) and claim.attempt < ATTEMPTS:
            raise  # nothing has begun: Lambda tries again
        for chunk in Chunks(claim.run_id).failed(error):
            outlet.tell(chunk)


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


async def _let_go(storage: Storage, claim: Claim, request: TurnRequest) -> None:
    """Forget the receipt that a worker that died holds for this run; one that it finished stays."""
    if claim.attempt > 1 and request.repeat is not None:
        await receipts.let_go(storage, request.repeat)


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
        """Append what was told, as soon as it is and then in a steady pace. Raises `Conflict`, `StoreUnavailable`."""
        pace = _FIRST_PACE
        while True:
            await self._news.wait()
            if self._closed.is_set():
                return
            self._news.clear()
            batch, self.rest = self.rest, []
            self.claim = await self._storage.append_output(self.claim, batch)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), pace)
            pace = min(pace * 2, _PACE)
