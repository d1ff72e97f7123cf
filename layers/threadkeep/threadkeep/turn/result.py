"""What a turn leaves behind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.jsontext import Json
from threadkeep.memory.messages import Content, parts_of
from threadkeep.models.port import FinishReason, ModelResponse, ToolCall, Usage
from threadkeep.storage.port import Message, NewMessage, SuspendedRun, Thread
from threadkeep.turn.delegation.options import LimitReached
from threadkeep.turn.message_list import RunMessage
from threadkeep.turn.processors.base import Tripwire
from threadkeep.turn.structured import Structured
from threadkeep.turn.tools import CallOutcome

RunEnd = FinishReason | LimitReached | Literal["suspended"]


@dataclass(frozen=True, slots=True)
class Step:
    """One model call and the outcomes of the tool calls that it led to.

    `asking` are the ids of those that wait for a person's approval.
    """

    response: ModelResponse
    outcomes: tuple[CallOutcome, ...]
    started: Millis
    ended: Millis
    asking: frozenset[str] = frozenset()

    @property
    def asks(self) -> tuple[ToolCall, ...]:
        """The calls that wait for a person's approval."""
        return tuple(call for call in self.response.tool_calls if call.id in self.asking)

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """The calls that somebody else has to answer: the caller, or who approves."""
        done = {outcome.call.id for outcome in self.outcomes}
        return tuple(call for call in self.response.tool_calls if call.id not in done)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """`thread` is None when the turn used no memory; then `messages` have no order and were not stored.

    `remembered` is the history that the model saw (CTX-7). A run that a processor stopped has a `tripwire`, no
    steps, no messages, and in `refused` what its model calls used; nothing was stored (PR-7). `structured` is
    set where the request asked for an answer of a given form and the run came to one. `suspended` is set while
    calls of the run wait for approvals. A run that goes on after a decision has the step with the decided calls in
    `resumed`; `steps` and `messages` are what came after it. `ended` is the limit at which the run ended.
    `delegations` counts its calls of sub-agents, those below them included; `delegated` is what these used, which
    `usage` does not contain. `hook_errors` are the errors of the deployer's hooks (DEL-20).
    """

    run_id: str
    agent_id: str
    provider: str
    steps: tuple[Step, ...]
    messages: tuple[Message | NewMessage, ...]
    thread: Thread | None = None
    remembered: tuple[Message, ...] = ()
    tripwire: Tripwire | None = None
    refused: Usage = Usage()
    structured: Structured | None = None
    suspended: SuspendedRun | None = None
    resumed: Step | None = None
    ended: LimitReached | None = None
    delegations: int = 0
    delegated: Usage = Usage()
    hook_errors: tuple[dict[str, Json], ...] = ()

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The steps with the one that the run goes on from."""
        return self.steps if self.resumed is None else (self.resumed, *self.steps)

    @property
    def text(self) -> str:
        """The texts of all steps (LOOP-3)."""
        return "".join(step.response.text for step in self.steps)

    @property
    def finish_reason(self) -> RunEnd:
        if self.suspended is not None:
            return "suspended"
        if self.ended is not None:
            return self.ended
        steps = self.all_steps
        return steps[-1].response.finish_reason if self.tripwire is None and steps else "other"

    @property
    def usage(self) -> Usage:
        """The sum over the run's own steps (LOOP-4)."""
        return reduce(Usage.__add__, (step.response.usage for step in self.steps), self.refused)


def as_edited(steps: tuple[Step, ...], messages: Sequence[RunMessage]) -> tuple[Step, ...]:
    """The steps as the caller may see them, after processors edited the answer: nothing they took out shows (PR-3).

    Where the edited answer no longer falls into the same steps, all of it is shown in the last.
    """
    pieces: list[list[Content]] = [[]]
    for part in (part for message in messages for part in parts_of(message.content)):
        if part.get("type") == "step-start":
            pieces.append([])
        else:
            pieces[-1].append(part)
    if len(pieces) != len(steps):
        whole = [part for piece in pieces for part in piece]
        pieces = [*([] for _ in steps[1:]), whole]
    calls = {call.id: call for step in steps for call in step.response.tool_calls}
    outcomes = {o.call.id: o for step in steps for o in step.outcomes}
    return tuple(_shown(step, piece, calls, outcomes) for step, piece in zip(steps, pieces, strict=True))


def _shown(step: Step, parts: Sequence[Content], calls: dict[str, ToolCall], outcomes: dict[str, CallOutcome]) -> Step:
    invocations = [i for p in parts if (i := jsontext.as_object(p.get("toolInvocation"))) is not None]
    left = {str(i.get("toolCallId")): i for i in invocations}
    calls = calls | {call.id: call for call in step.response.tool_calls}  # a model may use an id again
    outcomes = outcomes | {o.call.id: o for o in step.outcomes}
    response = replace(
        step.response,
        text=_joined(parts, "text"),
        reasoning=_joined(parts, "reasoning"),
        tool_calls=tuple(_call(calls[id], i) for id, i in left.items() if id in calls),
    )
    return replace(
        step,
        response=response,
        asking=step.asking & left.keys(),
        outcomes=tuple(_outcome(outcomes[id], i, parts) for id, i in left.items() if id in outcomes),
    )


def _joined(parts: Sequence[Content], kind: str) -> str:
    return "".join(str(part.get(kind, "")) for part in parts if part.get("type") == kind)


def _call(known: ToolCall, invocation: Content) -> ToolCall:
    return replace(known, args=jsontext.as_object(invocation.get("args")) or {})


def _outcome(known: CallOutcome, invocation: Content, parts: Sequence[Content]) -> CallOutcome:
    error = str(invocation.get("errorText", "")) if known.error is not None else None
    told = tuple(part for part in known.told if part in parts)
    return replace(known, call=_call(known.call, invocation), result=invocation.get("result"), error=error, told=told)
