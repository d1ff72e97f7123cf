"""`POST /api/agents/{agentId}/generate`: one turn, answered in one piece (spec-http 2.2)."""

from dataclasses import replace
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from threadkeep import ids, jsontext, schemas
from threadkeep.agents.speakers import MAX_SPEAKER, Speaker
from threadkeep.config import settings
from threadkeep.errors import AccessDenied, InvalidInput, Issue
from threadkeep.http import reply, wire
from threadkeep.http.repeats import key_of
from threadkeep.http.route import Call, Route, Table
from threadkeep.jsontext import Json
from threadkeep.memory.history import DELEGATES
from threadkeep.memory.options import MemoryOptions, merged
from threadkeep.memory.working_memory.tool import tool_form
from threadkeep.models.port import ModelSettings
from threadkeep.turn.context import SPEAKER_KEY, RequestContext
from threadkeep.turn.delegation.options import Limits
from threadkeep.turn.input import input_messages
from threadkeep.turn.receipts import repeatable
from threadkeep.turn.request import Conversation, Repeatable, Services, TurnAgent, TurnRequest
from threadkeep.turn.run import run_turn
from threadkeep.turn.structured import StructuredOutput
from threadkeep.turn.tools import Tool

MAX_STEPS = 100
MAX_CLIENT_TOOLS = 128


class ThreadRef(wire.Body):
    """Title and metadata are used where the turn creates the thread."""

    id: wire.Id
    title: Annotated[str, Field(max_length=wire.MAX_TITLE)] = ""
    metadata: wire.Metadata | None = None


def _spelling(given: Any) -> str:
    return "object" if isinstance(given, dict | wire.Body) else "text"


Thread = Annotated[Annotated[wire.Id, Tag("text")] | Annotated[ThreadRef, Tag("object")], Discriminator(_spelling)]


class MemoryBody(wire.Body):
    """`resource` may be absent when the caller's token names it. `options` change the memory for this call."""

    thread: Thread | None = None
    resource: wire.Id | None = None
    options: dict[str, Json] | None = None


class Settings(wire.Body):
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stop_sequences: list[str] = []


class NamedTool(wire.Body):
    type: Literal["tool"]
    tool_name: str


Choice = Literal["auto", "none", "required"]
ToolChoice = Annotated[Annotated[Choice, Tag("text")] | Annotated[NamedTool, Tag("object")], Discriminator(_spelling)]


ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class ClientTool(wire.Body):
    """A tool that the caller runs. The model calls it by its key in `clientTools`."""

    id: str | None = None
    description: str = ""
    input_schema: dict[str, Json] | None = None


class StructuredBody(wire.Body):
    """`schema` is a JSON Schema. `errorStrategy` says what happens to an answer that breaks it."""

    schema_: Annotated[dict[str, Json], Field(alias="schema")]
    instructions: str | None = None
    error_strategy: Literal["strict", "warn", "fallback"] = "strict"
    fallback_value: Json = None


def _one_text(given: Json) -> Json:
    """Of a text, a system message, or several of these: one text."""
    rows = jsontext.as_array(given)
    if rows is None:
        return None if given is None else _system_text(given)
    return "\n\n".join(map(_system_text, rows))


def _system_text(given: Json) -> str:
    message = jsontext.as_object(given) or {"role": "system", "content": given}
    text = message.get("content")
    if message.get("role") != "system" or not isinstance(text, str):
        raise ValueError(f"expected a text, a system message, or an array of these, received {jsontext.kind(given)}")
    return text


_SYSTEM_TEXT: dict[str, Json] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"const": "system"}, "content": {"type": "string"}},
        },
    ]
}
SystemTexts = Annotated[
    str | None,
    BeforeValidator(_one_text),
    WithJsonSchema({"anyOf": [*_SYSTEM_TEXT["anyOf"], {"type": "array", "items": _SYSTEM_TEXT}, {"type": "null"}]}),
]


