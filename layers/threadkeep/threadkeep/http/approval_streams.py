"""Approvals that are streamed: a decision, its result, and the rest of the run (spec-http 3, "Resumed streams")."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any

from threadkeep.config import settings
from threadkeep.http.approvals import Decided, DecisionBody, DecisionQuery, ResumeBody, decided, resumed
from threadkeep.http.chunks import Chunk
from threadkeep.http.route import Call, Route, Table
from threadkeep.http.stream import chunks_of


def approve_tool_call(call: Call[DecisionQuery, DecisionBody]) -> AsyncGenerator[Chunk]:
    """Run a call that waits for approval, and tell its result and the rest of its run."""
    return _told(decided(call, approved=True, deadline=_deadline()))


def decline_tool_call(call: Call[DecisionQuery, DecisionBody]) -> AsyncGenerator[Chunk]:
    """Tell the model that a call was declined, and tell the rest of its run."""
    return _told(decided(call, approved=False, deadline=_deadline()))


def resume_stream(call: Call[DecisionQuery, ResumeBody]) -> AsyncGenerator[Chunk]:
    """Approve or decline a call by the data with which its run goes on, and tell the rest of the run."""
    return _told(resumed(call, deadline=_deadline()))


async def _told(decision: Awaitable[Decided]) -> AsyncGenerator[Chunk]:
    """There is no `start`: the client has the run already. The call is told again, because clients need one."""
    taken = await decision
    async with aclosing(chunks_of(taken.suspended.run_id, taken.run)) as chunks:
        async for chunk in chunks:
            yield chunk


def _deadline() -> float:
    return settings().stream_deadline_seconds


def _route(path: str, operation: Any, summary: str, body: type[Any] = DecisionBody) -> Route[DecisionQuery, Any, str]:
    return Route(
        "POST",
        path,
        "stream",
        operation,
        DecisionQuery,
        body,
        str,
        summary,
        errors=(403, 404, 409, 413, 424, 503),
        streams=True,
    )


ROUTES: Table = (
    _route(
        "/api/agents/{agentId}/approve-tool-call",
        approve_tool_call,
        "Approve a tool call and stream the rest of the run",
    ),
    _route(
        "/api/agents/{agentId}/decline-tool-call",
        decline_tool_call,
        "Decline a tool call and stream the rest of the run",
    ),
    _route(
        "/api/agents/{agentId}/resume-stream",
        resume_stream,
        "Approve or decline a tool call by resume data and stream the rest of the run",
        ResumeBody,
    ),
    _route(
        "/api/agents/{agentId}/resume-stream-until-idle",
        resume_stream,
        "As resume-stream; nothing runs on in the background",
        ResumeBody,
    ),
)
