"""`send-tool-approval`: what is decided about a call, or results of the caller's tools; subscribers see the rest."""

import hashlib
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

from threadkeep import clock, jsontext
from threadkeep.errors import Conflict, NotFound
from threadkeep.http import wire
from threadkeep.http.approvals import CallId, DecisionQuery, Reason
from threadkeep.http.live import ChannelBody, StreamOptions, channel_of, sent_by, workers_of
from threadkeep.http.repeats import key_of, new_id
from threadkeep.http.route import Call, Route, Table
from threadkeep.http.work import SentDecision, turn_of_sent
from threadkeep.jsontext import Json
from threadkeep.storage.live import Channel, NewRun
from threadkeep.storage.port import SuspendedFilter, SuspendedRun

_DECISIONS = UUID("5b2f0c6e-2d0b-4f7e-9a56-0c1f3c6f8a11")  # names the runs that decide


class ResumeData(wire.Body):
    reason: Reason | None = None


class ApprovalBody(ChannelBody):
    """Without `messages`: the decision on a call that waits. With them: results of the caller's own tools."""

    tool_call_id: CallId
    approved: bool
    reason: Reason | None = None
    resume_data: ResumeData | None = None
    messages: list[Json] | None = None
    stream_options: StreamOptions = StreamOptions()
    request_context: dict[str, Json] = {}


class Deciding(wire.Reply):
    accepted: bool
    run_id: str
    tool_call_id: str


async def send_tool_approval(call: Call[DecisionQuery, ApprovalBody]) -> dict[str, Json]:
    """Have a call decided, or a run continued, behind what the thread has; subscribers see the rest."""
    workers, channel = workers_of(call), await channel_of(call, call.query.resource_id)
    run, told = await (_results(call, channel) if call.body.messages is not None else _decision(call, channel))
    accepted = await call.app.storage.queue_run(run)
    if accepted.request_hash != run.request_hash:
        raise Conflict("The call was decided otherwise already")
    if accepted.needs_worker:
        await workers.start(channel)
    return {"accepted": True, "runId": told or accepted.run_id, "toolCallId": call.body.tool_call_id}


async def _results(call: Call[DecisionQuery, ApprovalBody], channel: Channel) -> tuple[NewRun, str]:
    """The turn that results of the caller's tools ask for."""
    agent, run_id = call.agent(), new_id(call, channel.resource_id, "send-tool-approval", channel.thread_id)
    sent = sent_by(call, call.body.messages or [], call.body.stream_options)
    sent = replace(sent, context=call.body.request_context | sent.context)
    await turn_of_sent(call.app, channel, agent.id, run_id, sent, clock.now(), 0)
    joins = key_of(call.headers) is None
    return NewRun(channel, run_id, agent.id, _hash(call.raw), {"sent": sent.to_json()}, joins), ""


async def _decision(call: Call[DecisionQuery, ApprovalBody], channel: Channel) -> tuple[NewRun, str]:
    agent, body = call.agent(), call.body
    run = await _waiting(call, channel, agent.id)
    reason = body.reason or (body.resume_data.reason if body.resume_data else None)
    context = body.request_context | call.query.request_context
    identity = call.identity
    sent = SentDecision(run.run_id, body.tool_call_id, body.approved, reason, context, identity.kind, identity.resource)
    name = str(uuid5(_DECISIONS, jsontext.dumps([run.run_id, run.revision, body.tool_call_id])))
    request_hash = _hash(jsontext.dumps([body.approved, reason]).encode())
    return NewRun(channel, name, agent.id, request_hash, {"decision": sent.to_json()}), run.run_id


async def _waiting(call: Call[Any, ApprovalBody], channel: Channel, agent_id: str) -> SuspendedRun:
    """The newest run of the thread in which the call waits."""
    match = SuspendedFilter(agent_id, channel.thread_id, channel.resource_id)
    found = await call.app.storage.list_suspended_runs(match, per_page=None)
    wanted = call.body.tool_call_id
    run = next((r for r in found.items if any(c.id == wanted for c in r.waiting)), None)
    if run is None:
        raise NotFound(f"No call {wanted} waits on this thread")
    return run


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


ROUTES: Table = (
    Route(
        "POST",
        "/api/agents/{agentId}/send-tool-approval",
        "generate",
        send_tool_approval,
        DecisionQuery,
        ApprovalBody,
        Deciding,
        "Decide a call that waits; subscribers see the rest of its run",
        errors=(403, 404, 409, 413, 503),
    ),
)
