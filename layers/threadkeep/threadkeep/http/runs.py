"""Durable runs: a turn that outlives the request that asked for it (DESIGN 6).

A run is stored and its execution started before the answer 202; the tasks of the state machine do the rest
(`threadkeep.flows.supervise`). What a caller may see of a run are entries of its journal, written as it goes on.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from threadkeep import clock, ids, jsontext
from threadkeep.clock import Millis
from threadkeep.errors import AccessDenied, Conflict, KeyReused, NotFound, StoreUnavailable
from threadkeep.http import reply, wire
from threadkeep.http.executions import Executions
from threadkeep.http.generate import GenerateBody, turn_of
from threadkeep.http.identity import Identity, Kind
from threadkeep.http.repeats import new_id
from threadkeep.http.route import Call, NoBody, Route, Table
from threadkeep.http.serve import parsed
from threadkeep.jsontext import Json
from threadkeep.storage.rules import check_owner
from threadkeep.storage.runs import DurableRun, Entry, RunState
from threadkeep.turn.delegation.orders import Order, Report
from threadkeep.turn.journal import REQUEST, SHOWN
from threadkeep.turn.plan import own_context
from threadkeep.turn.request import TurnAgent, TurnRequest
from threadkeep.turn.result import Step, TurnResult

if TYPE_CHECKING:
    from threadkeep.http.app import App

EXCERPT = 500  # characters of a sub-agent's text that a run shows
DOUBTED: Millis = 60_000  # after which it is asked whether a run is still driven
_BEGUN, _DONE = "a", "b"  # entries about a delegation, in the order in which they count
_FOREIGN = "Access denied: the run belongs to a different resource"


class RunQuery(wire.Query):
    """A service may name the run's owner, which is then checked."""

    resource_id: wire.QueryId = None


class RunsQuery(RunQuery):
    thread_id: wire.Id
    per_page: Annotated[int, Field(ge=1, le=100)] = 20


class Started(wire.Reply):
    run_id: str


class RunStep(wire.Reply):
    """One step. What the agent's processors may still take out of it is not shown until the run is over."""

    text: str
    tool_calls: list[dict[str, Json]]
    finish_reason: str
    usage: dict[str, Json]


class RunDelegation(wire.Reply):
    """One delegation. `text` is the beginning of what the sub-agent said, `duration` in milliseconds."""

    key: str
    tool_call_id: str
    state: Literal["running", "succeeded", "failed"]
    sub_agent_thread_id: str | None = None
    text: str = ""
    usage: dict[str, Json] = {}
    duration: int = 0


class RunResult(wire.Reply):
    """What came of a run. `object` is that of a structured output, `tripwire` why a processor stopped the run."""

    text: str
    finish_reason: str
    usage: dict[str, Json]
    message_ids: list[str]
    object: Json = None
    tripwire: dict[str, Json] = {}


class RunError(wire.Reply):
    name: str
    message: str


class RunBrief(wire.Reply):
    run_id: str
    agent_id: str
    state: RunState
    created_at: str
    updated_at: str
    thread_id: str = ""
    resource_id: str = ""
    error: RunError | None = None


class RunView(RunBrief):
    steps: list[RunStep]
    delegations: list[RunDelegation]
    result: RunResult | None = None


