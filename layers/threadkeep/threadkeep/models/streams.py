"""Streams of models: how an answer that came whole is told in chunks."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Protocol

from threadkeep.jsontext import dumps
from threadkeep.models.port import (
    Finished,
    Model,
    ModelChunk,
    ModelRequest,
    ModelResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)


class Generates(Protocol):
    """A model that only answers whole, as the simplest test models do."""

    async def generate(self, request: ModelRequest) -> ModelResponse: ...


async def streamed(model: Model | Generates, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
    """The chunks of `model.stream`, or those of a whole answer where a model only has `generate`."""
    stream = getattr(model, "stream", None)
    if stream is None:
        for chunk in chunks_of(await model.generate(request)):
            yield chunk
        return
    async with aclosing(stream(request)) as chunks:
        async for chunk in chunks:
            yield chunk


def chunks_of(response: ModelResponse) -> Iterator[ModelChunk]:
    """A whole answer as chunks: one delta for each text in it, then `Finished`."""
    if response.reasoning:
        yield ReasoningDelta(response.reasoning)
    if response.text:
        yield TextDelta(response.text)
    for call in response.tool_calls:
        yield ToolCallStart(call.id, call.name)
        yield ToolCallDelta(call.id, dumps(call.args) if call.invalid is None else call.invalid)
        yield ToolCallEnd(call.id)
    yield Finished(response)