class SpeakerBody(wire.Body):
    """Who says the messages, where several people share a thread (MUT-2)."""

    author_id: Annotated[str, Field(min_length=1, max_length=MAX_SPEAKER)]
    author_name: Annotated[str, Field(max_length=MAX_SPEAKER)] = ""
    functional_role: Annotated[str, Field(max_length=MAX_SPEAKER)] = ""


class LimitsBody(wire.Body):
    """How far the run may go; each can only narrow what the agent allows."""

    delegations: Annotated[int, Field(ge=0)] | None = None
    depth: Annotated[int, Field(ge=0)] | None = None
    tokens: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None


class GenerateBody(wire.Body):
    """`maxSteps` 0 means the agent's own. With `requireToolApproval` every tool of the agent needs an approval.

    Only a service may name the `speaker`; that of a user's token is the user (MUT-7).
    """

    messages: Json
    memory: MemoryBody | None = None
    instructions: SystemTexts = None
    system: SystemTexts = None
    context: Json = None
    max_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    tool_choice: ToolChoice = "auto"
    active_tools: list[str] | None = None
    model_settings: Settings | None = None
    run_id: wire.Id | None = None
    request_context: dict[str, Json] = {}
    client_tools: Annotated[dict[ToolName, ClientTool], Field(max_length=MAX_CLIENT_TOOLS)] | None = None
    structured_output: StructuredBody | None = None
    require_tool_approval: bool = False
    speaker: SpeakerBody | None = None
    limits: LimitsBody | None = None


async def generate(call: Call[wire.ContextQuery, GenerateBody]) -> dict[str, Json]:
    """Run one turn of an agent and answer with its text, steps and stored messages."""
    agent, request = await turn_of(call, "generate", settings().turn_deadline_seconds)
    return reply.generated(
        await run_turn(agent, request, Services(call.app.storage, call.app.models, call.app.delegator))
    )


async def turn_of(
    call: Call[wire.ContextQuery, GenerateBody], route: str, deadline: float | None
) -> tuple[TurnAgent, TurnRequest]:
    """The agent as it is for this request, and the turn that the body asks for. `deadline` is in seconds.

    A request is the repeat of another only on the same `route`.
    """
    agent = call.agent()
    messages = input_messages(_given(call.body.messages), "messages")
    conversation = _conversation(call)
    request_context = RequestContext.from_client(call.body.request_context | call.query.request_context)  # D-RC-2
    if (speaker := _speaker(call)) is not None:
        request_context[SPEAKER_KEY] = speaker.to_json()
    resolved = await agent.resolve(request_context)
    options = _options(resolved, call.body)
    return resolved, TurnRequest(
        messages=messages,
        run_id=call.body.run_id or ids.new_id(),
        conversation=conversation,
        options=options,
        context=input_messages(call.body.context, "context") if call.body.context is not None else (),
        instructions=call.body.instructions,
        system=call.body.system,
        max_steps=call.body.max_steps or None,
        tool_choice=_tool_choice(call.body, resolved, options),
        active_tools=None if call.body.active_tools is None else frozenset(call.body.active_tools),
        settings=_settings(call.body.model_settings),
        deadline=deadline,
        request_context=request_context,
        client_tools=_client_tools(call.body),
        ask_first=call.body.require_tool_approval,
        structured_output=_structured_output(call.body.structured_output),
        repeat=_repeat(call, conversation, route),
        memory_options=call.body.memory.options if call.body.memory else None,
        limits=_limits(call.body.limits, resolved),
    )


def _speaker(call: Call[Any, GenerateBody]) -> Speaker | None:
    """Who says the messages. Raises `AccessDenied` for a user who wants to speak for somebody (MUT-7)."""
    given = call.body.speaker
    if call.identity.kind == "service":
        return Speaker(given.author_id, given.author_name, given.functional_role) if given else None
    if given is not None:
        raise AccessDenied("Access denied: only a service may name the speaker")
    return Speaker(call.identity.resource) if call.identity.resource else None


