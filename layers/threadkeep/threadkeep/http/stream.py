"""`POST /api/agents/{agentId}/stream` and its kin: one turn, told while it goes on (spec-http 3)."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from threadkeep.config import settings
from threadkeep.http import wire
from threadkeep.http.chunks import Chunk, Chunks
from threadkeep.http.generate import GenerateBody, turn_of
from threadkeep.http.logs import logger
from threadkeep.http.route import Call, Route, Table
from threadkeep.turn.events import Sink
from threadkeep.turn.request import Services, TurnAgent, TurnRequest
from threadkeep.turn.run import run_turn
from threadkeep.turn.watch import watched


async def stream(call: Call[wire.ContextQuery, GenerateBody]) -> AsyncGenerator[Chunk]:
    """Run one turn of an agent and tell what it says while it says it."""
    agent, request = await turn_of(call, "stream", settings().stream_deadline_seconds)
    async with aclosing(told(agent, request, Services(call.app.storage, call.app.models))) as chunks:
        async for chunk in chunks:
            yield chunk


def told(agent: TurnAgent, request: TurnRequest, services: Services) -> AsyncGenerator[Chunk]:
    """The chunks of a turn. Raises what refuses the request before it begins; a later error is told as a chunk."""

    async def run(sink: Sink) -> None:
        await run_turn(agent, replace(request, watcher=sink), services)

    return chunks_of(request.run_id, run)


async def chunks_of(run_id: str, run: Callable[[Sink], Awaitable[object]]) -> AsyncGenerator[Chunk]:
    """The chunks of whatever tells events. Raises what comes before the first; a later error is told as a chunk."""
    written, begun = Chunks(run_id), False
    try:
        async with aclosing(watched(run)) as events:
            async for event in events:
                begun = True
                for chunk in written.of(event):
                    yield chunk
    except Exception as error:
        if not begun:
            raise
        logger().error("run failed", exc_info=error, extra={"fields": {"runId": run_id}})
        for chunk in written.failed(error):
            yield chunk


def _route(path: str, summary: str) -> Route[wire.ContextQuery, GenerateBody, str]:
    return Route(
        "POST",
        path,
        "stream",
        stream,
        wire.ContextQuery,
        GenerateBody,
        str,
        summary,
        errors=(403, 404, 409, 413, 422, 424, 503),
        streams=True,
    )


ROUTES: Table = (
    _route("/api/agents/{agentId}/stream", "Run one turn of an agent and stream its answer"),
    _route("/api/agents/{agentId}/stream-until-idle", "As stream; nothing runs on in the background"),
)
