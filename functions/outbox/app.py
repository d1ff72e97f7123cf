"""The table's stream: hands what is due after a write to the queues."""

from typing import Any

from threadkeep.bootstrap import queue
from threadkeep.config import settings
from threadkeep.outbox import forward


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    failed = forward(event["Records"], queue(), settings().after_turn_queue_url)
    return {"batchItemFailures": [{"itemIdentifier": failed}] if failed else []}
