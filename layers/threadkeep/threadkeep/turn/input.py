"""The caller's messages: which spellings are taken, and what they become (spec-http 2.2, `messages`).

Calls and results of tools come in three spellings: those of model messages (`tool-call`, `tool-result`),
of the stored form (`tool-invocation`) and of user interfaces (`tool-<name>`).
"""

from typing import Any, Literal, NoReturn

from threadkeep import ids, jsontext
from threadkeep.errors import InvalidInput, Issue
from threadkeep.jsontext import Json
from threadkeep.memory.messages import Content
from threadkeep.turn.request import InputMessage

MAX_MESSAGES = 1000  # in one request; what is new of them is limited by the store

_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_SILENT = ("step-start", "reasoning", "source", "source-url", "source-document")  # said to people, not to models


def input_messages(given: Json, field: str) -> tuple[InputMessage, ...]:
    """The messages in a request: a string, or an array of strings and `{role, content, id?}` objects.

    `content` is a string, an array of parts, or the stored form. Users and systems say text, images and
    files; assistants also calls of tools; `tool` messages hold results alone. Raises `InvalidInput` naming
    the place of the first mistake below `field`.
    """
    if isinstance(given, str):
        return (_text_message(given, field),)
    listed = jsontext.as_array(given)
    if listed is None:
        _refuse(field, f"expected string or array, received {jsontext.kind(given)}")
    if len(listed) > MAX_MESSAGES:
        _refuse(field, f"must have at most {MAX_MESSAGES} messages, received {len(listed)}")
    found = [_message(m, f"{field}.{n}") for n, m in enumerate(listed)]
    return tuple(m for m in found if m is not None)


def _text_message(text: str, field: str) -> InputMessage:
    if not text.strip():
        _refuse(field, "must not be empty")
    return InputMessage("user", ({"type": "text", "text": text},))


def _message(given: Json, field: str) -> InputMessage | None:
    if isinstance(given, str):
        return _text_message(given, field)
    message = jsontext.as_object(given)
    if message is None:
        _refuse(field, f"expected string or object, received {jsontext.kind(given)}")
    role, content = message.get("role"), message.get("content")
    if content in (None, "") and "parts" in message:  # messages of user interfaces
        content = message["parts"]
    if role == "tool" and content == []:  # clients send it along; it says nothing
        return None
    if not isinstance(role, str) or role not in _ROLES:
        _refuse(f"{field}.role", f"expected user, assistant, system or tool, received {_received(role)}")
    parts = _results(content, f"{field}.content") if role == "tool" else _parts(content, f"{field}.content", role)
    return InputMessage(_ROLES[role], parts, _message_id(message, field))


def _message_id(message: dict[str, Json], field: str) -> str | None:
    given = message.get("id")
    if given is None:
        return None
    if not isinstance(given, str):
        _refuse(f"{field}.id", f"expected string, received {jsontext.kind(given)}")
    if broken := ids.problem(given):
        _refuse(f"{field}.id", broken)
    return given


def _results(content: Json, field: str) -> tuple[Content, ...]:
    listed = jsontext.as_array(content)
    if listed is None:
        _refuse(field, f"expected array, received {jsontext.kind(content)}")
    return tuple(_result(part, f"{field}.{n}") for n, part in enumerate(listed))


def _parts(content: Json, field: str, role: str) -> tuple[Content, ...]:
    stored = jsontext.as_object(content)
    if stored is not None:
        content, field = stored.get("parts"), f"{field}.parts"
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    listed = jsontext.as_array(content)
    if listed is None:
        _refuse(field, f"expected string or array, received {jsontext.kind(content)}")
    found = [_part(p, f"{field}.{n}", role) for n, p in enumerate(listed)]
    if not any(part is None or part["type"] != "text" or part["text"].strip() for part in found):
        _refuse(field, "must not be empty")
    return tuple(part for part in found if part is not None)


def _part(given: Json, field: str, role: str) -> Content | None:
    part: dict[str, Any] = jsontext.as_object(given) or {}
    if role == "assistant" and (part.get("type") in _SILENT or _is_tool_part(part)):
        return _call(part, field) if _is_tool_part(part) else None
    match part.get("type"):
        case "text":
            return {"type": "text", "text": _string(part, ("text",), field)}
        case "image" | "file":
            media_type = _string(part, ("mimeType", "mediaType"), field, default=_guess(part))
            return {"type": "file", "data": _string(part, ("data", "image", "url"), field), "mimeType": media_type}
        case other:
            _refuse(f"{field}.type", f"expected text, image or file, received {_received(other)}")


