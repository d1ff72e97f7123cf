"""Threads over HTTP (spec-http 2.3)."""

from threadkeep import jsontext
from threadkeep.errors import AccessDenied, InvalidInput, Issue, NotFound
from threadkeep.http import memories, repeats, wire
from threadkeep.http.route import Call, NoBody, Route
from threadkeep.jsontext import Json
from threadkeep.storage.port import NewThread, Page, Storage, Thread, ThreadChange

MAX_FILTERED = 10_000  # rows that a filtered list reads at most


class CreateQuery(wire.ContextQuery, wire.AgentQuery):
    """The agent's memory, which may depend on the request context, takes `metadata.workingMemory`."""


class UpdateQuery(wire.ContextQuery, wire.OwnerQuery):
    """`agentId` says whose working memory `metadata.workingMemory` is for; without it, it is the thread's own."""


class CreateThread(wire.Body):
    """`resourceId` may only be absent when the caller's token names the resource.

    A text in `metadata.workingMemory` becomes the working memory, unless that had it before (WM-20).
    """

    resource_id: wire.Id | None = None
    thread_id: wire.Id | None = None
    title: wire.Title = ""
    metadata: wire.Metadata | None = None


class UpdateThread(wire.Body):
    """What is absent stays; `metadata` is replaced as a whole, but never working memory. `resourceId` is an owner
    check. A text in `metadata.workingMemory` becomes the working memory, unless that had it before (WM-20).
    """

    title: wire.Title = ""
    metadata: wire.Metadata = {}
    resource_id: wire.Id | None = None


class TransferThread(wire.Body):
    resource_id: wire.Id


async def create_thread(call: Call[CreateQuery, CreateThread]) -> wire.Thread:
    """Create a thread, or return the caller's own of that id. 403 if another resource has the id."""
    owner = call.identity.owner(call.body.resource_id)
    if owner is None:
        raise InvalidInput(Issue("resourceId", "expected string, received undefined"))
    agent = call.app.registry.get(call.query.agent_id)
    if agent is None:
        raise NotFound("Agent not found")
    if agent.memory is None:
        raise InvalidInput(summary="Memory is not initialized")
    thread_id = call.body.thread_id or repeats.new_id(call, owner, "create")
    metadata, seed = await memories.divided(call.app.registry, call.query, call.body.metadata)
    new = NewThread(thread_id, owner, call.body.title, metadata, seed)
    return wire.created_thread(await call.app.storage.create_thread(new))


async def get_thread(call: Call[wire.OwnerQuery, None]) -> wire.Thread:
    return wire.read_thread(await _owned(call))


async def list_threads(call: Call[wire.ThreadsQuery, None]) -> wire.ThreadsPage:
    """The threads of a resource; of all resources if a service names none."""
    owner = call.identity.owner(call.query.resource_id)
    read = _list_filtered if call.query.metadata else _list
    page = await read(call.app.storage, owner, call.query)
    return wire.ThreadsPage(threads=[wire.read_thread(t) for t in page.items], **wire.paging(page))


async def update_thread(call: Call[UpdateQuery, UpdateThread]) -> wire.Thread:
    """Change title or metadata (TH-8); its owner only by transfer."""
    body, given = call.body, call.body.model_fields_set
    metadata = body.metadata if "metadata" in given else None
    metadata, seed = await memories.divided(call.app.registry, call.query, metadata)
    change = ThreadChange(title=body.title if "title" in given else None, metadata=metadata, memory=seed)
    owner = call.identity.owner(body.resource_id or call.query.resource_id)
    return wire.read_thread(await call.app.storage.update_thread(call.path["threadId"], change, resource_id=owner))


async def transfer_thread(call: Call[wire.OwnerQuery, TransferThread]) -> wire.Thread:
    """Give a thread with all its messages to another resource (TH-15). Only a trusted server may: 403 for users."""
    if call.identity.kind != "service":
        raise AccessDenied("Thread transfer requires a privileged (non-resource-scoped) context")
    owner = call.query.resource_id
    moved = await call.app.storage.transfer_thread(call.path["threadId"], call.body.resource_id, resource_id=owner)
    return wire.read_thread(moved)


