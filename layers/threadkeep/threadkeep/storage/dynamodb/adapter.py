"""The storage port on one DynamoDB table. Keys: `keys.py`; items: `items.py`; retries: `table.py`.

Each write carries the condition that makes it safe, so no call depends on what an earlier read saw:
later writes to a thread require that it still exists, with the same owner and creation time, and is
not being deleted.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.storage.dynamodb.bucket import Bucket
from threadkeep.storage.dynamodb.clones import Clones
from threadkeep.storage.dynamodb.edits import Edits
from threadkeep.storage.dynamodb.journals import RunJournals
from threadkeep.storage.dynamodb.listing import ThreadLists
from threadkeep.storage.dynamodb.live import Lives
from threadkeep.storage.dynamodb.messages import Messages
from threadkeep.storage.dynamodb.suspended import SuspendedRuns
from threadkeep.storage.dynamodb.sweep import Sweep
from threadkeep.storage.dynamodb.table import Table
from threadkeep.storage.dynamodb.threads import Threads
from threadkeep.storage.dynamodb.turns import Turns
from threadkeep.storage.dynamodb.working_memory import WorkingMemories

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class DynamoDBStorage(
    Threads, ThreadLists, Messages, Edits, Clones, Turns, SuspendedRuns, RunJournals, WorkingMemories, Lives, Sweep
):
    """`Storage` on DynamoDB.

    `client` is a boto3 client of service `dynamodb`; `bucket` takes the bodies that are too big for an
    item, without one they are refused; `now` tells the time.
    """

    def __init__(
        self,
        table_name: str,
        client: "DynamoDBClient",
        bucket: Bucket | None = None,
        *,
        now: Callable[[], Millis] = clock.now,
    ):
        self._table = Table(client, table_name)
        self._bucket = bucket
        self._now = now
