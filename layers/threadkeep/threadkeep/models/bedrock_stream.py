"""The two halves of a ConverseStream: a thread that reads it, and an answer that is put together from its events."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any

from threadkeep.jsontext import Json, as_object
from threadkeep.models.port import ModelChunk, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

Reply = dict[str, Any]  # what `converse_stream` returns: its `stream`, and the metadata of the response


class Reading:
    """Reads a stream in a thread and hands its events to the event loop that made this object.

    `run` is for the thread, the rest for the loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[dict[str, Json] | Exception | None] = asyncio.Queue()
        self._stopped = threading.Event()
        self._stream: Any = None

    def run(self, open_stream: Callable[[], Reply]) -> None:
        """Open the stream and pass on all of it: the response's metadata, each event, what was raised, the end."""
        try:
            reply = open_stream()
            self._stream = reply["stream"]
            self._pass_on({"responseMetadata": reply.get("ResponseMetadata") or {}})
            self._read()
            self._pass_on(None)
        except Exception as error:
            self._pass_on(error)

    async def events(self, deadline: float) -> AsyncGenerator[dict[str, Json], None]:
        """What `run` passes on; raises what it raised, and `TimeoutError` at the deadline (in the loop's time)."""
        while True:
            async with asyncio.timeout_at(deadline):
                event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                return
            yield event

    def stop(self) -> None:
        """Hang up. A thread that waits for the next event is woken, one that waits for the first reads none."""
        self._stopped.set()
        # closing would wait for the read that blocks; a stream without a socket to shut ends at its next event
        raw: Any = getattr(self._stream, "_raw_stream", None)
        with suppress(AttributeError, OSError, RuntimeError, ValueError):
            raw.shutdown()

    def _read(self) -> None:
        try:
            if not self._stopped.is_set():
                for event in self._stream:
                    self._pass_on(event)
                    if self._stopped.is_set():
                        break
        finally:
            self._stream.close()

    def _pass_on(self, event: dict[str, Json] | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)


class StreamedAnswer:
    """Takes the events of one answer; `whole` is what Converse would have returned.

    Only the input of a call is kept as its JSON text, as `inputText`.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Json]] = {}
        self._open_calls: dict[int, str] = {}
        self._rest: dict[str, Json] = {}

    @property
    def is_finished(self) -> bool:
        return "stopReason" in self._rest

    @property
    def whole(self) -> dict[str, Json]:
        blocks = [block for _, block in sorted(self._blocks.items())]
        return {"output": {"message": {"role": "assistant", "content": blocks}}, **self._rest}

    def take(self, event: dict[str, Json]) -> Iterator[ModelChunk]:
        """What one event adds; a kind of event that is not known adds nothing."""
        for kind, content in event.items():
            fields = as_object(content) or {}
            if kind == "contentBlockStart":
                yield from self._begin(fields["contentBlockIndex"], as_object(fields.get("start")) or {})
            elif kind == "contentBlockDelta":
                yield from self._add(fields["contentBlockIndex"], as_object(fields.get("delta")) or {})
            elif kind == "contentBlockStop":
                yield from self._end_call(fields["contentBlockIndex"])
            elif kind == "messageStop":
                self._rest["stopReason"] = fields.get("stopReason", "")
                for index in list(self._open_calls):
                    yield from self._end_call(index)
            elif kind == "metadata":
                self._rest["usage"] = fields.get("usage")
            elif kind == "responseMetadata":
                self._rest["ResponseMetadata"] = fields

    def _begin(self, index: int, start: dict[str, Json]) -> Iterator[ModelChunk]:
        """A block of a call begins; text has no such event, it begins with its first delta."""
        if use := as_object(start.get("toolUse")):
            self._blocks[index] = {"toolUse": {**use, "inputText": ""}}
            self._open_calls[index] = use["toolUseId"]
            yield ToolCallStart(use["toolUseId"], use["name"])

    def _add(self, index: int, delta: dict[str, Json]) -> Iterator[ModelChunk]:
        if text := delta.get("text"):
            block = self._blocks.setdefault(index, {"text": ""})
            block["text"] += text
            yield TextDelta(text)
        elif text := (as_object(delta.get("toolUse")) or {}).get("input"):
            self._blocks[index]["toolUse"]["inputText"] += text
            yield ToolCallDelta(self._open_calls[index], text)
        elif text := (as_object(delta.get("reasoningContent")) or {}).get("text"):
            block = self._blocks.setdefault(index, {"reasoningContent": {"reasoningText": {"text": ""}}})
            block["reasoningContent"]["reasoningText"]["text"] += text
            yield ReasoningDelta(text)

    def _end_call(self, index: int) -> Iterator[ModelChunk]:
        if call_id := self._open_calls.pop(index, None):
            yield ToolCallEnd(call_id)
