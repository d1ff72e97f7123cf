"""Approvals: deciding calls of suspended runs, answered in one piece, and the list of what waits (spec-http 2.2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from threadkeep import clock, ids
from threadkeep.config import settings
from threadkeep.errors import InvalidInput, Issue
from threadkeep.http import query, reply, wire
from threadkeep.http.route import Call, NoBody, Route, Table
from threadkeep.jsontext import Json
from threadkeep.storage.port import SuspendedFilter, SuspendedRun
from threadkeep.turn.approvals import Decision, decide, suspended_run
from threadkeep.turn.context import RequestContext
from threadkeep.turn.events import Sink
from threadkeep.turn.request import Services, TurnAgent, TurnRequest
from threadkeep.turn.result import TurnResult
from threadkeep.turn.suspension import context_of, request_of

MAX_REASON = 10_000

CallId = Annotated[str, Field(min_length=1, max_length=1_000)]
Reason = Annotated[str, Field(max_length=MAX_REASON)]


class DecisionQuery(wire.ContextQuery):
    """The owner may stand here, too; that of the body goes before it."""

    resource_id: wire.QueryId = None


class DecisionBody(wire.Body):
    """Which call of which run is decided. `requestContext` is laid over that of the suspended run.

    A service may name the run's owner, which is then checked.
    """

    run_id: wire.Id
    tool_call_id: CallId
    reason: Reason | None = None
    resource_id: wire.Id | None = None
    request_context: dict[str, Json] = {}

    @property
    def owner(self) -> str | None:
        """The owner that the request names."""
        return self.resource_id


class ResumeDecision(wire.Body):
    """What `resumeSchema` asks for where a run waits for an approval."""

    approved: bool
    reason: Reason | None = None


class ResumeMemory(wire.Body):
    """Of the memory that a caller names only the owner is read: the run keeps its thread."""

    resource: wire.Id | None = None


class ResumeBody(wire.Body):
    """A decision as the data with which a run goes on. `toolCallId` may be absent where only one call waits.

    A service may name the run's owner, which is then checked, also where generate has it. Other fields of generate
    are not read: the run goes on with what it was asked for.
    """

    run_id: wire.Id
    resume_data: ResumeDecision
    tool_call_id: CallId | None = None
    resource_id: wire.Id | None = None
    memory: ResumeMemory | None = None
    request_context: dict[str, Json] = {}

    @property
    def owner(self) -> str | None:
        """The owner that the request names."""
        return self.resource_id or (self.memory.resource if self.memory else None)

    def decision(self, run: SuspendedRun) -> Decision:
        """What is decided about `run`. Raises `InvalidInput` naming the calls if it may be meant for several."""
        return Decision(self.tool_call_id or _only_call(run), self.resume_data.approved, self.resume_data.reason)


def _only_call(run: SuspendedRun) -> str:
    """The call that waits; where none does, the only one that ever did, for a repeat."""
    calls = [call.id for call in run.waiting or run.calls]
    if len(calls) != 1:
        raise InvalidInput(Issue("toolCallId", f"required, one of {', '.join(calls)}"))
    return calls[0]


class SuspendedQuery(wire.Query):
    """Which runs to list; `fromDate` and `toDate` belong to the range."""

    thread_id: wire.QueryId = None
    resource_id: wire.QueryId = None
    from_date: query.Moment | None = None
    to_date: query.Moment | None = None
    page: wire.PageNumber = 0
    per_page: wire.PerPage = 100


class WaitingCall(wire.Reply):
    tool_call_id: str
    tool_name: str
    args: dict[str, Json]
    requires_approval: bool


class WaitingRun(wire.Reply):
    run_id: str
    status: str
    thread_id: str
    resource_id: str
    suspended_at: str
    tool_calls: list[WaitingCall]


class WaitingRuns(wire.Reply):
    runs: Sequence[WaitingRun]
    total: int


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that may be taken: `run` takes it, told to a watcher where there is one."""

    agent: TurnAgent
    request: TurnRequest
    suspended: SuspendedRun
    decision: Decision
    services: Services

    async def run(self, watcher: Sink | None = None) -> TurnResult:
        request = replace(self.request, watcher=watcher)
        return await decide(self.agent, request, self.suspended, self.decision, self.services)


