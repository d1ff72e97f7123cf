"""Every request of the API, described once. `Client` and `AsyncClient` send what these functions return."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, cast

from threadkeep_client import models
from threadkeep_client.request import Request, path

Json = Any
Messages = str | Sequence[str | Mapping[str, Json]]
Direction = Literal["ASC", "DESC"]
PerPage = int | Literal[False]


class TurnOptions(TypedDict, total=False):
    """What a turn may be given beside messages and thread; the HTTP guide describes each by its camelCase name.

    Values that are mappings are written as on the wire: `model_settings={"maxOutputTokens": 200}`.
    """

    memory_options: Mapping[str, Json]
    instructions: Json
    system: Json
    context: Json
    max_steps: int
    tool_choice: Json
    active_tools: Sequence[str]
    model_settings: Mapping[str, Json]
    run_id: str
    speaker: Mapping[str, Json]
    request_context: Mapping[str, Json]
    client_tools: Mapping[str, Json]
    structured_output: Mapping[str, Json]
    require_tool_approval: bool
    limits: Mapping[str, Json]


# --- agents and tools ---


def health() -> Request[models.Health]:
    """Whether the server answers. Needs no credential."""
    return Request("GET", "/health", models.Health, repeat="always")


def list_agents(*, partial: bool = False) -> Request[dict[str, models.AgentView]]:
    """All agents by id; `partial` leaves out the schemas of their tools."""
    return Request("GET", "/api/agents", dict[str, models.AgentView], {"partial": partial}, repeat="always")


def get_agent(agent_id: str) -> Request[models.AgentView]:
    """One agent."""
    return Request("GET", path("/api/agents/{}", agent_id), models.AgentView, repeat="always")


def execute_tool(
    tool_id: str,
    data: Json,
    *,
    agent_id: str | None = None,
    run_id: str | None = None,
    request_context: Mapping[str, Json] | None = None,
) -> Request[Any]:
    """Run a tool without a model, that of `agent_id` or else the first of this id. The result is the tool's own.

    Arguments that break the tool's schema are no exception: the result says so. Never sent twice.
    """
    place = path("/api/tools/{}", tool_id) if agent_id is None else path("/api/agents/{}/tools/{}", agent_id, tool_id)
    body = {"data": data} | _given(requestContext=request_context)
    return Request("POST", f"{place}/execute", cast(type[Any], object), {"runId": run_id}, body)


# --- turns ---


def generate(
    agent_id: str,
    messages: Messages,
    *,
    thread: str | Mapping[str, Json] | None = None,
    resource: str | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[TurnOptions],
) -> Request[models.Generated]:
    """Run one turn and wait for its whole answer. Without `thread` nothing is remembered.

    A turn on a thread may be sent again: its key makes it one turn. One that stores nothing may not.
    """
    return _turn("generate", models.Generated, agent_id, messages, thread, resource, idempotency_key, options)


def stream(
    agent_id: str,
    messages: Messages,
    *,
    thread: str | Mapping[str, Json] | None = None,
    resource: str | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[TurnOptions],
) -> Request[Any]:
    """Run one turn and take its answer piece by piece. Sent again, as `generate`, until the first piece has come."""
    return _turn("stream", cast(type[Any], object), agent_id, messages, thread, resource, idempotency_key, options)


def _turn(
    verb: str,
    reply: type[Any],
    agent_id: str,
    messages: Messages,
    thread: str | Mapping[str, Json] | None,
    resource: str | None,
    key: str | None,
    options: TurnOptions,
) -> Request[Any]:
    wire = {_CAMEL[name]: value for name, value in options.items() if name != "memory_options"}
    memory = _given(thread=thread, resource=resource, options=options.get("memory_options"))
    body = {"messages": messages, **_given(memory=memory or None), **wire}
    remembered = thread is not None and (options.get("memory_options") or {}).get("readOnly") is not True
    keyed = _keyed(key) if remembered or key is not None else {}
    repeat = "keyed" if remembered else "unsent"
    return Request("POST", path(f"/api/agents/{{}}/{verb}", agent_id), reply, {}, body, keyed, repeat)


# --- durable runs ---


def start_run(
    agent_id: str,
    messages: Messages,
    *,
    thread: str | Mapping[str, Json] | None = None,
    resource: str | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[TurnOptions],
) -> Request[models.Started]:
    """Begin a run that outlives this request; its id is the reply. Sent again, it is the same run."""
    turn = _turn("runs", models.Started, agent_id, messages, thread, resource, idempotency_key, options)
    return replace(turn, headers=_keyed(idempotency_key), repeat="keyed")


def get_run(agent_id: str, run_id: str, *, resource_id: str | None = None) -> Request[models.RunView]:
    """A durable run as it is now: its steps, its delegations, its result or error."""
    query = {"resourceId": resource_id}
    return Request("GET", path("/api/agents/{}/runs/{}", agent_id, run_id), models.RunView, query, repeat="always")


def list_runs(
    agent_id: str, thread_id: str, *, resource_id: str | None = None, per_page: int = 20
) -> Request[models.Runs]:
    """The durable runs of an agent on a thread, newest first."""
    query = {"threadId": thread_id, "resourceId": resource_id, "perPage": per_page}
    return Request("GET", path("/api/agents/{}/runs", agent_id), models.Runs, query, repeat="always")


def cancel_run(agent_id: str, run_id: str, *, resource_id: str | None = None) -> Request[models.RunBrief]:
    """End a durable run: no thread gets anything of it from then on. One that is over stays as it is."""
    query = {"resourceId": resource_id}
    place = path("/api/agents/{}/runs/{}/cancel", agent_id, run_id)
    return Request("POST", place, models.RunBrief, query, repeat="always")


# --- threads ---


def create_thread(
    agent_id: str,
    *,
    resource_id: str | None = None,
    thread_id: str | None = None,
    title: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    idempotency_key: str | None = None,
) -> Request[models.Thread]:
    """Create a thread, or get the owner's own of that id. `resource_id` may be absent where a token names the owner."""
    body = _given(resourceId=resource_id, threadId=thread_id, title=title, metadata=metadata)
    query = {"agentId": agent_id}
    keyed = _keyed(idempotency_key)
    return Request("POST", "/api/memory/threads", models.Thread, query, body, keyed, "keyed")


