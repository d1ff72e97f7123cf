"""The table's stream: hands what is due after a write to the queues, and removes bodies that are not used any more."""

import asyncio
from typing import Any

from threadkeep.bootstrap import bucket, queue
from threadkeep.config import settings
from threadkeep.outbox import forward, remove_bodies


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    records, bodies = event["Records"], bucket()
    failed = forward(records, queue(), settings().after_turn_queue_url)
    if bodies is not None:  # last: while the bucket fails, tasks still get through
        asyncio.run(remove_bodies(records, bodies))
    return {"batchItemFailures": [{"itemIdentifier": failed}] if failed else []}
