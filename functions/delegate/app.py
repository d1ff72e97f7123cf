"""A task of the state machine `delegation`: runs one order of a supervisor's step."""

import asyncio
from functools import cache
from typing import Any

from threadkeep.bootstrap import registry, services
from threadkeep.flows.task import Task, perform


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    task = Task.read(event, context.get_remaining_time_in_millis())
    return dict(_runner().run(perform(task, registry(), services())))
