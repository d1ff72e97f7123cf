"""The storage port on one DynamoDB table. Keys: `keys.py`; items: `items.py`; retries: `table.py`.

Each write carries the condition that makes it safe, so no call depends on what an earlier read saw:
later writes to a thread require that it still exists, with the same owner and creation time, and is
not being deleted.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.storage.dynamodb.clones import Clones
from threadkeep.storage.dynamodb.edits import Edits
from threadkeep.storage.dynamodb.listing import ThreadLists
from threadkeep.storage.dynamodb.messages import Messages
from threadkeep.storage.dynamodb.table import Table
from threadkeep.storage.dynamodb.threads import Threads
from threadkeep.storage.dynamodb.turns import Turns

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class DynamoDBStorage(Threads, ThreadLists, Messages, Edits, Clones, Turns):
    """`Storage` on DynamoDB. `client` is a boto3 client of service `dynamodb`; `now` tells the time."""

    def __init__(self, table_name: str, client: "DynamoDBClient", *, now: Callable[[], Millis] = clock.now):
        self._table = Table(client, table_name)
        self._now = now
