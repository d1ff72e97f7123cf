"""Server-sent events in the framing of the API: one JSON chunk per block, `[DONE]` or the end of the answer last."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import Field, ValidationError

from threadkeep_client.errors import UnreadableReply
from threadkeep_client.reply import Reply


class Chunk(Reply):
    """One piece of a run. What some kinds have beside `payload` (`data`, `object`) is in `model_extra`."""

    type: str
    run_id: str = ""
    sender: str = Field("", alias="from")
    payload: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """What a `text-delta` adds to the answer; empty for all others."""
        return str(self.payload.get("text", "")) if self.type == "text-delta" else ""

    @property
    def output(self) -> "Chunk | None":
        """What a sub-agent says, a chunk of its own run: of a `tool-output`. None for all others."""
        given: Any = self.payload.get("output")
        is_chunk = self.type == "tool-output" and isinstance(given, dict) and "type" in given
        return Chunk.model_validate(given) if is_chunk else None

    @property
    def problem(self) -> str:
        """Why the run failed or was stopped; empty for chunks that do not say so."""
        if self.type == "tripwire":
            return str(self.payload.get("reason") or "stopped by a processor")
        if self.type != "error":
            return ""
        error: Any = self.payload.get("error")
        said: Any = cast(dict[str, Any], error).get("message") if isinstance(error, dict) else error
        return str(said or "the run failed")


@dataclass
class Decoder:
    """Makes chunks of bytes, however these are cut. `done` is true once `[DONE]` has come.

    Comments, heartbeats and other fields of events are passed over; lines end with LF or CRLF.
    """

    done: bool = False
    _line: bytes = b""
    _data: list[bytes] = field(default_factory=list[bytes])

    def feed(self, received: bytes) -> Iterator[Chunk]:
        """The chunks that are complete now. Raises `UnreadableReply` for one that is no JSON object with a type."""
        *lines, self._line = (self._line + received).split(b"\n")
        for line in lines:
            yield from self._take(line.removesuffix(b"\r"))

    def end(self) -> Iterator[Chunk]:
        """What was left when the answer ended. Raises `UnreadableReply` if that is the beginning of a chunk."""
        yield from self._take(self._line.removesuffix(b"\r"))
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[Chunk]:
        if self.done:
            return
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            if data.strip() == b"[DONE]":
                self.done = True
            else:
                yield _chunk(data)


def _chunk(data: bytes) -> Chunk:
    try:
        return Chunk.model_validate_json(data)
    except ValidationError as error:
        shown = data[:80].decode(errors="replace")
        raise UnreadableReply(f"The stream holds what is no chunk, or was cut off: {shown!r}") from error
