"""The model port: one call of a language model, in terms that every provider has.

Adapters: `openai` (any OpenAI-compatible server), `bedrock` (Converse) and `scripted` (tests).
An adapter raises `ModelRejected` for what repeating cannot mend (bad request, bad key, unknown
model) and `ModelUnavailable` for the rest (busy, down, timed out); the message is the provider's own
text, cut at 500 characters, never a key or a header.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from threadkeep.jsontext import Json

FinishReason = Literal["stop", "tool-calls", "length", "content-filter", "error", "other"]


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`args` is the parsed object; `invalid` holds the raw text if it did not parse."""

    id: str
    name: str
    args: dict[str, Json]
    invalid: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`text` is what the model reads; `is_error` marks a failed call."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class FilePart:
    """`data` is base64 text or a URL."""

    data: str
    media_type: str


Part = TextPart | ToolCall | ToolResult | FilePart


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """Roles as on OpenAI. `tool` messages hold only results, `assistant` only text and calls."""

    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.parts if isinstance(p, TextPart))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    name: str
    description: str
    parameters: dict[str, Json]  # JSON Schema of the arguments object


@dataclass(frozen=True, slots=True)
class ModelSettings:
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """`model` is the name after `provider/`. `timeout` is in seconds.

    `response_schema` is a JSON Schema that the answer's text should follow; a provider that cannot
    enforce it is asked to, so the answer has to be checked in any case.
    """

    model: str
    messages: tuple[PromptMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | str = "auto"  # or one tool's name
    settings: ModelSettings = ModelSettings()
    timeout: float = 60.0
    response_schema: dict[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
        )

    @property
    def total_tokens(self) -> int:
        """What was read and written."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """One answer. `response_id` and `model` are the provider's own, where it tells them."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    usage: Usage
    model: str
    response_id: str | None = None
    reasoning: str = ""
    provider_metadata: dict[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of what the model thinks aloud, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. `id` is the one that the call has in the response."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of the JSON text of a started call's arguments, never empty."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The arguments of a started call are there; whether they parse is told by the response."""

    id: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last chunk: the answer as `generate` would have returned it, with its usage."""

    response: ModelResponse


ModelChunk = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | Finished


class Model(Protocol):
    async def generate(self, request: ModelRequest) -> ModelResponse: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """The same answer as it is made; exactly one `Finished` ends it.

        The deltas, put together, are the texts of the response. A call's chunks come as start, deltas, end;
        those of several calls may come in turns. What goes wrong is raised as by `generate`, before the first
        chunk or after any, and then there is no `Finished`. `request.timeout` counts from the first `anext`
        to the last chunk. Whoever stops early calls `aclose` (`contextlib.aclosing`): that hangs up.
        """
        ...
