"""Working memory over HTTP (spec-http 2.3): what an agent keeps for a thread, and a resource's with its versions."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from threadkeep import clock, jsontext
from threadkeep.errors import AccessDenied, Conflict, InvalidInput, Issue, NotFound, StoreUnavailable
from threadkeep.http import memories, versions, wire
from threadkeep.http.memories import AgentMemory
from threadkeep.http.route import JSON, Answer, Call, NoBody, Route, Table
from threadkeep.jsontext import Json
from threadkeep.memory.working_memory.form import empty_value, form_of
from threadkeep.memory.working_memory.merge import merged
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.updates import patched, replaced
from threadkeep.memory.working_memory.writing import changed
from threadkeep.storage.port import MemoryRevision, MemoryScope, MemoryTarget, Storage, Thread, WorkingMemory
from threadkeep.storage.rules import check_owner

WRITE_SECONDS = 25  # of losing to others; one more round may follow
STORE_SECONDS = 27  # the gateway gives up after 29
MERGE_PATCH = "application/merge-patch+json"

_OF_THREAD = "/api/memory/threads/{threadId}/working-memory"
_OF_RESOURCE = "/api/memory/resources/{resourceId}/working-memory"
_PLAIN = WorkingMemoryOptions(enabled=True)

Text = str | dict[str, Json]
Version = Annotated[int, Field(ge=0)]


class MemoryQuery(wire.ContextQuery, wire.AgentQuery):
    """`memoryConfig` changes options of the agent's memory for this request."""

    json_fields = frozenset({"memoryConfig"})

    resource_id: wire.QueryId = None
    memory_config: dict[str, Json] | None = None


class ResourceQuery(wire.ContextQuery, wire.OwnerQuery):
    """With `agentId` the form and the limits are those of the agent's working memory."""


class UpdateWorkingMemory(wire.Body):
    """The whole new text; where the agent has a schema, its object or the JSON text of it.

    With `version` only that version is replaced.
    """

    working_memory: Text
    resource_id: wire.Id | None = None
    memory_config: dict[str, Json] | None = None
    version: Version | None = None


class ReplaceWorkingMemory(wire.Body):
    """The whole new text, or the object whose JSON text it becomes. An empty text clears."""

    working_memory: Text
    version: Version | None = None


class Template(wire.Reply):
    """What an empty memory looks like: Markdown, or the JSON text of an empty object of the schema (WM-24)."""

    format: Literal["markdown", "json"]
    content: str


class ThreadMemory(wire.Reply):
    """The working memory that a turn on the thread would see; null where nothing is stored (WM-5)."""

    working_memory: str | None
    source: MemoryScope
    working_memory_template: Template | None
    thread_exists: bool


class Success(wire.Reply):
    success: bool


class Revision(wire.Reply):
    version: int
    updated_at: str
    writer: str


class ResourceMemory(wire.Reply):
    """`version` is 0 where nothing was ever written. `revisions` are the last ones, newest first."""

    working_memory: str | None
    version: int
    updated_at: str | None
    writer: str | None
    revisions: list[Revision]


async def get_working_memory(call: Call[MemoryQuery, None]) -> Answer[ThreadMemory]:
    """Read what the agent keeps for this thread, or for the resource (WM-5). A missing thread is no error.

    A service that names no resource reads, in resource scope, the memory of the thread's owner.
    """
    owner = call.identity.owner(call.query.resource_id)
    memory = await memories.memory_of(
        call.app.registry, call.query.agent_id, call.query.request_context, call.query.memory_config
    )
    if memory is None:
        return Answer(_shown(None, WorkingMemory(), None, exists=False))
    target = _target(memory.working, call.path["threadId"], owner)
    state = await call.app.storage.load_turn(call.path["threadId"], last_messages=0, memory=target)
    if state.thread is not None:
        check_owner(state.thread, owner)
    stored = state.memory
    if target is None and state.thread and memory.working.enabled:
        target = MemoryTarget("resource", state.thread.resource_id)
        stored = await call.app.storage.get_working_memory(target)
    shown = _shown(memory, stored, target, exists=state.thread is not None)
    return Answer(shown, _tags(stored) if target else {})


