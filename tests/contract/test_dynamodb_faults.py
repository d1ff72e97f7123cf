"""What the emulator never shows: writers that collide, throttling, leftovers of a batch, answers that get lost."""

import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError

from local.stack import Stack
from threadkeep.errors import StoreUnavailable
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.port import Job, NewThread, TurnCommit
from threadkeep.testing.storage_contract import message, turn

Fault = Callable[[AWSPreparedRequest], AWSResponse]


class Body(io.BytesIO):
    def stream(self) -> Iterator[bytes]:
        yield self.read()


def answer(request: AWSPreparedRequest, body: bytes, status: int = 200) -> AWSResponse:
    return AWSResponse(request.url, status, {"content-type": "application/x-amz-json-1.0"}, Body(body))


def sent(request: AWSPreparedRequest) -> AWSResponse:
    """Carry the request out."""
    headers = {k: v.decode() if isinstance(v, bytes) else v for k, v in request.headers.items()}
    call = urllib.request.Request(request.url, request.body, headers, method="POST")
    try:
        with urllib.request.urlopen(call) as response:
            return answer(request, response.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return answer(request, refusal.read(), refusal.code)


def refused(code: str, **more: Any) -> Fault:
    """The request is not carried out."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "injected", **more}
    return lambda request: answer(request, json.dumps(body).encode(), 400)


def collision(request: AWSPreparedRequest) -> AWSResponse:
    """The last action of the transaction met another writer's."""
    reasons = [{"Code": "None"} for _ in json.loads(request.body)["TransactItems"]]
    reasons[-1] = {"Code": "TransactionConflict", "Message": "injected"}
    return refused("TransactionCanceledException", CancellationReasons=reasons)(request)


def lost(request: AWSPreparedRequest) -> AWSResponse:
    """The request is carried out, but nobody hears of it."""
    sent(request)
    raise ReadTimeoutError(endpoint_url=request.url)


def half_read(request: AWSPreparedRequest) -> AWSResponse:
    """BatchGetItem reads one key and hands the others back."""
    asked = json.loads(request.body)["RequestItems"]
    left = {name: {**part, "Keys": part["Keys"][1:]} for name, part in asked.items()}
    found = json.loads(sent(request).content)["Responses"]
    first = {name: part["Keys"][0] for name, part in asked.items()}
    kept = {name: [row for row in rows if first[name].items() <= row.items()] for name, rows in found.items()}
    return answer(request, json.dumps({"Responses": kept, "UnprocessedKeys": left}).encode())


def nothing_written(request: AWSPreparedRequest) -> AWSResponse:
    """BatchWriteItem hands everything back."""
    return answer(request, json.dumps({"UnprocessedItems": json.loads(request.body)["RequestItems"]}).encode())


THROTTLED = refused("ProvisionedThroughputExceededException")
IN_PROGRESS = refused("TransactionInProgressException")
TRANSACTION_FAULTS = [collision, lost, THROTTLED, IN_PROGRESS]


class Faults:
    """Answers the next requests of an operation in DynamoDB's place, one fault each."""

    def __init__(self) -> None:
        self.planned: list[tuple[str, Fault]] = []

    def plan(self, operation: str, *faults: Fault) -> None:
        self.planned += [(operation, fault) for fault in faults]

    def __call__(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        target = request.headers["X-Amz-Target"]
        name = target.decode() if isinstance(target, bytes) else target
        if self.planned and name.endswith(f".{self.planned[0][0]}"):
            return self.planned.pop(0)[1](request)
        return None


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def storage(emulator: Stack, table: str, faults: Faults) -> Iterator[DynamoDBStorage]:
    client = boto3.client(
        "dynamodb",
        endpoint_url=emulator.endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"mode": "standard"}),
    )
    client.meta.events.register("before-send.dynamodb", faults)
    yield DynamoDBStorage(table_name=table, client=client)
    client.close()
    assert not faults.planned, "a planned fault never happened"


@pytest.mark.parametrize("fault", TRANSACTION_FAULTS, ids=["collision", "lost", "throttled", "in progress"])
async def test_a_turn_is_stored_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    thread = await storage.create_thread(NewThread("t", "r"))
    faults.plan("TransactWriteItems", fault)
    done = await storage.commit_turn(TurnCommit(thread, turn(), Job("run", "t", "agent")))
    assert await storage.get_thread("t") == done.thread
    assert (await storage.list_messages("t")).page.items == done.messages
    assert done.thread.message_count == 2


