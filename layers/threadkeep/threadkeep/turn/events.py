"""What a watched run tells while it goes on, in order: the terms of a turn, not those of the wire.

Text and reasoning are told in the pieces in which the model says them.

::

    RunStarted
      StepStarted
        ReasoningDelta*  TextDelta*  (CallStarted CallDelta* CallEnded)*
        CallMade*  (Delegated | DataTold)*  CallFinished*
      StepFinished
      ...
    TitleGiven?
    ApprovalNeeded*
    RunFinished

A run that is suspended has no `StepFinished` for its last step; `ApprovalNeeded` comes once it is stored. When it
goes on, `RunResumed`, `CallMade` and `CallFinished` of the decided calls and their `StepFinished` stand in the
place of `RunStarted`.

`RunStarted` comes after everything that can refuse the request: an error before it means that there is no
run. A run that fails ends without a last event; its error is raised. The result of `RunFinished` has a
tripwire where a processor stopped the run.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from threadkeep.clock import Millis
from threadkeep.jsontext import Json
from threadkeep.models.port import ReasoningDelta, TextDelta, ToolCall
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.tools import CallOutcome


@dataclass(frozen=True, slots=True)
class RunStarted:
    """`message_id` is the id under which the answer will be stored."""

    run_id: str
    agent_id: str
    message_id: str


@dataclass(frozen=True, slots=True)
class RunResumed:
    """A suspended run goes on. `message_id` is the answer that is told from here on."""

    run_id: str
    agent_id: str
    message_id: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    at: Millis


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The model begins to write the arguments of a call."""

    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """`text` is the next piece of the arguments' JSON."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    call_id: str


@dataclass(frozen=True, slots=True)
class CallMade:
    """A whole call; it runs now, or the caller has to run it."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Delegated:
    """An event of the sub-agent's run that answers this call (DEL-26)."""

    call_id: str
    event: "Event"


@dataclass(frozen=True, slots=True)
class DataTold:
    """Data for user interfaces that the tool of this call tells (DEL-26); `type` begins with `data-`."""

    call_id: str
    type: str
    data: Json


@dataclass(frozen=True, slots=True)
class CallFinished:
    outcome: CallOutcome


@dataclass(frozen=True, slots=True)
class StepFinished:
    """`continues` tells whether the model is asked again."""

    step: Step
    continues: bool


@dataclass(frozen=True, slots=True)
class TitleGiven:
    """The thread has got a title, before the run's end where the options ask for that (TT-5)."""

    thread_id: str
    title: str


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """A person has to approve this call before the run goes on."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is stored. `result` is what a buffered call would have got."""

    result: TurnResult


Event = (
    RunStarted
    | RunResumed
    | StepStarted
    | TextDelta
    | ReasoningDelta
    | CallStarted
    | CallDelta
    | CallEnded
    | CallMade
    | Delegated
    | DataTold
    | CallFinished
    | StepFinished
    | TitleGiven
    | ApprovalNeeded
    | RunFinished
)
Sink = Callable[[Event], Awaitable[None]]


def told_below(event: Event) -> Event:
    """What is told in the end, however many sub-agents pass it on."""
    while isinstance(event, Delegated):
        event = event.event
    return event
