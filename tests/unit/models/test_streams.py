"""Answers that come whole, told in chunks; models that only generate."""

import pytest

from tests.unit.fakes import FakeModel, says
from tests.unit.models.chunks import response_of
from threadkeep.errors import ModelUnavailable
from threadkeep.models.port import Finished, ModelResponse, TextDelta, ToolCall, Usage
from threadkeep.models.streams import chunks_of, streamed

CALLS = (ToolCall("a", "t", {"n": 3, "x": 0.1, "u": "ü"}), ToolCall("b", "t", {}), ToolCall("c", "t", {}, '{"n": '))


@pytest.mark.parametrize(
    "response",
    [
        ModelResponse("", (), "stop", Usage(), "m"),
        ModelResponse("Hello", (), "stop", Usage(1, 2), "m", "r1", "Hm."),
        ModelResponse("See", CALLS, "tool-calls", Usage(1, 2), "m"),
    ],
)
def test_a_whole_answer_is_told_in_chunks(response):
    assert response_of(list(chunks_of(response))) is response


async def test_a_model_that_only_generates_is_streamed_as_one_delta(ask):
    model = FakeModel("Hello")
    assert [chunk async for chunk in streamed(model, ask("hi"))] == [TextDelta("Hello"), Finished(says("Hello"))]
    assert model.requests == [ask("hi")]


async def test_its_failure_is_the_streams(ask):
    with pytest.raises(ModelUnavailable, match="busy"):
        await anext(streamed(FakeModel(ModelUnavailable("busy")), ask("hi")))


class Streaming:
    """A model that streams and notes when it is hung up on."""

    def __init__(self):
        self.is_closed = False

    async def generate(self, request):
        raise AssertionError("it can stream")

    async def stream(self, request):
        try:
            yield TextDelta("Hel")
            yield TextDelta("lo")
            yield Finished(says("Hello"))
        finally:
            self.is_closed = True


async def test_a_model_that_streams_is_passed_through(ask):
    assert response_of([chunk async for chunk in streamed(Streaming(), ask("hi"))]).text == "Hello"


async def test_closing_reaches_the_model(ask):
    model = Streaming()
    chunks = streamed(model, ask("hi"))
    await anext(chunks)
    assert not model.is_closed
    await chunks.aclose()
    assert model.is_closed
