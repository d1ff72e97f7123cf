"""The adapter for Amazon Bedrock's Converse API.

Converse knows only user and assistant turns that alternate and begin with the user's, refuses blank
text, and wants the tools declared whenever a message mentions one; the prompt is brought into that shape.
"""

import asyncio
import base64
import binascii
import hashlib
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

from threadkeep.errors import ConfigurationError, ModelRejected, ModelUnavailable
from threadkeep.jsontext import Json, as_array, as_object, dumps, sendable
from threadkeep.models import failures
from threadkeep.models.arguments import parsed as parsed_arguments
from threadkeep.models.bedrock_stream import Reading, Reply, StreamedAnswer
from threadkeep.models.port import (
    FilePart,
    Finished,
    FinishReason,
    ModelChunk,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Part,
    PromptMessage,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

if TYPE_CHECKING:
    from mypy_boto3_bedrock_runtime import BedrockRuntimeClient

Block = dict[str, Json]
MakeClient = Callable[[int], "BedrockRuntimeClient"]

_ATTEMPTS = 2
_CONNECT_SECONDS = 5
_TOOL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool-calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content-filter",
    "content_filtered": "content-filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}
_REPEATABLE = {"ModelErrorException", "ServiceQuotaExceededException"}  # their status says otherwise
_IMAGE_FORMATS = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}
_DOCUMENT_FORMATS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
_ANSWER_IN_JSON = (
    "Once you need no more tools, answer with one JSON value that is valid under this JSON Schema, and with nothing "
    "else: no explanation, no code fence.\n{schema}"
)
_BEFORE_FIRST_USER = "(Earlier messages are not shown.)"

_deadline: ContextVar[float] = ContextVar("bedrock_deadline")


