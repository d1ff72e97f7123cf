"""The adapter for every server that speaks OpenAI's Chat Completions API."""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from threadkeep.errors import ModelRejected, ModelUnavailable
from threadkeep.ids import new_id
from threadkeep.jsontext import Json, as_array, as_object, dumps, sendable
from threadkeep.models import failures
from threadkeep.models.arguments import parsed as parsed_arguments
from threadkeep.models.openai_stream import StreamedCompletion, string
from threadkeep.models.port import (
    FilePart,
    Finished,
    FinishReason,
    ModelChunk,
    ModelRequest,
    ModelResponse,
    Part,
    PromptMessage,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from threadkeep.models.streams import chunks_of

if TYPE_CHECKING:
    from httpx2 import Response
    from openai import APIStatusError, AsyncOpenAI

OPENAI_URL = "https://api.openai.com/v1"

ReadKey = Callable[[], Awaitable[str]]

_RETRIES = 1
_DRAIN_SECONDS = 0.1
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "length": "length",
    "content_filter": "content-filter",
    "error": "error",
}
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


class OpenAIModel:
    """Chat Completions at `base_url` (OpenAI's own if empty); `read_key` is awaited before each call."""

    def __init__(self, base_url: str, read_key: ReadKey):
        self._base_url = (base_url or OPENAI_URL).rstrip("/")
        self._read_key = read_key
        self._clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}
        self._usage_option: dict[str, Json] = {"stream_options": {"include_usage": True}}

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer within `request.timeout` seconds, the client's own repeats included.

        Raises `ModelRejected` and `ModelUnavailable` as the port says.
        """
        body = self._arguments(request)
        try:
            async with asyncio.timeout(request.timeout):
                key = await self._read_key()
                reply = await self._send(key, body)
        except TimeoutError as error:
            raise failures.timed_out(request.timeout) from error
        return self._response(reply.content, request.model, key)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """The answer as it is made, within `request.timeout` seconds; see the port. Only the opening is repeated.

        Usage is zero where the server counts none for streams. A server that answers whole is taken at that.
        """
        deadline = asyncio.get_running_loop().time() + request.timeout
        body = self._arguments(request) | {"stream": True}
        try:
            async with asyncio.timeout_at(deadline):
                key = await self._read_key()
                reply = await self._open(key, body)
        except TimeoutError as error:
            raise failures.timed_out(request.timeout) from error
        try:
            with _failures(key, request.timeout):
                async with aclosing(self._chunks(reply, request.model, key, deadline)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        finally:
            await reply.aclose()

    async def close(self) -> None:
        """Close the connections that belong to the running event loop."""
        if client := self._clients.pop(asyncio.get_running_loop(), None):
            await client.close()

    async def _send(self, key: str, arguments: dict[str, Any]) -> "Response":
        with _failures(key, arguments["timeout"]):
            completions: Any = self._client(key).chat.completions  # the overloads take no **arguments
            return (await completions.with_raw_response.create(**arguments)).http_response

    async def _open(self, key: str, arguments: dict[str, Any]) -> "Response":
        try:
            return await self._send(key, arguments | self._usage_option)
        except ModelRejected as refused:
            if not self._usage_option or "stream_options" not in str(refused):
                raise
            self._usage_option = {}  # a server that knows no such option, and may count without it
            return await self._send(key, arguments)

    async def _chunks(
        self, reply: "Response", model: str, key: str, deadline: float
    ) -> AsyncGenerator[ModelChunk, None]:
        if reply.headers.get("content-type", "").startswith(("application/json", "text/html")):
            async with asyncio.timeout_at(deadline):
                content = await reply.aread()
            for chunk in chunks_of(self._response(content, model, key)):
                yield chunk
            return
        answer, is_done = StreamedCompletion(), False
        pieces = reply.aiter_bytes()
        async with aclosing(_data(pieces, deadline)) as events:
            async for data in events:
                if is_done := data == b"[DONE]":
                    break
                event = self._object(data)
                if event.get("error"):
                    raise _failure_in_answer(event, key)
                for chunk in answer.take(event):
                    yield chunk
        if is_done:
            await _drain(pieces)
        elif not answer.is_finished:
            raise failures.cut_off()
        response = self._completed(answer.whole, model, key)
        for chunk in answer.end():
            yield chunk
        yield Finished(response)

    def _client(self, key: str) -> "AsyncOpenAI":
        """One client for each event loop, since open connections belong to the loop that made them."""
        from openai import AsyncOpenAI

        loop = asyncio.get_running_loop()
        for closed in [other for other in self._clients if other.is_closed()]:
            del self._clients[closed]
        client = self._clients.get(loop)
        if client is None or client.api_key != key:
            client = AsyncOpenAI(api_key=key, base_url=self._base_url, max_retries=_RETRIES)
            self._clients[loop] = client
        return client

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        """The arguments of the client's call; the timeout there is for each attempt and each read."""
        return {**sendable(self._body(request)), "timeout": request.timeout}

    def _body(self, request: ModelRequest) -> dict[str, Json]:
        body: dict[str, Json] = {
            "model": request.model,
            "messages": [wire for message in request.messages for wire in _messages(message)],
        }
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
            body["tool_choice"] = _tool_choice(request.tool_choice)
        if request.response_schema is not None:
            body["response_format"] = _response_format(request.response_schema)
        limits = request.settings
        if limits.temperature is not None:
            body["temperature"] = limits.temperature
        if limits.top_p is not None:
            body["top_p"] = limits.top_p
        if limits.max_output_tokens is not None:
            # OpenAI's reasoning models refuse the old name; most other servers know no other
            name = "max_completion_tokens" if self._base_url == OPENAI_URL else "max_tokens"
            body[name] = limits.max_output_tokens
        if limits.stop:
            body["stop"] = list(limits.stop)
        return body

    def _response(self, reply: bytes, model: str, key: str) -> ModelResponse:
        return self._completed(self._object(reply), model, key)

    def _object(self, text: bytes) -> dict[str, Json]:
        try:
            answer = as_object(json.loads(text))
        except ValueError:
            answer = None
        if answer is None:
            raise ModelRejected(f"{self._base_url} does not answer with a JSON object; check the base URL")
        return answer

    def _completed(self, answer: dict[str, Json], model: str, key: str) -> ModelResponse:
        choices = as_array(answer.get("choices"))
        if not choices:
            raise _failure_in_answer(answer, key)
        return _parsed(answer, as_object(choices[0]) or {}, model)