@pytest.mark.parametrize("fault", TRANSACTION_FAULTS, ids=["collision", "lost", "throttled", "in progress"])
async def test_a_thread_is_created_and_counted_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    faults.plan("TransactWriteItems", fault)
    made = await storage.create_thread(NewThread("t", "r"))
    page = await storage.list_threads("r")
    assert (page.items, page.total) == ((made,), 1)


@pytest.mark.parametrize("fault", TRANSACTION_FAULTS, ids=["collision", "lost", "throttled", "in progress"])
async def test_a_thread_is_deleted_and_counted_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    await storage.create_thread(NewThread("t", "r"))
    faults.plan("TransactWriteItems", fault)
    assert await storage.delete_thread("t", resource_id="r") is True
    assert (await storage.list_threads("r")).total == 0


async def test_another_turn_and_a_collision_at_once(storage: DynamoDBStorage, faults: Faults):
    thread = await storage.create_thread(NewThread("t", "r"))
    first = await storage.commit_turn(TurnCommit(thread, turn()))
    faults.plan("TransactWriteItems", collision, collision, lost)
    second = await storage.commit_turn(TurnCommit(thread, turn()))
    assert (await storage.list_messages("t")).page.items == first.messages + second.messages


async def test_keys_that_a_batch_hands_back_are_read_again(storage: DynamoDBStorage, faults: Faults):
    thread = await storage.create_thread(NewThread("t", "r"))
    await storage.commit_turn(TurnCommit(thread, tuple(message(f"m{n}") for n in range(5))))
    faults.plan("BatchGetItem", half_read, half_read)
    state = await storage.load_turn("t", last_messages=5, message_ids=[f"m{n}" for n in range(8)])
    assert state.thread is not None
    assert state.stored_ids == {f"m{n}" for n in range(5)}


async def test_rows_that_a_batch_leaves_are_deleted_again(storage: DynamoDBStorage, faults: Faults):
    thread = await storage.create_thread(NewThread("t", "r"))
    await storage.commit_turn(TurnCommit(thread, tuple(message() for _ in range(5))))
    await storage.delete_thread("t", resource_id="r")
    faults.plan("BatchWriteItem", nothing_written, nothing_written, lost)
    await storage.purge_thread("t")
    again = await storage.create_thread(NewThread("t", "r"))
    assert again.created_at > thread.created_at
    assert (await storage.load_turn("t", last_messages=9)).history == ()


async def test_a_purge_that_broke_off_is_taken_up_again(storage: DynamoDBStorage, faults: Faults):
    thread = await storage.create_thread(NewThread("t", "r"))
    await storage.commit_turn(TurnCommit(thread, tuple(message(f"m{n}") for n in range(30))))
    await storage.delete_thread("t", resource_id="r")
    faults.plan("BatchWriteItem", sent, refused("AccessDeniedException"))
    with pytest.raises(StoreUnavailable):
        await storage.purge_thread("t")
    assert (await storage.load_turn("t", last_messages=9)).deleting is True
    await storage.purge_thread("t")
    assert (await storage.load_turn("t", last_messages=9)).deleting is False
    await storage.create_thread(NewThread("t", "r"))
    state = await storage.load_turn("t", last_messages=9, message_ids=[f"m{n}" for n in range(30)])
    assert (state.history, state.stored_ids) == ((), frozenset())


async def test_a_title_whose_answer_was_lost_is_written(storage: DynamoDBStorage, faults: Faults):
    thread = await storage.create_thread(NewThread("t", "r"))
    faults.plan("UpdateItem", lost)
    await storage.set_title(thread, "Title")
    stored = await storage.get_thread("t")
    assert stored is not None
    assert stored.title == "Title"


async def test_a_store_that_stays_busy_is_unavailable_and_nothing_is_stored(storage: DynamoDBStorage, faults: Faults):
    thread = await storage.create_thread(NewThread("t", "r"))
    faults.plan("TransactWriteItems", *[collision] * 8)
    with pytest.raises(StoreUnavailable):
        await storage.commit_turn(TurnCommit(thread, turn()))
    assert await storage.get_thread("t") == thread
