"""What of a message is never stored: the copies of working memory that models leave in it (MS-5)."""

from threadkeep import jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.messages import Content

TOOL_NAME = "updateWorkingMemory"  # calls of `setWorkingMemory` stay (SS-1)

_OPEN, _CLOSE = "<working_memory>", "</working_memory>"


def stripped(content: Content) -> Content | None:
    """A content as it is stored; None if nothing is left to store.

    Calls of the working-memory tool go, with their results, and whole `<working_memory>` spans in texts; a
    tag that is not closed stays. A text that was cut is trimmed, and goes if nothing is left of it. A content
    that holds none of these is returned as it is, whatever it holds.
    """
    parts = jsontext.as_array(content.get("parts")) or []
    kept = [left for part in parts for left in _part(part)]
    flat = content.get("content")
    text = _cut(flat) if isinstance(flat, str) else flat
    if kept == parts and text == flat:
        return content
    if not text and all(_separates(part) for part in kept):
        return None
    left = {**content, "parts": kept}
    left.pop("content", None)
    return left | ({"content": text} if text else {})


def _part(part: Json) -> list[Json]:
    """The part as it is stored, if it is."""
    known = jsontext.as_object(part) or {}
    if known.get("type") == "tool-invocation":
        invocation = jsontext.as_object(known.get("toolInvocation")) or {}
        return [] if invocation.get("toolName") == TOOL_NAME else [part]
    text = known.get("text")
    if known.get("type") != "text" or not isinstance(text, str) or (cut := _cut(text)) == text:
        return [part]
    return [{**known, "text": cut}] if cut else []


def _cut(text: str) -> str:
    """The text without whole spans; one that has none is not even trimmed. Time grows with its length alone."""
    kept: list[str] = []
    at = 0
    while (start := text.find(_OPEN, at)) >= 0 and (end := text.find(_CLOSE, start)) >= 0:
        kept.append(text[at:start])
        at = end + len(_CLOSE)
    return ("".join(kept) + text[at:]).strip() if at else text


def _separates(part: Json) -> bool:
    return (jsontext.as_object(part) or {}).get("type") == "step-start"
