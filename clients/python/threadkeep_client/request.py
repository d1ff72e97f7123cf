"""One request, described once for both clients."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from threadkeep_client.errors import UnreadableReply, refusal
from threadkeep_client.reply import Reply
from threadkeep_client.retries import Repeat

T = TypeVar("T")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """What is sent, what the reply is, and whether it may be sent twice.

    `path` is encoded. Values of `query` that are None are left out.
    """

    method: Method
    path: str
    reply: type[T]
    query: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    repeat: Repeat = "unsent"

    def arguments(self) -> dict[str, Any]:
        """The request as httpx takes it."""
        query = {name: _query_text(value) for name, value in self.query.items() if value is not None}
        content = None if self.body is None else _json(self.body)
        typed = {} if content is None else {"Content-Type": "application/json"}
        return {
            "method": self.method,
            "url": self.path,
            "params": query or None,
            "content": None if content is None else content.encode(),
            "headers": {**typed, **self.headers},
        }

    def result(self, response: httpx.Response) -> T:
        """The reply in an answer. Raises `ApiError` for another status than 2xx, `UnreadableReply`."""
        if not response.is_success:
            raise refusal(response)
        try:
            reply: T = _adapter(self.reply).validate_json(response.content)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(map(str, problem["loc"])) or "the whole"
            message = f"{self.method} {self.path}: the answer is not what it should be: {place}: {problem['msg']}"
            raise UnreadableReply(message) from error
        _tag(reply, response)
        return reply


def path(template: str, *ids: str) -> str:
    """The template with its `{}` filled, each id percent-encoded once.

    Raises `ValueError` for ids that would lead to another route.
    """
    for identifier in ids:
        if identifier in ("", ".", ".."):
            raise ValueError(f"An id must not be empty, . or .., received {identifier!r}")
    return template.format(*(quote(identifier, safe="") for identifier in ids))


def _tag(reply: object, response: httpx.Response) -> None:
    if isinstance(reply, Reply):
        reply.tagged(response.headers.get("etag"))


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def _query_text(value: Any) -> str:
    """Text as it is, all else as JSON."""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has no form for: models, as the wire writes them, and mappings of other kinds."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"{type(value).__name__} is no JSON")
