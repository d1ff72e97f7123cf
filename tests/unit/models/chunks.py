"""What the port promises about the chunks of any stream."""

from collections.abc import Sequence

from threadkeep.models.arguments import parsed
from threadkeep.models.port import (
    Finished,
    ModelChunk,
    ModelResponse,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)


def response_of(chunks: Sequence[ModelChunk]) -> ModelResponse:
    """The response that ends a stream, once the chunks before it were found to tell the same."""
    *told, last = chunks
    assert isinstance(last, Finished)
    assert not any(isinstance(chunk, Finished) for chunk in told)
    assert joined(told, TextDelta) == last.response.text
    assert joined(told, ReasoningDelta) == last.response.reasoning
    assert sorted(c.id for c in told if isinstance(c, ToolCallStart)) == sorted(c.id for c in last.response.tool_calls)
    for call in last.response.tool_calls:
        _tells(told, call)
    return last.response


def joined(chunks: Sequence[ModelChunk], kind: type) -> str:
    texts = [chunk.text for chunk in chunks if isinstance(chunk, kind)]
    assert all(texts)
    return "".join(texts)


def _tells(told: Sequence[ModelChunk], call: ToolCall) -> None:
    start, *deltas, end = (chunk for chunk in told if getattr(chunk, "id", None) == call.id)
    assert start == ToolCallStart(call.id, call.name)
    assert end == ToolCallEnd(call.id)
    assert parsed(joined(deltas, ToolCallDelta)) == (call.args, call.invalid)
