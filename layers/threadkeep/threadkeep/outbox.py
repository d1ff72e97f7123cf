"""Work that follows a write: from the table's stream to the FIFO queue, and back out of it.

A task's group is its thread, so the tasks of one thread are done one after another. Its deduplication
id is the stream's event, so a batch that is delivered again sends nothing twice.
"""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from threadkeep import jsontext
from threadkeep.errors import NotFound, ThreadGone
from threadkeep.storage.dynamodb.bucket import Bucket
from threadkeep.storage.dynamodb.stream import Task, task_of, unused_blob
from threadkeep.turn import after
from threadkeep.turn.request import Services

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_BATCH = 10

_log = logging.getLogger(__name__)


def forward(records: Sequence[dict[str, Any]], sqs: "SQSClient", queue_url: str) -> str | None:
    """Send the tasks of stream records; returns the sequence number of the first record that failed, or None.

    Everything from that record on is delivered again by Lambda.
    https://docs.aws.amazon.com/lambda/latest/dg/services-ddb-batchfailurereporting.html
    """
    entries = [(record, _entry(n, record, task)) for n, record in enumerate(records) if (task := task_of(record))]
    for start in range(0, len(entries), _BATCH):
        batch = [entry for _, entry in entries[start : start + _BATCH]]
        answer = sqs.send_message_batch(QueueUrl=queue_url, Entries=batch)  # type: ignore[arg-type]
        failed = {int(f["Id"]) for f in answer.get("Failed", [])}
        if failed:
            _log.warning("tasks not sent", extra={"failed": answer.get("Failed")})
            return str(records[min(failed)]["dynamodb"]["SequenceNumber"])
    return None


async def remove_bodies(records: Sequence[dict[str, Any]], bucket: Bucket) -> None:
    """Remove the bodies to which the items of these stream records point no more; repeating does no harm."""
    await bucket.delete([blob for record in records if (blob := unused_blob(record))])


def _entry(number: int, record: dict[str, Any], task: Task) -> dict[str, str]:
    body = jsontext.dumps({"kind": task.kind, "threadId": task.thread_id, "runId": task.run_id})
    return {
        "Id": str(number),
        "MessageBody": body,
        "MessageGroupId": hashlib.sha256(task.group.encode()).hexdigest(),
        "MessageDeduplicationId": hashlib.sha256(str(record["eventID"]).encode()).hexdigest(),
    }


async def perform(services: Services, body: str) -> None:
    """Do one task from the queue. Raises what should have it delivered again."""
    task = jsontext.loads(body)
    if task["kind"] == "finish_turn":
        await after.finish_turn(services, task["threadId"], task["runId"])
    elif task["kind"] == "clone":
        with suppress(NotFound, ThreadGone):  # the source or the copy was deleted: the purge is next in the group
            await services.storage.finish_clone(task["threadId"])
    else:
        await after.purge(services, task["threadId"])