class BedrockModel:
    """Converse and ConverseStream with any model or inference profile that the account may use.

    `make_client` gets the read timeout in whole seconds and returns a client; tests hand in their own.
    """

    def __init__(self, make_client: MakeClient | None = None):
        self._make_client = make_client or _client

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer within `request.timeout` seconds, botocore's own repeats included.

        Raises `ModelRejected` and `ModelUnavailable` as the port says, and `ConfigurationError` without a
        Region or credentials.
        """
        body = converse_body(request)
        # the pool is our own, because asyncio.run waits for the default one and would outwait the deadline
        call = asyncio.get_running_loop().run_in_executor(_threads(), self._converse, body, request.timeout)
        try:
            async with asyncio.timeout(request.timeout):
                answer = await call
        except TimeoutError as error:
            raise failures.timed_out(request.timeout) from error
        return _parsed(answer, request.model)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """The answer as it is made, within `request.timeout` seconds; see the port. Only the opening is repeated."""
        deadline = asyncio.get_running_loop().time() + request.timeout
        body = converse_body(request)
        reading, answer = Reading(), StreamedAnswer()
        opening = partial(self._converse_stream, body, request.timeout)
        asyncio.get_running_loop().run_in_executor(_threads(), reading.run, opening)
        try:
            with _failures():
                async with aclosing(reading.events(deadline)) as events:
                    async for event in events:
                        for chunk in answer.take(event):
                            yield chunk
        except TimeoutError as error:
            raise failures.timed_out(request.timeout) from error
        finally:
            reading.stop()
        if not answer.is_finished:
            raise failures.cut_off()
        yield Finished(_parsed(answer.whole, request.model))

    async def close(self) -> None:
        """Nothing to do: the clients are shared by the process."""

    def _converse(self, body: dict[str, Any], timeout: float) -> dict[str, Json]:
        _deadline.set(time.monotonic() + timeout)
        with _failures():
            client = self._make_client(max(1, int(timeout)))
            return cast(dict[str, Json], client.converse(**sendable(body)))

    def _converse_stream(self, body: dict[str, Any], timeout: float) -> Reply:
        _deadline.set(time.monotonic() + timeout)
        client = self._make_client(max(1, int(timeout)))
        return cast(Reply, client.converse_stream(**sendable(body)))


def converse_body(request: ModelRequest) -> dict[str, Any]:
    """The arguments of Converse for a request. Raises `ModelRejected` for a file that Bedrock cannot take."""
    tools = request.tools if request.tool_choice != "none" else ()
    system = [{"text": m.text} for m in request.messages if m.role == "system" and m.text.strip()]
    if request.response_schema is not None:  # outputConfig would enforce it, but many models refuse that
        system.append({"text": _ANSWER_IN_JSON.format(schema=dumps(request.response_schema))})
    body: dict[str, Any] = {
        "modelId": request.model,
        "messages": _Turns(request.model, bool(tools)).of(m for m in request.messages if m.role != "system"),
    }
    if system:
        body["system"] = system
    if tools:
        body["toolConfig"] = _tool_config(tools, request.tool_choice)
    if inference := _inference(request.settings):
        body["inferenceConfig"] = inference
    return body


class _Turns:
    """Builds the alternating turns of one request.

    Without tools to declare (none given, or `tool_choice` none) past calls and results become text.
    """

    def __init__(self, model: str, with_tools: bool):
        self._with_tools = with_tools
        self._knows_status = "claude" in model or "nova" in model  # others refuse a result with a status
        self._documents = 0

    def of(self, messages: Iterable[PromptMessage]) -> list[Block]:
        turns: list[Block] = []
        for message in messages:
            role = "assistant" if message.role == "assistant" else "user"
            blocks = [block for part in message.parts if (block := self._block(part))]
            if not blocks:
                continue
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += blocks
            else:
                turns.append({"role": role, "content": blocks})
        if turns and turns[0]["role"] == "assistant":
            turns.insert(0, {"role": "user", "content": [{"text": _BEFORE_FIRST_USER}]})
        return [_with_text(turn) for turn in turns]

    def _block(self, part: Part) -> Block | None:
        match part:
            case TextPart(text):
                return {"text": text} if text.strip() else None
            case ToolCall(name=name, args=args) if not self._with_tools:
                return {"text": f"[called {name} with {dumps(args)}]"}
            case ToolResult(name=name, text=text) if not self._with_tools:
                return {"text": f"[{name} returned: {text}]"}
            case ToolCall(call_id, name, args):
                return {"toolUse": {"toolUseId": _tool_id(call_id), "name": name, "input": args}}
            case ToolResult():
                return {"toolResult": self._result(part)}
            case FilePart():
                return self._file(part)

    def _result(self, part: ToolResult) -> Block:
        text = part.text if part.text.strip() else "(empty)"
        result: Block = {"toolUseId": _tool_id(part.call_id), "content": [{"text": text}]}
        if part.is_error and self._knows_status:
            result["status"] = "error"
        return result

    def _file(self, part: FilePart) -> Block:
        media_type = part.media_type.lower().partition(";")[0].strip()
        if image := _IMAGE_FORMATS.get(media_type):
            return {"image": {"format": image, "source": _source(part)}}
        if document := _DOCUMENT_FORMATS.get(media_type):
            self._documents += 1  # a neutral name: Bedrock warns that models read it, and it must be unique
            name = f"document-{self._documents}"
            return {"document": {"format": document, "name": name, "source": _source(part)}}
        raise ModelRejected(f"Bedrock takes no file of type {part.media_type}")


def _with_text(turn: Block) -> Block:
    """Bedrock refuses a document that no text accompanies."""
    kinds = {kind for block in turn["content"] for kind in block}
    if "document" in kinds and "text" not in kinds:
        turn["content"].append({"text": "(See the document.)"})
    return turn


def _source(part: FilePart) -> Block:
    data = part.data
    if data.startswith("s3://"):
        return {"s3Location": {"uri": data}}
    if data.startswith(("http://", "https://")):
        raise ModelRejected("Bedrock takes files inline or from s3://, not from another URL")
    if data.startswith("data:"):
        data = data.partition(",")[2]
    try:
        return {"bytes": base64.b64decode(data, validate=True)}
    except (binascii.Error, ValueError) as error:
        raise ModelRejected(f"the file of type {part.media_type} is not base64") from error


def _tool_id(call_id: str) -> str:
    """Ids made by other providers may hold characters that Bedrock's models refuse."""
    return call_id if _TOOL_ID.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()


def _tool_config(tools: Iterable[ToolSpec], choice: str) -> Block:
    config: Block = {"tools": [{"toolSpec": _tool(tool)} for tool in tools]}
    if choice == "required":
        config["toolChoice"] = {"any": {}}
    elif choice != "auto":
        config["toolChoice"] = {"tool": {"name": choice}}
    return config


def _tool(tool: ToolSpec) -> Block:
    described = {"description": tool.description} if tool.description.strip() else {}
    return {"name": tool.name, **described, "inputSchema": {"json": tool.parameters}}


