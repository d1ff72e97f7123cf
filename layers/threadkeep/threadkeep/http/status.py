"""Whether and how an agent remembers (spec-http 2.3)."""

from typing import TYPE_CHECKING, Any, NoReturn

from threadkeep.errors import InvalidInput, NotFound
from threadkeep.http import wire
from threadkeep.http.logs import logger
from threadkeep.http.route import Call, NoBody, Route
from threadkeep.jsontext import Json
from threadkeep.memory.memory import Memory
from threadkeep.memory.options import MemoryOptions, TitleOptions
from threadkeep.memory.working_memory.form import form_of
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.turn.context import RequestContext, value_of

if TYPE_CHECKING:
    from threadkeep.agents import Agent


class StatusQuery(wire.AgentQuery):
    """`resourceId` and `threadId` are taken and not needed."""


class ConfigQuery(wire.ContextQuery, wire.AgentQuery):
    """Memory may depend on the request context."""


class Status(wire.Reply):
    """`result` is false for an agent that has no memory, or does not exist."""

    result: bool
    memory_type: str = ""


class Config(wire.Reply):
    """The options of an agent's memory, as they were given or stand by default; null without memory."""

    config: dict[str, Json] | None


class BufferBody(wire.Body):
    """`resourceId` and `threadId` are taken and not needed."""

    agent_id: wire.Id


class Observations(wire.Reply):
    """What an agent has observed; no agent observes yet."""

    record: dict[str, Json] | None


async def memory_status(call: Call[StatusQuery, None]) -> Status:
    agent = call.app.registry.get(call.query.agent_id)
    if agent is None or agent.memory is None:
        return Status(result=False)
    return Status(result=True, memory_type="local")


async def memory_config(call: Call[ConfigQuery, None]) -> Config:
    agent = call.app.registry.get(call.query.agent_id)
    memory = await _memory(agent, RequestContext.from_client(call.query.request_context)) if agent else None
    return Config(config=_config(memory.options) if memory else None)


async def _memory(agent: "Agent", context: RequestContext) -> Memory | None:
    """The agent's memory; None where its function needs a fuller context than a viewer has."""
    try:
        return await value_of(agent.memory, context)
    except Exception:
        logger().warning("memory cannot be shown", exc_info=True, extra={"fields": {"agentId": agent.id}})
        return None


async def observational_memory(call: Call[StatusQuery, None]) -> NoReturn:
    """Raises `NotFound`, or `InvalidInput`: no agent observes."""
    _not_observed(call, call.query.agent_id, "query parameters")


async def observational_buffer_status(call: Call[wire.Query, BufferBody]) -> NoReturn:
    """Raises as `observational_memory` does."""
    _not_observed(call, call.body.agent_id, "request body")


def _not_observed(call: Call[Any, Any], agent_id: str, where: str) -> NoReturn:
    if call.app.registry.get(agent_id) is None:
        raise NotFound("Agent not found")
    raise InvalidInput(where=where, summary="Observational Memory is not enabled for this agent")


def _config(options: MemoryOptions) -> dict[str, Json]:
    given = options.model_dump(by_alias=True, exclude_unset=True, exclude={"generate_title", "working_memory"})
    return {
        "semanticRecall": False,
        "workingMemory": _working_memory(options.working_memory),
        "observationalMemory": {"enabled": False},
        **given,
        "lastMessages": options.last_messages or False,
        "generateTitle": _titles(options.generate_title),
    }


def _working_memory(options: WorkingMemoryOptions) -> dict[str, Json]:
    """With the template or schema that is in use; the rest as it was given."""
    if not options.enabled:
        return {"enabled": False}
    given = options.model_dump(by_alias=True, exclude_unset=True)
    form = form_of(options)
    if form.schema is not None:
        return {**given, "schema": form.schema}
    return {**given, "template": options.template if (options.template or "").strip() else form.content}


def _titles(options: TitleOptions | None) -> Json:
    """Instructions that are a function cannot be shown."""
    if options is None:
        return False
    given = options.model_dump(by_alias=True, exclude_unset=True)
    return {name: value for name, value in given.items() if not callable(value)} or True


ROUTES = (
    Route(
        method="GET",
        path="/api/memory/status",
        function="threads",
        operation=memory_status,
        query=StatusQuery,
        body=NoBody,
        reply=Status,
        summary="Tell whether an agent remembers",
    ),
    Route(
        method="GET",
        path="/api/memory/config",
        function="threads",
        operation=memory_config,
        query=ConfigQuery,
        body=NoBody,
        reply=Config,
        summary="Read the options of an agent's memory",
    ),
    Route(
        method="GET",
        path="/api/memory/observational-memory",
        function="threads",
        operation=observational_memory,
        query=StatusQuery,
        body=NoBody,
        reply=Observations,
        summary="Refuse, as no agent observes",
        errors=(404,),
    ),
    Route(
        method="POST",
        path="/api/memory/observational-memory/buffer-status",
        function="threads",
        operation=observational_buffer_status,
        query=wire.Query,
        body=BufferBody,
        reply=Observations,
        summary="Refuse, as no agent observes",
        errors=(404,),
    ),
)
