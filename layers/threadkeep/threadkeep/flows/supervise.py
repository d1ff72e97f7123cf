"""The tasks of the machine `supervisor`: steps of a durable run, and what is left of one that failed (DESIGN 6).

Each step task begins the run again on its journal (`threadkeep.turn.journal`) and goes on until sub-agents have to
work, or the run is over, or the task's time. Only ids travel through the machine.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypedDict

from threadkeep import errors, jsontext
from threadkeep.errors import Conflict, NotFound, RunEnded, ThreadGone, ThreadkeepError
from threadkeep.flows import ledger
from threadkeep.flows.ledger import Item, Outcome
from threadkeep.http.app import App
from threadkeep.http.runs import shown_end, shown_orders, shown_reports, shown_step, turn_of_run
from threadkeep.jsontext import Json
from threadkeep.storage.port import Storage
from threadkeep.storage.runs import DurableRun
from threadkeep.turn.delegation.orders import Failure, Order, Report, Team
from threadkeep.turn.journal import REQUEST, RunJournal
from threadkeep.turn.request import Services, TurnRequest
from threadkeep.turn.run import run_turn

SHORTEST = 300.0  # seconds that a task must have left to take one more step
MAX_MESSAGE = 2_000  # characters of an error that a run shows

_log = logging.getLogger(__name__)


class Next(TypedDict):
    """What the machine does next: run `orders`, take another step, or end."""

    runId: str
    next: Literal["delegate", "again", "over"]
    orders: list[Item]


class Paused(Exception):
    """The run goes on in another task, once these orders are done."""

    def __init__(self, orders: Sequence[Item] = ()):
        super().__init__()
        self.orders = list(orders)


class RunFailed(Exception):
    """Ends the execution of a run that has failed."""


async def step(app: App, run_id: str, outcomes: Sequence[Outcome], remaining: Callable[[], float]) -> Next:
    """Go on with a run. `outcomes` are those of the orders of the task before, `remaining` the seconds of this one.

    A run that has failed is begun again: only a redrive comes here then. `outcomes` do not count in that case, as
    nothing is stored of what orders did while the run had failed. Raises what `run_turn` raises.
    """
    storage, run = app.storage, await app.storage.get_run(run_id)
    if run is not None and run.state == "failed":
        run, outcomes = await storage.end_run(run_id, "running"), ()
    if run is None:
        return await _forgotten(storage, run_id)
    if run.state != "running":
        return _next(run_id, "over")
    try:
        await _go_on(app, storage, run, outcomes, remaining)
    except Paused as paused:
        return _next(run_id, "delegate" if paused.orders else "again", paused.orders)
    except (RunEnded, ThreadGone) as ended:  # cancelled or deleted meanwhile, or a commit's answer was lost
        now = await storage.get_run(run_id)
        if now is None:
            return await _forgotten(storage, run_id)
        if now.state == "failed":
            raise Conflict("The run was taken for dead while it went on") from None
        if isinstance(ended, ThreadGone):
            raise
    return _next(run_id, "over")


async def mark(app: App, run_id: str, error: Mapping[str, str]) -> Next:
    """Note that a run has failed. Raises `RunFailed`, which ends the execution.

    Where that is noted already, the execution is redriven, and the run goes on.
    """
    run = await app.storage.get_run(run_id)
    if run is None:
        return await _forgotten(app.storage, run_id)
    if run.state == "failed":
        return _next(run_id, "again")
    run = await app.storage.end_run(run_id, "failed", error=told(error))
    if run.state != "failed":
        return _next(run_id, "over")
    raise RunFailed(f"Run {run_id} has failed")


async def _forgotten(storage: Storage, run_id: str) -> Next:
    """The end of a run whose thread was deleted: what its tasks wrote since then goes, too."""
    await storage.forget_run(run_id)
    return _next(run_id, "over")


def told(error: Mapping[str, str]) -> dict[str, Json]:
    """The error of a task as the run's caller may see it: only what was raised on purpose is explained."""
    name, cause = error.get("Error", ""), error.get("Cause", "")
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ThreadkeepError) and kind.status != 500):
        known = name.startswith(("States.", "Lambda.", "Runtime.", "Sandbox."))
        return {"name": name if known else "InternalError", "message": "Internal error"}
    try:
        message = str(jsontext.loads(cause)["errorMessage"])
    except (ValueError, TypeError, KeyError):
        message = ""
    return {"name": name, "message": message[:MAX_MESSAGE]}


async def _go_on(
    app: App, storage: Storage, run: DurableRun, outcomes: Sequence[Outcome], remaining: Callable[[], float]
) -> None:
    journal = await RunJournal.opened(storage, run.run_id)
    if REQUEST not in journal.entries:
        raise NotFound("What the run was asked for is not there any more")
    agent, request = await turn_of_run(app, run, journal.entries[REQUEST])
    withheld = bool(agent.output_processors)
    journal.show_step = lambda done: shown_step(done, withheld=withheld)
    journal.show_end = shown_end
    journal.is_over = partial(_is_over, storage, run.run_id)
    failures: dict[str, Failure] = {o["id"]: o["failure"] for o in outcomes if "failure" in o}
    services = Services(app.storage, app.models, _ByJournal(journal, failures, withheld))
    await run_turn(agent, _durable(request, run, journal, storage, remaining), services)
    await storage.end_run(run.run_id, "succeeded", result=journal.ending)  # unless the turn's commit did


async def _is_over(storage: Storage, run_id: str) -> bool:
    run = await storage.get_run(run_id)
    return run is None or run.state != "running"


def _durable(
    request: TurnRequest, run: DurableRun, journal: RunJournal, storage: Storage, remaining: Callable[[], float]
) -> TurnRequest:
    """The turn of a run. Its record says once and for all whether it is stored: it needs no receipt.

    The time of a run counts from its start, and from a redrive anew.
    """

    async def stopped() -> bool:
        if journal.ahead:
            return False
        if journal.is_new and remaining() < SHORTEST:
            raise Paused
        return await _is_over(storage, run.run_id)

    return replace(
        request,
        repeat=None,
        began=run.updated_at,
        within=run.run_id,
        journal=journal,
        on_step=journal.step_finished,
        stopped=stopped,
    )


@dataclass(frozen=True, slots=True)
class _ByJournal:
    """The delegator of a durable run: has the machine run orders that have no report yet."""

    journal: RunJournal
    failures: Mapping[str, Failure]
    withheld: bool

    async def delegate(self, team: Team, orders: Sequence[Order]) -> tuple[Report, ...]:
        """See `Delegator`. Raises `Paused` with the orders that are to be run, `StoreUnavailable`."""
        step, known = self.journal.step + 1, self.journal.entries
        missing = [o for o in orders if ledger.report_name(o.id) not in known and o.id not in self.failures]
        if missing:
            placed = await ledger.place(self.journal.storage, missing)
            await self.journal.keep(shown_orders(step, orders))
            raise Paused(placed.items)
        reports = [await self._report(order) for order in orders]
        await self.journal.keep(shown_reports(step, orders, reports, withheld=self.withheld))
        return tuple(reports)

    async def _report(self, order: Order) -> Report:
        """The report of an order; that a task failed is kept as one, so that the run is told the same again."""
        name = ledger.report_name(order.id)
        if name not in self.journal.entries:
            failed = Report(order.id, failure=self.failures[order.id], reason="the task left no report")
            await self.journal.keep({name: failed.to_json()})
        return Report.read(self.journal.entries[name])


def _next(run_id: str, then: Literal["delegate", "again", "over"], orders: Sequence[Item] = ()) -> Next:
    return {"runId": run_id, "next": then, "orders": list(orders)}