def get_thread(thread_id: str, *, resource_id: str | None = None) -> Request[models.Thread]:
    """One thread. With `resource_id`, `AccessDenied` where it is another owner's."""
    return Request("GET", _thread(thread_id), models.Thread, {"resourceId": resource_id}, repeat="always")


def list_threads(
    *,
    resource_id: str | None = None,
    page: int = 0,
    per_page: PerPage = 100,
    order_by: Literal["createdAt", "updatedAt"] = "createdAt",
    direction: Direction = "DESC",
    metadata: Mapping[str, Json] | None = None,
) -> Request[models.ThreadsPage]:
    """One page of an owner's threads, or of all owners'. `per_page=False` gives all; `metadata` asks for equality."""
    query = {
        "resourceId": resource_id,
        "page": page,
        "perPage": per_page,
        "orderBy": {"field": order_by, "direction": direction},
        "metadata": metadata,
    }
    return Request("GET", "/api/memory/threads", models.ThreadsPage, query, repeat="always")


def update_thread(
    thread_id: str,
    *,
    title: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    resource_id: str | None = None,
) -> Request[models.Thread]:
    """Change the title, or replace the metadata. `resource_id` is an owner check."""
    body = _given(title=title, metadata=metadata, resourceId=resource_id)
    return Request("PATCH", _thread(thread_id), models.Thread, body=body)


def delete_thread(thread_id: str, *, resource_id: str | None = None) -> Request[models.Result]:
    """Delete a thread with all that is in it."""
    return Request("DELETE", _thread(thread_id), models.Result, {"resourceId": resource_id})


def clone_thread(
    thread_id: str,
    *,
    source_resource_id: str | None = None,
    new_thread_id: str | None = None,
    resource_id: str | None = None,
    title: str | None = None,
    metadata: Mapping[str, Json] | None = None,
    message_limit: int | None = None,
    message_filter: Mapping[str, Json] | None = None,
    idempotency_key: str | None = None,
) -> Request[models.Cloned]:
    """Copy a thread with its messages. `source_resource_id` is an owner check, `resource_id` owns the copy.

    With an id of your own a repeat would meet its own copy (`Conflict`), so such a call is not sent twice.
    """
    limits = _given(messageLimit=message_limit, messageFilter=message_filter)
    body = _given(newThreadId=new_thread_id, resourceId=resource_id, title=title, metadata=metadata, options=limits)
    query = {"resourceId": source_resource_id}
    repeat = "keyed" if new_thread_id is None else "unsent"
    keyed = _keyed(idempotency_key)
    return Request("POST", f"{_thread(thread_id)}/clone", models.Cloned, query, body, keyed, repeat)


def transfer_thread(thread_id: str, to: str, *, resource_id: str | None = None) -> Request[models.Thread]:
    """Give a thread with its messages to another owner. `resource_id` checks the present one. Service key only."""
    query = {"resourceId": resource_id}
    return Request("POST", f"{_thread(thread_id)}/transfer", models.Thread, query, {"resourceId": to})


# --- messages ---


def list_messages(
    thread_id: str,
    *,
    resource_id: str | None = None,
    page: int = 0,
    per_page: PerPage = 40,
    direction: Direction = "ASC",
    filter: Mapping[str, Json] | None = None,
    include: Sequence[Mapping[str, Json]] | None = None,
    include_system_reminders: bool = False,
) -> Request[models.MessagesPage]:
    """One page of a thread's messages, oldest first within the page.

    `direction` says from which end pages are cut: with `DESC` page 0 has the newest messages.
    """
    query = {
        "resourceId": resource_id,
        "page": page,
        "perPage": per_page,
        "orderBy": {"field": "createdAt", "direction": direction},
        "filter": filter,
        "include": include,
        "includeSystemReminders": include_system_reminders,
    }
    return Request("GET", f"{_thread(thread_id)}/messages", models.MessagesPage, query, repeat="always")


