"""The replies of the API, generated from docs/openapi.json by generate_models.py. Do not edit."""

from __future__ import annotations

from typing import Any, Literal

from threadkeep_client.reply import Reply


class Aborting(Reply):
    aborted: bool


class BrowserSession(Reply):
    has_session: bool
    screencast_available: bool


class BuilderSettings(Reply):
    """
    Whether agents can be made in Studio: they cannot, agents are code.
    """

    enabled: bool
    model_policy: dict[str, bool]


class Config(Reply):
    """
    The options of an agent's memory, as they were given or stand by default; null without memory.
    """

    config: dict[str, Any] | None


class Deciding(Reply):
    accepted: bool
    run_id: str
    tool_call_id: str


class Deleted(Reply):
    success: bool
    message: str


class Generated(Reply):
    """
    What clients read of a run; steps, response and messages hold more (see the guide).
    """

    text: str
    finish_reason: str
    usage: dict[str, Any]
    total_usage: dict[str, Any]
    steps: list[dict[str, Any]]
    tool_calls: list[dict[str, Any]]
    tool_results: list[dict[str, Any]]
    reasoning: list[Any]
    sources: list[Any]
    files: list[Any]
    warnings: list[Any]
    provider_metadata: dict[str, Any]
    request: dict[str, Any]
    response: dict[str, Any]
    used_fallback_value: bool
    run_id: str
    messages: list[dict[str, Any]]
    remembered_messages: list[dict[str, Any]]
    tripwire: dict[str, Any] = {}
    suspend_payload: dict[str, Any] = {}
    resume_schema: str = ""
    object: Any = None


class Health(Reply):
    success: bool


class Installed(Reply):
    """
    The switches by which Studio shows its pages. It looks up every package on npm, so none is named.
    """

    packages: list[Any]
    is_dev: bool
    cms_enabled: bool
    live_kit_connection_route_enabled: bool
    observability_enabled: bool
    storage_type: str


class Listener(Reply):
    enabled: bool


class Login(Reply):
    """
    `enabled` tells whether there is a page to sign in on: there is none, credentials come as a header.
    """

    enabled: bool
    login: None


class Message(Reply):
    """
    `content` is the stored form, "format 2".
    """

    id: str
    role: str
    created_at: str
    thread_id: str
    resource_id: str
    content: dict[str, Any]
    type: str = ""


class MessagesPage(Reply):
    messages: list[Message]
    total: int
    page: int
    per_page: int | Literal[False]
    has_more: bool
    ui_messages: None


class Observations(Reply):
    """
    What an agent has observed; no agent observes yet.
    """

    record: dict[str, Any] | None


class Permissions(Reply):
    patterns: list[str]


class ProcessorView(Reply):
    id: str
    name: str


class Providers(Reply):
    providers: list[Any]


class Result(Reply):
    result: str


class Revision(Reply):
    version: int
    updated_at: str
    writer: str


class RunDelegation(Reply):
    """
    One delegation. `text` is the beginning of what the sub-agent said, `duration` in milliseconds.
    """

    key: str
    tool_call_id: str
    state: Literal["running", "succeeded", "failed"]
    sub_agent_thread_id: str | None = None
    text: str = ""
    usage: dict[str, Any] = {}
    duration: int = 0


class RunError(Reply):
    name: str
    message: str


class RunResult(Reply):
    """
    What came of a run. `object` is that of a structured output, `tripwire` why a processor stopped the run.
    """

    text: str
    finish_reason: str
    usage: dict[str, Any]
    message_ids: list[str]
    object: Any = None
    tripwire: dict[str, Any] = {}


class RunStep(Reply):
    """
    One step. What the agent's processors may still take out of it is not shown until the run is over.
    """

    text: str
    tool_calls: list[dict[str, Any]]
    finish_reason: str
    usage: dict[str, Any]


class RunView(Reply):
    run_id: str
    agent_id: str
    state: Literal["running", "succeeded", "failed", "cancelled"]
    created_at: str
    updated_at: str
    thread_id: str = ""
    resource_id: str = ""
    error: RunError | None = None
    steps: list[RunStep]
    delegations: list[RunDelegation]
    result: RunResult | None = None


