"""The wire: names in camelCase, dates as ISO text, and what a query or a body may hold (spec-http 1 and 2.3).

Input: unknown fields are ignored, known ones are not coerced (queries are text and are parsed).
Replies: a field with a default is left out unless it was set.
"""

import base64
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from threadkeep import clock, ids, jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.filters import KEY_PATTERN, MAX_KEY, metadata_key_problem
from threadkeep.storage import port
from threadkeep.storage.port import Direction

MAX_TITLE = 1_000  # characters
MAX_METADATA = 200_000  # bytes of JSON text; a thread's row must stay below 400 KB
MAX_NUMBER = 2**31 - 1


def _checked_id(identifier: str) -> str:
    if broken := ids.http_problem(identifier):
        raise ValueError(broken)
    return identifier


def _metadata_fits(metadata: dict[str, Json]) -> dict[str, Json]:
    if (size := len(jsontext.dumps(metadata).encode())) > MAX_METADATA:
        raise ValueError(f"must be at most {MAX_METADATA} bytes of JSON, received {size}")
    return metadata


def _absent_if_undefined(text: Json) -> Json:
    return None if text == "undefined" else text


def _all_if_false(text: Json) -> Json:
    return None if text == "false" else text


def _legal_keys(wanted: dict[str, Json]) -> dict[str, Json]:
    for key in wanted:
        if broken := metadata_key_problem(key):
            raise ValueError(f"invalid metadata key {key[:64]!r}: {broken}")
    return wanted


def _context_text(text: Json) -> Json:
    """Decode base64 of JSON. Clients send `e30=` (`{}`) with almost every GET."""
    if not isinstance(text, str):
        return text
    try:
        return jsontext.loads(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise ValueError("is not base64 of JSON") from error


def flat_order(value: Json) -> Json:
    """`createdAt` for `{"field": "createdAt"}`."""
    return {"field": value} if isinstance(value, str) else value


_ID_SCHEMA: dict[str, Json] = {"minLength": 1, "maxLength": ids.MAX_BYTES, "pattern": "^[A-Za-z0-9._~:@|+=,-]+$"}

Id = Annotated[str, AfterValidator(_checked_id), Field(json_schema_extra=_ID_SCHEMA)]
QueryId = Annotated[Id | None, BeforeValidator(_absent_if_undefined), WithJsonSchema({"type": "string", **_ID_SCHEMA})]
PageNumber = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
PerPage = Annotated[
    PageNumber | None,
    BeforeValidator(_all_if_false),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}, {"const": False}]}),
]
Title = Annotated[str, Field(max_length=MAX_TITLE)]
Metadata = Annotated[dict[str, Json], AfterValidator(_metadata_fits)]
_KEY_SCHEMA: dict[str, Json] = {"propertyNames": {"pattern": f"^{KEY_PATTERN}$", "maxLength": MAX_KEY}}
WantedMetadata = Annotated[dict[str, Json], AfterValidator(_legal_keys), Field(json_schema_extra=_KEY_SCHEMA)]
AgentId = AliasChoices("agentId", "networkId")  # how the name arrives; clients of networks use the second


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="ignore")


class Body(_Wire):
    """Base of request bodies: types are taken as they come, `"5"` is no number."""

    model_config = ConfigDict(strict=True)


class Reply(_Wire):
    """Base of replies."""


class Query(_Wire):
    """Base of queries, and the query of routes that read none (`requestContext` and the like are tolerated).

    The parameters named in `json_fields` may arrive as JSON text or in bracket notation (case H31).
    """

    json_fields: ClassVar[frozenset[str]] = frozenset()


class OwnerQuery(Query):
    """The query of routes about one thread. `agentId` is taken and not needed."""

    agent_id: QueryId = Field(default=None, validation_alias=AgentId)
    resource_id: QueryId = None


class AgentQuery(Query):
    """The query of routes that need to know the agent."""

    agent_id: Id = Field(validation_alias=AgentId)


class ContextQuery(Query):
    """The query of routes where settings of an agent depend on the request context."""

    request_context: Annotated[
        dict[str, Json],
        BeforeValidator(_context_text),
        WithJsonSchema({"type": "string", "contentEncoding": "base64", "contentMediaType": "application/json"}),
    ] = Field(default_factory=dict[str, Json])


class ThreadOrder(_Wire):
    field: Literal["createdAt", "updatedAt"] = "createdAt"
    direction: Direction | None = None


class PageQuery(OwnerQuery):
    """Paging: `page` counts from 0; `perPage=false` (here None) asks for all.

    The order arrives in three spellings (case H31): `orderBy[field]=..&orderBy[direction]=..`,
    `orderBy={"field":..,"direction":..}` and `orderBy=createdAt&sortDirection=DESC`.
    """

    json_fields = frozenset({"orderBy"})

    page: PageNumber = 0
    sort_direction: Direction | None = None


class ThreadsQuery(PageQuery):
    """`metadata` asks for equality of all its keys (TH-7)."""

    json_fields = frozenset({"orderBy", "metadata"})

    per_page: PerPage = 100
    order_by: Annotated[ThreadOrder, BeforeValidator(flat_order)] = ThreadOrder()
    metadata: WantedMetadata | None = None

    @property
    def direction(self) -> Direction:
        return self.order_by.direction or self.sort_direction or "DESC"


class Thread(Reply):
    """`metadata` is left out where a thread that has none is created, and null where it is read."""

    id: str
    resource_id: str
    title: str
    created_at: str
    updated_at: str
    metadata: dict[str, Json] | None = None


class Message(Reply):
    """`content` is the stored form, "format 2"."""

    id: str
    role: str
    created_at: str
    thread_id: str
    resource_id: str
    content: dict[str, Json]
    type: str = ""


class ThreadsPage(Reply):
    """`perPage` is false where all were asked for."""

    threads: list[Thread]
    total: int
    page: int
    per_page: int | Literal[False]
    has_more: bool


class Result(Reply):
    result: str


def created_thread(thread: port.Thread) -> Thread:
    """A thread as the reply to create shows it."""
    fields, metadata = _thread_fields(thread), shown_metadata(thread)
    return Thread(**fields) if metadata is None else Thread(**fields, metadata=metadata)


def read_thread(thread: port.Thread) -> Thread:
    """A thread as every other reply shows it."""
    return Thread(**_thread_fields(thread), metadata=shown_metadata(thread))


def shown_metadata(thread: port.Thread) -> dict[str, Json] | None:
    """A thread's metadata with a view of its own working memory, which is stored beside it (WM-2)."""
    return {**(thread.metadata or {}), "workingMemory": thread.memory} if thread.memory else thread.metadata


def message(stored: port.Message, resource_id: str) -> Message:
    """A message; its owner is the thread's, spelled for the wire."""
    optional = {"type": stored.type} if stored.type else {}
    return Message(
        id=stored.id,
        role=stored.role,
        created_at=clock.iso(stored.created_at),
        thread_id=stored.thread_id,
        resource_id=ids.shown_resource(resource_id),
        content=stored.content,
        **optional,
    )


def paging(page: port.Page[Any]) -> dict[str, Any]:
    """The fields that stand beside a list."""
    per_page = False if page.per_page is None else page.per_page
    return {"total": page.total, "page": page.page, "per_page": per_page, "has_more": page.has_more}


def _thread_fields(thread: port.Thread) -> dict[str, Any]:
    return {
        "id": thread.id,
        "resource_id": ids.shown_resource(thread.resource_id),
        "title": thread.title,
        "created_at": clock.iso(thread.created_at),
        "updated_at": clock.iso(thread.updated_at),
    }