def save_messages(
    messages: Sequence[Mapping[str, Json]], *, resource_id: str | None = None, idempotency_key: str | None = None
) -> Request[models.SavedMessages]:
    """Store messages in threads that exist, each as on the wire: `threadId`, `role`, `content`, `resourceId`?, `id`?"""
    query, body = {"resourceId": resource_id}, {"messages": messages}
    keyed = _keyed(idempotency_key)
    return Request("POST", "/api/memory/save-messages", models.SavedMessages, query, body, keyed, "keyed")


def delete_messages(message_ids: str | Sequence[str], *, resource_id: str | None = None) -> Request[models.Deleted]:
    """Delete messages by id, in whichever threads they are. Unknown ids are fine."""
    query, body = {"resourceId": resource_id}, {"messageIds": message_ids}
    return Request("POST", "/api/memory/messages/delete", models.Deleted, query, body)


# --- memory ---


def get_memory_status(agent_id: str) -> Request[models.Status]:
    """Whether an agent remembers."""
    return Request("GET", "/api/memory/status", models.Status, {"agentId": agent_id}, repeat="always")


def get_memory_config(agent_id: str) -> Request[models.Config]:
    """The options of an agent's memory."""
    return Request("GET", "/api/memory/config", models.Config, {"agentId": agent_id}, repeat="always")


def get_working_memory(
    thread_id: str,
    *,
    agent_id: str,
    resource_id: str | None = None,
    memory_config: Mapping[str, Json] | None = None,
) -> Request[models.ThreadMemory]:
    """What an agent keeps for a thread, or for its owner, as a turn would see it. `stored_version` tells the version.

    A missing thread is no error: `thread_exists` is false.
    """
    query = {"agentId": agent_id, "resourceId": resource_id, "memoryConfig": memory_config}
    return Request("GET", f"{_thread(thread_id)}/working-memory", models.ThreadMemory, query, repeat="always")


def update_working_memory(
    thread_id: str,
    working_memory: str | Mapping[str, Json],
    *,
    agent_id: str,
    resource_id: str | None = None,
    memory_config: Mapping[str, Json] | None = None,
    version: int | None = None,
) -> Request[models.Success]:
    """Replace what an agent keeps for a thread, or for its owner; with a schema also by an object.

    With `version` only that one is replaced: `VersionMismatch` where another is stored.
    """
    query = {"agentId": agent_id}
    body = {"workingMemory": working_memory, **_given(resourceId=resource_id, memoryConfig=memory_config)}
    place = f"{_thread(thread_id)}/working-memory"
    return Request("POST", place, models.Success, query, body, _if_match(version))


def get_resource_memory(resource_id: str, *, agent_id: str | None = None) -> Request[models.ResourceMemory]:
    """The working memory of an owner, with its version and the last changes."""
    query = {"agentId": agent_id}
    return Request("GET", _resource(resource_id), models.ResourceMemory, query, repeat="always")


def replace_resource_memory(
    resource_id: str,
    working_memory: str | Mapping[str, Json],
    *,
    agent_id: str | None = None,
    version: int | None = None,
) -> Request[models.ResourceMemory]:
    """Replace the working memory of an owner; an empty text clears it. `agent_id` applies that agent's rules.

    With `version` only that one is replaced: `VersionMismatch` where another is stored.
    """
    query, body = {"agentId": agent_id}, {"workingMemory": working_memory}
    return Request("PUT", _resource(resource_id), models.ResourceMemory, query, body, _if_match(version))


def patch_resource_memory(
    resource_id: str,
    patch: Mapping[str, Json],
    *,
    agent_id: str | None = None,
    version: int | None = None,
) -> Request[models.ResourceMemory]:
    """Merge into the working memory of an owner: objects merge deeply, None deletes, lists are replaced.

    With `version` only that one is changed: `VersionMismatch` where another is stored.
    """
    query = {"agentId": agent_id}
    return Request("PATCH", _resource(resource_id), models.ResourceMemory, query, patch, _if_match(version))


_CAMEL = {
    name: head + "".join(map(str.capitalize, rest))
    for name in TurnOptions.__annotations__
    for head, *rest in [name.split("_")]
}


def _given(**fields: Json) -> dict[str, Json]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _thread(thread_id: str) -> str:
    return path("/api/memory/threads/{}", thread_id)


def _resource(resource_id: str) -> str:
    return path("/api/memory/resources/{}/working-memory", resource_id)


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}


def _keyed(key: str | None) -> dict[str, str]:
    """The header by which the server recognises a repeat: one key per call, the same in all its attempts."""
    return {"Idempotency-Key": key or str(uuid.uuid4())}