class Runs(wire.Reply):
    runs: list[RunBrief]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a task of the machine needs to know of the request for a run, beside its body, and of who made it."""

    kind: Kind
    resource: str | None
    context: dict[str, Json]
    at: Millis

    @classmethod
    def of(cls, call: Call[wire.ContextQuery, Any]) -> "Asked":
        return cls(call.identity.kind, call.identity.resource, call.query.request_context, call.arrived)

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


async def turn_of_run(app: "App", run: DurableRun, body: Json) -> tuple[TurnAgent, TurnRequest]:
    """The turn that a stored run asks for. Raises what refuses it."""
    asked = Asked(**run.request)
    query = wire.ContextQuery(request_context=asked.context)
    given = parsed(GenerateBody, body | {"runId": run.run_id}, "request body")
    who = Identity(asked.kind, asked.resource)
    return await turn_of(Call({"agentId": run.agent_id}, query, given, b"", {}, who, asked.at, app), "runs", None)


async def start_run(call: Call[wire.ContextQuery, GenerateBody]) -> Started:
    """Begin a durable run and answer at once. The same request again is the same run.

    Raises `Conflict` for an agent with a store of its own: the tasks of a run know the deployment's.
    """
    executions, agent = _executions(call), call.agent()
    request = own_context(*await turn_of(call, "runs", None))
    place = request.conversation
    owner = place.resource_id if place else call.identity.owner(None)
    storage = call.app.storage
    if agent.storage_or(storage) is not storage:
        raise Conflict(f"Agent {agent.id} keeps its memory in a store of its own, where no durable run can be")
    thread = await storage.get_thread(place.thread_id) if place else None
    if thread is not None:
        check_owner(thread, owner)
    run = DurableRun(
        call.body.run_id or new_id(call, owner, "runs", agent.id),
        agent.id,
        owner,
        place.thread_id if place else None,
        hashlib.sha256(call.raw).hexdigest(),
        Asked.of(call).to_json(),
    )
    stored = await storage.create_run(run)
    if stored.request_hash != run.request_hash:
        raise KeyReused
    if stored.state == "running":
        await storage.write_entries(run.run_id, [Entry(REQUEST, jsontext.loads(call.raw))], thread_id=None)
        if not await executions.start(run.run_id):
            await _checked(call, stored)  # its execution may be that of a run of this id which is gone
    return Started(run_id=run.run_id)


async def get_run(call: Call[RunQuery, None]) -> RunView:
    """A durable run as it is now. One whose execution ended without telling is found to have failed."""
    storage, run = call.app.storage, await _looked_after(call, await _run_of(call))
    entries = {e.name: e.body for e in await storage.list_entries(run.run_id, SHOWN)}
    end: dict[str, Json] = {}
    if run.result is not None:
        name = str(run.result["end"])
        end = (await storage.read_entries(run.run_id, [name])).get(name) or {}
    steps = end.get("steps") or [body for name, body in entries.items() if name.count(".") == 1]
    view = RunView(
        **_brief(run), steps=[RunStep.model_validate(step) for step in steps], delegations=_delegations(entries)
    )
    if end:
        view.result = RunResult.model_validate(end["result"])
    return view


async def list_runs(call: Call[RunsQuery, None]) -> Runs:
    """The durable runs of an agent on a thread, newest first."""
    agent, thread_id = call.agent(), call.query.thread_id
    storage, owner = call.app.storage, call.identity.owner(call.query.resource_id)
    thread = await storage.get_thread(thread_id)
    if thread is not None:
        check_owner(thread, owner)
    owner = owner or (thread.resource_id if thread else None)
    if owner is None:
        raise NotFound("Thread not found")
    found = await storage.list_runs(thread_id, agent_id=agent.id, resource_id=owner, limit=call.query.per_page)
    return Runs(runs=[RunBrief(**_brief(run)) for run in found])


async def cancel_run(call: Call[RunQuery, None]) -> RunBrief:
    """End a run: no thread gets anything of it from now on. One that is over stays as it is."""
    executions = _executions(call)
    run = await _run_of(call)
    if run.state == "running":
        run = await call.app.storage.end_run(run.run_id, "cancelled")
    if run.state == "cancelled":
        with suppress(StoreUnavailable):  # the run sees by itself that it was cancelled
            await executions.stop(run.run_id)
    return RunBrief(**_brief(run))


def shown_step(step: Step, *, withheld: bool) -> dict[str, Json]:
    """A step as a caller may see it while the run goes on; `withheld` where processors may still edit the answer."""
    response = step.response
    calls: list[Json] = [
        {"toolCallId": c.id, "toolName": c.name, "args": {} if withheld else c.args} for c in response.tool_calls
    ]
    return {
        "text": "" if withheld else response.text,
        "toolCalls": calls,
        "finishReason": response.finish_reason,
        "usage": reply.usage(response.usage),
    }


def shown_end(result: TurnResult) -> dict[str, Json]:
    """What a run came to, with its steps as its processors left them (PR-3)."""
    end: dict[str, Json] = {
        "text": result.text,
        "finishReason": result.finish_reason,
        "usage": reply.usage(result.usage),
        "messageIds": [m.id for m in result.messages] if result.thread is not None else [],
    }
    if result.structured is not None and result.structured.exists:
        end["object"] = result.structured.value
    if result.tripwire is not None:
        end["tripwire"] = reply.tripwire(result.tripwire)
    return {"steps": [shown_step(step, withheld=False) for step in result.all_steps], "result": end}


def shown_orders(step: int, orders: Sequence[Order]) -> dict[str, Json]:
    """Entries about the delegations that have begun in a step."""
    return {
        _about(step, n, _BEGUN): {"key": o.key, "toolCallId": o.call_id, "state": "running"}
        for n, o in enumerate(orders)
    }


def shown_reports(step: int, orders: Sequence[Order], reports: Sequence[Report], *, withheld: bool) -> dict[str, Json]:
    """Entries about the delegations of a step that are over."""
    pairs = enumerate(zip(orders, reports, strict=True))
    return {_about(step, n, _DONE): _shown_report(o, r, withheld=withheld) for n, (o, r) in pairs}


def _about(step: int, number: int, what: str) -> str:
    return f"{SHOWN}{step:04}.{number:04}.{what}"


def _shown_report(order: Order, report: Report, *, withheld: bool) -> dict[str, Json]:
    return {
        "key": order.key,
        "toolCallId": order.call_id,
        "state": "failed" if report.failure else "succeeded",
        "text": "" if withheld else report.text[:EXCERPT],
        "usage": reply.usage(report.usage),
        "duration": report.duration,
        **({"subAgentThreadId": report.thread_id} if report.thread_id else {}),
    }


def _delegations(entries: Mapping[str, Json]) -> list[RunDelegation]:
    """The delegations in the order of their calls; what came of each stands in the later of its entries."""
    latest = {name.rpartition(".")[0]: body for name, body in entries.items() if name.count(".") > 1}
    return [RunDelegation.model_validate(body) for body in latest.values()]


def _brief(run: DurableRun) -> dict[str, Any]:
    named = {"thread_id": run.thread_id, "resource_id": run.resource_id and ids.shown_resource(run.resource_id)}
    error = {"error": {"name": run.error["name"], "message": run.error["message"]}} if run.error else {}
    return {
        "run_id": run.run_id,
        "agent_id": run.agent_id,
        "state": run.state,
        "created_at": clock.iso(run.created_at),
        "updated_at": clock.iso(run.updated_at),
        **{name: value for name, value in named.items() if value},
        **error,
    }


async def _run_of(call: Call[RunQuery, None]) -> DurableRun:
    """The run of the path. Raises `NotFound`, `AccessDenied` for another owner's."""
    agent, owner = call.agent(), call.identity.owner(call.query.resource_id)
    run = await call.app.storage.get_run(call.path["runId"])
    if run is None or run.agent_id != agent.id:
        raise NotFound(f"No run {call.path['runId']} of agent {agent.id}")
    if owner not in (None, run.resource_id):
        raise AccessDenied(_FOREIGN)
    return run