async def update_working_memory(call: Call[MemoryQuery, UpdateWorkingMemory]) -> Answer[Success]:
    """Replace what the agent keeps for this thread, or for the resource (WM-6). 404 for a missing thread (E7)."""
    body, thread_id = call.body, call.path["threadId"]
    if isinstance(body.working_memory, str) and not body.working_memory.strip():
        raise InvalidInput(summary='Argument "workingMemory" is required')
    owner = call.identity.owner(body.resource_id or call.query.resource_id)
    config = body.memory_config or call.query.memory_config
    memory = await memories.needed(call.app.registry, call.query.agent_id, call.query.request_context, config)
    options = memory.writable()
    target = _target(options, thread_id, owner)
    if target is None:
        raise InvalidInput(Issue("resourceId", "is required: the working memory has scope resource, not thread"))
    state = await call.app.storage.load_turn(thread_id, last_messages=0, memory=target)
    if state.thread is None:
        raise NotFound("Thread not found")
    check_owner(state.thread, owner)
    written = await _write(
        call,
        target,
        _replacing(options, body.working_memory),
        state.memory,
        thread=state.thread if target.scope == "thread" else None,
        expected=body.version,
    )
    return Answer(Success(success=True), _tags(written))


async def get_resource_memory(call: Call[ResourceQuery, None]) -> Answer[ResourceMemory]:
    """Read the working memory of a resource, whichever agents keep it."""
    return _record(await call.app.storage.get_working_memory(_own(call)))


async def replace_resource_memory(call: Call[ResourceQuery, ReplaceWorkingMemory]) -> Answer[ResourceMemory]:
    """Replace the working memory of a resource; an empty text clears it."""
    target, options = _own(call), await _options(call)
    change = _replacing(options or _PLAIN, call.body.working_memory, objects=options is None)
    return await _write_resource(call, target, change, expected=call.body.version)


async def patch_resource_memory(call: Call[ResourceQuery, dict[str, Json]]) -> Answer[ResourceMemory]:
    """Merge a JSON merge patch (RFC 7396) into the working memory of a resource: null deletes, arrays are replaced."""
    target, options, patch = _own(call), await _options(call), call.body
    if options is None:
        return await _write_resource(call, target, lambda stored: _patched_plainly(stored, patch))
    return await _write_resource(call, target, lambda stored: patched(options, stored, patch))


def _target(options: WorkingMemoryOptions, thread_id: str, owner: str | None) -> MemoryTarget | None:
    """Which working memory this is; None where it is off, or a resource's and none is known."""
    if not options.enabled:
        return None
    if options.scope == "thread":
        return MemoryTarget("thread", thread_id)
    return MemoryTarget("resource", owner) if owner is not None else None


def _own(call: Call[Any, Any]) -> MemoryTarget:
    """The resource of the path. Raises `AccessDenied` unless it is the user's own."""
    resource = call.path["resourceId"]
    if call.identity.owner(resource) != resource:
        raise AccessDenied("Access denied: the working memory belongs to a different resource")
    return MemoryTarget("resource", resource)


async def _options(call: Call[ResourceQuery, Any]) -> WorkingMemoryOptions | None:
    """Those of the agent that the request names, None if it names none.

    Raises `NotFound`, and `InvalidInput` for an agent that does not keep a resource's working memory.
    """
    if call.query.agent_id is None:
        return None
    memory = await memories.needed(call.app.registry, call.query.agent_id, call.query.request_context)
    options = memory.writable()
    if options.scope != "resource":
        raise memories.unfit(f"the working memory of {memory.agent_id} has scope {options.scope}")
    return options


def _replacing(options: WorkingMemoryOptions, given: Text, *, objects: bool = False) -> Callable[[str], str]:
    """The change to a whole new text. Objects need a schema, unless any text will do."""
    if isinstance(given, str):
        return lambda stored: replaced(options, stored, given) if given else ""
    if options.json_schema is None and not objects:
        raise InvalidInput(Issue("workingMemory", "expected string, received object"))
    text = jsontext.dumps(given)
    return lambda stored: replaced(options, stored, text)


