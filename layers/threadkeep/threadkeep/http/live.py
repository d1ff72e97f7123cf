"""Messages that are sent to a thread, and subscriptions to what its runs say (spec-http 2.2, DESIGN 7).

A message is put behind those that the thread has and answered at once; a worker runs it (`http.work`), in another
process. Subscribers read what the worker has told. The two never meet: all that they share is the store.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from pydantic import Discriminator, Tag

from threadkeep import clock, ids
from threadkeep.config import settings
from threadkeep.errors import AccessDenied, Conflict, InvalidInput, Issue, KeyReused, NotFound, StoreUnavailable
from threadkeep.http import wire
from threadkeep.http.chunks import Chunk
from threadkeep.http.generate import GenerateBody
from threadkeep.http.logs import logger
from threadkeep.http.repeats import key_of, new_id
from threadkeep.http.route import Call, Route, Table
from threadkeep.http.work import Sent, signal, turn_of_sent
from threadkeep.http.workers import Workers
from threadkeep.jsontext import Json
from threadkeep.storage.live import Accepted, Channel, NewRun, Output, Place
from threadkeep.storage.port import Storage
from threadkeep.storage.rules import check_owner

IDLE_SECONDS = 60.0  # without a run: then a subscription ends, and clients subscribe again
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5  # seconds between two looks; the second while no run is live

_SIGNALS = UUID("0e0a7f0a-52a0-4a1c-8f2e-6d0a4a0f7f53")  # names the message of a run


class StreamOptions(GenerateBody):
    """The body of generate, without messages."""

    messages: Json = None


class SentMessage(wire.Body):
    """`contents` is a text or parts. A message is sent again under its `id` without being run again.

    `metadata` is stored with the message and told to subscribers, `clientMessageId` among it.
    """

    contents: Json
    id: wire.Id | None = None
    metadata: wire.Metadata | None = None
    type: Literal["user", "user-message"] = "user"


def _spelling(given: Any) -> str:
    return {str: "text", list: "parts"}.get(type(given), "object")  # pyright: ignore[reportUnknownArgumentType]


Message = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Json], Tag("parts")] | Annotated[SentMessage, Tag("object")],
    Discriminator(_spelling),
]


class IfIdle(wire.Body):
    """What to do where no run is live: run the message, with these options."""

    behavior: Literal["wake"] = "wake"
    stream_options: StreamOptions = StreamOptions()


class IfActive(wire.Body):
    """What to do while a run is live: run the message behind it."""

    behavior: Literal["deliver"] = "deliver"


class ChannelBody(wire.Body):
    """`resourceId` may be absent when the caller's token names it, or the thread exists."""

    thread_id: wire.Id
    resource_id: wire.Id | None = None


class SendBody(ChannelBody):
    message: Message
    if_idle: IfIdle = IfIdle()
    if_active: IfActive = IfActive()


class SignalBody(ChannelBody):
    """A signal that is the message of a user; there are no others here."""

    signal: Message
    if_idle: IfIdle = IfIdle()
    if_active: IfActive = IfActive()


class AbortBody(ChannelBody):
    """With `expectedRunId` only that run is ended."""

    expected_run_id: str | None = None


class Signal(wire.Reply):
    id: str
    type: str
    tag_name: str
    contents: Json
    metadata: dict[str, Json] = {}
    created_at: str
    accepted_at: str


class Sending(wire.Reply):
    accepted: bool
    run_id: str
    signal: Signal


class Aborting(wire.Reply):
    aborted: bool


async def send_message(call: Call[wire.ContextQuery, SendBody]) -> dict[str, Json]:
    """Put a message behind those of its thread and answer at once; subscribers see the answer."""
    return await _sent(call, call.body.message, call.body.if_idle.stream_options, "message")


async def send_signal(call: Call[wire.ContextQuery, SignalBody]) -> dict[str, Json]:
    """As send-message."""
    return await _sent(call, call.body.signal, call.body.if_idle.stream_options, "signal")


async def abort(call: Call[wire.Query, AbortBody]) -> dict[str, Json]:
    """Ask the live run of a thread to end before its next step."""
    workers_of(call)
    call.agent()
    return {"aborted": await call.app.storage.stop_run(await channel_of(call), call.body.expected_run_id)}


async def subscribe(call: Call[wire.Query, ChannelBody]) -> AsyncGenerator[Chunk | str]:
    """Tell what the runs of a thread say, from the beginning of the one that is live.

    A comment `at <place>` follows what was told up to a place; whoever names it in the header `Last-Event-ID`
    goes on there.
    """
    workers_of(call)
    call.agent()
    channel, after = await channel_of(call), _place(call.headers.get("last-event-id"))
    place = after or (await call.app.storage.live_state(channel)).start
    yield "connected"  # whatever is sent from here on is told
    end, quiet, pause, told_all = clock.now() + settings().stream_deadline_seconds * 1000, clock.now(), 0.0, True
    while clock.now() < end:
        outputs = await _news(call.app.storage, channel, place)
        for output in outputs:
            for chunk in output.chunks:
                yield chunk
            place, told_all = output.place, output.last
            yield f"at {place}"
        if outputs:
            quiet, pause = clock.now(), 0.0
        elif clock.now() - quiet > IDLE_SECONDS * 1000 and not await _is_held(call.app.storage, channel):
            return
        pause = _FIRST_PAUSE if not told_all or not pause else min(pause * 1.5, _LONGEST_PAUSE)
        await asyncio.sleep(pause)


async def _news(storage: Storage, channel: Channel, place: Place) -> tuple[Output, ...]:
    """What was told behind a place; nothing while the store does not answer, which is often over soon."""
    try:
        return await storage.read_output(channel, place)
    except StoreUnavailable as error:
        logger().warning("live output not read", exc_info=error)
        return ()


