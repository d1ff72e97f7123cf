"""The model loop: ask, run the tools it calls, ask again with their results (LOOP-1 to LOOP-8)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.memory import messages
from threadkeep.memory.messages import Content
from threadkeep.models.port import ModelRequest, ModelResponse, Part, PromptMessage, TextPart
from threadkeep.models.streams import Generates
from threadkeep.storage.port import NewMessage
from threadkeep.turn import events
from threadkeep.turn.course import Course
from threadkeep.turn.live import Live
from threadkeep.turn.result import Step
from threadkeep.turn.tools import CallOutcome, Tool, ToolContext, asks, run_calls


class Stopped(Exception):
    """Somebody wants the run to end; it never leaves a turn."""


@dataclass(slots=True)
class Loop:
    """The model calls of one run.

    `finished` may change each outcome. `on_step` is awaited after each step (LOOP-10). `steps` gains each step as it
    is done, so that a run that is cut leaves what it did. `course` says whether the run goes on.
    """

    model: Generates
    tools: Mapping[str, Tool]
    context: Callable[[str], ToolContext]
    finished: Callable[[CallOutcome], Awaitable[CallOutcome]]
    live: Live
    course: Course
    steps: list[Step]
    on_step: Callable[[Step], Awaitable[None]] | None = None
    stopped: Callable[[], Awaitable[bool]] | None = None

    async def run(self, request: ModelRequest) -> None:
        """Call the model until it answers without tools, calls a tool of the caller or one that a person has to
        approve, or as often as the course allows. Raises `Stopped` before a step if `stopped` says so."""
        while True:
            step = await self._step(request)
            if step.asking:
                return
            goes_on = bool(step.outcomes) and not step.pending and len(self.steps) < self.course.max_steps
            goes_on, told = await self.course.after(self.steps, goes_on)
            await self.live.step_finished(step, continues=goes_on)
            if not goes_on:
                return
            said = (*request.messages, *_said(step, told))
            request = replace(request, messages=said, tool_choice="auto")

    async def _step(self, request: ModelRequest) -> Step:
        if self.stopped is not None and await self.stopped():
            raise Stopped
        started = clock.now()
        await self.live.step_started()
        response = await self.model.generate(request)
        answered = clock.now()
        self.course.heard(response.usage)
        await self.live.tell(*map(events.CallMade, response.tool_calls))
        done = await run_calls(response.tool_calls, self.tools, self.context, self.course.delegations.run)
        outcomes = tuple([await self.finished(outcome) for outcome in done])
        asking = frozenset(call.id for call in response.tool_calls if asks(call, self.tools))
        self.steps.append(Step(response, outcomes, started, answered, asking))
        self.live.step_kept()
        await self.live.calls_finished(outcomes)
        if self.on_step is not None:
            await self.on_step(self.steps[-1])
        return self.steps[-1]


def _said(step: Step, told: Sequence[str]) -> list[PromptMessage]:
    """What the next prompt gains: calls with their results, and what hooks said.

    An answer after which a hook has nothing to say is not shown: the model is asked the same again (DEL-21). What a
    hook says stands as a user's message: not every provider goes on from an assistant's.
    """
    said: list[PromptMessage] = []
    if step.outcomes or told:
        said.append(_answer(step.response))
    if step.outcomes:
        said.append(PromptMessage("tool", tuple(o.answer for o in step.outcomes)))
    return [m for m in said if m.parts] + [PromptMessage("user", (TextPart(text),)) for text in told]


def _answer(response: ModelResponse) -> PromptMessage:
    text: tuple[Part, ...] = (TextPart(response.text),) if response.text else ()
    return PromptMessage("assistant", text + response.tool_calls)


def answer_message(id: str, steps: Sequence[Step], model: str, provider: str) -> NewMessage | None:
    """All steps of a run as one stored assistant message (MS-3, LOOP-6); None if nothing was said or done."""
    parts: list[Content] = []
    for step in steps:
        if parts:
            parts.append(messages.step_start(f"{provider}/{model}", step.started))
        parts += _parts(step)
    if not any(p["type"] != "step-start" for p in parts):
        return None
    metadata = {"modelId": model, "provider": provider}
    return NewMessage(id, "assistant", messages.content(parts, metadata), _when(steps))


def _parts(step: Step) -> list[Content]:
    parts: list[Content] = []
    if step.response.reasoning:
        parts.append({"type": "reasoning", "reasoning": step.response.reasoning, "createdAt": step.ended})
    if step.response.text:
        parts.append(messages.text_part(step.response.text, step.ended))
    done = {outcome.call.id: outcome for outcome in step.outcomes}
    for call in step.response.tool_calls:
        outcome = done.get(call.id)
        waits: Content = {"state": "approval-requested" if call.id in step.asking else "call"}
        state, told = (outcome.stored, outcome.told) if outcome else (waits, ())
        parts += [messages.tool_part(call.id, call.name, call.args, state, step.ended), *told]
    return parts


def _when(steps: Sequence[Step]) -> Millis:
    return steps[-1].ended