class SavedMessages(Reply):
    """
    What was stored, in the request's order. System messages and transient signals are not (case H19), nor are
    calls of `updateWorkingMemory` and whole `<working_memory>` spans of text (MS-5).
    """

    messages: list[Message]


class Signal(Reply):
    id: str
    type: str
    tag_name: str
    contents: Any
    metadata: dict[str, Any] = {}
    created_at: str
    accepted_at: str


class Started(Reply):
    run_id: str


class Status(Reply):
    """
    `result` is false for an agent that has no memory, or does not exist.
    """

    result: bool
    memory_type: str = ""


class SubAgent(Reply):
    """
    An agent to which another delegates; it is keyed by what the tool `agent-<key>` calls it.
    """

    id: str
    name: str


class Success(Reply):
    success: bool


class Template(Reply):
    """
    What an empty memory looks like: Markdown, or the JSON text of an empty object of the schema (WM-24).
    """

    format: Literal["markdown", "json"]
    content: str


class Thread(Reply):
    """
    `metadata` is left out where a thread that has none is created, and null where it is read.
    """

    id: str
    resource_id: str
    title: str
    created_at: str
    updated_at: str
    metadata: dict[str, Any] | None = None


class ThreadMemory(Reply):
    """
    The working memory that a turn on the thread would see; null where nothing is stored (WM-5).
    """

    working_memory: str | None
    source: Literal["thread", "resource"]
    working_memory_template: Template | None
    thread_exists: bool


class ThreadsPage(Reply):
    """
    `perPage` is false where all were asked for.
    """

    threads: list[Thread]
    total: int
    page: int
    per_page: int | Literal[False]
    has_more: bool


class ToolView(Reply):
    """
    A tool. Its schemas are JSON text: `{"json": <JSON Schema>}`.
    """

    id: str
    description: str
    require_approval: bool
    input_schema: str = ""
    output_schema: str = ""


class User(Reply):
    id: str


class WaitingCall(Reply):
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    requires_approval: bool


class WaitingRun(Reply):
    run_id: str
    status: str
    thread_id: str
    resource_id: str
    suspended_at: str
    tool_calls: list[WaitingCall]


class WaitingRuns(Reply):
    runs: list[WaitingRun]
    total: int


class AgentView(Reply):
    """
    An agent. `id` and `hasDraft` are only in the list. What Threadkeep has no notion of is empty.

    Sub-agents stand in `agents`; the tools by which a model delegates to them are not among `tools`.
    """

    name: str
    description: str
    instructions: str
    agents: dict[str, SubAgent]
    tools: dict[str, ToolView]
    provider: str
    model_id: str
    supports_memory: bool
    workflows: dict[str, Any]
    skills: list[Any]
    workspace_tools: list[Any]
    browser_tools: list[Any]
    has_browser: bool
    input_processors: list[ProcessorView]
    output_processors: list[ProcessorView]
    model_version: str
    default_options: dict[str, Any]
    default_generate_options_legacy: dict[str, Any]
    default_stream_options_legacy: dict[str, Any]
    source: str
    id: str = ""
    has_draft: bool = False


class Cloned(Reply):
    """
    `messageIdMap` maps ids of the source to those of the copies.

    `clonedMessages` may end before the last copy where the reply would be too large; then `hasMore` is true.
    """

    thread: Thread
    cloned_messages: list[Message]
    message_id_map: dict[str, str]
    has_more: bool = False


class ResourceMemory(Reply):
    """
    `version` is 0 where nothing was ever written. `revisions` are the last ones, newest first.
    """

    working_memory: str | None
    version: int
    updated_at: str | None
    writer: str | None
    revisions: list[Revision]


class RunBrief(Reply):
    run_id: str
    agent_id: str
    state: Literal["running", "succeeded", "failed", "cancelled"]
    created_at: str
    updated_at: str
    thread_id: str = ""
    resource_id: str = ""
    error: RunError | None = None


class Runs(Reply):
    runs: list[RunBrief]


class Sending(Reply):
    accepted: bool
    run_id: str
    signal: Signal
