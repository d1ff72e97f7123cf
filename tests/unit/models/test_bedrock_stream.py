"""ConverseStream: the real client against a local stand-in, and any split of an answer into events."""

import asyncio
import json
import threading
import time
from contextlib import aclosing

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import NoCredentialsError, NoRegionError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.models.bedrock_server import BedrockServer, Stall, frame
from tests.unit.models.chunks import joined, response_of
from threadkeep.errors import ConfigurationError, ModelRejected, ModelUnavailable
from threadkeep.models.bedrock import BedrockModel, converse_body
from threadkeep.models.port import (
    ModelRequest,
    ModelSettings,
    PromptMessage,
    ReasoningDelta,
    TextDelta,
    TextPart,
    ToolCall,
    ToolSpec,
    Usage,
)

MODEL = "eu.amazon.nova-lite-v1:0"
WEATHER = ToolSpec("weather", "Tells the weather", {"type": "object"})
START = ("messageStart", {"role": "assistant"})
METADATA = ("metadata", {"usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}, "metrics": {"latencyMs": 1}})


def delta(index, **content):
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": content}


def text(piece, index=0):
    return delta(index, text=piece)


def thought(piece, index=0):
    return delta(index, reasoningContent={"text": piece})


def use(index, call_id, name, *pieces):
    begun = (
        "contentBlockStart",
        {"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": call_id, "name": name}}},
    )
    return [begun, *(delta(index, toolUse={"input": piece}) for piece in pieces), end(index)]


def end(index=0):
    return "contentBlockStop", {"contentBlockIndex": index}


def stop(reason="end_turn"):
    return "messageStop", {"stopReason": reason}


def asked(**more) -> ModelRequest:
    return ModelRequest(MODEL, (PromptMessage("user", (TextPart("hi"),)),), **more)


@pytest.fixture
def server():
    with BedrockServer() as server:
        yield server


@pytest.fixture
def model(server):
    client = boto3.client(
        "bedrock-runtime",
        region_name="eu-central-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        endpoint_url=server.url,
        config=Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=20),
    )
    yield BedrockModel(lambda _: client)
    client.close()


async def told(model, request=None):
    return [chunk async for chunk in model.stream(request or asked())]


async def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def test_text_comes_in_pieces_and_the_usage_in_the_last_chunk(server, model):
    server.events = [START, text("Hel"), text("lo"), end(), stop(), METADATA]
    chunks = await told(model)
    assert chunks[:2] == [TextDelta("Hel"), TextDelta("lo")]
    response = response_of(chunks)
    assert (response.text, response.finish_reason, response.usage) == ("Hello", "stop", Usage(3, 2))
    assert (response.model, response.response_id) == (MODEL, "request-1")


async def test_the_request_is_that_of_converse(server, model):
    server.events = [START, text("x"), stop(), METADATA]
    request = asked(tools=(WEATHER,), settings=ModelSettings(0.5, None, 7))
    await told(model, request)
    ((path, body, _),) = server.seen
    assert path == "/model/eu.amazon.nova-lite-v1%3A0/converse-stream"
    assert {"modelId": MODEL, **body} == converse_body(request)


