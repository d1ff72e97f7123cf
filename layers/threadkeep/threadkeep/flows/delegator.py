"""The delegator of buffered runs: a state machine runs the orders of a step, each in a function of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from threadkeep.flows import ledger
from threadkeep.flows.ledger import Outcome, Placed
from threadkeep.flows.machine import Execution
from threadkeep.jsontext import Json
from threadkeep.turn.delegation.orders import Failure, Order, Report, Team
from threadkeep.turn.plan import store_of

_GRACE = 1.0  # seconds that a machine gets beyond the time of its tasks


class Runner(Protocol):
    """Runs the machine (`flows.machine.Machine`)."""

    async def run(self, given: Json, seconds: float) -> Execution: ...


@dataclass(frozen=True, slots=True)
class StepFunctionsDelegator:
    """Two storage requests and one execution for each step, however many orders it has."""

    machine: Runner

    async def delegate(self, team: Team, orders: Sequence[Order]) -> tuple[Report, ...]:
        """See `Delegator`. Raises `ThreadGone` if the supervisor's thread is deleted, `StoreUnavailable`."""
        if all(order.deadline is not None and ledger.is_late(order.deadline) for order in orders):
            return tuple(Report(order.id, failure="timeout", reason="no time was left") for order in orders)
        storage = team.services.storage
        is_home = store_of(team.agent, team.services) is storage
        placed = await ledger.place(storage, orders, is_home=is_home)
        done = await self.machine.run(placed.to_json(), placed.seconds + _GRACE)
        otherwise: Failure = "timeout" if done.ending == "TIMED_OUT" else "failed"
        return await ledger.collect(storage, placed, _failures(placed, done), otherwise)


def _failures(placed: Placed, done: Execution) -> dict[str, Failure]:
    """What the machine tells of tasks that failed, by order."""
    outcomes: list[Outcome] = done.output if done.ending == "SUCCEEDED" else []
    return {outcome["id"]: outcome["failure"] for outcome in outcomes if "failure" in outcome}
