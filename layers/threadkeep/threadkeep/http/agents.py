"""Agents and their tools, as clients show them (spec-http 2.2)."""

from typing import TYPE_CHECKING

from threadkeep import jsontext
from threadkeep.errors import NotFound
from threadkeep.http import wire
from threadkeep.http.logs import logger
from threadkeep.http.route import Call, NoBody, Route
from threadkeep.jsontext import Json
from threadkeep.turn.context import RequestContext
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.request import TurnAgent
from threadkeep.turn.tools import Tool

if TYPE_CHECKING:
    from threadkeep.agents import Agent


class AgentsQuery(wire.ContextQuery):
    """`partial` leaves out the schemas of tools."""

    partial: bool = False


class ToolView(wire.Reply):
    """A tool. Its schemas are JSON text: `{"json": <JSON Schema>}`."""

    id: str
    description: str
    require_approval: bool
    input_schema: str = ""
    output_schema: str = ""


class SubAgent(wire.Reply):
    """An agent to which another delegates; it is keyed by what the tool `agent-<key>` calls it."""

    id: str
    name: str


class ProcessorView(wire.Reply):
    id: str
    name: str


class AgentView(wire.Reply):
    """An agent. `id` and `hasDraft` are only in the list. What Threadkeep has no notion of is empty.

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
    workflows: dict[str, Json]
    skills: list[Json]
    workspace_tools: list[Json]
    browser_tools: list[Json]
    has_browser: bool
    input_processors: list[ProcessorView]
    output_processors: list[ProcessorView]
    model_version: str
    default_options: dict[str, Json]
    default_generate_options_legacy: dict[str, Json]
    default_stream_options_legacy: dict[str, Json]
    source: str
    id: str = ""
    has_draft: bool = False


class Providers(wire.Reply):
    providers: list[Json]


class Listener(wire.Reply):
    enabled: bool


class BrowserSession(wire.Reply):
    has_session: bool
    screencast_available: bool


async def list_agents(call: Call[AgentsQuery, None]) -> dict[str, AgentView]:
    """Every agent by its id; agents that only work under a supervisor are not in it."""
    views: dict[str, AgentView] = {}
    for agent in call.app.registry.listed():
        resolved = await resolved_or_bare(agent, _context(call))
        listed = {"id": agent.id, "has_draft": False}
        views[agent.id] = _view(agent, resolved, schemas=not call.query.partial).model_copy(update=listed)
    return views


async def get_agent(call: Call[wire.ContextQuery, None]) -> AgentView:
    agent = call.agent()
    return _view(agent, await resolved_or_bare(agent, _context(call)), schemas=True)


async def list_tools(call: Call[wire.ContextQuery, None]) -> dict[str, ToolView]:
    """The tools of the listed agents by their own ids; where they have different tools of one id, the first agent's."""
    return {tool.id: _tool(tool, schemas=True) for tool in await _tools(call)}


async def get_any_tool(call: Call[wire.ContextQuery, None]) -> ToolView:
    """A tool by its own id, whichever listed agent has it."""
    for tool in await _tools(call):
        if tool.id == call.path["toolId"]:
            return _tool(tool, schemas=True)
    raise NotFound("Tool not found")


async def _tools(call: Call[wire.ContextQuery, None]) -> list[Tool]:
    found: dict[str, Tool] = {}
    for agent in call.app.registry.listed():
        for tool in (await resolved_or_bare(agent, _context(call))).tools.values():
            found.setdefault(tool.id, tool)
    return list(found.values())


async def get_tool(call: Call[wire.ContextQuery, None]) -> ToolView:
    """One tool by its own id (not by the name that the model calls)."""
    resolved = await resolved_or_bare(call.agent(), _context(call))
    for tool in resolved.tools.values():
        if tool.id == call.path["toolId"]:
            return _tool(tool, schemas=True)
    raise NotFound("Tool not found")


async def list_providers(call: Call[wire.Query, None]) -> Providers:
    """Model providers to choose from: none, an agent's model is set where it is written."""
    return Providers(providers=[])


async def list_speakers(call: Call[wire.Query, None]) -> list[Json]:
    """The voices of an agent: it has none."""
    call.agent()
    return []


async def get_listener(call: Call[wire.Query, None]) -> Listener:
    """Whether an agent understands speech: it does not."""
    call.agent()
    return Listener(enabled=False)


async def get_browser_session(call: Call[wire.Query, None]) -> BrowserSession:
    """Whether an agent has a browser open: it has none."""
    call.agent()
    return BrowserSession(has_session=False, screencast_available=False)


