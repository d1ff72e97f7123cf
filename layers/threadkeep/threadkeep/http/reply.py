"""The reply to generate (spec-http 2.2): a finished turn in the words of the wire."""

from collections.abc import Iterable

from threadkeep import clock, ids, jsontext
from threadkeep.http import wire
from threadkeep.jsontext import Json
from threadkeep.memory.messages import parts_of
from threadkeep.models.port import ToolCall, Usage
from threadkeep.storage.port import Message, NewMessage
from threadkeep.turn.processors.base import Tripwire
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.suspension import RESUME_SCHEMA, told
from threadkeep.turn.tools import CallOutcome

MAX_REMEMBERED = 1_000_000  # characters of history that a reply repeats; Lambda sends 6 MB at most


class Generated(wire.Reply):
    """What clients read of a run; steps, response and messages hold more (see the guide)."""

    text: str
    finish_reason: str
    usage: dict[str, Json]
    total_usage: dict[str, Json]
    steps: list[dict[str, Json]]
    tool_calls: list[dict[str, Json]]
    tool_results: list[dict[str, Json]]
    reasoning: list[Json]
    sources: list[Json]
    files: list[Json]
    warnings: list[Json]
    provider_metadata: dict[str, Json]
    request: dict[str, Json]
    response: dict[str, Json]
    used_fallback_value: bool
    run_id: str
    messages: list[dict[str, Json]]
    remembered_messages: list[dict[str, Json]]
    tripwire: dict[str, Json] = {}
    suspend_payload: dict[str, Json] = {}
    resume_schema: str = ""
    object: Json = None


def generated(result: TurnResult) -> dict[str, Json]:
    """The reply for a finished turn. The prompt is not sent back: `request` is empty."""
    stored = [_message(m, result) for m in result.messages]
    answers = [m for m in result.messages if m.role == "assistant"]
    steps = result.all_steps
    last = steps[-1] if steps else None
    fields = Generated(
        text=result.text,
        finish_reason=result.finish_reason,
        usage=usage(result.usage),
        total_usage=usage(result.usage),
        steps=[_step(step, result, n) for n, step in enumerate(steps)],
        tool_calls=[_call(c, result) for step in steps for c in step.response.tool_calls],
        tool_results=[_outcome(o, result) for step in steps for o in step.outcomes],
        reasoning=_reasoning(steps),
        sources=[],
        files=[],
        warnings=_warnings(result),
        provider_metadata=last.response.provider_metadata if last else {},
        request={},
        response={
            **(_response(last) if last else {}),
            "messages": _model_messages(steps),
            **_views(answers, result),
        },
        used_fallback_value=result.structured is not None and result.structured.is_fallback,
        run_id=result.run_id,
        messages=stored,
        remembered_messages=_remembered(result),
        **({"tripwire": tripwire(result.tripwire)} if result.tripwire else {}),
        **_suspended(result),
        **_object(result),
    )
    return fields.model_dump(by_alias=True, exclude_unset=True)


def _suspended(result: TurnResult) -> dict[str, Json]:
    """What the run waits for: of several calls the first; `suspended-runs` names all."""
    waiting = result.suspended.waiting if result.suspended else ()
    return {"suspend_payload": told(waiting[0]), "resume_schema": RESUME_SCHEMA} if waiting else {}


def _remembered(result: TurnResult) -> list[dict[str, Json]]:
    """The history that the model saw; none of it where it would crowd out the answer (CTX-7)."""
    shown = [_message(m, result) for m in result.remembered]
    return shown if len(jsontext.dumps(shown)) <= MAX_REMEMBERED else []


def tripwire(tripwire: Tripwire) -> dict[str, Json]:
    """Why a processor stopped the run (PR-7)."""
    optional = {"retry": tripwire.retry or None, "metadata": tripwire.metadata}
    known = {name: value for name, value in optional.items() if value is not None}
    return {"reason": tripwire.reason, "processorId": tripwire.processor_id, **known}


def _object(result: TurnResult) -> dict[str, Json]:
    """The object of a structured output, where the run came to one (LOOP-11)."""
    shaped = result.structured
    return {"object": shaped.value} if shaped is not None and shaped.exists else {}


def _warnings(result: TurnResult) -> list[Json]:
    problem = result.structured.problem if result.structured else ""
    return [{"type": "structured-output", "message": problem}] if problem else []


def _step(step: Step, result: TurnResult, number: int) -> dict[str, Json]:
    return {
        "stepType": "tool-result" if number else "initial",
        "text": step.response.text,
        "reasoningText": step.response.reasoning,
        "reasoning": _reasoning((step,)),
        "sources": [],
        "files": [],
        "toolCalls": [_call(c, result) for c in step.response.tool_calls],
        "toolResults": [_outcome(o, result) for o in step.outcomes],
        "content": [*_said(step), *map(_result_part, step.outcomes)],
        "finishReason": step.response.finish_reason,
        "usage": usage(step.response.usage),
        "warnings": [],
        "request": {},
        "response": _response(step),
    }