def _inference(settings: ModelSettings) -> Block:
    values = {
        "maxTokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "stopSequences": list(settings.stop) or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _parsed(answer: dict[str, Json], model: str) -> ModelResponse:
    message = as_object((as_object(answer.get("output")) or {}).get("message")) or {}
    blocks = [as_object(block) or {} for block in as_array(message.get("content")) or []]
    reason = _FINISH_REASONS.get(answer.get("stopReason", ""), "other")
    metadata = as_object(answer.get("ResponseMetadata")) or {}
    return ModelResponse(
        text="".join(block["text"] for block in blocks if "text" in block),
        tool_calls=tuple(_call(block["toolUse"]) for block in blocks if "toolUse" in block),
        finish_reason=reason,
        usage=_usage(as_object(answer.get("usage")) or {}),
        model=model,
        response_id=metadata.get("RequestId"),
        reasoning="".join(_reasoning(block["reasoningContent"]) for block in blocks if "reasoningContent" in block),
    )


def _call(wire: Block) -> ToolCall:
    args, invalid = parsed_arguments(wire["inputText"] if "inputText" in wire else dumps(wire.get("input")))
    return ToolCall(wire["toolUseId"], wire["name"], args, invalid)


def _reasoning(wire: Block) -> str:
    return (as_object(wire.get("reasoningText")) or {}).get("text", "")


def _usage(wire: dict[str, Json]) -> Usage:
    """Input tokens count the cached ones too, as on OpenAI; Bedrock tells them apart."""
    read, written = wire.get("cacheReadInputTokens", 0), wire.get("cacheWriteInputTokens", 0)
    return Usage(
        input_tokens=wire.get("inputTokens", 0) + read + written,
        output_tokens=wire.get("outputTokens", 0),
        cached_input_tokens=read,
    )


@contextmanager
def _failures() -> Generator[None, None, None]:
    """Turn what botocore and its connections raise into the errors of the port."""
    from botocore.eventstream import ParserError
    from botocore.exceptions import BotoCoreError, ClientError, EventStreamError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except EventStreamError as error:
        raise _refused_midway(error.response) from error
    except ClientError as error:
        raise _refused(error.response) from error
    except BotoCoreError as error:
        raise _unsent(error) from error
    except (HTTPError, ParserError) as error:  # botocore leaves these as they are while it reads a stream
        raise ModelUnavailable(f"the connection to the model broke: {failures.clean(str(error))}") from error


def _refused(response: Any) -> ModelRejected | ModelUnavailable:
    details = response.get("Error", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    if details.get("Code") in _REPEATABLE:
        status = 503
    return failures.from_status(status, details.get("Message") or details.get("Code", ""))


def _refused_midway(response: Any) -> ModelRejected | ModelUnavailable:
    """botocore gives every exception within a stream the status 400, and the name that it has as an event."""
    details = response.get("Error", {})
    status = 400 if details.get("Code") == "validationException" else 503
    return failures.from_status(status, details.get("Message") or details.get("Code", ""))


def _unsent(error: Exception) -> ModelRejected | ModelUnavailable | ConfigurationError:
    from botocore import exceptions

    if isinstance(error, exceptions.NoRegionError):
        return ConfigurationError("Bedrock needs a Region: set AWS_REGION")
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return ConfigurationError("Bedrock needs AWS credentials: none were found")
    if isinstance(error, exceptions.ParamValidationError):
        return ModelRejected(failures.clean(str(error)))
    return ModelUnavailable(failures.clean(str(error)))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=32, thread_name_prefix="bedrock")


_making = threading.Lock()  # boto3's default session is not made for several threads


def _client(read_timeout: int) -> "BedrockRuntimeClient":
    with _making:
        return _cached_client(read_timeout)


@lru_cache(maxsize=16)
def _cached_client(read_timeout: int) -> "BedrockRuntimeClient":
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=min(_CONNECT_SECONDS, read_timeout),
        read_timeout=read_timeout,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=32,
    )
    client = cast("BedrockRuntimeClient", cast(Any, boto3).client("bedrock-runtime", config=config))
    client.meta.events.register("before-send.bedrock-runtime", stop_when_late)
    return client


def stop_when_late(**_: object) -> None:
    """Hook before each attempt: nobody waits for the answer any more, so do not pay for it."""
    if time.monotonic() >= _deadline.get():
        raise ModelUnavailable("too late for another attempt")