async def _is_held(storage: Storage, channel: Channel) -> bool:
    """Whether a worker is at work for a thread, though it may say nothing for long."""
    return (await storage.live_state(channel)).lease > clock.now()


async def _sent(call: Call[Any, Any], given: Any, options: StreamOptions, field: str) -> dict[str, Json]:
    workers, agent = workers_of(call), call.agent()
    channel = await channel_of(call)
    message = given if isinstance(given, SentMessage) else SentMessage(contents=given)
    run_id = _run_id(call, channel, message)
    signal_id = message.id or str(uuid5(_SIGNALS, run_id))
    said: Json = {"role": "user", "id": signal_id, "content": message.contents}
    sent = sent_by(call, [said], options, signal_id=signal_id, metadata=message.metadata or {})
    try:
        await turn_of_sent(call.app, channel, agent.id, run_id, sent, clock.now(), 0)
    except InvalidInput as error:
        raise _renamed(error, field, has_id=isinstance(given, SentMessage)) from error
    request_hash = hashlib.sha256(call.raw).hexdigest()
    joins = message.id is None and key_of(call.headers) is None
    run = NewRun(channel, run_id, agent.id, request_hash, {"sent": sent.to_json()}, joins)
    accepted = await call.app.storage.queue_run(run)
    if accepted.request_hash != request_hash:
        raise KeyReused if key_of(call.headers) else Conflict(f"Another message was sent under the id {message.id}")
    if accepted.needs_worker:
        await workers.start(channel)
    return _reply(accepted, message)


def sent_by(call: Call[Any, Any], messages: list[Json], options: StreamOptions, **message: Any) -> Sent:
    """What the caller sends, as a worker gets it."""
    given = options.model_dump(by_alias=True, exclude_unset=True)
    return Sent(messages, given, call.query.request_context, call.identity.kind, call.identity.resource, **message)


def _reply(accepted: Accepted, message: SentMessage) -> dict[str, Json]:
    signal_id = message.id or str(uuid5(_SIGNALS, accepted.run_id))
    told = signal(signal_id, message.contents, message.metadata, accepted.at)
    return {"accepted": True, "runId": accepted.run_id, "signal": told}


def _run_id(call: Call[Any, Any], channel: Channel, message: SentMessage) -> str:
    """The same for a message that is sent again under its own id or under the same `Idempotency-Key`, else new."""
    if message.id is not None and key_of(call.headers) is None:
        return str(uuid5(_SIGNALS, "\0".join((channel.resource_id, channel.thread_id, message.id))))
    return new_id(call, channel.resource_id, "send-message", channel.thread_id)


def _renamed(error: InvalidInput, field: str, *, has_id: bool) -> InvalidInput:
    """The error with its fields as the caller wrote them."""
    contents = f"{field}.contents" if has_id else field
    issues = [Issue(i.field.replace("messages.0.content", contents, 1), i.message) for i in error.issues]
    return InvalidInput(*issues)


def workers_of(call: Call[Any, Any]) -> Workers:
    """Raises `NotFound` where the deployment has these routes turned off, so that clients use `stream`."""
    if call.app.workers is None:
        raise NotFound("Not Found")
    return call.app.workers


async def channel_of(call: Call[Any, Any], named: str | None = None) -> Channel:
    """Where the runs of the caller's thread are told. `named` is an owner that stands elsewhere than in the body.

    Raises `AccessDenied` for another owner's thread, and for that of a sub-agent.
    """
    body: ChannelBody = call.body
    owner = call.identity.owner(body.resource_id or named)
    thread = await call.app.storage.get_thread(body.thread_id)
    if thread is not None:
        check_owner(thread, owner)
    owner = owner or (thread.resource_id if thread else None)
    if owner is None:
        raise InvalidInput(Issue("resourceId", "required, in the body or in the caller's token, for a new thread"))
    if ids.problem(owner) is not None:
        raise AccessDenied("Access denied: the thread is a sub-agent's, only its supervisor talks there")
    return Channel(owner, body.thread_id)


def _place(text: str | None) -> Place | None:
    if text is None:
        return None
    ticket, _, row = text.partition(".")
    if not (ticket.isascii() and ticket.isdigit() and row.isascii() and row.isdigit()) or len(text) > 30:
        raise InvalidInput(Issue("Last-Event-ID", "must be a place that a subscription has told"), where="headers")
    return Place(int(ticket), int(row))


def _sending(path: str, operation: Any, body: type[Any], summary: str) -> Route[Any, Any, Any]:
    return Route(
        "POST",
        f"/api/agents/{{agentId}}/{path}",
        "generate",
        operation,
        wire.ContextQuery,
        body,
        Sending,
        summary,
        errors=(403, 404, 409, 413, 422, 503),
    )


ROUTES: Table = (
    _sending("send-message", send_message, SendBody, "Send a message to a thread; subscribers see the answer"),
    _sending("queue-message", send_message, SendBody, "As send-message"),
    _sending("signals", send_signal, SignalBody, "As send-message, for signals of the type user"),
    Route(
        "POST",
        "/api/agents/{agentId}/threads/abort",
        "generate",
        abort,
        wire.Query,
        AbortBody,
        Aborting,
        "Ask the live run of a thread to end",
        errors=(403, 404, 503),
    ),
)
STREAMS: Table = (
    Route(
        "POST",
        "/api/agents/{agentId}/threads/subscribe",
        "stream",
        subscribe,
        wire.Query,
        ChannelBody,
        str,
        "Stream what the runs of a thread say, one after another",
        errors=(403, 404, 503),
        streams=True,
    ),
)
