"""Saving and deleting messages outside of turns (spec-http 2.3; MS-4, MS-8)."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from threadkeep import clock, jsontext
from threadkeep.errors import AccessDenied, InvalidInput, Issue, NotFound, TooLarge
from threadkeep.http import repeats, size, wire
from threadkeep.http.messages import MESSAGE_ID_SCHEMA, MessageId
from threadkeep.http.query import Moment
from threadkeep.http.route import Call, Route
from threadkeep.jsontext import Json
from threadkeep.memory import messages
from threadkeep.memory.messages import Content
from threadkeep.memory.working_memory import stripping
from threadkeep.storage import rules
from threadkeep.storage.port import SavedMessage, Storage

MAX_SAVED = 1000  # messages in one request
MAX_TYPE = 128  # characters
_FRAME = 700  # bytes of a message in a reply beside its content


class TextPart(wire.Body):
    type: Literal["text"]
    text: str


class FilePart(wire.Body):
    type: Literal["file"]
    data: str
    mime_type: str


class ToolInvocation(wire.Body):
    state: str
    tool_call_id: str
    tool_name: str


class ToolPart(wire.Body):
    type: Literal["tool-invocation"]
    tool_invocation: ToolInvocation


class OtherPart(wire.Body):
    """Parts of other types are kept as they are."""

    type: str


_PART_TAGS = {"text": "a text", "file": "a file", "tool-invocation": "a call"}


def _part_tag(part: Json) -> str:
    kind = (jsontext.as_object(part) or {}).get("type")
    return _PART_TAGS.get(kind, "another") if isinstance(kind, str) else "another"


Part = Annotated[
    Annotated[TextPart, Tag("a text")]
    | Annotated[FilePart, Tag("a file")]
    | Annotated[ToolPart, Tag("a call")]
    | Annotated[OtherPart, Tag("another")],
    Discriminator(_part_tag),
]


class StoredContent(wire.Body):
    """The stored form, "format 2" (MS-1, MS-2). What has no field here is kept too."""

    format: Literal[2] = 2
    parts: list[Part]
    content: str = ""
    metadata: dict[str, Json] = {}


def _content_tag(content: Json) -> str:
    return "the stored form" if isinstance(content, dict) else "its text"


def _as_given(given: Json, check: ValidatorFunctionWrapHandler) -> Json:
    """Check, and keep what was given: nothing of a message may get lost on the way."""
    check(given)
    return given


MessageContent = Annotated[
    Annotated[str, Tag("its text")] | Annotated[StoredContent, Tag("the stored form")],
    Discriminator(_content_tag),
    WrapValidator(_as_given),
]


class MessageToSave(wire.Body):
    """`resourceId` may only be absent when the caller's token names the resource.

    Without `createdAt` the message goes to the end of its thread, with one of the past among those of that time.
    """

    thread_id: wire.Id
    resource_id: wire.Id | None = None
    role: Literal["user", "assistant", "system", "signal"]
    content: MessageContent
    id: MessageId | None = None
    created_at: Moment | None = None
    type: Annotated[str, Field(max_length=MAX_TYPE)] | None = None


class SaveMessages(wire.Body):
    messages: Annotated[list[MessageToSave], Field(max_length=MAX_SAVED)]


class SavedMessages(wire.Reply):
    """What was stored, in the request's order. System messages and transient signals are not (case H19), nor are
    calls of `updateWorkingMemory` and whole `<working_memory>` spans of text (MS-5)."""

    messages: list[wire.Message]


def _listed(given: Json) -> Json:
    """The ids in any of the four spellings, as a list."""
    rows = jsontext.as_array(given)
    if rows is not None:
        return [_bare(row) for row in rows]
    return [_bare(given)] if isinstance(given, str) or jsontext.as_object(given) is not None else given


def _bare(row: Json) -> Json:
    return (jsontext.as_object(row) or {}).get("id", row)


_ONE_ID: dict[str, Json] = {"type": "string", **MESSAGE_ID_SCHEMA}
_ID_OBJECT: dict[str, Json] = {"type": "object", "required": ["id"], "properties": {"id": _ONE_ID}}
_ANY_ID: dict[str, Json] = {"anyOf": [_ONE_ID, _ID_OBJECT]}


class DeleteMessages(wire.Body):
    """`messageIds` is an id, `{"id": ...}`, or a list of these."""

    message_ids: Annotated[
        list[MessageId],
        BeforeValidator(_listed),
        Field(max_length=MAX_SAVED),
        WithJsonSchema({"anyOf": [_ONE_ID, _ID_OBJECT, {"type": "array", "items": _ANY_ID, "maxItems": MAX_SAVED}]}),
    ]


class Deleted(wire.Reply):
    success: bool
    message: str


@dataclass(frozen=True, slots=True)
class _Row:
    """A message to store, and who says to own its thread."""

    thread_id: str
    owner: str
    message: SavedMessage


async def save_messages(call: Call[wire.OwnerQuery, SaveMessages]) -> SavedMessages:
    """Store messages in threads that exist; all owners are checked before anything is written.

    404 for a missing thread, 403 for another owner's. A message whose id its thread holds is replaced (MS-6).
    """
    rows = _rows(call)
    _check_reply(rows)
    storage = call.app.storage
    owners = await _checked_owners(storage, rows)
    stored: dict[tuple[str, str], wire.Message] = {}
    for thread_id, owner in owners.items():
        own = [row.message for row in rows if row.thread_id == thread_id]
        for saved in await storage.save_messages(thread_id, own, resource_id=owner):
            stored[thread_id, saved.id] = wire.message(saved, owner)
    wanted = dict.fromkeys((row.thread_id, str(row.message.id)) for row in rows)
    return SavedMessages(messages=[stored[key] for key in wanted])


async def delete_messages(call: Call[wire.OwnerQuery, DeleteMessages]) -> Deleted:
    """Delete messages by id, in whichever threads they are; unknown ids are fine. 403 deletes nothing."""
    owner = call.identity.owner(call.query.resource_id)
    ids = call.body.message_ids
    try:
        await call.app.storage.delete_messages(ids, resource_id=owner)
    except AccessDenied as error:
        raise AccessDenied from error  # with the one text that clients know
    return Deleted(success=True, message=f"{len(ids)} message{'' if len(ids) == 1 else 's'} deleted successfully")


def _rows(call: Call[wire.OwnerQuery, SaveMessages]) -> list[_Row]:
    """The messages to store. Raises `InvalidInput` naming each message without an owner or of an impossible time."""
    issues: list[Issue] = []
    rows: list[_Row] = []
    latest = clock.now() + rules.MAX_AHEAD_MILLIS
    for n, given in enumerate(call.body.messages):
        owner = call.identity.owner(given.resource_id or call.query.resource_id)
        content = stripping.stripped(_content(cast(Json, given.content)))
        if owner is None:
            issues.append(Issue(f"messages.{n}.resourceId", "required, received undefined"))
        elif given.created_at is not None and not 0 <= given.created_at <= latest:
            issues.append(Issue(f"messages.{n}.createdAt", "must not be before 1970 or more than a day ahead"))
        elif content is None:
            continue  # nothing was left to store (MS-5)
        elif given.role == "signal" and len(_type(given, content) or "") > MAX_TYPE:
            field = f"messages.{n}.content.metadata.signal.tagName"
            issues.append(Issue(field, f"must have a length of at most {MAX_TYPE}"))
        elif _is_kept(given.role, content):
            message_id = given.id or repeats.new_id(call, owner, "save", given.thread_id, n)
            saved = SavedMessage(given.role, content, message_id, _type(given, content), given.created_at)
            rows.append(_Row(given.thread_id, owner, saved))
    if issues:
        raise InvalidInput(*issues)
    return rows


def _is_kept(role: str, content: Content) -> bool:
    """System messages and transient signals are never stored (MS-4)."""
    return role not in rules.HIDDEN_ROLES and not (role == "signal" and _signal(content).get("transient") is True)


def _type(given: MessageToSave, content: Content) -> str | None:
    """The message's type; a signal's is its tag name unless it says otherwise (MS-1)."""
    if given.type is not None or given.role != "signal":
        return given.type
    tag = _signal(content).get("tagName")
    return tag if isinstance(tag, str) else None


def _content(given: Json) -> Content:
    if isinstance(given, str):
        return messages.content([{"type": "text", "text": given}])
    return {"format": 2, **given}


def _signal(content: Content) -> dict[str, Json]:
    metadata = jsontext.as_object(content.get("metadata")) or {}
    return jsontext.as_object(metadata.get("signal")) or {}


def _check_reply(rows: Iterable[_Row]) -> None:
    """Raises `TooLarge` before anything is stored, if the reply, which repeats the messages, could not be sent."""
    if sum(size.in_reply(row.message.content) + _FRAME for row in rows) > size.MAX_REPLY_BYTES:
        raise TooLarge("Reply too large: save fewer messages at once")


async def _checked_owners(storage: Storage, rows: Iterable[_Row]) -> Mapping[str, str]:
    """The owner of each thread. Raises `NotFound`, `AccessDenied`."""
    claimed: dict[str, set[str]] = {}
    for row in rows:
        claimed.setdefault(row.thread_id, set()).add(row.owner)
    threads = await asyncio.gather(*map(storage.get_thread, claimed))
    if None in threads:
        raise NotFound("Thread not found")
    owners = {thread.id: thread.resource_id for thread in threads if thread}
    if any(claimed[thread_id] != {owner} for thread_id, owner in owners.items()):
        raise AccessDenied
    return owners


def _route(path: str, operation: Any, body: Any, reply: Any, summary: str) -> Route[Any, Any, Any]:
    return Route(
        "POST", path, "threads", operation, wire.OwnerQuery, body, reply, summary, errors=(403, 404, 409, 413, 503)
    )


ROUTES = (
    _route("/api/memory/save-messages", save_messages, SaveMessages, SavedMessages, "Store messages in threads"),
    _route("/api/memory/messages/delete", delete_messages, DeleteMessages, Deleted, "Delete messages by id"),
)
