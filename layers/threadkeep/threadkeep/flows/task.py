"""The task of the machine `delegation`: run one order and leave its report in the journal (DESIGN 6).

A repeat of the task, whatever became of the first, finds the report, or the turn that the first has stored, or nothing:
in no case is a turn stored twice (case H17).
"""

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from threadkeep import clock
from threadkeep.agents import Registry
from threadkeep.clock import Millis
from threadkeep.errors import ConfigurationError, ModelUnavailable, StoreUnavailable, TooLarge
from threadkeep.flows import ledger
from threadkeep.flows.ledger import Item, Outcome
from threadkeep.storage.port import Storage
from threadkeep.storage.runs import Entry
from threadkeep.turn.delegation.orders import Order, Report
from threadkeep.turn.delegation.sub_turn import failure_of, run_order
from threadkeep.turn.request import Services, TurnAgent
from threadkeep.turn.run import run_turn

_MARGIN: Millis = 5_000  # what a task keeps of its own time for writing the report

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """What the machine hands over. `attempt` counts the tries from 0, `ends` is when it is cut off."""

    journal: str
    item: Item
    attempt: int
    ends: Millis

    @classmethod
    def read(cls, event: dict[str, Any], left: Millis) -> "Task":
        """The task of an event; its function has so many milliseconds left."""
        ends = clock.now() + min(left, int(ledger.LONGEST * 1000))
        return cls(event["journal"], event["order"], event["attempt"], ends)


async def perform(task: Task, registry: Registry, services: Services) -> Outcome:
    """Run the order, unless it has a report.

    What a later try may mend is raised, by the names that the machine knows: `ModelUnavailable`, `StoreUnavailable`.
    What is over without an end of its own, for want of time or because its thread is gone, leaves no report, so that a
    later run of the same order may do better.
    """
    item, storage = task.item, services.storage
    names = (ledger.report_name(item["id"]), ledger.order_name(item["id"]), item["said"])
    found = await storage.read_entries(task.journal, names)
    if names[0] in found:
        return Outcome(id=item["id"])
    order = ledger.read_order(item, found)
    if order is None:
        return Outcome(id=item["id"], failure="conflict")
    if await _is_over(order, storage):
        return Outcome(id=item["id"], failure="cancelled")
    order = replace(order, deadline=min(item["deadline"], task.ends - _MARGIN))
    report = await _reported(order, task.attempt > 0, registry, services)
    if report.failure in (None, "failed"):
        report = await _left(storage, task.journal, order, report)
    return Outcome(id=order.id) if report.failure in (None, "failed") else Outcome(id=order.id, failure=report.failure)


async def _reported(order: Order, again: bool, registry: Registry, services: Services) -> Report:
    if ledger.is_late(order.deadline or 0):
        return Report(order.id, failure="timeout", reason="no time was left")
    try:
        supervisor = await _supervisor(order, registry)
        stopped = partial(_is_over, order, services.storage) if order.within else None
        return await run_order(supervisor, order, services, run_turn, again=again, stopped=stopped)
    except (ModelUnavailable, StoreUnavailable):
        raise
    except Exception as error:  # whatever a sub-agent does, its supervisor goes on (DEL-23)
        _log.warning("delegation %s to %s failed", order.id, order.key, exc_info=True)
        return failure_of(order, error)


async def _is_over(order: Order, storage: Storage) -> bool:
    """Whether the durable run that the order is part of goes on no more: it is not worked for then."""
    run = await storage.get_run(order.within) if order.within else None
    return order.within is not None and (run is None or run.state != "running")


async def _supervisor(order: Order, registry: Registry) -> TurnAgent:
    """The agent one level above the order's. Raises `ConfigurationError` if the path leads nowhere."""
    root, *keys = order.path[:-1]
    agent = registry.get(root)
    if agent is None:
        raise ConfigurationError(f"There is no agent {root}")
    found = await agent.resolve(order.context)
    for key in keys:
        if key not in found.agents:
            raise ConfigurationError(f"Agent {found.id} has no sub-agent {key}")
        found = await found.agents[key].resolve(order.context)
    return found


async def _left(storage: Storage, journal: str, order: Order, report: Report) -> Report:
    """Leave the report in the journal; the one that stands there counts.

    The journal is bound to the supervisor's thread since the orders were written: tasks need not meet there again.
    """
    try:
        entries = [Entry(ledger.report_name(order.id), report.to_json())]
        (entry,) = await storage.write_entries(journal, entries, thread_id=None)
    except TooLarge as error:
        return await _left(storage, journal, order, Report(order.id, failure="failed", reason=str(error)))
    return Report.read(entry.body)
