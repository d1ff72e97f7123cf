"""Copying a thread over HTTP (spec-http 2.3; TH-10, case H29)."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from threadkeep.errors import Conflict, NotFound
from threadkeep.http import memories, repeats, size, wire
from threadkeep.http.messages import MessageId
from threadkeep.http.query import Moment
from threadkeep.http.route import Call, Route
from threadkeep.storage import rules
from threadkeep.storage.port import Clone, CloneRequest, NewThread, Storage

COPY_SECONDS = 25  # then the copy is finished after the reply, which comes before the gateway's own at 29 s
MAX_REPLIED = 3_500_000  # bytes of copied messages in the reply; the map of ids also needs room


class CloneQuery(wire.ContextQuery, wire.OwnerQuery):
    """`agentId` says whether another owner's working memory is copied too (TH-11)."""


class CloneFilter(wire.Body):
    """Which messages to copy. Dates belong to the range; all conditions must hold."""

    start_date: Moment | None = None
    end_date: Moment | None = None
    message_ids: Annotated[list[MessageId], Field(max_length=rules.MAX_CLONE_IDS)] | None = None


class CloneOptions(wire.Body):
    """`messageLimit` takes the newest."""

    message_limit: wire.PageNumber | None = None
    message_filter: CloneFilter = CloneFilter()


class CloneThread(wire.Body):
    """All fields are optional. The copy's owner is the source's, unless a trusted server names another.

    The copy has the source's working memory; a text in `metadata.workingMemory` is left out.
    """

    new_thread_id: wire.Id | None = None
    resource_id: wire.Id | None = None
    title: wire.Title = ""
    metadata: wire.Metadata | None = None
    options: CloneOptions = CloneOptions()


class Cloned(wire.Reply):
    """`messageIdMap` maps ids of the source to those of the copies.

    `clonedMessages` may end before the last copy where the reply would be too large; then `hasMore` is true.
    """

    thread: wire.Thread
    cloned_messages: list[wire.Message]
    message_id_map: dict[str, str]
    has_more: bool = False


async def clone_thread(call: Call[CloneQuery, CloneThread]) -> Cloned:
    """Copy a thread with its messages. 404 for an unknown source, 409 if the new id exists."""
    source_owner = call.identity.owner(call.query.resource_id)
    request = await _request(call, source_owner)
    try:
        async with asyncio.timeout(COPY_SECONDS):
            clone = await call.app.storage.clone_thread(request, resource_id=source_owner)
    except TimeoutError as error:
        raise Conflict(f"Thread {request.new.id} is still being copied; it appears when it is complete") from error
    except Conflict:
        if call.body.new_thread_id or repeats.key_of(call.headers) is None:
            raise
        clone = await _made_before(call.app.storage, request, source_owner)
    return _reply(clone)


async def _request(call: Call[CloneQuery, CloneThread], source_owner: str | None) -> CloneRequest:
    body, source_id = call.body, call.path["threadId"]
    limits = body.options.message_filter
    metadata, _ = await memories.divided(call.app.registry, call.query, body.metadata)
    owner = call.identity.owner(body.resource_id) or await _owner_of(call.app.storage, source_id)
    return CloneRequest(
        source_id,
        NewThread(body.new_thread_id or repeats.new_id(call, owner, "clone", source_id), owner, body.title, metadata),
        limit=body.options.message_limit,
        since=limits.start_date,
        until=limits.end_date,
        message_ids=None if limits.message_ids is None else frozenset(limits.message_ids),
        resource_memory=await memories.is_of_resource(call.app.registry, call.query),
    )


async def _owner_of(storage: Storage, source_id: str) -> str:
    source = await storage.get_thread(source_id)
    if source is None:
        raise NotFound("Source thread not found")
    return source.resource_id


async def _made_before(storage: Storage, request: CloneRequest, source_owner: str | None) -> Clone:
    """The copy that this request made when it came before; its map names what the source still has."""
    thread = await storage.get_thread(request.new.id)
    if thread is None:
        raise Conflict(f"Thread {request.new.id} is still being copied; it appears when it is complete")
    copies, originals = await asyncio.gather(
        storage.list_messages(thread.id, resource_id=request.new.resource_id, per_page=None),
        storage.list_messages(request.source_id, resource_id=source_owner, per_page=None),
    )
    there = {copy.id: copy for copy in copies.page.items}
    pairs = {original.id: rules.copy_id(thread, original.id) for original in originals.page.items}
    found = {source: copy for source, copy in pairs.items() if copy in there}
    return Clone(thread, tuple(there[copy] for copy in found.values()), found)


def _reply(clone: Clone) -> Cloned:
    shown: list[wire.Message] = []
    room = MAX_REPLIED
    for message in clone.messages:
        shown.append(wire.message(message, clone.thread.resource_id))
        room -= size.in_reply(_plain(shown[-1]))
        if room < 0:
            shown.pop()
            break
    more = {"has_more": True} if len(shown) < len(clone.messages) else {}
    return Cloned(thread=wire.read_thread(clone.thread), cloned_messages=shown, message_id_map=clone.ids, **more)


def _plain(message: wire.Message) -> dict[str, Any]:
    return message.model_dump(by_alias=True, exclude_unset=True)


ROUTES = (
    Route(
        method="POST",
        path="/api/memory/threads/{threadId}/clone",
        function="threads",
        operation=clone_thread,
        query=CloneQuery,
        body=CloneThread,
        reply=Cloned,
        summary="Copy a thread with its messages",
        errors=(403, 404, 409, 413, 503),
    ),
)
