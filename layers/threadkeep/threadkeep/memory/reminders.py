"""Reminders: messages that a harness, not a person, put into a conversation (M-RC-8)."""

from threadkeep import jsontext
from threadkeep.memory.messages import parts_of
from threadkeep.storage.port import Message

_SIGNAL_TYPES = {"system-reminder", "reactive"}
_OLD_OPENING = "<system-reminder"


def is_reminder(message: Message) -> bool:
    """Whether lists hide the message by default: a signal of such a type, or a user message marked the old way."""
    if message.role == "signal":
        return message.type in _SIGNAL_TYPES
    return message.role == "user" and (_marked(message) or _first_text(message).startswith(_OLD_OPENING))


def _marked(message: Message) -> bool:
    metadata = jsontext.as_object(message.content.get("metadata")) or {}
    return isinstance(metadata.get("systemReminder"), dict) or "dynamicAgentsMdReminder" in metadata


def _first_text(message: Message) -> str:
    texts = (part.get("text") for part in parts_of(message.content) if part.get("type") == "text")
    first = next(texts, "")
    return first if isinstance(first, str) else ""
