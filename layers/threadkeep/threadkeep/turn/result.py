"""What a turn leaves behind."""

from dataclasses import dataclass
from functools import reduce

from threadkeep.clock import Millis
from threadkeep.models.port import FinishReason, ModelResponse, Usage
from threadkeep.storage.port import Message, NewMessage, Thread
from threadkeep.turn.tools import CallOutcome


@dataclass(frozen=True, slots=True)
class Step:
    """One model call and the tool calls that it led to."""

    response: ModelResponse
    outcomes: tuple[CallOutcome, ...]
    started: Millis
    ended: Millis


@dataclass(frozen=True, slots=True)
class TurnResult:
    """`thread` is None when the turn used no memory; then `messages` have no order and were not stored.

    `remembered` is the history that the model saw (CTX-7).
    """

    run_id: str
    agent_id: str
    provider: str
    steps: tuple[Step, ...]
    messages: tuple[Message | NewMessage, ...]
    thread: Thread | None = None
    remembered: tuple[Message, ...] = ()

    @property
    def text(self) -> str:
        """The texts of all steps (LOOP-3)."""
        return "".join(step.response.text for step in self.steps)

    @property
    def finish_reason(self) -> FinishReason:
        return self.steps[-1].response.finish_reason

    @property
    def usage(self) -> Usage:
        """The sum over the steps (LOOP-4)."""
        return reduce(Usage.__add__, (step.response.usage for step in self.steps), Usage())
