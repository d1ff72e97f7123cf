"""The model loop: ask, run the tools it calls, ask again with their results (LOOP-1 to LOOP-8)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.ids import new_id
from threadkeep.memory import messages
from threadkeep.memory.messages import Content
from threadkeep.models.port import Model, ModelRequest, ModelResponse, Part, PromptMessage, TextPart
from threadkeep.storage.port import NewMessage
from threadkeep.turn.result import Step
from threadkeep.turn.tools import CallOutcome, Tool, ToolContext, run_calls


async def run_steps(
    model: Model,
    request: ModelRequest,
    tools: Mapping[str, Tool],
    context: Callable[[str], ToolContext],
    max_steps: int,
    finished: Callable[[CallOutcome], Awaitable[CallOutcome]],
    on_step: Callable[[Step], Awaitable[None]] | None = None,
) -> tuple[Step, ...]:
    """Call the model until it answers without tools or calls a tool of the caller, or `max_steps` times.

    `finished` may change each outcome. `on_step` is awaited after each step (LOOP-10).
    """
    steps: list[Step] = []
    while True:
        started = clock.now()
        response = await model.generate(request)
        answered = clock.now()
        outcomes = tuple([await finished(o) for o in await run_calls(response.tool_calls, tools, context)])
        steps.append(Step(response, outcomes, started, answered))
        if on_step is not None:
            await on_step(steps[-1])
        if not outcomes or steps[-1].pending or len(steps) >= max_steps:
            return tuple(steps)
        results = PromptMessage("tool", tuple(o.answer for o in outcomes))
        request = replace(request, messages=(*request.messages, _answer(response), results), tool_choice="auto")


def _answer(response: ModelResponse) -> PromptMessage:
    text: tuple[Part, ...] = (TextPart(response.text),) if response.text else ()
    return PromptMessage("assistant", text + response.tool_calls)


def answer_message(steps: tuple[Step, ...], model: str, provider: str) -> NewMessage | None:
    """All steps of a run as one stored assistant message (MS-3, LOOP-6); None if nothing was said or done."""
    parts: list[Content] = []
    for step in steps:
        if parts:
            parts.append(messages.step_start(f"{provider}/{model}", step.started))
        parts += _parts(step)
    if not any(p["type"] != "step-start" for p in parts):
        return None
    metadata = {"modelId": model, "provider": provider}
    return NewMessage(new_id(), "assistant", messages.content(parts, metadata), _when(steps))


def _parts(step: Step) -> list[Content]:
    parts: list[Content] = []
    if step.response.reasoning:
        parts.append({"type": "reasoning", "reasoning": step.response.reasoning, "createdAt": step.ended})
    if step.response.text:
        parts.append(messages.text_part(step.response.text, step.ended))
    done = {outcome.call.id: outcome.stored for outcome in step.outcomes}
    for call in step.response.tool_calls:
        outcome = done.get(call.id, {"state": "call"})
        parts.append(messages.tool_part(call.id, call.name, call.args, outcome, step.ended))
    return parts


def _when(steps: tuple[Step, ...]) -> Millis:
    return steps[-1].ended
