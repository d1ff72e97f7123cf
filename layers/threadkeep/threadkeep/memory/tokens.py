"""Counting tokens without a model's vocabulary: deterministic, the same on every machine (OM-20 to OM-22).

The counts are estimates that budgets and limits are measured in; they are not what a provider bills.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator

from threadkeep import jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.messages import Content, parts_of
from threadkeep.models.port import FilePart, Part, PromptMessage, ToolCall

CONVERSATION_OVERHEAD = 24
MESSAGE_OVERHEAD = 3.8  # for a message, and once more for each tool result
OBJECT_DISCOUNT = 12  # taken off a JSON object: its punctuation counts as more than a vocabulary makes of it
FILE_TOKENS = 765  # an image of unknown size: 85 and four tiles of 170 (OM-23)
MAX_ENCRYPTED = 256  # characters of `encryptedContent`; longer ones never reach a model as text

_SEGMENTS = re.compile(r"(\s+|[.,!?;(){}[\]<>:/\\|@#$%^&*+=`~_-]+)")
_SEPARATOR = re.compile(r"[.,!?;(){}[\]<>:/\\|@#$%^&*+=`~_-]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ACCENTED = re.compile(r"[äöüßàâæçèéêëîïôœùûÿáíóúñ]", re.IGNORECASE)
_SLAVIC = re.compile(r"[ąćęłńśźżčďěňřšťůýž]", re.IGNORECASE)


def count(text: str) -> int:
    """The tokens of a text; the empty text has none (OM-20)."""
    return sum(map(_segment_tokens, _SEGMENTS.split(text)))


def cut(text: str, budget: float) -> str:
    """The longest beginning of a text, in whole segments, that has at most `budget` tokens."""
    kept: list[str] = []
    for segment in _SEGMENTS.split(text):
        budget -= _segment_tokens(segment)
        if budget < 0:
            break
        kept.append(segment)
    return "".join(kept)


def message(role: str, content: Content) -> int:
    """The tokens of one stored message (OM-21). A tool part costs its call and, once there is one, its result."""
    parts = list(parts_of(content))
    flat = content.get("content")
    payload = count(role) + sum(map(_part_tokens, parts))
    if not parts and isinstance(flat, str):
        payload += count(flat)
    results = sum(_result_of(part) is not None for part in parts)
    return math.floor(payload + MESSAGE_OVERHEAD * (1 + results) + 0.5)


def conversation(messages: Iterable[tuple[str, Content]]) -> int:
    """The tokens of stored messages together, given as role and content; none at all cost nothing (OM-22)."""
    costs = [message(role, content) for role, content in messages]
    return CONVERSATION_OVERHEAD + sum(costs) if costs else 0


def prompt_message(message: PromptMessage) -> float:
    """What one prompt message takes of a limit: its tokens and 3.8, for results 3.8 each (PR-12)."""
    results = len(message.parts) if message.role == "tool" else 1
    return count(message.role) + sum(map(_prompt_part_tokens, message.parts)) + MESSAGE_OVERHEAD * results


def prompt(messages: Iterable[PromptMessage]) -> float:
    """What a whole prompt takes of a limit."""
    return CONVERSATION_OVERHEAD + sum(map(prompt_message, messages))


def _segment_tokens(segment: str) -> int:
    if not segment or segment.isspace():
        return 0
    if _CJK.search(segment):
        return len(segment)
    if segment.isdecimal() or len(segment) <= 3:
        return 1
    if _SEPARATOR.fullmatch(segment):
        return math.ceil(len(segment) / 2)
    return math.ceil(len(segment) / _characters_per_token(segment))


def _characters_per_token(word: str) -> float:
    if _ACCENTED.search(word):
        return 3
    return 3.5 if _SLAVIC.search(word) else 6


def _prompt_part_tokens(part: Part) -> int:
    if isinstance(part, ToolCall):
        return count(part.name) + max(0, _json_tokens(part.args))
    return FILE_TOKENS if isinstance(part, FilePart) else count(part.text)


def _part_tokens(part: Content) -> int:
    kind = str(part.get("type", ""))
    if kind == "text":
        return count(str(part.get("text", "")))
    if kind == "reasoning" or kind.startswith("data-"):
        return 0
    if kind == "tool-invocation":
        return sum(_tool_tokens(part))
    estimate = (jsontext.as_object(_in_metadata(part, "tokenEstimate")) or {}).get("tokens")
    if isinstance(estimate, int):
        return estimate
    return FILE_TOKENS if kind == "file" else count(jsontext.dumps(part))


def _tool_tokens(part: Content) -> Iterator[int]:
    invocation = jsontext.as_object(part.get("toolInvocation")) or {}
    yield count(str(invocation.get("toolName", "")))
    yield _json_tokens(invocation.get("args"))
    if (result := _result_of(part)) is not None:
        yield result


def _result_of(part: Content) -> int | None:
    """The tokens of a tool part's result, which may be zero or less for a small object; None without a result."""
    invocation = jsontext.as_object(part.get("toolInvocation"))
    if part.get("type") != "tool-invocation" or invocation is None:
        return None
    match invocation.get("state"):
        case "result":
            output = _in_metadata(part, "modelOutput")
            return _json_tokens(_redacted(invocation.get("result") if output is None else output), indent=2)
        case "output-error":
            return count(str(invocation.get("errorText", "")))
        case "output-denied":
            approval = jsontext.as_object(invocation.get("approval")) or {}
            return count(str(approval.get("reason") or ""))
        case _:
            return None


def _json_tokens(value: Json, indent: int | None = None) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        return count(value)
    text = json.dumps(value, ensure_ascii=False, indent=indent) if indent else jsontext.dumps(value)
    return count(text) - (OBJECT_DISCOUNT if isinstance(value, dict | list) else 0)


def _in_metadata(part: Content, name: str) -> Json:
    provider = jsontext.as_object(part.get("providerMetadata")) or {}
    return (jsontext.as_object(provider.get("mastra")) or {}).get(name)


def _redacted(value: Json) -> Json:
    if (items := jsontext.as_array(value)) is not None:
        return [_redacted(item) for item in items]
    if (fields := jsontext.as_object(value)) is None:
        return value
    return {key: "[redacted]" if _is_encrypted(key, item) else _redacted(item) for key, item in fields.items()}


def _is_encrypted(key: str, value: Json) -> bool:
    return key == "encryptedContent" and isinstance(value, str) and len(value) > MAX_ENCRYPTED
