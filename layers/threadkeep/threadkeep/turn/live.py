"""A run that is watched: passes on what the model says while it says it (DESIGN 7)."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from threadkeep import clock
from threadkeep.memory.messages import Content, data_part
from threadkeep.models import port
from threadkeep.models.port import ModelChunk, ModelResponse, ToolCall, Usage
from threadkeep.turn import events
from threadkeep.turn.events import Event, Sink
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.processors.pipeline import Pipeline
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.tools import CallOutcome, failed

# What a watcher has seen of an answer.
_ANSWER = (events.TextDelta, events.ReasoningDelta, events.CallFinished, events.DataTold)
_ANSWER_HOOKS = ("process_llm_response", "process_output_step", "process_output_result")
_PIECE_HOOKS = ("process_output_stream", "process_tool_result")
_CUT_OFF = "The run was cut off before the call had ended"


@dataclass(slots=True)
class Live:
    """What is told to a watcher, and what a cut run has said so far.

    Text is withheld until the run is finished where an output processor may still change it: one that edits
    answers and has no `process_output_stream`. What sub-agents say is not told where a processor may change what
    it becomes. `sink` None means that nobody watches.
    """

    sink: Sink | None = None
    message_id: str = ""
    said: str = ""  # text of the step that is going on
    reasoned: str = ""
    spoke: bool = False  # whether a watcher has seen any of the answer
    _withheld: bool = field(default=False, init=False)
    _shows_delegated: bool = field(default=True, init=False)
    _made: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall], init=False)  # in the step that goes on
    _seen: dict[str, list[Content]] = field(default_factory=dict[str, list[Content]], init=False)  # data, by such calls

    async def tell(self, *told: Event) -> None:
        if self.sink is not None and not self._withheld:
            for event in told:
                if self._shows_delegated or shown_always(event):
                    self._note_seen(event)
                    await self.sink(event)

    def withhold(self, outputs: Sequence[Processor]) -> None:
        self._withheld = any(map(_may_change_later, outputs))
        self._shows_delegated = shows_delegated(outputs)

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
        self.step_kept()
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

    def step_kept(self) -> None:
        """What was said is in a step now; a cut leaves no other step of it."""
        self.said = self.reasoned = ""
        self._made, self._seen = {}, {}

    async def calls_finished(self, outcomes: Sequence[CallOutcome]) -> None:
        await self.tell(*map(events.CallFinished, outcomes))

    async def step_finished(self, step: Step, *, continues: bool) -> None:
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
        """The step that was going on when the run was cut, with what was seen of it; None if nothing was.

        Of its calls those whose tools or sub-agents had something to say by then.
        """
        calls = tuple(call for id, call in self._made.items() if id in self._seen)
        if not self.said and not self.reasoned and not calls:
            return None
        response = ModelResponse(self.said, calls, "other", Usage(), "", reasoning=self.reasoned)
        outcomes = (replace(failed(call, _CUT_OFF), told=tuple(self._seen[call.id])) for call in calls)
        return Step(response, tuple(outcomes), started, clock.now())

    def _note_seen(self, event: Event) -> None:
        below = events.told_below(event)
        self.spoke = self.spoke or isinstance(below, _ANSWER)
        if isinstance(event, events.CallMade):
            self._made[event.call.id] = event.call
        elif isinstance(event, events.Delegated | events.DataTold) and isinstance(below, _ANSWER):
            seen = self._seen.setdefault(event.call_id, [])
            seen += [data_part(below.type, below.data)] if isinstance(below, events.DataTold) else []

    def _note(self, chunk: ModelChunk) -> None:
        if isinstance(chunk, port.TextDelta):
            self.said += chunk.text
        elif isinstance(chunk, port.ReasoningDelta):
            self.reasoned += chunk.text


def shows_delegated(outputs: Sequence[Processor]) -> bool:
    """Whether watchers may see what sub-agents say while they say it: no processor changes pieces or results (PR-3)."""
    return not any(_has_own(processor, _PIECE_HOOKS) for processor in outputs)


def shown_always(event: Event) -> bool:
    """Whether an event is no sub-agent's own word: data are meant for whoever watches."""
    return not isinstance(event, events.Delegated) or isinstance(events.told_below(event), events.DataTold)


def outcome_told(outcome: CallOutcome) -> list[Event]:
    """What was told of a call that is over, with the data of its tool."""
    told = [events.DataTold(outcome.call.id, part["type"], part["data"]) for part in outcome.told]
    return [*told, events.CallFinished(outcome)]


def _may_change_later(processor: Processor) -> bool:
    edits = _has_own(processor, _ANSWER_HOOKS)
    return edits and type(processor).process_output_stream is Processor.process_output_stream


def _has_own(processor: Processor, hooks: Sequence[str]) -> bool:
    return any(getattr(type(processor), hook) is not getattr(Processor, hook) for hook in hooks)


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
    told += (event for outcome in step.outcomes for event in outcome_told(outcome))
    return told if step.asking else [*told, events.StepFinished(step, continues)]