def _is_tool_part(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and (kind in ("tool-call", "tool-invocation", "dynamic-tool") or kind[:5] == "tool-")


def _call(part: dict[str, Any], field: str) -> Content:
    """A call, with its result if the part holds one, as a stored part without time (MS-3)."""
    match part["type"]:
        case "tool-call":
            return _invocation(part, field, {"state": "call"}, args=part.get("input", part.get("args", {})))
        case "tool-result":
            _refuse(f"{field}.type", "a tool-result belongs into a message with the role tool")
        case "tool-invocation":
            field = f"{field}.toolInvocation"
            stored = jsontext.as_object(part.get("toolInvocation"))
            if stored is None:
                _refuse(field, f"expected object, received {jsontext.kind(part.get('toolInvocation'))}")
            return _invocation(stored, field, _stored_outcome(stored, field), args=stored.get("args", {}))
        case shown:
            named = part if shown == "dynamic-tool" else part | {"toolName": shown.removeprefix("tool-")}
            return _invocation(named, field, _shown_outcome(part), args=part.get("input", {}))


def _stored_outcome(invocation: dict[str, Any], field: str) -> Content:
    match invocation.get("state"):
        case "result":
            return _success(invocation.get("result"))
        case "output-error":
            return _failure(invocation.get("errorText"))
        case "output-denied":
            return {"state": "output-denied", "approval": invocation.get("approval")}
        case "call" | "partial-call" | "approval-requested" | "approval-responded":
            return {"state": "call"}
        case other:
            _refuse(
                f"{field}.state", f"expected call, result, output-error or output-denied, received {_received(other)}"
            )


def _shown_outcome(part: dict[str, Any]) -> Content:
    match part.get("state"):
        case "output-available":
            return _success(part.get("output"))
        case "output-error":
            return _failure(part.get("errorText"))
        case _:
            return {"state": "call"}


def _result(given: Json, field: str) -> Content:
    """A result: `result` as clients give it, or `output` as model messages have it."""
    part: dict[str, Any] = jsontext.as_object(given) or {}
    if part.get("type") != "tool-result":
        _refuse(f"{field}.type", f"expected tool-result, received {_received(part.get('type'))}")
    if "result" in part:
        made = _failure if part.get("isError") is True else _success
        return _invocation(part, field, made(part["result"]))
    output = jsontext.as_object(part.get("output"))
    if output is None:
        _refuse(f"{field}.result", "required, received undefined")
    made = _failure if output.get("type") in ("error-text", "error-json", "execution-denied") else _success
    return _invocation(part, field, made(output.get("value", output.get("reason"))))


def _success(value: Json) -> Content:
    return {"state": "result", "result": value}


def _failure(value: Json) -> Content:
    return {"state": "output-error", "errorText": value if isinstance(value, str) else jsontext.dumps(value)}


def _invocation(part: dict[str, Any], field: str, outcome: Content, args: Json = None) -> Content:
    """A stored part without time. A result alone has no `args`."""
    if args is not None and jsontext.as_object(args) is None:
        _refuse(f"{field}.input", f"expected object, received {jsontext.kind(args)}")
    named = {"toolCallId": _string(part, ("toolCallId",), field), "toolName": _string(part, ("toolName",), field)}
    given = {} if args is None else {"args": args}
    return {"type": "tool-invocation", "toolInvocation": {**named, **given, **outcome}}


def _received(value: Json) -> str:
    return repr(value[:20]) if isinstance(value, str) else jsontext.kind(value)


def _guess(part: dict[str, Any]) -> str | None:
    return "image/*" if part.get("type") == "image" else None


def _string(part: dict[str, Any], names: tuple[str, ...], field: str, default: str | None = None) -> str:
    """The first of these fields that the part has; each must be a string."""
    for name in names:
        if name in part:
            if not isinstance(part[name], str):
                _refuse(f"{field}.{name}", f"expected string, received {jsontext.kind(part[name])}")
            return part[name]
    if default is None:
        _refuse(f"{field}.{names[0]}", "required, received undefined")
    return default


def _refuse(field: str, message: str) -> NoReturn:
    raise InvalidInput(Issue(field, message))