async def test_calls_reasoning_and_cached_tokens(server, model):
    usage = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 65} | {
        "cacheReadInputTokens": 40,
        "cacheWriteInputTokens": 20,
    }
    server.events = [
        START, thought("H"), thought("m."), delta(0, reasoningContent={"signature": "s"}), end(0),
        text("Let me ", 1), text("see.", 1), end(1),
        *use(2, "t1", "weather", "", '{"city": "Be', 'rn", "n": 3, "x": 0.1}'),
        *use(3, "t2", "weather"),
        *use(4, "t3", "weather", '"Bern"'),
        *use(5, "t4", "weather", '{"city": '),
        stop("tool_use"), ("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
    ]  # fmt: skip
    chunks = await told(model)
    assert joined(chunks[:2], ReasoningDelta) == "Hm."
    response = response_of(chunks)
    assert (response.text, response.reasoning, response.finish_reason) == ("Let me see.", "Hm.", "tool-calls")
    assert response.tool_calls == (
        ToolCall("t1", "weather", {"city": "Bern", "n": 3, "x": 0.1}),
        ToolCall("t2", "weather", {}),
        ToolCall("t3", "weather", {}, invalid='"Bern"'),
        ToolCall("t4", "weather", {}, invalid='{"city": '),
    )
    assert response.usage == Usage(63, 2, 0, 40)


async def test_a_call_that_is_cut_by_the_limit_is_ended_all_the_same(server, model):
    server.events = [START, *use(0, "t1", "weather", '{"ci')[:-1], stop("max_tokens"), METADATA]
    response = response_of(await told(model))
    assert (response.finish_reason, response.tool_calls[0].invalid) == ("length", '{"ci')


async def test_without_the_usage_event_nothing_is_counted(server, model):
    server.events = [START, text("x"), stop()]
    assert response_of(await told(model)).usage == Usage()


async def test_the_first_piece_arrives_while_the_model_still_works(server, model):
    door = Stall()
    server.events = [START, text("Hel"), door, text("lo"), stop(), METADATA]
    chunks = model.stream(asked())
    assert await anext(chunks) == TextDelta("Hel")
    door.set()
    assert joined([chunk async for chunk in chunks], TextDelta) == "lo"


@pytest.mark.parametrize("before", [[START], [START, text("Hel")]])
async def test_closing_and_cancelling_hang_up_at_once(server, model, before):
    server.events = [*before, Stall(), text("lo"), stop()]
    reading = threading.Event()

    async def consume():
        async with aclosing(model.stream(asked())) as chunks:
            async for _ in chunks:
                reading.set()

    task = asyncio.create_task(consume())
    await until(lambda: server.seen and (reading.is_set() or len(before) == 1))
    await asyncio.sleep(0.1)  # the thread waits for the next event
    assert server.hangups == 0
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: server.hangups == 1)
    assert time.monotonic() - started < 2


async def test_leaving_the_loop_early_hangs_up(server, model):
    server.events = [START, text("Hel"), Stall(), text("lo"), stop()]
    async with aclosing(model.stream(asked())) as chunks:
        assert await anext(chunks) == TextDelta("Hel")
    await until(lambda: server.hangups == 1)


async def test_the_timeout_spans_the_whole_stream_and_hangs_up(server, model):
    server.events = [START, text("Hel"), Stall(), text("lo"), stop()]
    with pytest.raises(ModelUnavailable, match=r"did not answer within 0\.4 s"):
        await told(model, asked(timeout=0.4))
    await until(lambda: server.hangups == 1)


def test_the_deadline_holds_though_the_thread_is_stuck_before_the_stream():
    released = threading.Event()
    closed = threading.Event()

    class Stuck:
        def converse_stream(self, **_):
            released.wait(10)
            return {"stream": self}

        def __iter__(self):
            raise AssertionError("nobody reads any more")

        def close(self):
            closed.set()

    started = time.monotonic()
    with pytest.raises(ModelUnavailable, match=r"within 0\.2 s"):
        asyncio.run(told(BedrockModel(lambda _: Stuck()), asked(timeout=0.2)))
    assert time.monotonic() - started < 1
    released.set()
    assert closed.wait(5)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "ValidationException", ModelRejected),
        (403, "AccessDeniedException", ModelRejected),
        (429, "ThrottlingException", ModelUnavailable),
        (424, "ModelErrorException", ModelUnavailable),
        (500, "InternalServerException", ModelUnavailable),
    ],
)
async def test_a_failure_before_the_first_event(server, model, status, code, error):
    server.refusal = (status, code, "Because")
    with pytest.raises(error, match=r"^Because$"):
        await told(model)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("validationException", ModelRejected),
        ("throttlingException", ModelUnavailable),
        ("modelStreamErrorException", ModelUnavailable),
        ("internalServerException", ModelUnavailable),
        ("serviceUnavailableException", ModelUnavailable),
        ("someNewException", ModelUnavailable),
    ],
)
async def test_a_failure_in_mid_stream_comes_after_what_was_told(server, model, name, error):
    server.events = [START, text("Hel"), (name, {"message": "Because"})]
    chunks = []
    with pytest.raises(error) as caught:
        async for chunk in model.stream(asked()):
            chunks.append(chunk)
    assert chunks == [TextDelta("Hel")]
    assert name.startswith("some") or str(caught.value) == "Because"


