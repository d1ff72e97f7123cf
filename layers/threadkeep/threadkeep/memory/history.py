"""History: stored messages as a model may see them.

Providers refuse a prompt in which a call lacks its result, a result lacks its call, or the first
message is not the user's. What is stored is never changed; the prompt is mended instead (cases H06,
H07, H19; CTX-5, CTX-6).
"""

from collections.abc import Iterable, Sequence

from threadkeep import jsontext
from threadkeep.jsontext import Json
from threadkeep.memory import signals
from threadkeep.memory.messages import Content, parts_of
from threadkeep.models.port import FilePart, Part, PromptMessage, TextPart, ToolCall, ToolResult
from threadkeep.storage.port import Message

_RESULT_STATES = {"result", "output-error", "output-denied"}
OPENER = PromptMessage("user", (TextPart("."),))
DECLINED = "The call was declined"
DELEGATES = "agent-"  # how the name of a tool begins that delegates to a sub-agent (DEL-1)
NO_TEXT = "The sub-agent gave no text."
_REPORTED = {"text", "subAgentThreadId", "subAgentResourceId", "subAgentToolResults", "ref"}
_PENDING = '{"status":"pending"}'


def prompt_messages(history: Iterable[Message]) -> tuple[PromptMessage, ...]:
    """The conversation as prompt messages, mended: every call has one result, system rows are left out."""
    seen: set[str] = set()
    return tuple(p for m in history for p in seen_by_model(m.role, m.content, seen))


def seen_by_model(
    role: str, content: Content, seen: set[str], *, keep_pending: bool = False
) -> tuple[PromptMessage, ...]:
    """One stored message as prompt messages. `seen` holds the ids of the calls before it and gains its own.

    A call without a result is left out, or, with `keep_pending`, gets a result that says so (MS-3).
    """
    if role == "assistant":
        return tuple(_assistant(content, seen, keep_pending))
    if role == signals.ROLE:
        text = signals.rendered(content)
        return (PromptMessage("user", (TextPart(text),)),) if text else ()
    return tuple(_user(content)) if role == "user" else ()


def opened_by_user(prompt: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
    """Put a user message with a period before a conversation that an assistant message opens (CTX-5)."""
    first = next((i for i, m in enumerate(prompt) if m.role != "system"), None)
    if first is None or prompt[first].role != "assistant":
        return tuple(prompt)
    return (*prompt[:first], OPENER, *prompt[first:])


def result_text(result: Json) -> str:
    """What the model reads of a tool's result: a string as it is, anything else as JSON."""
    return result if isinstance(result, str) else jsontext.dumps(result)


def tool_text(name: str, result: Json) -> str:
    """What the model reads of the result of a tool of this name: of a delegation's only its text, and the name by which
    it may be cited (DEL-3, DEL-27)."""
    given = jsontext.as_object(result) if name.startswith(DELEGATES) else None
    if given is None or "text" not in given or not given.keys() <= _REPORTED:
        return result_text(result)
    text = str(given["text"]) or NO_TEXT
    return f"{text}\n\n[ref: {given['ref']}]" if given.get("ref") else text


def _user(content: Content) -> list[PromptMessage]:
    parts = tuple(p for part in parts_of(content) if (p := _visible(part)) is not None)
    flat = content.get("content")
    if not parts and isinstance(flat, str) and flat:
        parts = (TextPart(flat),)
    return [PromptMessage("user", parts)] if parts else []


def _assistant(content: Content, seen: set[str], keep_pending: bool) -> list[PromptMessage]:
    """Split one stored answer into steps: text and calls, then the results of these calls."""
    prompt: list[PromptMessage] = []
    said: list[Part] = []
    results: list[ToolResult] = []

    def end_step() -> None:
        if said:
            prompt.append(PromptMessage("assistant", tuple(said)))
        if results:
            prompt.append(PromptMessage("tool", tuple(results)))
        said.clear()
        results.clear()

    for part in parts_of(content):
        pair = _answered_call(part, seen, keep_pending)
        if pair is not None:
            said.append(pair[0])
            results.append(pair[1])
            continue
        visible = _visible(part)
        if part.get("type") == "step-start" or (visible is not None and results):
            end_step()
        if visible is not None:
            said.append(visible)
    end_step()
    return prompt


def _visible(part: Content) -> Part | None:
    text, data, media_type = part.get("text"), part.get("data"), part.get("mimeType")
    if part.get("type") == "text" and isinstance(text, str) and text:
        return TextPart(text)
    if part.get("type") == "file" and isinstance(data, str) and isinstance(media_type, str):
        return FilePart(data, media_type)
    return None


def _answered_call(part: Content, seen: set[str], keep_pending: bool) -> tuple[ToolCall, ToolResult] | None:
    """A call with its result; None for another part, an unanswered call, or a call met before."""
    invocation = jsontext.as_object(part.get("toolInvocation"))
    if part.get("type") != "tool-invocation" or invocation is None:
        return None
    if invocation.get("state") not in _RESULT_STATES and not keep_pending:
        return None
    call_id, name = str(invocation.get("toolCallId", "")), str(invocation.get("toolName", ""))
    if not call_id or call_id in seen:
        return None
    seen.add(call_id)
    call = ToolCall(call_id, name, jsontext.as_object(invocation.get("args")) or {})
    return call, _result(call, invocation)


def _result(call: ToolCall, invocation: Content) -> ToolResult:
    state = invocation.get("state")
    if state not in _RESULT_STATES:
        return ToolResult(call.id, call.name, _PENDING)
    if state == "result":
        return ToolResult(call.id, call.name, tool_text(call.name, invocation.get("result")))
    if state == "output-error":
        return ToolResult(call.id, call.name, str(invocation.get("errorText", "The tool failed")), is_error=True)
    approval = jsontext.as_object(invocation.get("approval")) or {}
    return ToolResult(call.id, call.name, str(approval.get("reason") or DECLINED), is_error=True)