def _said(step: Step) -> list[dict[str, Json]]:
    """Text and calls of a step, in the words of model messages."""
    text: list[dict[str, Json]] = [{"type": "text", "text": step.response.text}] if step.response.text else []
    return text + [
        {"type": "tool-call", "toolCallId": call.id, "toolName": call.name, "input": call.args}
        for call in step.response.tool_calls
    ]


def _result_part(done: CallOutcome) -> dict[str, Json]:
    """A result in the words of model messages: a value stays the value that it is (case H33)."""
    output: dict[str, Json] = {"type": "json", "value": done.result}
    if done.error is not None:
        output = {"type": "error-text", "value": done.error}
    elif isinstance(done.result, str):
        output = {"type": "text", "value": done.result}
    return {"type": "tool-result", "toolCallId": done.call.id, "toolName": done.call.name, "output": output}


def _reasoning(steps: Iterable[Step]) -> list[Json]:
    texts = [step.response.reasoning for step in steps if step.response.reasoning]
    return [{"type": "reasoning", "payload": {"text": text}} for text in texts]


def _response(step: Step) -> dict[str, Json]:
    return {
        "id": step.response.response_id,
        "timestamp": clock.iso(step.ended),
        "modelId": step.response.model,
    }


def _call(call: ToolCall, result: TurnResult) -> dict[str, Json]:
    payload = {"toolCallId": call.id, "toolName": call.name, "args": call.args}
    return {"type": "tool-call", "runId": result.run_id, "from": "AGENT", "payload": payload}


def _outcome(done: CallOutcome, result: TurnResult) -> dict[str, Json]:
    failed = {"isError": True} if done.error is not None else {}
    payload = {
        "toolCallId": done.call.id,
        "toolName": done.call.name,
        "args": done.call.args,
        "result": done.result if done.error is None else done.error,
        **failed,
    }
    return {"type": "tool-result", "runId": result.run_id, "from": "AGENT", "payload": payload}


def usage(usage: Usage) -> dict[str, Json]:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
        "reasoningTokens": usage.reasoning_tokens,
        "cachedInputTokens": usage.cached_input_tokens,
    }


def _message(message: Message | NewMessage, result: TurnResult) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "id": message.id,
        "role": message.role,
        "createdAt": clock.iso(_created(message)),
        "content": message.content,
    }
    if result.thread is not None:
        fields |= {"threadId": result.thread.id, "resourceId": ids.shown_resource(result.thread.resource_id)}
    return fields


def _created(message: Message | NewMessage) -> int:
    return message.created_at if isinstance(message, Message) else message.at


def _model_messages(steps: Iterable[Step]) -> list[dict[str, Json]]:
    """The run's answer as model messages; clients send these back when they run tools themselves."""
    messages: list[dict[str, Json]] = []
    for step in steps:
        if said := _said(step):
            messages.append({"role": "assistant", "content": said})
        if step.outcomes:
            messages.append({"role": "tool", "content": [_result_part(done) for done in step.outcomes]})
    return messages


def _views(answers: Iterable[Message | NewMessage], result: TurnResult) -> dict[str, Json]:
    """The stored form and the form of user interfaces."""
    stored = [_message(m, result) for m in answers]
    shown = [
        {
            "id": m["id"],
            "role": m["role"],
            "metadata": {**m["content"].get("metadata", {}), "createdAt": m["createdAt"]},
            "parts": [_ui_part(p) for p in parts_of(m["content"])],
        }
        for m in stored
    ]
    return {"dbMessages": stored, "uiMessages": shown}


def _ui_part(part: dict[str, Json]) -> dict[str, Json]:
    if part.get("type") != "tool-invocation":
        return {k: v for k, v in part.items() if k != "createdAt"}
    call = part["toolInvocation"]
    outcome: dict[str, Json] = {"state": "output-available", "output": call.get("result")}
    if call["state"] == "output-denied":
        outcome = {"state": "output-denied", "approval": call.get("approval")}
    elif call["state"] == "approval-requested":
        outcome = {"state": "approval-requested", "approval": {"id": call["toolCallId"]}}
    elif call["state"] == "output-error":
        outcome = {"state": "output-error", "errorText": call["errorText"]}
    elif call["state"] == "call":
        outcome = {"state": "input-available"}
    return {"type": f"tool-{call['toolName']}", "toolCallId": call["toolCallId"], "input": call["args"], **outcome}
