"""The caller's messages: which spellings are taken, and what they become (spec-http 2.2, `messages`)."""

from typing import Any, Literal, NoReturn

from threadkeep import ids, jsontext
from threadkeep.errors import InvalidInput, Issue
from threadkeep.jsontext import Json
from threadkeep.memory.messages import Content
from threadkeep.turn.request import InputMessage

MAX_MESSAGES = 1000  # in one request; what is new of them is limited by the store

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}


def input_messages(given: Json, field: str) -> tuple[InputMessage, ...]:
    """The messages in a request: a string, or an array of strings and `{role, content, id?}` objects.

    `content` is a string, an array of text, image and file parts, or the stored form. Raises
    `InvalidInput` naming the place of the first mistake below `field`.
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
    role, content = message.get("role"), message.get("content", message.get("parts"))
    if role == "tool" and content == []:  # clients send it along; it says nothing
        return None
    if not isinstance(role, str) or role not in _ROLES:
        received = repr(role[:20]) if isinstance(role, str) else jsontext.kind(role)
        _refuse(f"{field}.role", f"expected user, assistant or system, received {received}")
    return InputMessage(_ROLES[role], _parts(content, f"{field}.content"), _message_id(message, field))


def _message_id(message: dict[str, Json], field: str) -> str | None:
    given = message.get("id")
    if given is None:
        return None
    if not isinstance(given, str):
        _refuse(f"{field}.id", f"expected string, received {jsontext.kind(given)}")
    if broken := ids.problem(given):
        _refuse(f"{field}.id", broken)
    return given


def _parts(content: Json, field: str) -> tuple[Content, ...]:
    stored = jsontext.as_object(content)
    if stored is not None:
        content, field = stored.get("parts"), f"{field}.parts"
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    listed = jsontext.as_array(content)
    if listed is None:
        _refuse(field, f"expected string or array, received {jsontext.kind(content)}")
    parts = tuple(_part(p, f"{field}.{n}") for n, p in enumerate(listed))
    if not any(p["type"] == "file" or p["text"].strip() for p in parts):
        _refuse(field, "must not be empty")
    return parts


def _part(given: Json, field: str) -> Content:
    part: dict[str, Any] = jsontext.as_object(given) or {}
    match part.get("type"):
        case "text":
            return {"type": "text", "text": _string(part, ("text",), field)}
        case "image" | "file":
            media_type = _string(part, ("mimeType", "mediaType"), field, default=_guess(part))
            return {"type": "file", "data": _string(part, ("data", "image", "url"), field), "mimeType": media_type}
        case other:
            received = repr(other[:20]) if isinstance(other, str) else jsontext.kind(other)
            _refuse(f"{field}.type", f"expected text, image or file, received {received}")


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
