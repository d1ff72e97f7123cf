"""The state machine `delegation` without AWS: it runs each order's task in this process, as the ASL says."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from threadkeep.agents import Registry
from threadkeep.errors import ModelUnavailable, StoreUnavailable
from threadkeep.flows.machine import Execution
from threadkeep.flows.task import Task, perform
from threadkeep.turn.request import Services

CONCURRENCY = 10


@dataclass
class LocalMachine:
    """Runs tasks side by side, ten at a time, those that may be mended three times. `inputs` are what it was given."""

    registry: Registry
    services: Services
    left: int = 300_000
    ending: str = "SUCCEEDED"
    inputs: list[Any] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)

    async def run(self, given: Any, seconds: float) -> Execution:
        given = json.loads(json.dumps(given))
        self.inputs.append((given, seconds))
        if self.ending != "SUCCEEDED":
            return Execution(self.ending)  # type: ignore[arg-type]
        gate = asyncio.Semaphore(CONCURRENCY)
        outcomes = await asyncio.gather(*[self._task(gate, given["journal"], item) for item in given["orders"]])
        return Execution("SUCCEEDED", [dict(outcome) for outcome in outcomes])

    async def _task(self, gate: asyncio.Semaphore, journal: str, item: Any) -> Any:
        async with gate:
            for attempt in range(3):
                self.attempts.append(attempt)
                event = {"journal": journal, "order": item, "attempt": attempt}
                try:
                    return await perform(Task.read(event, self.left), self.registry, self.services)
                except (ModelUnavailable, StoreUnavailable):
                    continue
                except asyncio.CancelledError:  # of something that the sub-agent waited for: its function fails
                    break
        return {"id": item["id"], "failure": "failed"}