async def _data(pieces: AsyncIterator[bytes], deadline: float) -> AsyncGenerator[bytes, None]:
    """The data of each server-sent event, which is one line on this API. Raises `TimeoutError` at the deadline.

    The timeout spans only the waiting here: around a `yield` it would cancel whoever takes the chunks.
    """
    rest = b""
    while True:
        async with asyncio.timeout_at(deadline):
            piece = await anext(pieces, None)
        *lines, rest = (rest + (b"\n" if piece is None else piece)).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()
        if piece is None:
            return


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Read to the end of the reply, where that takes no time: only then the connection can be used again."""
    import httpx2

    with suppress(TimeoutError, httpx2.RequestError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in pieces:
                pass


@contextmanager
def _failures(key: str, timeout: float) -> Generator[None, None, None]:
    """Turn what the client and its connections raise into the errors of the port."""
    import anyio
    import httpx2
    import openai

    try:
        yield
    except openai.APIStatusError as error:
        raise _failure(error, key) from error
    except (openai.APITimeoutError, httpx2.TimeoutException, TimeoutError) as error:
        raise failures.timed_out(timeout) from error
    except (openai.APIConnectionError, httpx2.RequestError, anyio.EndOfStream, OSError) as error:
        reason = failures.clean(str(error.__cause__ or error), key)
        raise ModelUnavailable(f"no connection to the model: {reason}") from error


def _messages(message: PromptMessage) -> list[dict[str, Json]]:
    """One message of the prompt in wire form; each tool result becomes a message of its own."""
    if message.role == "tool":
        return [
            {"role": "tool", "tool_call_id": part.call_id, "content": part.text}
            for part in message.parts
            if isinstance(part, ToolResult)
        ]
    if message.role == "assistant":
        return [_assistant(message)]
    if message.role == "system" or (len(message.parts) == 1 and message.text):
        return [{"role": message.role, "content": message.text}]
    return [{"role": message.role, "content": [_content(part) for part in message.parts]}]


def _assistant(message: PromptMessage) -> dict[str, Json]:
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    if not calls:
        return {"role": "assistant", "content": message.text}
    return {"role": "assistant", "content": message.text or None, "tool_calls": [_replayed(call) for call in calls]}


def _replayed(call: ToolCall) -> dict[str, Json]:
    # never the invalid text: servers whose chat template parses the arguments refuse the whole prompt
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dumps(call.args)}}


def _content(part: Part) -> dict[str, Json]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, FilePart):
        return _file(part)
    raise ModelRejected(f"a user message cannot hold a {type(part).__name__}")


def _file(part: FilePart) -> dict[str, Json]:
    media_type = part.media_type.lower()
    is_url = part.data.startswith(("http://", "https://", "data:"))
    url = part.data if is_url else f"data:{media_type};base64,{part.data}"
    if media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    if not url.startswith("data:"):
        raise ModelRejected(f"a file of type {part.media_type} must be sent inline; only images may be URLs")
    data = url.partition(",")[2]
    if audio := _AUDIO_FORMATS.get(media_type):
        return {"type": "input_audio", "input_audio": {"data": data, "format": audio}}
    if media_type.startswith("text/"):
        return {"type": "text", "text": _decoded(data)}
    name = f"file.{media_type.rpartition('/')[2]}"
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ModelRejected("a text file must be UTF-8 in base64") from error


def _tool(tool: ToolSpec) -> dict[str, Json]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _response_format(schema: dict[str, Json]) -> Json:
    wanted = {"name": "response", "schema": schema, "strict": _is_closed(schema)}
    return {"type": "json_schema", "json_schema": wanted}


def _is_closed(schema: Json) -> bool:
    """Whether strict mode takes the schema: each object names all its fields, requires them and allows no other."""
    if (listed := as_array(schema)) is not None:
        return all(map(_is_closed, listed))
    if (fields := as_object(schema)) is None:
        return True
    named = as_object(fields.get("properties"))
    if named is not None or fields.get("type") == "object":
        required = as_array(fields.get("required")) or []
        if fields.get("additionalProperties") is not False or any(name not in required for name in named or {}):
            return False
    return all(map(_is_closed, fields.values()))


def _tool_choice(choice: str) -> Json:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _parsed(answer: dict[str, Json], choice: dict[str, Json], model: str) -> ModelResponse:
    message = as_object(choice.get("message")) or {}
    calls = _tool_calls(message)
    refusal = string(message.get("refusal"))
    return ModelResponse(
        text=string(message.get("content")) or refusal,
        tool_calls=calls,
        finish_reason="content-filter" if refusal else _finish_reason(choice.get("finish_reason"), bool(calls)),
        usage=_usage(as_object(answer.get("usage")) or {}),
        model=string(answer.get("model")) or model,
        response_id=string(answer.get("id")) or None,
        reasoning=string(message.get("reasoning_content")) or string(message.get("reasoning")),
    )


def _tool_calls(message: dict[str, Json]) -> tuple[ToolCall, ...]:
    """The calls with ids that are unique within the answer: some servers send none, or the same one twice."""
    calls: dict[str, ToolCall] = {}
    for raw in as_array(message.get("tool_calls")) or []:
        wire = as_object(raw) or {}
        function = as_object(wire.get("function")) or {}
        call_id = string(wire.get("id"))
        if not call_id or call_id in calls:
            call_id = f"call_{new_id()}"
        args, invalid = parsed_arguments(function.get("arguments"))
        calls[call_id] = ToolCall(call_id, string(function.get("name")), args, invalid)
    return tuple(calls.values())


def _finish_reason(raw: Json, has_calls: bool) -> FinishReason:
    reason = _FINISH_REASONS.get(string(raw), "other")
    # servers say "stop", or nothing, when a call was forced by tool_choice
    return "tool-calls" if has_calls and reason in ("stop", "other") else reason


def _usage(wire: dict[str, Json]) -> Usage:
    output = as_object(wire.get("completion_tokens_details")) or {}
    prompt = as_object(wire.get("prompt_tokens_details")) or {}
    return Usage(
        input_tokens=_count(wire.get("prompt_tokens")),
        output_tokens=_count(wire.get("completion_tokens")),
        reasoning_tokens=_count(output.get("reasoning_tokens")),
        cached_input_tokens=_count(prompt.get("cached_tokens")),
    )


def _failure(error: "APIStatusError", key: str) -> ModelRejected | ModelUnavailable:
    body = as_object(error.body) or {}
    message = string(body.get("message")) or error.response.text
    if body.get("code") == "insufficient_quota":  # comes as 429, but no repeat fills an empty account
        return ModelRejected(failures.clean(message, key))
    return failures.from_status(error.status_code, message, secret=key)


def _failure_in_answer(answer: dict[str, Json], key: str) -> ModelRejected | ModelUnavailable:
    """Some gateways report the failure of the model behind them in the body of a 200."""
    error = as_object(answer.get("error")) or {}
    code = error.get("code")
    message = string(error.get("message")) or string(answer.get("error")) or "the model's answer holds no choice"
    if error.get("type") == "invalid_request_error" or code == "insufficient_quota":
        return ModelRejected(failures.clean(message, key))
    return failures.from_status(code if isinstance(code, int) else 502, message, secret=key)


def _count(value: Json) -> int:
    return value if isinstance(value, int) else 0
