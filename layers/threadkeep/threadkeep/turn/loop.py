"""The model loop: ask, run the tools it calls, ask again with their results (LOOP-1 to LOOP-8)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.memory import messages
from threadkeep.memory.messages import Content
from threadkeep.models.port import ModelRequest, ModelResponse, Part, PromptMessage, TextPart
from threadkeep.models.streams import Generates
from threadkeep.storage.port import NewMessage
from threadkeep.turn import events
from threadkeep.turn.live import Live
from threadkeep.turn.result import Step
from threadkeep.turn.tools import CallOutcome, Tool, ToolContext, asks, run_calls


class Stopped(Exception):
    """Somebody wants the run to end; it never leaves a turn."""


async def run_steps(
    model: Generates,
    request: ModelRequest,
    tools: Mapping[str, Tool],
    context: Callable[[str], ToolContext],
    max_steps: int,
    finished: Callable[[CallOutcome], Awaitable[CallOutcome]],
    on_step: Callable[[Step], Awaitable[None]] | None,
    live: Live,
    steps: list[Step],
    stopped: Callable[[], Awaitable[bool]] | None = None,
) -> None:
    """Call the model until it answers without tools, calls a tool of the caller or one that a person has to
    approve, or `max_steps` times.

    `finished` may change each outcome. `on_step` is awaited after each step (LOOP-10). `steps` gains each
    step as it is done, so that a run that is cut leaves what it did. Raises `Stopped` before a step if
    `stopped` says so.
    """
    while True:
        if stopped is not None and await stopped():
            raise Stopped
        started = clock.now()
        await live.step_started()
        response = await model.generate(request)
        answered = clock.now()
        await live.tell(*map(events.CallMade, response.tool_calls))
        outcomes = tuple([await finished(o) for o in await run_calls(response.tool_calls, tools, context)])
        await live.calls_finished(outcomes)
        asking = frozenset(call.id for call in response.tool_calls if asks(call, tools))
        steps.append(Step(response, outcomes, started, answered, asking))
        if on_step is not None:
            await on_step(steps[-1])
        if asking:
            return
        continues = bool(outcomes) and not steps[-1].pending and len(steps) < max_steps
        await live.step_finished(steps[-1], continues=continues)
        if not continues:
            return
        results = PromptMessage("tool", tuple(o.answer for o in outcomes))
        request = replace(request, messages=(*request.messages, _answer(response), results), tool_choice="auto")


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
    done = {outcome.call.id: outcome.stored for outcome in step.outcomes}
    for call in step.response.tool_calls:
        outcome = done.get(call.id, {"state": "approval-requested" if call.id in step.asking else "call"})
        parts.append(messages.tool_part(call.id, call.name, call.args, outcome, step.ended))
    return parts


def _when(steps: Sequence[Step]) -> Millis:
    return steps[-1].ended
