"""Receipts: a request that is sent again gets the turn that it had, not a second one (DESIGN 4; H12, H21).

A turn claims its receipt in the round that loads it and finishes it in the transaction that stores it,
so a receipt costs no round trip and tells exactly whether the turn was stored. A run that dies leaves a
receipt that holds until the run's deadline; then the next may take it over. Its late commit fails.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import cast

from threadkeep import clock, jsontext
from threadkeep.clock import Millis
from threadkeep.errors import KeyReused, StillRunning, ThreadkeepError
from threadkeep.ids import new_id
from threadkeep.jsontext import Json
from threadkeep.models.port import FinishReason, Usage
from threadkeep.storage.port import Include, Message, Receipt, Storage, SuspendedRun
from threadkeep.turn.request import Conversation, Repeatable, TurnRequest
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.stored_steps import stored_steps
from threadkeep.turn.structured import Structured
from threadkeep.turn.whole import whole

_KEPT: Millis = 86_400_000  # how long a finished receipt answers for its key
_GRACE: Millis = 60_000  # how late a repeat without key may begin that arrived in time
_MARGIN: Millis = 5_000  # between a run's own deadline and its last possible commit
_UNBOUNDED: Millis = 900_000  # the longest that a run without deadline may hold a receipt
_PATIENCE = 0.9  # of its deadline: how long a repeat waits for the run that it repeats
_log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0  # seconds between looks at a running receipt


def repeatable(
    *,
    owner: str,
    route: str,
    thread_id: str,
    body: bytes,
    arrived: Millis,
    key: str | None = None,
    run_id: str | None = None,
) -> Repeatable:
    """How to recognise a request: `key` and `run_id` are the caller's, `body` is the request as it came."""
    body_hash = hashlib.sha256(body).hexdigest()
    if key is not None:
        return Repeatable(key_of(owner, route, "key", key), body_hash, waits=False, lasts=True, arrived=arrived)
    named = ("run", run_id) if run_id is not None else ("equal", thread_id)
    key = key_of(owner, route, *named, body_hash)
    return Repeatable(key, body_hash, waits=True, lasts=run_id is not None, arrived=arrived)


def patience(deadline: float | None) -> float:
    """How many seconds a repeat with this deadline waits for the run that it repeats."""
    return (deadline or math.inf) * _PATIENCE


@dataclass
class Hold:
    """The receipt that a run holds, and whether it is still needed when the run ends."""

    receipt: Receipt | None
    needed: bool = False


@asynccontextmanager
async def held(storage: Storage, request: TurnRequest) -> AsyncGenerator[Hold]:
    """Give the receipt of a run that came to nothing back, so that a repeat may run at once."""
    hold = Hold(_running(request))
    try:
        yield hold
    finally:
        if hold.receipt is not None and not hold.needed:
            try:
                await whole(storage.drop_receipt(hold.receipt))
            except ThreadkeepError:  # it expires by itself; what ended the turn matters more
                _log.warning("receipt not given back", exc_info=True)


def _running(request: TurnRequest) -> Receipt | None:
    """The receipt that a run claims; None for a request that need not be recognised.

    Its holder has an id of its own: repeats that name a run id have the same one.
    """
    if request.repeat is None:
        return None
    longest = _UNBOUNDED if request.deadline is None else int(request.deadline * 1000)
    until = clock.now() + longest + _MARGIN
    return Receipt(request.repeat.key, new_id(), request.repeat.request_hash, "running", until)


def following(receipt: Receipt, earlier: Receipt) -> Receipt:
    """The receipt of an equal request that came after the earlier one was answered."""
    return replace(receipt, key=key_of(receipt.key, earlier.run_id))


def done(receipt: Receipt | None, request: TurnRequest, result: TurnResult) -> Receipt | None:
    """The receipt as the turn's transaction writes it: with what the reply cannot be told from the rows."""
    if receipt is None or request.repeat is None:
        return None
    usage, now = result.usage, clock.now()
    reply: dict[str, Json] = {
        "at": now,
        "runId": result.run_id,
        "messageIds": [m.id for m in result.messages],
        "finishReason": result.finish_reason,
        "provider": result.provider,
        "model": result.steps[-1].response.model if result.steps else "",
        "fallback": result.structured is not None and result.structured.is_fallback,
        "usage": _numbers(usage),
        "ended": result.ended,
        "delegations": result.delegations,
        "delegated": _numbers(result.delegated),
    }
    return finished(receipt, reply, _KEPT if request.repeat.lasts else _GRACE)


def _numbers(usage: Usage) -> list[Json]:
    return [usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cached_input_tokens]


