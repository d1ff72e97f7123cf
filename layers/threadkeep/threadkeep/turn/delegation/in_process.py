"""The delegator of streams and of the library: sub-agents run in the supervisor's process (DESIGN 6)."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from threadkeep.turn.delegation.orders import Order, Report, Team
from threadkeep.turn.delegation.sub_turn import RunTurn, failure_of, run_order
from threadkeep.turn.events import Event, Sink
from threadkeep.turn.tools import CONCURRENCY

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InProcess:
    """`run` is `run_turn`."""

    run: RunTurn

    async def delegate(self, team: Team, orders: Sequence[Order]) -> tuple[Report, ...]:
        gate = asyncio.Semaphore(CONCURRENCY)

        async def one(order: Order) -> Report:
            async with gate:
                return await self._reported(team, order)

        return tuple(await asyncio.gather(*map(one, orders)))

    async def _reported(self, team: Team, order: Order) -> Report:
        watcher = _watcher(team, order)
        try:
            return await run_order(team.agent, order, team.services, self.run, watcher=watcher, stopped=team.stopped)
        except asyncio.CancelledError as error:  # of the run, or only of something that the sub-agent waited for
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return _failed(order, error)
        except Exception as error:  # whatever a sub-agent does, its supervisor goes on (DEL-23)
            return _failed(order, error)


def _failed(order: Order, error: BaseException) -> Report:
    _log.warning("delegation %s to %s failed", order.id, order.key, exc_info=error)
    return failure_of(order, error)


def _watcher(team: Team, order: Order) -> Sink | None:
    tell = team.tell
    if tell is None:
        return None

    async def told(event: Event) -> None:
        await tell(order.call_id, event)

    return told
