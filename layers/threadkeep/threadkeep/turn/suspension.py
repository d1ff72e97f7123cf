"""Suspended runs: what is stored of a run that waits for approvals, and the turn that is made of it again (MS-14)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from threadkeep import clock, jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.messages import Content, parts_of, with_metadata
from threadkeep.memory.options import MemoryOptions, merged
from threadkeep.models.port import ModelSettings
from threadkeep.storage.port import NewMessage, SuspendedCall, SuspendedRun, Thread
from threadkeep.turn.context import RUN_KEY, RequestContext
from threadkeep.turn.delegation.options import HOOK_ERRORS_KEY, Limits
from threadkeep.turn.request import Conversation, InputMessage, TurnAgent, TurnRequest
from threadkeep.turn.result import Step
from threadkeep.turn.structured import StructuredOutput
from threadkeep.turn.tools import CallOutcome, Tool

WAITING = "approval-requested"
PENDING_KEY = "pendingToolApprovals"  # in the metadata of an answer: what user interfaces read after a reload

# What a person's decision looks like, as clients know it.
RESUME_SCHEMA = jsontext.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "approved": {"type": "boolean", "description": "Whether the call may run"},
            "reason": {"type": "string", "description": "Why; the model reads it where the call is declined"},
        },
        "required": ["approved"],
        "additionalProperties": False,
    }
)


def record(
    agent: TurnAgent,
    request: TurnRequest,
    thread: Thread,
    steps: Sequence[Step],
    messages: Sequence[NewMessage],
    shown: Sequence[InputMessage] = (),
) -> SuspendedRun | None:
    """The run's record once these steps and messages are stored; None for a run that never waited.

    `shown` are messages that the model saw without their being stored.
    """
    earlier = request.resumes.run if request.resumes else None
    calls = tuple(_calls(steps[-1:], messages))
    if not calls:
        return ended(earlier) if earlier else None
    return SuspendedRun(
        request.run_id,
        agent.id,
        thread.id,
        thread.resource_id,
        (*(earlier.calls if earlier else ()), *calls),
        (*(earlier.message_ids if earlier else ()), *(m.id for m in messages)),
        clock.now(),
        _kept(agent, request, len(steps), shown),
        revision=earlier.revision + 1 if earlier else 1,
    )


def ended(run: SuspendedRun) -> SuspendedRun:
    """The record of a run that is over: it only tells what was decided."""
    calls = tuple(replace(call, args={}) for call in run.calls)
    return replace(run, calls=calls, request={}, open=False, revision=run.revision + 1)


def marked(messages: tuple[NewMessage, ...], run: SuspendedRun | None) -> tuple[NewMessage, ...]:
    """The messages with a note in the metadata of each that holds calls of the run which wait."""
    if run is None:
        return messages
    notes: dict[str, Content] = {}
    for call in run.waiting:
        notes.setdefault(call.message_id, {})[call.id] = {**told(call), "type": "approval", "runId": run.run_id}
    return tuple(
        replace(m, content=with_metadata(m.content, {PENDING_KEY: notes[m.id]})) if m.id in notes else m
        for m in messages
    )


def told(call: SuspendedCall) -> Content:
    """A call that waits, and what a decision looks like, in the words of the wire."""
    return {
        "toolCallId": call.id,
        "toolName": call.name,
        "args": call.args,
        "resumeSchema": RESUME_SCHEMA,
    }


def answered(content: Content, call_id: str, outcome: CallOutcome) -> Content:
    """A stored answer in which the call that waits has its outcome, and is noted as waiting no more."""
    parts = [new for part in parts_of(content) for new in _answered(part, call_id, outcome)]
    metadata = dict(jsontext.as_object(content.get("metadata")) or {})
    notes = {k: v for k, v in (jsontext.as_object(metadata.pop(PENDING_KEY, None)) or {}).items() if k != call_id}
    metadata |= {PENDING_KEY: notes} if notes else {}
    return {**content, "parts": parts, "metadata": metadata}


def waits(content: Content) -> bool:
    """Whether a call in a stored answer waits for an approval."""
    return any(state == WAITING for state in _states(content))


def waits_for_caller(content: Content) -> bool:
    """Whether a call in a stored answer waits for the caller, who runs its tool."""
    return any(state == "call" for state in _states(content))


def run_id_of(content: Content) -> str | None:
    """The run whose calls wait in a stored answer."""
    metadata = jsontext.as_object(content.get("metadata")) or {}
    notes = jsontext.as_object(metadata.get(PENDING_KEY)) or {}
    return next(
        (str(note["runId"]) for n in notes.values() if (note := jsontext.as_object(n)) and "runId" in note), None
    )


def context_of(run: SuspendedRun, more: Mapping[str, Json]) -> RequestContext:
    """The request context of a suspended run, with what a decision adds to it."""
    return RequestContext({**(jsontext.as_object(run.request.get("requestContext")) or {}), **more})


def having_delegated(run: SuspendedRun, limits: Limits, feedback: Sequence[str]) -> SuspendedRun:
    """The record after a delegation that was approved: what is left of the limits, and what hooks have to say."""
    more: dict[str, Json] = {"limits": asdict(limits), "feedback": [*feedback_of(run), *feedback]}
    return replace(run, request={**run.request, **more})


def feedback_of(run: SuspendedRun) -> tuple[str, ...]:
    """What hooks have to say to the model when the run goes on."""
    return tuple(run.request.get("feedback", ()))


def limits_of(run: SuspendedRun) -> Limits | None:
    """How far the run may still go; None for one that is over."""
    kept = jsontext.as_object(run.request.get("limits"))
    return None if kept is None else Limits(**kept)


def steps_left(run: SuspendedRun) -> int:
    """The model calls that the run may still make."""
    return int(run.request.get("maxSteps", 0))


def request_of(run: SuspendedRun, agent: TurnAgent, context: RequestContext) -> TurnRequest:
    """The turn with which the run goes on, `agent` being what it is for this context."""
    kept = run.request
    own = jsontext.as_object(kept.get("memory"))
    base = agent.memory.options if agent.memory else MemoryOptions()
    active, settings, shaped = kept.get("activeTools"), kept.get("settings"), kept.get("structuredOutput")
    return TurnRequest(
        messages=(),
        run_id=run.run_id,
        conversation=Conversation(run.thread_id, run.resource_id),
        options=merged(base, own),
        context=tuple(InputMessage(m["role"], tuple(m["parts"]), m["id"]) for m in kept.get("context", ())),
        instructions=kept.get("instructions"),
        system=kept.get("system"),
        max_steps=steps_left(run) or None,
        active_tools=None if active is None else frozenset(active),
        settings=None if settings is None else ModelSettings(**settings | {"stop": tuple(settings["stop"])}),
        request_context=context,
        client_tools=tuple(Tool(**tool, run=None) for tool in kept.get("clientTools", ())),
        ask_first=bool(kept.get("askFirst")),
        structured_output=None if shaped is None else StructuredOutput(**shaped),
        memory_options=own,
        limits=limits_of(run),
    )


def _kept(agent: TurnAgent, request: TurnRequest, steps: int, shown: Iterable[InputMessage]) -> dict[str, Json]:
    said = [*request.context, *shown, *(m for m in request.messages if m.role == "system")]
    context = {k: v for k, v in request.request_context.to_json().items() if k not in (RUN_KEY, HOOK_ERRORS_KEY)}
    tools = request.client_tools
    kept: dict[str, Json] = {
        "memory": dict(request.memory_options) if request.memory_options else None,
        "context": [{"role": m.role, "parts": list(m.parts), "id": m.id} for m in said],
        "instructions": request.instructions,
        "system": request.system,
        "maxSteps": max((request.max_steps or agent.max_steps) - steps, 0),
        "activeTools": None if request.active_tools is None else sorted(request.active_tools),
        "settings": asdict(request.settings) if request.settings else None,
        "requestContext": context,
        "clientTools": [
            {"name": t.name, "id": t.id, "description": t.description, "parameters": t.parameters} for t in tools
        ],
        "askFirst": request.ask_first,
        "structuredOutput": asdict(request.structured_output) if request.structured_output else None,
        "limits": asdict(request.limits) if request.limits else None,
    }
    return {name: value for name, value in kept.items() if value not in (None, [], {}, False)}


def _calls(steps: Sequence[Step], messages: Sequence[NewMessage]) -> Iterable[SuspendedCall]:
    holders = {call_id: m.id for m in messages for call_id in _waiting(m.content)}
    for call in (call for step in steps for call in step.asks):
        if call.id in holders:
            yield SuspendedCall(call.id, call.name, call.args, holders[call.id])


def _waiting(content: Content) -> list[str]:
    return [str(i.get("toolCallId")) for i in _invocations(content) if i.get("state") == WAITING]


def _states(content: Content) -> list[Json]:
    return [i.get("state") for i in _invocations(content)]


def _invocations(content: Content) -> list[Content]:
    return [i for p in parts_of(content) if (i := jsontext.as_object(p.get("toolInvocation"))) is not None]


def _answered(part: Content, call_id: str, outcome: CallOutcome) -> list[Content]:
    invocation = jsontext.as_object(part.get("toolInvocation"))
    if invocation is None or invocation.get("toolCallId") != call_id or invocation.get("state") != WAITING:
        return [part]
    return [{**part, "toolInvocation": {**invocation, **outcome.stored}}, *outcome.told]
