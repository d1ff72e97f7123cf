"""Whether a run goes on after a step: its limits, its hooks, and what these have to say to the model (DEL-18 to 21)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from threadkeep import clock
from threadkeep.errors import ProcessorFailed
from threadkeep.memory.messages import with_metadata
from threadkeep.models.port import Usage
from threadkeep.turn import suspension
from threadkeep.turn.delegation.delegations import Delegations
from threadkeep.turn.delegation.hooks import HookFailed
from threadkeep.turn.delegation.options import Iteration, IterationVerdict, LimitReached
from threadkeep.turn.message_list import RunMessage
from threadkeep.turn.request import TurnAgent, TurnRequest
from threadkeep.turn.result import Step

_FEEDBACK = {"completionResult": {"suppressFeedback": True}}  # in the metadata of a message that a hook has said


@dataclass
class Course:
    """The course of one run. `ended` is the limit that ended it, `said` what hooks said to its model."""

    agent: TurnAgent
    request: TurnRequest
    delegations: Delegations
    ended: LimitReached | None = None
    said: list[RunMessage] = field(default_factory=list[RunMessage])
    _once_more: bool = False

    @property
    def max_steps(self) -> int:
        return self.request.max_steps or self.agent.max_steps

    def heard(self, usage: Usage) -> None:
        """Count what a model call used."""
        self.delegations.used += usage.total_tokens

    def resumed(self) -> list[RunMessage]:
        """What hooks said of a delegation that was approved, as the model is told it when the run goes on."""
        told = suspension.feedback_of(self.request.resumes.run) if self.request.resumes else ()
        self.said += map(_feedback, told)
        return [RunMessage.saying(text, "user", "response") for text in told]  # behind the results

    async def after(self, steps: Sequence[Step], continues: bool) -> tuple[bool, list[str]]:
        """Whether the model is asked again, given what the loop would do, and what it is told then.

        Raises `ProcessorFailed` where the iteration hook fails and its errors are not passed over.
        """
        self.delegations.step = len(steps)
        told, self.delegations.feedback = self.delegations.feedback, []
        if self._once_more:
            return False, []
        verdict = await self._asked(steps, continues)
        if verdict.feedback:
            told = [*told, verdict.feedback]
        if verdict.go_on is False:
            continues = self._once_more = bool(verdict.feedback) and self._can_go_on(steps)
        elif verdict.go_on:
            continues = self._can_go_on(steps)
        if self.delegations.bailed:
            continues = False
        elif continues or self.delegations.reached:
            self.ended = self.delegations.reached or self._over()
            continues = continues and self.ended is None
        if not continues:
            return False, []
        self.said += map(_feedback, told)
        return True, told

    def _can_go_on(self, steps: Sequence[Step]) -> bool:
        """Whether the model can be asked again: no call waits for the caller, and a step is left."""
        return not steps[-1].pending and len(steps) < self.max_steps

    def _over(self) -> LimitReached | None:
        limits = self.delegations.limits
        if self.delegations.spent >= limits.tokens:
            return "max-tokens"
        is_late = clock.now() >= self.request.began + int(limits.seconds * 1000)
        return "max-seconds" if is_late and not self._told_again else None

    @property
    def _told_again(self) -> bool:
        """Whether a durable run took the next step before: its time was not over then."""
        return self.request.journal is not None and self.request.journal.ahead

    async def _asked(self, steps: Sequence[Step], continues: bool) -> IterationVerdict:
        hook, hooks = self.agent.on_iteration, self.delegations.hooks
        try:
            verdict = await hooks.ask("onIterationComplete", hook, self._iteration(steps, continues), IterationVerdict)
        except HookFailed as error:
            raise ProcessorFailed(f"The iteration hook of agent {self.agent.id} failed") from error
        return verdict or IterationVerdict()

    def _iteration(self, steps: Sequence[Step], continues: bool) -> Iteration:
        step, conversation = steps[-1], self.request.conversation
        return Iteration(
            number=len(steps),
            max_iterations=self.max_steps,
            text=step.response.text,
            tool_calls=step.response.tool_calls,
            outcomes=step.outcomes,
            is_final=not continues,
            finish_reason=step.response.finish_reason,
            run_id=self.request.run_id,
            thread_id=conversation.thread_id if conversation else None,
            resource_id=conversation.resource_id if conversation else None,
            agent_id=self.agent.id,
            agent_name=self.agent.name or self.agent.id,
        )


def _feedback(text: str) -> RunMessage:
    message = RunMessage.saying(text, "assistant", "response")
    return replace(message, content=with_metadata(message.content, _FEEDBACK))
