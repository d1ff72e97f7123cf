"""The request context: values that travel with one run and reach tools and dynamic settings (D-RC-1)."""

import inspect
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from pydantic import BaseModel, ValidationError

from threadkeep import jsontext
from threadkeep.errors import InvalidInput, Issue
from threadkeep.jsontext import Json

RESOURCE_KEY = "mastra__resourceId"  # set by the server, these two override what a call asks for (RX-2)
THREAD_KEY = "mastra__threadId"
SPEAKER_KEY = "mastra__speaker"  # set by the server: who speaks in this run (MUT-7)
RUN_KEY = "MastraMemory"  # set by each run that uses memory: its thread, resource and memory options (RX-3)

_RESERVED_PREFIX = "mastra__"
_RESERVED = {"organizationId", RUN_KEY}


class RequestContext(MutableMapping[str, Json]):
    """A map of strings to values, JSON where they come from a client. Each run works on a copy (D-DISC-20)."""

    def __init__(self, values: Mapping[str, Json] | None = None):
        self._values: dict[str, Json] = dict(values or {})

    @classmethod
    def from_client(cls, values: Mapping[str, Json]) -> "RequestContext":
        """The context that a caller sent, without the keys that only the server may set (D-RC-2)."""
        return cls({k: v for k, v in values.items() if not k.startswith(_RESERVED_PREFIX) and k not in _RESERVED})

    def copy(self) -> "RequestContext":
        return RequestContext(self._values)

    def to_json(self) -> dict[str, Json]:
        """The values that JSON can say; functions and other objects are left out (D-RC-1)."""
        return {key: value for key, value in self._values.items() if _is_json(value)}

    def __getitem__(self, key: str) -> Json:
        return self._values[key]

    def __setitem__(self, key: str, value: Json) -> None:
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _is_json(value: Any) -> bool:
    try:
        jsontext.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def check_context(context: RequestContext, schema: type[BaseModel]) -> None:
    """Raises `InvalidInput` naming each value of the context that breaks the schema (D-RC-5)."""
    if issues := context_problems(context, schema):
        raise InvalidInput(
            *(Issue(f"requestContext.{field}" if field else "requestContext", text) for field, text in issues.items()),
            summary="Request context validation failed",
        )


def context_problems(context: RequestContext, schema: type[BaseModel]) -> dict[str, str]:
    """What is wrong with the context, by dotted field; empty for the whole."""
    try:
        schema.model_validate(dict(context))
    except ValidationError as error:
        return {".".join(map(str, e["loc"])): e["msg"] for e in error.errors()}
    return {}


async def value_of(setting: Any, context: RequestContext) -> Any:
    """A setting, or what its function makes of the context (D-RC-4). Objects are values, even if they can be called."""
    if not inspect.isfunction(setting) and not inspect.ismethod(setting):
        return setting
    value = setting(context)
    return await value if inspect.isawaitable(value) else value
