"""Calls to one DynamoDB table, with the retries that botocore does not make.

botocore (mode `standard`) repeats throttled and failed requests. What arrives here is a success with
leftovers (unprocessed keys or items), or a transaction that was cancelled. A conflict with another
writer is repeated with full jitter; a failed condition is an answer, and is raised as `Cancelled`.
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/transaction-apis.html
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from botocore.exceptions import BotoCoreError, ClientError

from threadkeep.errors import StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from threadkeep.storage.dynamodb.items import Item

R = TypeVar("R")

ATTEMPTS = 8
BUSY = "The store is busy: other writers kept winning"
_BASE_SECONDS = 0.025
_CAP_SECONDS = 1.0
_BATCH_GET = 100
_BATCH_WRITE = 25
# Another writer or a lack of capacity, not an answer: the same transaction may pass next time.
_REPEATABLE = {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded", "RequestLimitExceeded"}
# Error codes that say something about the data or the request; the rest only say that the store failed.
_ANSWERS = {
    "ConditionalCheckFailedException",
    "TransactionCanceledException",
    "TransactionConflictException",
    "ValidationException",
}


class Cancelled(Exception):
    """A transaction that changed nothing because a condition failed.

    `old(n)` is the item that the n-th action met, None if that item does not exist;
    `failed(n)` tells whether the n-th condition failed.
    """

    def __init__(self, reasons: Sequence[dict[str, Any]]):
        super().__init__("condition failed")
        self.reasons = reasons

    def failed(self, action: int) -> bool:
        return self.reasons[action].get("Code") == "ConditionalCheckFailed"

    def old(self, action: int) -> "Item | None":
        return self.reasons[action].get("Item")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


async def pause(attempt: int) -> None:
    """Sleep with exponential back-off and full jitter."""
    await asyncio.sleep(random.uniform(0, min(_CAP_SECONDS, _BASE_SECONDS * 2**attempt)))


class Table:
    def __init__(self, client: "DynamoDBClient", name: str):
        self._client = client
        self.name = name

    async def get(self, key: "Item") -> "Item | None":
        """Read one item consistently."""
        answer = await self._call(self._client.get_item, TableName=self.name, Key=key, ConsistentRead=True)
        return answer.get("Item")

    async def batch_get(self, keys: Sequence["Item"], only: Sequence[str] = ()) -> list["Item"]:
        """Read items consistently, 100 a request and the requests in parallel; missing ones are left out.

        With `only` just these attributes of each.
        """
        names = {f"#{name}": name for name in only}
        part: dict[str, Any] = {"ConsistentRead": True}
        if only:
            part |= {"ProjectionExpression": ", ".join(names), "ExpressionAttributeNames": names}
        chunks = [keys[i : i + _BATCH_GET] for i in range(0, len(keys), _BATCH_GET)]
        found = await asyncio.gather(*(self._batch_get(chunk, part) for chunk in chunks))
        return [item for rows in found for item in rows]

    async def _batch_get(self, keys: Sequence["Item"], part: dict[str, Any]) -> list["Item"]:
        found: list[Item] = []
        for attempt in range(ATTEMPTS):
            request: dict[str, Any] = {self.name: {"Keys": list(keys), **part}}
            answer = await self._call(self._client.batch_get_item, RequestItems=request)
            found += answer["Responses"].get(self.name, [])
            left = answer.get("UnprocessedKeys", {}).get(self.name)
            if not left:
                return found
            keys = left["Keys"]
            await pause(attempt)
        raise StoreUnavailable(f"The store left {len(keys)} reads undone")

    async def query(self, request: dict[str, Any], *, limit: int | None = None) -> AsyncIterator["Item"]:
        """Items of a Query, page after page; `limit` is the size of a page, the caller stops when it has enough."""
        request = request | ({} if limit is None else {"Limit": limit})
        while True:
            answer = await self._call(self._client.query, TableName=self.name, **request)
            for item in answer["Items"]:
                yield item
            if "LastEvaluatedKey" not in answer:
                return
            request = request | {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def count(self, request: dict[str, Any]) -> int:
        """The number of items of a Query."""
        total = 0
        while True:
            answer = await self._call(self._client.query, TableName=self.name, Select="COUNT", **request)
            total += answer["Count"]
            if "LastEvaluatedKey" not in answer:
                return total
            request = request | {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def skip(self, request: dict[str, Any], rows: int) -> dict[str, Any] | None:
        """The Query behind its first `rows` items, which are passed over unread; None if there is nothing behind."""
        while rows > 0:
            page = {"TableName": self.name, "Select": "COUNT", "Limit": rows}
            answer = await self._call(self._client.query, **request, **page)
            if "LastEvaluatedKey" not in answer:
                return None
            rows -= answer["Count"]
            request = request | {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
        return request

    async def put(self, item: "Item", **condition: Any) -> "Item | None":
        """Put one item; the stored one if `condition` did not hold. Never fails to say which it was.

        A request that botocore repeated after a lost answer may meet its own item.
        """
        request = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD", **condition}
        for attempt in range(ATTEMPTS):
            try:
                await self._call(self._client.put_item, TableName=self.name, Item=item, **request)
                return None
            except ClientError as error:
                if _code(error) == "ConditionalCheckFailedException":
                    return cast("Item", error.response.get("Item", {}))
                if _code(error) != "TransactionConflictException":
                    raise
                await pause(attempt)
        raise StoreUnavailable(BUSY)

    async def delete(self, key: "Item", **condition: Any) -> bool:
        """Delete one item; False if `condition` did not hold."""
        return await self._conditional(self._client.delete_item, TableName=self.name, Key=key, **condition)

    async def update(self, key: "Item", **change: Any) -> bool:
        """Update one item; False if the condition did not hold."""
        return await self._conditional(self._client.update_item, TableName=self.name, Key=key, **change)

    async def delete_all(self, keys: Sequence["Item"]) -> None:
        """Delete items, 25 a request, repeating what the store hands back (case H11)."""
        for start in range(0, len(keys), _BATCH_WRITE):
            left: list[Any] = [{"DeleteRequest": {"Key": k}} for k in keys[start : start + _BATCH_WRITE]]
            for attempt in range(ATTEMPTS):
                answer = await self._call(self._client.batch_write_item, RequestItems={self.name: left})
                left = list(answer.get("UnprocessedItems", {}).get(self.name, []))
                if not left:
                    break
                await pause(attempt)
            else:
                raise StoreUnavailable(f"The store left {len(left)} deletes undone")

    async def transact(self, actions: Sequence[dict[str, dict[str, Any]]]) -> None:
        """Write all actions or none. Raises `Cancelled` if a condition failed.

        botocore adds a client request token and keeps it over its own retries, so a write that landed
        although its answer was lost is not made twice.
        """
        items = [{kind: {"TableName": self.name, **body} for kind, body in action.items()} for action in actions]
        for attempt in range(ATTEMPTS):
            try:
                await self._call(self._client.transact_write_items, TransactItems=items)
                return
            except ClientError as error:
                reasons: list[dict[str, Any]] = error.response.get("CancellationReasons", [])  # type: ignore[assignment]
                codes = {r.get("Code") for r in reasons}
                if "ConditionalCheckFailed" in codes:
                    raise Cancelled(reasons) from error
                if not codes & _REPEATABLE:
                    raise
                await pause(attempt)
        raise StoreUnavailable(BUSY)

    async def _conditional(self, operation: Callable[..., Any], **request: Any) -> bool:
        for attempt in range(ATTEMPTS):
            try:
                await self._call(operation, **request)
                return True
            except ClientError as error:
                if _code(error) == "ConditionalCheckFailedException":
                    return False
                if _code(error) != "TransactionConflictException":
                    raise
                await pause(attempt)
        raise StoreUnavailable(BUSY)

    async def _call(self, operation: Callable[..., R], **request: Any) -> R:
        """Run a blocking call in a thread; what says nothing about the data becomes `StoreUnavailable`."""
        try:
            return await asyncio.to_thread(operation, **request)
        except ClientError as error:
            if _code(error) in _ANSWERS:
                raise
            raise StoreUnavailable(f"The store answered {_code(error)}") from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"The store cannot be reached: {type(error).__name__}") from error
