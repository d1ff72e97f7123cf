"""The steps of a run as its stored answer tells them: for runs that are told again, and for those that go on later."""

from collections.abc import Iterable
from dataclasses import replace

from threadkeep import jsontext
from threadkeep.memory.messages import Content, is_data, parts_of
from threadkeep.models.port import ModelResponse, ToolCall, Usage
from threadkeep.storage.port import Message
from threadkeep.turn.result import Step
from threadkeep.turn.tools import CallOutcome

_OPEN = ("call", "partial-call", "approval-requested", "approval-responded")


def stored_steps(answer: Message | None, model: str | None = None) -> list[Step]:
    """At least one step, each as if it had led to tool calls; what they used is not stored.

    `model` None means the one that the answer's metadata name.
    """
    steps: list[list[Content]] = [[]]
    for part in parts_of(answer.content) if answer else ():
        if part.get("type") == "step-start":
            steps.append([])
        steps[-1].append(part)
    name = model if model is not None else str(metadata_of(answer).get("modelId", ""))
    return [_step(parts, name, answer.created_at if answer else 0) for parts in steps]


def before_last_step(content: Content) -> Content:
    """A stored answer without its last step."""
    parts = list(parts_of(content))
    starts = [n for n, part in enumerate(parts) if part.get("type") == "step-start"]
    return {**content, "parts": parts[: starts[-1] if starts else 0]}


def metadata_of(answer: Message | None) -> Content:
    return (jsontext.as_object(answer.content.get("metadata")) if answer else None) or {}


def _step(parts: list[Content], model: str, at: int) -> Step:
    text = "".join(str(p.get("text", "")) for p in parts if p.get("type") == "text")
    reasoning = "".join(str(p.get("reasoning", "")) for p in parts if p.get("type") == "reasoning")
    made: list[Content] = [p["toolInvocation"] for p in parts if p.get("type") == "tool-invocation"]
    response = ModelResponse(text, tuple(map(_call, made)), "tool-calls", Usage(), model, reasoning=reasoning)
    told = _told(parts)
    done = (CallOutcome.read(i) for i in made if i["state"] not in _OPEN)
    outcomes = tuple(replace(outcome, told=tuple(told.get(outcome.call.id, ()))) for outcome in done)
    asking = frozenset(str(i["toolCallId"]) for i in made if i["state"] == "approval-requested")
    return Step(response, outcomes, at, at, asking)


def _told(parts: Iterable[Content]) -> dict[str, list[Content]]:
    """The data parts by the call behind which they stand."""
    told: dict[str, list[Content]] = {}
    call_id = ""
    for part in parts:
        if part.get("type") == "tool-invocation":
            call_id = part["toolInvocation"]["toolCallId"]
        elif is_data(part):
            told.setdefault(call_id, []).append(part)
    return told


def _call(invocation: Content) -> ToolCall:
    return ToolCall(invocation["toolCallId"], invocation["toolName"], invocation["args"])