async def delete_thread(call: Call[wire.OwnerQuery, None]) -> wire.Result:
    """Delete a thread with all that is in it. It reads as missing at once; the rest is removed after the reply."""
    owner = call.identity.owner(call.query.resource_id)
    if not await call.app.storage.delete_thread(call.path["threadId"], resource_id=owner):
        raise NotFound("Thread not found")
    return wire.Result(result="Thread deleted")


async def _owned(call: Call[wire.OwnerQuery, None]) -> Thread:
    """The thread of the path. Raises `NotFound`, or `AccessDenied` where the caller acts for another resource."""
    owner = call.identity.owner(call.query.resource_id)
    thread = await call.app.storage.get_thread(call.path["threadId"])
    if thread is None:
        raise NotFound("Thread not found")
    if owner is not None and owner != thread.resource_id:
        raise AccessDenied
    return thread


async def _list(storage: Storage, owner: str | None, query: wire.ThreadsQuery) -> Page[Thread]:
    return await storage.list_threads(
        owner,
        page=query.page,
        per_page=query.per_page,
        order_by=query.order_by.field,
        direction=query.direction,
    )


async def _list_filtered(storage: Storage, owner: str | None, query: wire.ThreadsQuery) -> Page[Thread]:
    """As `_list`, of the threads whose metadata has every wanted value."""
    rows = await storage.list_threads(
        owner, per_page=MAX_FILTERED, order_by=query.order_by.field, direction=query.direction
    )
    if rows.has_more:
        raise InvalidInput(
            Issue("metadata", f"can filter up to {MAX_FILTERED} threads, there are {rows.total}"),
            where="query parameters",
        )
    found = tuple(t for t in rows.items if _has(wire.shown_metadata(t) or {}, query.metadata or {}))
    size = len(found) if query.per_page is None else query.per_page
    start = query.page * size
    return Page(found[start : start + size], len(found), query.page, query.per_page, start + size < len(found))


def _has(metadata: dict[str, Json], wanted: dict[str, Json]) -> bool:
    """Whether all wanted values are there; null asks for a null, not for an absent key (TH-7)."""
    return all(key in metadata and jsontext.same(metadata[key], value) for key, value in wanted.items())


ROUTES = (
    Route(
        method="GET",
        path="/api/memory/threads",
        function="threads",
        operation=list_threads,
        query=wire.ThreadsQuery,
        body=NoBody,
        reply=wire.ThreadsPage,
        summary="List threads, newest first",
        errors=(503,),
    ),
    Route(
        method="POST",
        path="/api/memory/threads",
        function="threads",
        operation=create_thread,
        query=CreateQuery,
        body=CreateThread,
        reply=wire.Thread,
        summary="Create a thread",
        errors=(403, 404, 409, 503),
    ),
    Route(
        method="GET",
        path="/api/memory/threads/{threadId}",
        function="threads",
        operation=get_thread,
        query=wire.OwnerQuery,
        body=NoBody,
        reply=wire.Thread,
        summary="Read a thread",
        errors=(403, 404, 503),
    ),
    Route(
        method="PATCH",
        path="/api/memory/threads/{threadId}",
        function="threads",
        operation=update_thread,
        query=UpdateQuery,
        body=UpdateThread,
        reply=wire.Thread,
        summary="Change a thread's title or metadata",
        errors=(403, 404, 409, 503),
    ),
    Route(
        method="POST",
        path="/api/memory/threads/{threadId}/transfer",
        function="threads",
        operation=transfer_thread,
        query=wire.OwnerQuery,
        body=TransferThread,
        reply=wire.Thread,
        summary="Give a thread to another resource",
        errors=(403, 404, 409, 503),
    ),
    Route(
        method="DELETE",
        path="/api/memory/threads/{threadId}",
        function="threads",
        operation=delete_thread,
        query=wire.OwnerQuery,
        body=NoBody,
        reply=wire.Result,
        summary="Delete a thread and its messages",
        errors=(403, 404, 503),
    ),
)
