"""Tasks of the state machine `supervisor`: a step of a durable run, and noting that one has failed."""

import asyncio
from functools import cache
from typing import Any

from threadkeep.bootstrap import app
from threadkeep.flows.supervise import mark, step


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    match event:
        case {"task": "step", "runId": run_id, "outcomes": outcomes}:
            work = step(app(), run_id, outcomes, lambda: context.get_remaining_time_in_millis() / 1000)
        case {"task": "mark", "runId": run_id, "error": error}:
            work = mark(app(), run_id, error)
        case _:
            raise ValueError(f"no task of this function: {event.get('task')}")
    return dict(_runner().run(work))
