"""The request context: values that travel with one run and reach tools and dynamic settings (D-RC-1)."""

import inspect
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from threadkeep.jsontext import Json

_RESERVED_PREFIX = "mastra__"
_RESERVED = {"organizationId"}


class RequestContext(MutableMapping[str, Json]):
    """A map of strings to JSON values. Each run works on a copy of its own (D-DISC-20)."""

    def __init__(self, values: Mapping[str, Json] | None = None):
        self._values: dict[str, Json] = dict(values or {})

    @classmethod
    def from_client(cls, values: Mapping[str, Json]) -> "RequestContext":
        """The context that a caller sent, without the keys that only the server may set (D-RC-2)."""
        return cls({k: v for k, v in values.items() if not k.startswith(_RESERVED_PREFIX) and k not in _RESERVED})

    def copy(self) -> "RequestContext":
        return RequestContext(self._values)

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


async def value_of(setting: Any, context: RequestContext) -> Any:
    """A setting, or what its function makes of the context (D-RC-4). Objects are values, even if they can be called."""
    if not inspect.isfunction(setting) and not inspect.ismethod(setting):
        return setting
    value = setting(context)
    return await value if inspect.isawaitable(value) else value
