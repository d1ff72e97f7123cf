"""Tools called directly, without a model (spec-http 2.2). They run in `generate`'s function: with its permissions."""

import asyncio
from collections.abc import Iterable
from typing import Any

from threadkeep import ids, jsontext
from threadkeep.config import settings
from threadkeep.errors import DeadlineExceeded, NotFound, ToolFailed
from threadkeep.http import wire
from threadkeep.http.agents import resolved_or_bare
from threadkeep.http.route import Call, Route, Table
from threadkeep.jsontext import Json
from threadkeep.models.port import ToolCall
from threadkeep.turn.context import RequestContext
from threadkeep.turn.request import TurnAgent
from threadkeep.turn.tools import Tool, ToolContext, run_call


class RunQuery(wire.Query):
    """`runId` is handed to the tool."""

    run_id: wire.QueryId = None


class ExecuteBody(wire.Body):
    """`data` are the arguments of the tool."""

    data: Json
    request_context: dict[str, Json] = {}


async def execute_agent_tool(call: Call[RunQuery, ExecuteBody]) -> Json:
    """Run one tool of an agent. A call that needs approval may run: the person who asks gives it."""
    agent, context = call.agent(), RequestContext.from_client(call.body.request_context)
    return await _execute(call, context, [await agent.resolve(context)])


async def execute_tool(call: Call[RunQuery, ExecuteBody]) -> Json:
    """Run the first tool of this id that an agent has."""
    context = RequestContext.from_client(call.body.request_context)
    agents = [await resolved_or_bare(agent, context) for agent in call.app.registry.listed()]
    return await _execute(call, context, agents)


async def _execute(call: Call[RunQuery, ExecuteBody], context: RequestContext, agents: Iterable[TurnAgent]) -> Json:
    agent, tool = _found(call.path["toolId"], agents)
    args = jsontext.as_object(call.body.data)
    invalid = jsontext.dumps(call.body.data) if args is None else None
    wanted = ToolCall(ids.new_id(), tool.id, args or {}, invalid)
    run_id, owner = call.query.run_id or ids.new_id(), call.identity.owner(None)
    caller = ToolContext(agent.id, run_id, wanted.id, None, owner, context)
    deadline = settings().turn_deadline_seconds
    try:
        async with asyncio.timeout(deadline):
            done = await run_call(tool, wanted, caller)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The tool took longer than {deadline:g} s") from error
    if done is None:
        raise NotFound("Tool not found")
    if done.error is not None:
        raise ToolFailed(done.error)
    return done.result


def _found(tool_id: str, agents: Iterable[TurnAgent]) -> tuple[TurnAgent, Tool]:
    for agent in agents:
        for tool in agent.tools.values():
            if tool.id == tool_id:
                return agent, tool
    raise NotFound("Tool not found")


def _route(path: str, operation: Any, summary: str) -> Route[RunQuery, ExecuteBody, Any]:
    return Route("POST", path, "generate", operation, RunQuery, ExecuteBody, object, summary, errors=(404, 409, 424))


ROUTES: Table = (
    _route("/api/agents/{agentId}/tools/{toolId}/execute", execute_agent_tool, "Run one of an agent's tools"),
    _route("/api/tools/{toolId}/execute", execute_tool, "Run a tool"),
)
