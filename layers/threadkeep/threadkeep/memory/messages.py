"""The stored form of messages ("format 2", MS-1, MS-2): how it is built and how its text is read."""

from collections.abc import Callable, Iterator

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.jsontext import Json

Content = dict[str, Json]

MAX_FLAT = 10_000  # characters of text that a content repeats outside of its parts


def text_part(text: str, at: Millis) -> Content:
    return {"type": "text", "text": text, "createdAt": at}


def file_part(data: str, media_type: str, at: Millis) -> Content:
    """`data` is base64 text or a URL."""
    return {"type": "file", "data": data, "mimeType": media_type, "createdAt": at}


def step_start(model: str, at: Millis) -> Content:
    return {"type": "step-start", "createdAt": at, "model": model}


def tool_part(call_id: str, name: str, args: Json, outcome: Content, at: Millis) -> Content:
    """A call and its outcome in one part (MS-3).

    The outcome is `{"state": "result", "result": ...}`, `{"state": "output-error", "errorText": ...}`, or
    `{"state": "call"}` while the caller has yet to run it. One that needs approval is in the state
    `approval-requested`, and `output-denied` with `approval` once it was declined (MS-2).
    """
    invocation: Content = {"toolCallId": call_id, "toolName": name, "args": args, **outcome}
    return {"type": "tool-invocation", "toolInvocation": invocation, "createdAt": at}


def data_part(type: str, data: Json) -> Content:
    """Data for user interfaces that a tool has told (DEL-26); `type` begins with `data-`. No model sees it."""
    return {"type": type, "data": data}


def is_data(part: Content) -> bool:
    return str(part.get("type", "")).startswith("data-")


def content(parts: list[Content], metadata: Content | None = None) -> Content:
    """A stored content, with a flat copy of its last text; a long text is kept once, the parts tell it (MS-1)."""
    stored: Content = {"format": 2, "parts": parts}
    texts = [p["text"] for p in parts if p.get("type") == "text"]
    if texts and len(texts[-1]) <= MAX_FLAT:
        stored["content"] = texts[-1]
    if metadata:
        stored["metadata"] = metadata
    return stored


def with_metadata(stored: Content, more: Content) -> Content:
    """A stored content with more metadata."""
    return {**stored, "metadata": {**(jsontext.as_object(stored.get("metadata")) or {}), **more}}


def parts_of(stored: Content) -> Iterator[Content]:
    """The parts of a stored content, leaving out what is no object."""
    for part in jsontext.as_array(stored.get("parts")) or []:
        known = jsontext.as_object(part)
        if known is not None:
            yield known


def mapped_text(stored: Content, change: Callable[[str], str]) -> Content:
    """A stored content with each of its texts changed, the flat copy too; everything else stays."""
    changed = dict(stored)
    if isinstance(flat := stored.get("content"), str):
        changed["content"] = change(flat)
    if (parts := jsontext.as_array(stored.get("parts"))) is not None:
        changed["parts"] = [_changed_text(part, change) for part in parts]
    return changed


def _changed_text(part: Json, change: Callable[[str], str]) -> Json:
    known = jsontext.as_object(part)
    if known is None or known.get("type") != "text" or not isinstance(text := known.get("text"), str):
        return part
    return known | {"text": change(text)}


def text_of(stored: Content) -> str:
    """The text parts of a stored content, one per line; else its flat copy."""
    texts = [t for p in parts_of(stored) if p.get("type") == "text" and isinstance(t := p.get("text"), str)]
    flat = stored.get("content")
    return "\n".join(texts) if texts else flat if isinstance(flat, str) else ""
