"""A run that is watched: passes on what the model says while it says it (DESIGN 7)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from threadkeep import clock
from threadkeep.models import port
from threadkeep.models.port import ModelChunk, ModelResponse, ToolCall, Usage
from threadkeep.turn import events
from threadkeep.turn.events import Event, Sink
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.processors.pipeline import Pipeline
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.tools import CallOutcome

_ANSWER = (events.TextDelta, events.ReasoningDelta, events.CallFinished)  # what a watcher has seen of an answer
_ANSWER_HOOKS = ("process_llm_response", "process_output_step", "process_output_result")


@dataclass(slots=True)
class Live:
    """What is told to a watcher, and what a cut run has said so far.

    Text is withheld until the run is finished where an output processor may still change it: one that edits
    answers and has no `process_output_stream`. `sink` None means that nobody watches.
    """

    sink: Sink | None = None
    message_id: str = ""
    said: str = ""  # text of the step that is going on
    reasoned: str = ""
    spoke: bool = False  # whether a watcher has seen any of the answer
    _withheld: bool = field(default=False, init=False)

    async def tell(self, *told: Event) -> None:
        if self.sink is not None and not self._withheld:
            for event in told:
                self.spoke = self.spoke or isinstance(event, _ANSWER)
                await self.sink(event)

    def withhold(self, outputs: Sequence[Processor]) -> None:
        self._withheld = any(map(_may_change_later, outputs))

    async def started(self, run_id: str, agent_id: str, resumed: Step | None = None) -> None:
        """Told even where the answer is withheld: it opens the reply, or goes on with it behind a resumed step."""
        if self.sink is None:
            return
        if resumed is None:
            await self.sink(events.RunStarted(run_id, agent_id, self.message_id))
        else:
            await self.sink(events.RunResumed(run_id, agent_id, self.message_id))
            await self.sink(events.StepFinished(resumed, continues=True))

    async def step_started(self) -> None:
        self.said = self.reasoned = ""
        await self.tell(events.StepStarted(clock.now()))

    async def heard(self, chunks: AsyncGenerator[ModelChunk], pipeline: Pipeline) -> ModelResponse:
        """The whole answer of a stream whose pieces have been told."""
        response: ModelResponse | None = None
        async with aclosing(chunks):
            async for chunk in chunks:
                if isinstance(chunk, port.Finished):
                    response = chunk.response
                    continue
                passed = await pipeline.stream(chunk)
                if passed is not None:
                    self._note(passed)
                    await self.tell(_event(passed))
        assert response is not None, "a model's stream ends with Finished"
        return response

    async def calls_finished(self, outcomes: Sequence[CallOutcome]) -> None:
        await self.tell(*map(events.CallFinished, outcomes))

    async def step_finished(self, step: Step, *, continues: bool) -> None:
        self.said = self.reasoned = ""
        await self.tell(events.StepFinished(step, continues))

    async def finished(self, result: TurnResult) -> None:
        """The end; what was withheld comes before it."""
        if self.sink is None:
            return
        if self._withheld:
            self._withheld = False
            await self.replay(result)
        for call in result.suspended.waiting if result.suspended else ():
            await self.sink(events.ApprovalNeeded(ToolCall(call.id, call.name, call.args)))
        await self.sink(events.RunFinished(result))

    async def replay(self, result: TurnResult) -> None:
        """A run as it would have been told, from its steps."""
        for number, step in enumerate(result.steps, 1):
            await self.tell(*_retold(step, continues=number < len(result.steps)))

    def cut_step(self, started: int) -> Step | None:
        """The step that was going on when the run was cut, with what was said of it; None if nothing was."""
        if not self.said and not self.reasoned:
            return None
        response = ModelResponse(self.said, (), "other", Usage(), "", reasoning=self.reasoned)
        return Step(response, (), started, clock.now())

    def _note(self, chunk: ModelChunk) -> None:
        if isinstance(chunk, port.TextDelta):
            self.said += chunk.text
        elif isinstance(chunk, port.ReasoningDelta):
            self.reasoned += chunk.text


def _may_change_later(processor: Processor) -> bool:
    own = type(processor)
    edits = any(getattr(own, hook) is not getattr(Processor, hook) for hook in _ANSWER_HOOKS)
    return edits and own.process_output_stream is Processor.process_output_stream


def _event(chunk: ModelChunk) -> Event:
    match chunk:
        case port.TextDelta() | port.ReasoningDelta():
            return chunk
        case port.ToolCallStart():
            return events.CallStarted(chunk.id, chunk.name)
        case port.ToolCallDelta():
            return events.CallDelta(chunk.id, chunk.text)
        case port.ToolCallEnd():
            return events.CallEnded(chunk.id)
        case _:
            raise AssertionError(chunk)


def _retold(step: Step, *, continues: bool) -> list[Event]:
    response = step.response
    told: list[Event] = [events.StepStarted(step.started)]
    if response.reasoning:
        told.append(events.ReasoningDelta(response.reasoning))
    if response.text:
        told.append(events.TextDelta(response.text))
    told += map(events.CallMade, response.tool_calls)
    told += map(events.CallFinished, step.outcomes)
    return told if step.asking else [*told, events.StepFinished(step, continues)]