def finished(receipt: Receipt, reply: dict[str, Json] | None = None, lasts: Millis = _KEPT) -> Receipt:
    """The receipt as it is once its work is stored; it answers for its key so many milliseconds."""
    return replace(receipt, status="done", deadline=clock.now() + lasts, reply=reply or {})


async def let_go(storage: Storage, repeat: Repeatable) -> None:
    """Have a run that is known to be dead hold its receipt no longer; that of a run which is done stays.

    A receipt's holder has an id that only it knows, so that the dead one, if it is alive after all, can store nothing.
    """
    held = await storage.get_receipt(repeat.key)
    if held is not None and held.status == "running":
        await storage.drop_receipt(held)


def is_repeat(repeat: Repeatable, earlier: Receipt) -> bool:
    """Whether a request is the repeat of one that is answered: by its key, or because it arrived before the answer."""
    return repeat.lasts or repeat.arrived <= earlier.reply["at"]


async def outcome(storage: Storage, repeat: Repeatable, met: Receipt, patience: float) -> Receipt | None:
    """What became of the run whose receipt was met: its finished receipt, or None if it came to nothing.

    Raises `KeyReused` if that was another request, `StillRunning` for a repeat that does not wait, or has
    waited `patience` seconds.
    """
    if met.request_hash != repeat.request_hash:
        raise KeyReused
    seen, pause, waited = met, _FIRST_PAUSE, 0.0
    while seen.status == "running":
        if not repeat.waits or waited + pause > patience:
            raise StillRunning(max(1, -(-(met.deadline - clock.now()) // 1000)))
        await asyncio.sleep(pause)
        waited, pause = waited + pause, min(pause * 1.5, _LONGEST_PAUSE)
        found = await storage.get_receipt(met.key)
        if found is None or found.run_id != met.run_id or _is_dead(found):
            return None
        seen = found
    return seen


def _is_dead(receipt: Receipt) -> bool:
    return receipt.status == "running" and receipt.deadline < clock.now()


async def replayed(storage: Storage, receipt: Receipt, agent_id: str, conversation: Conversation) -> TurnResult:
    """The result of a stored turn, made again from its rows. Raises `NotFound` if its thread was deleted since."""
    wanted = [str(i) for i in receipt.reply["messageIds"]]
    found = await storage.list_messages(
        conversation.thread_id,
        resource_id=conversation.resource_id,
        per_page=0,
        include=[Include(message_id) for message_id in wanted],
    )
    rows = found.page.items
    answer = next((m for m in rows if m.role == "assistant"), None)
    provider, steps = str(receipt.reply["provider"]), _steps(answer, receipt.reply)
    shaped, run_id = _structured(answer, receipt.reply), str(receipt.reply.get("runId", receipt.run_id))
    waiting = await _waiting(storage, run_id, steps) if receipt.reply["finishReason"] == "suspended" else None
    return TurnResult(
        run_id,
        agent_id,
        provider,
        steps,
        rows,
        found.thread,
        structured=shaped,
        suspended=waiting,
        ended=receipt.reply.get("ended"),
        delegations=int(receipt.reply.get("delegations", 0)),
        delegated=Usage(*receipt.reply.get("delegated", ())),
    )


async def _waiting(storage: Storage, run_id: str, steps: tuple[Step, ...]) -> SuspendedRun | None:
    """The record of the run that was suspended there, while it still is."""
    run = await storage.get_suspended_run(run_id)
    asked = {call.id for call in steps[-1].asks}
    still = run is not None and any(not asked or call.id in asked for call in run.waiting)
    return run if still else None


def _steps(answer: Message | None, reply: dict[str, Json]) -> tuple[Step, ...]:
    """The steps of a stored answer; the usage of all of them stands in the last."""
    made = stored_steps(answer, str(reply["model"]))
    by_run = reply["finishReason"] == "suspended" or reply.get("ended")
    finish = cast(FinishReason, "tool-calls" if by_run else reply["finishReason"])
    usage = Usage(*reply["usage"])
    made[-1] = replace(made[-1], response=replace(made[-1].response, finish_reason=finish, usage=usage))
    return tuple(made)


def _structured(answer: Message | None, reply: dict[str, Json]) -> Structured | None:
    metadata = jsontext.as_object(answer.content.get("metadata")) if answer else None
    if metadata is None or "structuredOutput" not in metadata:
        return None
    return Structured(metadata["structuredOutput"], is_fallback=bool(reply.get("fallback")))


def key_of(*parts: str) -> str:
    """The key of a receipt for what these parts name."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