async def test_a_stream_that_ends_without_its_stop_is_no_answer(server, model):
    server.events = [START, text("Hel")]
    with pytest.raises(ModelUnavailable, match="cut off"):
        await told(model)


@pytest.mark.parametrize("broken", [b"x" * 64, frame(text("lo"))[:-4] + b"oops"])
async def test_broken_connections_and_frames_are_unavailable(server, model, broken):
    server.events = [START, text("Hel"), broken, stop()]
    with pytest.raises(ModelUnavailable, match="the connection to the model broke"):
        await told(model)


async def test_a_connection_that_is_lost_is_unavailable(server, model):
    server.events, server.is_whole = [START, text("Hel")], False
    with pytest.raises(ModelUnavailable, match="the connection to the model broke"):
        await told(model)


async def test_the_connection_is_kept_for_the_next_request(server, model):
    server.events = [START, text("Hel"), stop(), METADATA]
    await told(model)
    await told(model)
    assert server.seen[0][2] == server.seen[1][2]


@pytest.mark.parametrize("failure", [NoCredentialsError(), NoRegionError()])
async def test_without_credentials_or_region_the_deployment_is_wrong(failure):
    def make_client(_):
        raise failure

    with pytest.raises(ConfigurationError):
        await told(BedrockModel(make_client))


async def test_parameters_that_botocore_refuses(model):
    with pytest.raises(ModelRejected, match="name"):
        await told(model, asked(tools=(ToolSpec("", "d", {}),)))


class Recorded:
    """A client that answers the same, whole or in events."""

    def __init__(self, content, reason, events):
        metadata = {"ResponseMetadata": {"RequestId": "r1", "HTTPStatusCode": 200}}
        usage = METADATA[1]["usage"]
        self.whole = {"output": {"message": {"content": content}}, "stopReason": reason, "usage": usage, **metadata}
        self.events, self.metadata = events, metadata

    def converse(self, **_):
        return self.whole

    def converse_stream(self, **_):
        return {"stream": self, **self.metadata}

    def __iter__(self):
        return iter({name: content} for name, content in self.events)

    def close(self):
        pass


TEXT = st.text(max_size=20)
OBJECTS = st.dictionaries(TEXT, st.one_of(st.integers(), st.booleans(), TEXT), max_size=3)
BLOCKS = st.lists(
    st.one_of(
        TEXT.filter(bool).map(lambda t: {"text": t}),
        TEXT.filter(bool).map(lambda t: {"reasoningContent": {"reasoningText": {"text": t}}}),
        OBJECTS.map(lambda args: {"toolUse": {"name": "weather", "input": args}}),
    ),
    max_size=5,
)


def pieces_of(draw, whole):
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    return [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@settings(max_examples=150, deadline=None)
@given(st.data(), BLOCKS, st.sampled_from(["end_turn", "tool_use", "max_tokens", "something_new"]))
def test_any_split_of_an_answer_is_put_together_again(data, blocks, reason):
    events = [START]
    for index, block in enumerate(blocks):
        if call := block.get("toolUse"):
            call["toolUseId"] = f"t{index}"
            events += use(index, f"t{index}", "weather", *pieces_of(data.draw, json.dumps(call["input"])))
        elif reasoning := block.get("reasoningContent"):
            events += [thought(piece, index) for piece in pieces_of(data.draw, reasoning["reasoningText"]["text"])]
            events.append(end(index))
        else:
            events += [*(text(piece, index) for piece in pieces_of(data.draw, block["text"])), end(index)]
    model = BedrockModel(lambda _: Recorded(blocks, reason, [*events, stop(reason), METADATA]))

    async def both():
        return await told(model), await model.generate(asked())

    chunks, whole = asyncio.run(both())
    assert response_of(chunks) == whole