async def _looked_after(call: Call[RunQuery, None], run: DurableRun) -> DurableRun:
    """The run; failed if it says that it goes on, but nothing drives it any more."""
    if run.state != "running" or call.app.executions is None or clock.now() - run.updated_at < DOUBTED:
        return run
    return await _checked(call, run)


async def _checked(call: Call[Any, Any], run: DurableRun) -> DurableRun:
    """A running run; failed if its execution has ended, as each run says how it ended before its execution does."""
    ended = await _executions(call).ended(run.run_id)
    if ended is None:
        return run
    error: dict[str, Json] = {"name": "ExecutionEnded", "message": f"The execution of the run ended: {ended}"}
    return await call.app.storage.end_run(run.run_id, "failed", error=error)


def _executions(call: Call[Any, Any]) -> Executions:
    if call.app.executions is None:
        raise NotFound("This deployment has no durable runs")
    return call.app.executions


_RUNS = "/api/agents/{agentId}/runs"

ROUTES: Table = (
    Route(
        "POST",
        _RUNS,
        "generate",
        start_run,
        wire.ContextQuery,
        GenerateBody,
        Started,
        "Begin a durable run",
        errors=(403, 404, 409, 422, 503),
        status=202,
    ),
    Route(
        "GET", _RUNS, "generate", list_runs, RunsQuery, NoBody, Runs, "List durable runs", errors=(403, 404, 503)
    ),
    Route(
        "GET", f"{_RUNS}/{{runId}}", "generate", get_run, RunQuery, NoBody, RunView, "Get a durable run",
        errors=(403, 404, 503),
    ),
    Route(
        "POST",
        f"{_RUNS}/{{runId}}/cancel",
        "generate",
        cancel_run,
        RunQuery,
        NoBody,
        RunBrief,
        "Cancel a durable run",
        errors=(403, 404, 503),
    ),
)  # fmt: skip
