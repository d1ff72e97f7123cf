"""A chat completion that is put together again from the chunks of its stream."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from threadkeep.ids import new_id
from threadkeep.jsontext import Json, as_array, as_object
from threadkeep.models.port import ModelChunk, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart


class StreamedCompletion:
    """Takes the chunks of one answer; `whole` is the completion that a plain request would have got."""

    def __init__(self) -> None:
        self._told: dict[str, Json] = {}
        self._choices = 0
        self._finish_reason: Json = None
        self._content = self._refusal = self._reasoning = ""
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}

    @property
    def is_finished(self) -> bool:
        """Whether the model has told why it stopped; the usage may still come."""
        return self._finish_reason is not None

    @property
    def whole(self) -> dict[str, Json]:
        message = {
            "content": self._content,
            "refusal": self._refusal,
            "reasoning_content": self._reasoning,
            "tool_calls": [call.wire for call in self._calls],
        }
        choices = [{"message": message, "finish_reason": self._finish_reason}] if self._choices else []
        return {**self._told, "choices": choices}

    def take(self, chunk: dict[str, Json]) -> Iterator[ModelChunk]:
        """What a chunk of the stream adds. Any chunk may hold the usage, and some hold no choice."""
        self._told |= {name: chunk[name] for name in ("id", "model", "usage") if chunk.get(name)}
        choices = as_array(chunk.get("choices"))
        choice = as_object(choices[0]) if choices else None
        if choice is None:
            return
        self._choices += 1
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        delta = as_object(choice.get("delta")) or {}
        if thought := string(delta.get("reasoning_content")) or string(delta.get("reasoning")):
            self._reasoning += thought
            yield ReasoningDelta(thought)
        if text := string(delta.get("content")):
            self._content += text
            yield TextDelta(text)
        self._refusal += string(delta.get("refusal"))
        for fragment in as_array(delta.get("tool_calls")) or []:
            yield from self._fragment(as_object(fragment) or {})

    def end(self) -> Iterator[ModelChunk]:
        """What is left to tell once the stream has ended; a refusal is the text only where there is no other."""
        if self._refusal and not self._content:
            yield TextDelta(self._refusal)
        for call in self._calls:
            yield from call.end()

    def _fragment(self, wire: dict[str, Json]) -> Iterator[ModelChunk]:
        function = as_object(wire.get("function")) or {}
        index, wire_id, name = wire.get("index"), string(wire.get("id")), string(function.get("name"))
        call = self._at.get(index) if isinstance(index, int) else self._calls[-1] if self._calls else None
        if call is None or call.is_other(wire_id, name, isinstance(index, int)):
            call = self._new_call(wire_id)
            if isinstance(index, int):
                self._at[index] = call
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        yield from call.add(name, arguments or "")

    def _new_call(self, wire_id: str) -> "_Call":
        """Ids are unique within the answer: some servers send none, or the same one twice."""
        is_free = wire_id and all(wire_id != call.id for call in self._calls)
        call = _Call(wire_id if is_free else f"call_{new_id()}", wire_id)
        self._calls.append(call)
        return call


@dataclass(slots=True)
class _Call:
    id: str
    wire_id: str
    name: str = ""
    arguments: str = ""
    is_started: bool = False

    @property
    def wire(self) -> dict[str, Json]:
        return {"id": self.id, "function": {"name": self.name, "arguments": self.arguments}}

    def is_other(self, wire_id: str, name: str, has_index: bool) -> bool:
        """Whether a fragment begins another call, though its place is that of this one.

        Some servers number every call 0 or not at all, some repeat id and name in each fragment, some make
        up a new id for each. So only a fragment with a name can begin a call.
        """
        if not name or not self.name:
            return False
        if has_index:
            return name != self.name or bool(wire_id and self.wire_id and wire_id != self.wire_id)
        return not wire_id or wire_id != self.wire_id

    def add(self, name: str, text: str) -> Iterator[ModelChunk]:
        self.name = self.name or name
        self.arguments += text
        if not self.name:
            return
        if not self.is_started:
            yield from self._start()
        elif text:
            yield ToolCallDelta(self.id, text)

    def end(self) -> Iterator[ModelChunk]:
        if not self.is_started:  # no name ever came
            yield from self._start()
        yield ToolCallEnd(self.id)

    def _start(self) -> Iterator[ModelChunk]:
        self.is_started = True
        yield ToolCallStart(self.id, self.name)
        if self.arguments:
            yield ToolCallDelta(self.id, self.arguments)


def string(value: Json) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""
