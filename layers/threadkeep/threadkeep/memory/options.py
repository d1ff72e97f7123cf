"""The options of a Memory, and how a call's own options change them (CFG-2, CFG-3, CFG-7)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from threadkeep import jsontext
from threadkeep.errors import ConfigurationError, InvalidInput, Issue
from threadkeep.jsontext import Json
from threadkeep.memory.base import Options
from threadkeep.memory.working_memory.options import WorkingMemoryOptions, of_call, switched

MAX_LAST_MESSAGES = 1000
MAX_TITLE_INSTRUCTIONS = 20_000  # characters; they wait in a job's row, which must stay below 400 KB
MAX_TITLE_MODEL = 512  # characters


def _false_is_zero(value: Any) -> Any:
    if value is True:
        raise ValueError("expected a non-negative integer or false, received true")
    return 0 if value is False else value


def _number(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"expected a number, received {jsontext.kind(value)}")
    return value


def _instructions(value: Any) -> Any:
    if not isinstance(value, str | None) and not callable(value):
        raise ValueError(f"expected a text, received {jsontext.kind(value)}")
    if isinstance(value, str) and len(value) > MAX_TITLE_INSTRUCTIONS:
        raise ValueError(f"must have a length of at most {MAX_TITLE_INSTRUCTIONS}, received {len(value)}")
    return value


class TitleOptions(Options):
    """When and how a thread gets a title (TT-1).

    `model` None means the agent's own. `instructions` may be a function of the request context; an
    empty text means the default ones. `emit_event` True makes the title before a stream ends and tells it
    there (TT-5); a buffered run never waits for it.
    """

    model: Annotated[str, Field(max_length=MAX_TITLE_MODEL)] | None = None
    instructions: Annotated[str | Callable[[Any], str | Awaitable[str]] | None, BeforeValidator(_instructions)] = None
    min_messages: int = Field(default=1, ge=1, le=MAX_LAST_MESSAGES, strict=True)
    emit_event: bool = Field(default=False, strict=True)


class HistoryBudget(Options):
    """`messageHistory`: once the whole prompt has more than `max_tokens`, the oldest remembered messages go until
    it has `at_max_remove_tokens` less (CFG-4); None means a quarter. `max_tokens` 0 disables history."""

    max_tokens: Annotated[float, BeforeValidator(_number)] = Field(ge=0, allow_inf_nan=False)
    at_max_remove_tokens: Annotated[float | None, BeforeValidator(_number)] = Field(
        default=None, ge=0, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _removes_at_most_all(self) -> Self:
        if self.removed > self.max_tokens:
            raise ValueError(f"atMaxRemoveTokens must be at most maxTokens, {self.max_tokens:g}")
        return self

    @property
    def removed(self) -> float:
        """How many tokens go at once, at least."""
        return self.max_tokens / 4 if self.at_max_remove_tokens is None else self.at_max_remove_tokens

    @property
    def target(self) -> float:
        """What the prompt has at most after messages went."""
        return self.max_tokens - self.removed


def _switch(value: Any) -> Any:
    return {True: TitleOptions(), False: None}.get(value, value) if isinstance(value, bool) else value


def _working(value: Any) -> Any:
    if not isinstance(value, bool | dict | WorkingMemoryOptions | None):
        raise ValueError(f"expected true, false or an object, received {jsontext.kind(value)}")
    return switched(value)


class MemoryOptions(Options):
    """`last_messages`: how many messages a turn loads; 0 or false loads none, and still saves (case H22).

    `message_history`: a budget of tokens for the history. With it `last_messages` limits only where it was given.
    `generate_title`: false, true or `TitleOptions`. `read_only`: load everything, write nothing (case H14).
    `filter_incomplete_tool_calls` False shows the model calls that have no result yet, with one that says so.
    `working_memory`: true, false or `WorkingMemoryOptions`.
    `retain_full_input` True takes all that a caller sends as new, not only what follows the last answer (MS-16).
    """

    last_messages: Annotated[int, BeforeValidator(_false_is_zero)] = Field(
        default=10, ge=0, le=MAX_LAST_MESSAGES, strict=True
    )
    generate_title: Annotated[TitleOptions | None, BeforeValidator(_switch)] = None
    read_only: bool = Field(default=False, strict=True)
    message_history: HistoryBudget | None = None
    working_memory: Annotated[WorkingMemoryOptions, BeforeValidator(_working)] = WorkingMemoryOptions()
    filter_incomplete_tool_calls: bool = Field(default=True, strict=True)
    retain_full_input: bool = Field(default=False, strict=True)

    @property
    def window(self) -> int:
        """How many messages a turn may load (CFG-4)."""
        if self.message_history is None or "last_messages" in self.model_fields_set:
            return 0 if self.message_history and not self.message_history.max_tokens else self.last_messages
        return MAX_LAST_MESSAGES if self.message_history.max_tokens else 0


_NESTED: dict[str, type[Options]] = {
    "generate_title": TitleOptions,
    "message_history": HistoryBudget,
    "working_memory": WorkingMemoryOptions,
}


def configured(values: dict[str, Any]) -> MemoryOptions:
    """The options of a Memory. Raises `ConfigurationError` naming each option that breaks a rule or does not exist.

    In a call (`merged`) others are ignored: clients send those of Mastra, too.
    """
    unknown = set(values) - set(MemoryOptions.model_fields)
    for name, inner in _NESTED.items():
        known = {spelling for field, info in inner.model_fields.items() for spelling in (field, info.alias)}
        unknown |= {f"{name}.{option}" for option in jsontext.as_object(values.get(name)) or () if option not in known}
    if unknown:
        raise ConfigurationError(f"Memory has no option {', '.join(sorted(unknown))}")
    try:
        return MemoryOptions.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError("Memory: " + "; ".join(f"{i.field}: {i.message}" for i in _issues(error))) from error


def merged(base: MemoryOptions, call: Json) -> MemoryOptions:
    """The options of one call: objects merge key by key, everything else replaces (CFG-7, CFG-8).

    A call cannot lift `readOnly`, nor raise the limit of working memory. `call` is the JSON object of the
    request, or None. Raises `InvalidInput` with fields below `memory.options`.
    """
    if call is None:
        return base
    change = jsontext.as_object(call)
    if change is None:
        message = f"expected object, received {jsontext.kind(call)}"
        raise InvalidInput(Issue("memory.options", message))
    given = base.model_dump(by_alias=True, exclude_unset=True)
    values = _deep_merge(given, change)
    if "workingMemory" in change:
        values["workingMemory"] = of_call(given.get("workingMemory"), change["workingMemory"])
    try:
        return _bounded(base, MemoryOptions.model_validate(values))
    except ValidationError as error:
        raise InvalidInput(*_issues(error, "memory.options.")) from error


def in_camel_case(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of either spelling as `merged` takes them; a JSON Schema keeps the names of its properties."""
    return {
        to_camel(k): in_camel_case(v) if isinstance(v, Mapping) and k not in ("schema", "json_schema") else v  # pyright: ignore[reportUnknownArgumentType]
        for k, v in options.items()
    }


def _bounded(base: MemoryOptions, options: MemoryOptions) -> MemoryOptions:
    most = base.working_memory.max_bytes
    if options.working_memory.max_bytes > most:
        field = "memory.options.workingMemory.maxBytes"
        raise InvalidInput(Issue(field, f"must be at most {most}, the limit of this agent's memory"))
    return options.model_copy(update={"read_only": True}) if base.read_only and not options.read_only else options


def _deep_merge(base: dict[str, Json], change: dict[str, Json]) -> dict[str, Json]:
    result = dict(base)
    for key, value in change.items():
        old, new = jsontext.as_object(result.get(key)), jsontext.as_object(value)
        result[key] = value if old is None or new is None else _deep_merge(old, new)
    return result


def _issues(error: ValidationError, prefix: str = "") -> list[Issue]:
    return [
        Issue(prefix + ".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")) for e in error.errors()
    ]