def _client_tools(body: GenerateBody) -> tuple[Tool, ...]:
    """The caller's tools. Raises `InvalidInput` naming each whose schema is no usable JSON Schema of an object."""
    tools: list[Tool] = []
    issues: list[Issue] = []
    for name, given in (body.client_tools or {}).items():
        schema = given.input_schema or {"type": "object", "properties": {}}
        if reason := schemas.unusable(schema):
            issues.append(Issue(f"clientTools.{name}.inputSchema", f"is no usable JSON Schema: {reason}"))
        tools.append(Tool(name, given.id or name, given.description, schema, run=None))
    if issues:
        raise InvalidInput(*issues)
    return tuple(tools)


def _structured_output(given: StructuredBody | None) -> StructuredOutput | None:
    if given is None:
        return None
    return StructuredOutput(given.schema_, given.instructions, given.error_strategy, given.fallback_value)


def _given(messages: Json) -> Json:
    if messages in ("", [], None):
        raise InvalidInput(Issue("messages", "must not be empty"), summary='Argument "messages" is required')
    return messages


def _conversation(call: Call[Any, GenerateBody]) -> Conversation | None:
    """Whose memory the turn uses; None without any. Both thread and resource are needed (TH-17)."""
    memory = call.body.memory
    if memory is None:
        return None
    thread = ThreadRef(id=memory.thread) if isinstance(memory.thread, str) else memory.thread
    if thread is None:
        if memory.resource is None:
            return None
        _refuse("memory.thread", "a thread is required when using memory, received undefined")
    resource = call.identity.owner(memory.resource)
    if resource is None:
        _refuse("memory.resource", "a resource is required when using memory, in the body or in the caller's token")
    return Conversation(thread.id, resource, thread.title, thread.metadata)


def _repeat(call: Call[Any, GenerateBody], conversation: Conversation | None, route: str) -> Repeatable | None:
    """How this request is recognised when it is sent again; only what is stored needs to be (DESIGN 4)."""
    if conversation is None:
        return None
    return repeatable(
        owner=conversation.resource_id,
        route=f"{route}/{call.path['agentId']}",
        thread_id=conversation.thread_id,
        body=call.raw,
        arrived=call.arrived,
        key=key_of(call.headers),
        run_id=call.body.run_id,
    )


def _options(agent: TurnAgent, body: GenerateBody) -> MemoryOptions:
    base = agent.memory.options if agent.memory else MemoryOptions()
    return merged(base, body.memory.options if body.memory else None)


def _tool_choice(body: GenerateBody, agent: TurnAgent, options: MemoryOptions) -> str:
    if isinstance(body.tool_choice, str):
        return body.tool_choice
    own = (tool_form(options.working_memory).name,) if agent.memory and options.working_memory.enabled else ()
    delegating = (DELEGATES + key for key in agent.agents)
    known = (*agent.tools, *delegating, *own, *(body.client_tools or {}))
    if body.tool_choice.tool_name not in known:
        _refuse("toolChoice.toolName", f"there is no such tool, only {', '.join(known) or 'none'}")
    return body.tool_choice.tool_name


def _limits(given: LimitsBody | None, agent: TurnAgent) -> Limits | None:
    """The limits of the call; what it does not name is the agent's."""
    return replace(agent.limits, **given.model_dump(exclude_none=True)) if given else None


def _settings(given: Settings | None) -> ModelSettings | None:
    if given is None:
        return None
    return ModelSettings(given.temperature, given.top_p, given.max_output_tokens, tuple(given.stop_sequences))


def _refuse(field: str, message: str) -> NoReturn:
    raise InvalidInput(Issue(field, message))


def _route(path: str) -> Route[wire.ContextQuery, GenerateBody, Any]:
    return Route(
        "POST",
        path,
        "generate",
        generate,
        wire.ContextQuery,
        GenerateBody,
        reply.Generated,
        "Run one turn of an agent and wait for its answer",
        errors=(403, 404, 409, 413, 422, 424, 503),
    )


ROUTES: Table = (_route("/api/agents/{agentId}/generate"), _route("/api/agents/{agentId}/generate/vnext"))
