"""Reading a thread's messages over HTTP (spec-http 2.3)."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from threadkeep import ids, jsontext
from threadkeep.http import wire
from threadkeep.http.query import Moment
from threadkeep.http.route import Call, NoBody, Route
from threadkeep.jsontext import Json
from threadkeep.memory.reminders import is_reminder
from threadkeep.storage.port import Direction, Include, MessageFilter

MAX_INCLUDES = 100
MAX_NEIGHBOURS = 100


def _checked_message_id(identifier: str) -> str:
    if broken := ids.problem(identifier):
        raise ValueError(broken)
    return identifier


def _only_scalars(wanted: dict[str, Json]) -> dict[str, Json]:
    for key, value in wanted.items():
        if isinstance(value, dict | list):
            kind = jsontext.kind(value)
            raise ValueError(f"can only compare text, numbers, booleans and null, {key[:64]} is {kind}")
    return wanted


def _one_or_more(value: Json) -> Json:
    return [value] if isinstance(value, str) else value


MESSAGE_ID_SCHEMA: dict[str, Json] = {
    "minLength": 1,
    "maxLength": ids.MAX_BYTES,
    "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$",
}
MessageId = Annotated[str, AfterValidator(_checked_message_id), Field(json_schema_extra=MESSAGE_ID_SCHEMA)]
Neighbours = Annotated[int, Field(ge=0, le=MAX_NEIGHBOURS)]


class DateRange(wire.Query):
    """Both ends belong to the range unless excluded (M-RC-5)."""

    start: Moment | None = None
    end: Moment | None = None
    start_exclusive: bool = False
    end_exclusive: bool = False


class Filter(wire.Query):
    """Which messages to list; all conditions must hold. What is empty does not filter."""

    date_range: DateRange = DateRange()
    roles: Annotated[list[str], BeforeValidator(_one_or_more)] = []
    metadata: Annotated[wire.WantedMetadata, AfterValidator(_only_scalars)] = {}

    @property
    def match(self) -> MessageFilter:
        dates = self.date_range
        return MessageFilter(
            since=None if dates.start is None else dates.start + dates.start_exclusive,
            until=None if dates.end is None else dates.end - dates.end_exclusive,
            roles=frozenset(self.roles) or None,
            metadata=self.metadata or None,
        )


class Included(wire.Query):
    """A message to add to the page, with its neighbours (M-RC-7). Its `threadId` is not needed and not read."""

    id: MessageId
    with_previous_messages: Neighbours = 0
    with_next_messages: Neighbours = 0


class MessageOrder(wire.Query):
    field: Literal["createdAt"] = "createdAt"
    direction: Direction | None = None


class MessagesQuery(wire.PageQuery):
    json_fields = frozenset({"orderBy", "filter", "include"})

    per_page: wire.PerPage = 40
    order_by: Annotated[MessageOrder, BeforeValidator(wire.flat_order)] = MessageOrder()
    filter: Filter = Filter()
    include: Annotated[list[Included], Field(max_length=MAX_INCLUDES)] = []
    include_system_reminders: bool = False

    @property
    def direction(self) -> Direction:
        """From which end pages are cut: the newest, but the oldest if no agent is named."""
        return self.order_by.direction or self.sort_direction or ("DESC" if self.agent_id else "ASC")


class MessagesPage(wire.Reply):
    messages: list[wire.Message]
    total: int
    page: int
    per_page: int | Literal[False]
    has_more: bool
    ui_messages: None


async def list_messages(call: Call[MessagesQuery, Any]) -> MessagesPage:
    """One page of a thread's messages, oldest first within the page; reminders are taken out of it (M-RC-8)."""
    query = call.query
    found = await call.app.storage.list_messages(
        call.path["threadId"],
        resource_id=call.identity.owner(query.resource_id),
        page=query.page,
        per_page=query.per_page,
        direction=query.direction,
        match=query.filter.match,
        include=[Include(i.id, i.with_previous_messages, i.with_next_messages) for i in query.include],
    )
    shown = [m for m in found.page.items if query.include_system_reminders or not is_reminder(m)]
    messages = [wire.message(m, found.thread.resource_id) for m in shown]
    return MessagesPage(messages=messages, **wire.paging(found.page), ui_messages=None)


ROUTES = (
    Route(
        method="GET",
        path="/api/memory/threads/{threadId}/messages",
        function="threads",
        operation=list_messages,
        query=MessagesQuery,
        body=NoBody,
        reply=MessagesPage,
        summary="List a thread's messages",
        errors=(403, 404, 413, 503),
    ),
)