def _patched_plainly(stored: str, patch: dict[str, Json]) -> str:
    """The stored JSON with the patch merged in, within the usual limit."""
    try:
        existing = jsontext.as_object(jsontext.loads(stored or "{}"))
    except ValueError:
        existing = None
    if existing is None:
        raise Conflict("The stored working memory is no JSON object: replace it with PUT")
    return replaced(_PLAIN, stored, jsontext.dumps(merged(existing, jsontext.sendable(patch))))


async def _write_resource(
    call: Call[Any, Any],
    target: MemoryTarget,
    change: Callable[[str], str],
    *,
    expected: int | None = None,
) -> Answer[ResourceMemory]:
    stored = await call.app.storage.get_working_memory(target)
    return _record(await _write(call, target, change, stored, expected=expected))


async def _write(
    call: Call[Any, Any],
    target: MemoryTarget,
    change: Callable[[str], str],
    stored: WorkingMemory,
    *,
    thread: Thread | None = None,
    expected: int | None = None,
) -> WorkingMemory:
    """Apply the change on top of what others write meanwhile, if the version is the one that the request names.

    Raises `PreconditionFailed`, `VersionMismatch`, also where others keep winning for `WRITE_SECONDS`,
    `InvalidInput`, `StoreUnavailable`.
    """
    match = versions.check(call.headers, stored.version)
    storage: Storage = call.app.storage
    try:
        async with asyncio.timeout(STORE_SECONDS):
            with memories.naming("workingMemory"):
                written = await changed(
                    storage,
                    target,
                    change,
                    writer=memories.WRITER,
                    known=stored,
                    thread=thread,
                    expected=expected,
                    match=match,
                    seconds=WRITE_SECONDS,
                )
    except TimeoutError as error:
        raise StoreUnavailable("The store took too long to write working memory") from error
    return written.memory


def _shown(
    memory: AgentMemory | None, stored: WorkingMemory, target: MemoryTarget | None, *, exists: bool
) -> ThreadMemory:
    template = _template(memory.working) if memory and memory.working.enabled else None
    return ThreadMemory(
        working_memory=stored.text or None,
        source=target.scope if target else "thread",
        working_memory_template=template,
        thread_exists=exists,
    )


def _template(options: WorkingMemoryOptions) -> Template:
    form = form_of(options)
    content = form.content if form.schema is None else jsontext.dumps(empty_value(form.schema) or {})
    return Template(format=form.format, content=content)


def _record(stored: WorkingMemory) -> Answer[ResourceMemory]:
    revisions = [_revision(past) for past in stored.past]
    record = ResourceMemory(
        working_memory=stored.text or None,
        version=stored.version,
        updated_at=revisions[0].updated_at if revisions else None,
        writer=revisions[0].writer if revisions else None,
        revisions=revisions,
    )
    return Answer(record, _tags(stored))


def _revision(past: MemoryRevision) -> Revision:
    return Revision(version=past.version, updated_at=clock.iso(past.at), writer=past.writer)


def _tags(stored: WorkingMemory) -> dict[str, str]:
    return {"etag": versions.tag(stored.version)}


def _route(
    method: Any, path: str, operation: Any, query: Any, body: Any, reply: Any, summary: str, **more: Any
) -> Route[Any, Any, Any]:
    errors = (403, 503) if method == "GET" else (403, 404, 409, 412, 413, 503)
    return Route(method, path, "working_memory", operation, query, body, reply, summary, errors=errors, **more)


ROUTES: Table = (
    _route("GET", _OF_THREAD, get_working_memory, MemoryQuery, NoBody, ThreadMemory, "Read a thread's working memory"),
    _route(
        "POST", _OF_THREAD, update_working_memory, MemoryQuery, UpdateWorkingMemory, Success,
        "Replace a thread's working memory",
    ),
    _route(
        "GET", _OF_RESOURCE, get_resource_memory, ResourceQuery, NoBody, ResourceMemory,
        "Read the working memory of a resource",
    ),
    _route(
        "PUT", _OF_RESOURCE, replace_resource_memory, ResourceQuery, ReplaceWorkingMemory, ResourceMemory,
        "Replace the working memory of a resource",
    ),
    _route(
        "PATCH", _OF_RESOURCE, patch_resource_memory, ResourceQuery, dict[str, Any], ResourceMemory,
        "Merge a JSON merge patch into the working memory of a resource", content_types=(JSON, MERGE_PATCH),
    ),
)  # fmt: skip
