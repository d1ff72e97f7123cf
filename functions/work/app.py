"""Invoked asynchronously: runs what was sent to a thread, and tells subscribers what is said."""

import asyncio
import os
from functools import cache
from typing import Any

from threadkeep.bootstrap import app, workers
from threadkeep.http.work import work
from threadkeep.storage.live import Channel


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def handler(event: dict[str, Any], context: Any) -> None:
    channel = Channel(event["resourceId"], event["threadId"])
    more = workers(os.environ["AWS_LAMBDA_FUNCTION_NAME"])
    _runner().run(
        work(app(), channel, lambda: context.get_remaining_time_in_millis() / 1000, lambda: more.start(channel))
    )