async def decided(call: Call[DecisionQuery, DecisionBody], *, approved: bool, deadline: float) -> Decided:
    """The decision that a request takes. Raises `NotFound`, `AccessDenied` for a run of another owner.

    That is another than a user's token names, or than a service names in the request.
    """
    decision = Decision(call.body.tool_call_id, approved, call.body.reason)
    return await _decided(call, lambda _: decision, deadline)


async def resumed(call: Call[DecisionQuery, ResumeBody], *, deadline: float) -> Decided:
    """As `decided`. Raises also `InvalidInput` if it is not clear which call is meant."""
    return await _decided(call, call.body.decision, deadline)


async def _decided(
    call: Call[DecisionQuery, Any], choose: Callable[[SuspendedRun], Decision], deadline: float
) -> Decided:
    body: DecisionBody | ResumeBody = call.body
    agent, owner = call.agent(), call.identity.owner(body.owner or call.query.resource_id)
    run = await suspended_run(agent.storage_or(call.app.storage), body.run_id, agent.id, owner)
    decision = choose(run)
    context = context_of(run, RequestContext.from_client(body.request_context | call.query.request_context))
    resolved = await agent.resolve(context)
    request = replace(request_of(run, resolved, context), deadline=deadline)
    return Decided(resolved, request, run, decision, Services(call.app.storage, call.app.models, call.app.delegator))


async def approve_tool_call_generate(call: Call[DecisionQuery, DecisionBody]) -> dict[str, Json]:
    """Run a call that waits for approval, and answer with the rest of its run."""
    return await _generate(call, approved=True)


async def decline_tool_call_generate(call: Call[DecisionQuery, DecisionBody]) -> dict[str, Json]:
    """Tell the model that a call was declined, and answer with the rest of its run."""
    return await _generate(call, approved=False)


async def _generate(call: Call[DecisionQuery, DecisionBody], *, approved: bool) -> dict[str, Json]:
    taken = await decided(call, approved=approved, deadline=settings().turn_deadline_seconds)
    return reply.generated(await taken.run())


async def list_suspended_runs(call: Call[SuspendedQuery, None]) -> WaitingRuns:
    """The runs of an agent that wait for approvals, newest first."""
    agent = call.agent()
    wanted, owner = call.query, call.identity.owner(call.query.resource_id)
    match = SuspendedFilter(agent.id, wanted.thread_id, owner, wanted.from_date, wanted.to_date)
    store = agent.storage_or(call.app.storage)
    found = await store.list_suspended_runs(match, page=wanted.page, per_page=wanted.per_page)
    return WaitingRuns(runs=[_waiting(run) for run in found.items], total=found.total)


def _waiting(run: SuspendedRun) -> WaitingRun:
    calls = [WaitingCall(tool_call_id=c.id, tool_name=c.name, args=c.args, requires_approval=True) for c in run.waiting]
    return WaitingRun(
        run_id=run.run_id,
        status="suspended",
        thread_id=run.thread_id,
        resource_id=ids.shown_resource(run.resource_id),
        suspended_at=clock.iso(run.at),
        tool_calls=calls,
    )


def _route(path: str, operation: Any, summary: str) -> Route[DecisionQuery, DecisionBody, Any]:
    return Route(
        "POST",
        path,
        "generate",
        operation,
        DecisionQuery,
        DecisionBody,
        reply.Generated,
        summary,
        errors=(403, 404, 409, 413, 424, 503),
    )


ROUTES: Table = (
    _route(
        "/api/agents/{agentId}/approve-tool-call-generate",
        approve_tool_call_generate,
        "Approve a tool call and wait for the rest of the run",
    ),
    _route(
        "/api/agents/{agentId}/decline-tool-call-generate",
        decline_tool_call_generate,
        "Decline a tool call and wait for the rest of the run",
    ),
    Route(
        "GET",
        "/api/agents/{agentId}/suspended-runs",
        "generate",
        list_suspended_runs,
        SuspendedQuery,
        NoBody,
        WaitingRuns,
        "List the runs that wait for approvals",
        errors=(404, 503),
    ),
)
