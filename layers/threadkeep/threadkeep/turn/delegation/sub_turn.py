"""Running one order: the sub-agent's turn, in a thread of its own below the supervisor's (DEL-5 to DEL-11)."""

import copy
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from threadkeep import clock, ids
from threadkeep.clock import Millis
from threadkeep.errors import ConfigurationError, Conflict, DeadlineExceeded
from threadkeep.jsontext import Json
from threadkeep.memory.messages import is_data, parts_of
from threadkeep.memory.options import MemoryOptions, in_camel_case, merged
from threadkeep.models.port import Model
from threadkeep.storage.port import Origin
from threadkeep.turn import receipts
from threadkeep.turn.context import RESOURCE_KEY, RUN_KEY, THREAD_KEY, RequestContext
from threadkeep.turn.delegation.options import HOOK_ERRORS_KEY, Limits
from threadkeep.turn.delegation.orders import Failure, Order, Report
from threadkeep.turn.events import Sink
from threadkeep.turn.plan import store_of
from threadkeep.turn.receipts import key_of
from threadkeep.turn.request import Conversation, InputMessage, Repeatable, Services, TurnAgent, TurnRequest
from threadkeep.turn.result import TurnResult
from threadkeep.turn.tools import CallOutcome

RunTurn = Callable[[TurnAgent, TurnRequest, Services], Awaitable[TurnResult]]

# what no sub-run may see (DEL-14)
_PARENTS_OWN = (RUN_KEY, THREAD_KEY, RESOURCE_KEY, "mastra__inheritedMemory", HOOK_ERRORS_KEY)


async def run_order(
    supervisor: TurnAgent,
    order: Order,
    services: Services,
    run: RunTurn,
    *,
    watcher: Sink | None = None,
    stopped: Callable[[], Awaitable[bool]] | None = None,
    model: Model | None = None,
    again: bool = False,
) -> Report:
    """Run the sub-agent of an order and report; the same order again finds the turn that it had.

    `supervisor` is the agent one level above as it is for the order's request context; `run` is `run_turn`. `model`
    takes the place of the sub-agent's own. With `again` whoever ran the order before is dead, and holds it no longer.
    Raises what `run_turn` raises, and `ConfigurationError` for a key that the supervisor does not have.
    """
    if order.key not in supervisor.agents:
        raise ConfigurationError(f"Agent {supervisor.id} has no sub-agent {order.key}")
    began = clock.now()
    context = RequestContext({k: v for k, v in order.context.items() if k not in _PARENTS_OWN})
    sub = remembering(supervisor, await supervisor.agents[order.key].resolve(context), order)
    sub = sub if model is None else replace(sub, model=model, tools={}, agents={})
    if store_of(sub, services) is not store_of(supervisor, services):
        order = replace(order, is_stored=False)  # there the supervisor's thread does not exist
    if store_of(sub, services) is not services.storage:
        order = replace(order, within=None)  # nor the record of a durable run
    request = replace(request_of(sub, order, context), watcher=watcher, stopped=stopped)
    if again and request.repeat is not None:
        await receipts.let_go(store_of(sub, services), request.repeat)
    result = await run(sub, request, services)
    return _report(order, request.conversation, result, clock.now() - began)


def failure_of(order: Order, error: BaseException) -> Report:
    """The report of an order whose turn raised."""
    failure: Failure = "failed"
    if isinstance(error, DeadlineExceeded | TimeoutError):
        failure = "timeout"
    elif isinstance(error, Conflict):
        failure = "conflict"
    return Report(order.id, failure=failure, reason=f"{type(error).__name__}: {error}")


def remembering(supervisor: TurnAgent, sub: TurnAgent, order: Order) -> TurnAgent:
    """The sub-agent with the Memory that it uses: its own, or the supervisor's (DEL-7 to DEL-9).

    An inherited Memory makes no titles; it loads the history of a thread that the sub-agent names itself (DEL-10).
    """
    if sub.memory is not None or supervisor.memory is None or not order.inherits:
        return sub
    inherited = copy.copy(supervisor.memory)
    change: dict[str, Any] = {"generate_title": None}
    if sub.delegated.thread is None:
        change |= {"last_messages": 0, "message_history": None}
    inherited.options = supervisor.memory.options.model_copy(update=change)
    return replace(sub, memory=inherited, inherits=True)


def request_of(sub: TurnAgent, order: Order, context: RequestContext) -> TurnRequest:
    """The turn that an order asks for."""
    seconds = None if order.deadline is None else _left(order.deadline)
    return TurnRequest(
        messages=(InputMessage("user", ({"type": "text", "text": order.prompt},)),),
        run_id=order.id,
        conversation=_conversation(sub, order),
        options=_options(sub, order),
        context=tuple(InputMessage(said.role, said.parts) for said in order.said),
        instructions="\n\n".join(filter(None, (sub.instructions, order.instructions))) if order.instructions else None,
        max_steps=order.max_steps or min(order.asked_steps or sub.max_steps, sub.max_steps),
        deadline=seconds,
        request_context=context,
        repeat=Repeatable(key_of("delegation", order.id), "", waits=True, lasts=True, arrived=0),
        limits=Limits(order.delegations, order.depth, max(order.tokens, 1), seconds or Limits().seconds),
        within=order.within,
        path=order.path,
    )


def _left(deadline: Millis) -> float:
    seconds = (deadline - clock.now()) / 1000
    if seconds <= 0:
        raise DeadlineExceeded("No time is left for the delegation; nothing of it is stored")
    return seconds


def _conversation(sub: TurnAgent, order: Order) -> Conversation:
    """A new thread of the sub-agent's own resource, unless its own options name others (DEL-5, DEL-6, DEL-10)."""
    own = sub.delegated
    resource_id = own.resource or ids.sub_resource(order.owner, order.key)
    thread_id = ids.derived(order.thread_id, order.id) if order.thread_id else order.id
    parent = order.thread_id if order.is_stored and own.thread is None else None  # its own stays when that one goes
    origin = None if own.resource else Origin(order.owner, order.key, parent)
    return Conversation(own.thread or thread_id, resource_id, origin=origin)


def _options(sub: TurnAgent, order: Order) -> MemoryOptions:
    base = sub.memory.options if sub.memory else MemoryOptions()
    options = merged(base, in_camel_case(sub.delegated.options)) if sub.delegated.options else base
    return options.model_copy(update={"read_only": True}) if order.read_only else options


def _report(order: Order, used: Conversation | None, result: TurnResult, duration: Millis) -> Report:
    return Report(
        order.id,
        result.text,
        result.finish_reason,
        used.thread_id if used else None,
        ids.shown_resource(used.resource_id) if used else None,
        tuple(_tool_result(outcome) for step in result.all_steps for outcome in step.outcomes),
        result.usage + result.delegated,
        result.delegations,
        failure="failed" if result.tripwire else None,
        reason=result.tripwire.reason if result.tripwire else "",
        duration=duration,
        told=tuple(
            part for m in result.messages if m.role == "assistant" for part in parts_of(m.content) if is_data(part)
        ),
    )


def _tool_result(outcome: CallOutcome) -> dict[str, Json]:
    call = outcome.call
    told: dict[str, Json] = {"toolName": call.name, "toolCallId": call.id, "result": outcome.result, "args": call.args}
    return told if outcome.error is None else {**told, "result": outcome.error, "isError": True}