def _context(call: Call[AgentsQuery, None] | Call[wire.ContextQuery, None]) -> RequestContext:
    return RequestContext.from_client(call.query.request_context)


async def resolved_or_bare(agent: "Agent", context: RequestContext) -> TurnAgent:
    """The agent for this context, or a bare one where its settings need a fuller context than a viewer has."""
    try:
        return await agent.resolve(context)
    except Exception:  # settings are the deployer's functions: one that fails must not hide the other agents
        logger().warning("agent cannot be shown in full", exc_info=True, extra={"fields": {"agentId": agent.id}})
        return TurnAgent(id=agent.id, instructions="", model="", memory=None, tools={})


def _view(agent: "Agent", resolved: TurnAgent, *, schemas: bool) -> AgentView:
    provider, _, model_id = resolved.model.partition("/") if isinstance(resolved.model, str) else ("custom", "", "")
    return AgentView(
        name=agent.display_name,
        description=agent.description,
        instructions=resolved.instructions,
        agents={key: SubAgent(id=sub.id, name=sub.name) for key, sub in resolved.agents.items()},
        tools={name: _tool(tool, schemas=schemas) for name, tool in resolved.tools.items()},
        provider=provider,
        model_id=model_id,
        supports_memory=agent.memory is not None,
        workflows={},
        skills=[],
        workspace_tools=[],
        browser_tools=[],
        has_browser=False,
        input_processors=[_processor(p) for p in resolved.input_processors],
        output_processors=[_processor(p) for p in resolved.output_processors],
        model_version="v2",
        default_options={},
        default_generate_options_legacy={},
        default_stream_options_legacy={},
        source="code",
    )


def _processor(processor: Processor) -> ProcessorView:
    return ProcessorView(id=processor.id, name=processor.display_name)


def _tool(tool: Tool, *, schemas: bool) -> ToolView:
    texts: dict[str, str] = {}
    if schemas:
        given = {"input_schema": tool.parameters, "output_schema": tool.output_schema}
        texts = {name: jsontext.dumps({"json": schema}) for name, schema in given.items() if schema is not None}
    return ToolView(id=tool.id, description=tool.description, require_approval=tool.require_approval, **texts)


ROUTES = (
    Route(
        method="GET",
        path="/api/agents",
        function="agents",
        operation=list_agents,
        query=AgentsQuery,
        body=NoBody,
        reply=dict[str, AgentView],
        summary="List agents",
    ),
    Route(
        method="GET",
        path="/api/agents/providers",
        function="agents",
        operation=list_providers,
        query=wire.Query,
        body=NoBody,
        reply=Providers,
        summary="List model providers",
    ),
    Route(
        method="GET",
        path="/api/agents/{agentId}",
        function="agents",
        operation=get_agent,
        query=wire.ContextQuery,
        body=NoBody,
        reply=AgentView,
        summary="Read an agent",
        errors=(404,),
    ),
    Route(
        method="GET",
        path="/api/agents/{agentId}/tools/{toolId}",
        function="agents",
        operation=get_tool,
        query=wire.ContextQuery,
        body=NoBody,
        reply=ToolView,
        summary="Read one of an agent's tools",
        errors=(404,),
    ),
    Route(
        method="GET",
        path="/api/tools",
        function="agents",
        operation=list_tools,
        query=wire.ContextQuery,
        body=NoBody,
        reply=dict[str, ToolView],
        summary="List tools",
    ),
    Route(
        method="GET",
        path="/api/tools/{toolId}",
        function="agents",
        operation=get_any_tool,
        query=wire.ContextQuery,
        body=NoBody,
        reply=ToolView,
        summary="Read a tool",
        errors=(404,),
    ),
    Route(
        method="GET",
        path="/api/agents/{agentId}/voice/speakers",
        function="agents",
        operation=list_speakers,
        query=wire.Query,
        body=NoBody,
        reply=list[Json],
        summary="List an agent's voices",
        errors=(404,),
    ),
    Route(
        method="GET",
        path="/api/agents/{agentId}/voice/listener",
        function="agents",
        operation=get_listener,
        query=wire.Query,
        body=NoBody,
        reply=Listener,
        summary="Tell whether an agent listens",
        errors=(404,),
    ),
    Route(
        method="GET",
        path="/api/agents/{agentId}/browser/session",
        function="agents",
        operation=get_browser_session,
        query=wire.Query,
        body=NoBody,
        reply=BrowserSession,
        summary="Tell whether an agent has a browser open",
        errors=(404,),
    ),
)
