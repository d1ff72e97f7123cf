"""The answers in OpenAI's wire form: one completion object, or the chunks of a stream."""

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from tests.scripted.directives import Answer, Body, text_of

_CHUNK = 8  # characters


def completion(body: Body, answer: Answer) -> Body:
    message: Body = {"role": "assistant", "content": answer.text if answer.text or not answer.calls else None}
    if answer.calls:
        message["tool_calls"] = _tool_calls(answer)
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(answer), "logprobs": None}
    return {**_head(body, "chat.completion"), "choices": [choice], "usage": usage(body, answer)}


def opening(head: Body, answer: Answer) -> Iterator[Body]:
    """The chunks of a stream that tell the answer: role, text in small pieces, each call with its arguments in such."""
    for delta in _deltas(answer):
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def closing(head: Body, body: Body, answer: Answer) -> Iterator[Body]:
    """The chunks that end a stream: the finish, the usage if asked for."""
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish_reason(answer)}]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": usage(body, answer)}


def chunk_head(body: Body) -> Body:
    """What all chunks of one stream begin with."""
    return _head(body, "chat.completion.chunk")


def error(status: int, message: str) -> Body:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message or f"scripted failure {status}", "type": kind, "param": None, "code": None}}


def usage(body: Body, answer: Answer) -> Body:
    """Words as tokens: small, and the same for the same prompt."""
    prompt = sum(_words(text_of(m), *_arguments(m)) for m in body["messages"])
    spoken = max(1, _words(answer.text, *(call.arguments for call in answer.calls)))
    return {"prompt_tokens": prompt, "completion_tokens": spoken, "total_tokens": prompt + spoken}


def _deltas(answer: Answer) -> Iterator[Body]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(answer.text):
        yield {"content": piece}
    for index, call in enumerate(_tool_calls(answer)):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]}
        for piece in _pieces(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _head(body: Body, kind: str) -> Body:
    created = int(time.time())
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": created, "model": body.get("model")}


def _tool_calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.tool, "arguments": call.arguments},
        }
        for call in answer.calls
    ]


def _finish_reason(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _arguments(message: Body) -> list[str]:
    return [json.dumps(call["function"]["arguments"]) for call in message.get("tool_calls") or []]


def _words(*texts: str) -> int:
    return sum(len(text.split()) for text in texts)


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _CHUNK):
        yield text[start : start + _CHUNK]
