"""What the emulator never shows: writers that collide, throttling, leftovers of a batch, answers that get lost."""

import asyncio
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from local.stack import Stack
from tests.faults import (
    IN_PROGRESS,
    THROTTLED,
    Fault,
    Faults,
    collision,
    half_read,
    last_third_unread,
    last_third_unwritten,
    lost,
    nothing_written,
    refused,
    sent,
)
from threadkeep import clock
from threadkeep.errors import Conflict, StoreUnavailable, ThreadGone
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.live import Channel
from threadkeep.storage.port import Job, NewThread, Receipt, TurnCommit
from threadkeep.testing.storage_base import message, turn
from threadkeep.testing.storage_live import claimed, run

TRANSACTION_FAULTS = [collision, lost, THROTTLED, IN_PROGRESS]
FOR_EVER = {"collision": collision, "lost": lost, "throttled": THROTTLED, "in progress": IN_PROGRESS}


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


async def test_a_run_that_ends_while_it_is_asked_to_does_not_have_the_next_one_stopped(
    storage: DynamoDBStorage, table: str, emulator: Stack, faults: Faults
):
    channel = Channel("r", "t")
    for name in ("a", "b"):
        await storage.queue_run(run(channel, name))
    live = await claimed(storage, channel)

    def ends_before(request: AWSPreparedRequest) -> AWSResponse:
        asyncio.run(DynamoDBStorage(table, emulator.client("dynamodb")).finish_run(live, []))
        return sent(request)

    faults.plan("UpdateItem", ends_before)
    assert await storage.stop_run(channel) is False
    following = await claimed(storage, channel)
    assert following.run_id == "t-b" and not await storage.is_stopped(following)


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


# --- faults that stay: a clear error, nothing done twice, and all is well when they are over ---


@pytest.mark.parametrize("kind", FOR_EVER)
async def test_a_thread_that_cannot_be_created(storage: DynamoDBStorage, faults: Faults, kind: str):
    faults.always("TransactWriteItems", FOR_EVER[kind])
    with pytest.raises(StoreUnavailable):
        await storage.create_thread(NewThread("t", "r"))
    faults.over()
    thread = await storage.create_thread(NewThread("t", "r"))
    page = await storage.list_threads("r")
    assert (page.items, page.total) == ((thread,), 1)


@pytest.mark.parametrize("kind", FOR_EVER)
async def test_a_turn_that_cannot_be_stored(storage: DynamoDBStorage, faults: Faults, kind: str):
    """Where answers are lost it may be stored; it never is twice, although the caller sends it again."""
    thread = await storage.create_thread(NewThread("t", "r"))
    commit = TurnCommit(thread, turn(), Job("run", "t", "agent"))
    faults.always("TransactWriteItems", FOR_EVER[kind])
    with pytest.raises(StoreUnavailable):
        await storage.commit_turn(commit)
    faults.over()
    landed = kind == "lost"
    assert (await storage.list_messages("t")).page.total == (2 if landed else 0)
    if landed:
        with pytest.raises(Conflict):
            await storage.commit_turn(commit)
    else:
        await storage.commit_turn(commit)
    stored = (await storage.list_messages("t")).page
    assert ([m.id for m in stored.items], stored.total) == ([m.id for m in commit.messages], 2)


@pytest.mark.parametrize("kind", FOR_EVER)
async def test_a_thread_that_cannot_be_deleted(storage: DynamoDBStorage, faults: Faults, kind: str):
    await storage.create_thread(NewThread("t", "r"))
    faults.always("TransactWriteItems", FOR_EVER[kind])
    with pytest.raises(StoreUnavailable):
        await storage.delete_thread("t", resource_id="r")
    faults.over()
    assert await storage.delete_thread("t", resource_id="r") is (kind != "lost")
    assert (await storage.list_threads("r")).total == 0
    assert await storage.get_thread("t") is None


async def test_reads_that_are_handed_back_for_ever(storage: DynamoDBStorage, faults: Faults):
    await storage.create_thread(NewThread("t", "r"))
    faults.always("BatchGetItem", last_third_unread)
    with pytest.raises(StoreUnavailable):
        await storage.load_turn("t", last_messages=5)
    with pytest.raises(StoreUnavailable):
        await storage.list_threads("r")
    faults.over()
    assert (await storage.load_turn("t", last_messages=5)).thread is not None


async def test_a_list_of_which_thirds_are_handed_back_is_whole(storage: DynamoDBStorage, faults: Faults):
    for n in range(30):
        await storage.create_thread(NewThread(f"t{n:02}", "r"))
    faults.plan("BatchGetItem", last_third_unread, last_third_unread)
    page = await storage.list_threads("r", direction="ASC")
    assert sorted(t.id for t in page.items) == [f"t{n:02}" for n in range(30)]


async def test_deletes_that_are_handed_back_for_ever_are_taken_up_later(storage: DynamoDBStorage, faults: Faults):
    """Case H11, and a thread stays a tombstone until the last row is gone."""
    thread = await storage.create_thread(NewThread("t", "r"))
    for _ in range(2):
        await storage.commit_turn(TurnCommit(thread, tuple(message() for _ in range(30))))
    await storage.delete_thread("t", resource_id="r")
    faults.always("BatchWriteItem", nothing_written)
    with pytest.raises(StoreUnavailable):
        await storage.purge_thread("t")
    with pytest.raises(ThreadGone):
        await storage.create_thread(NewThread("t", "r"))
    faults.over()
    faults.plan("BatchWriteItem", last_third_unwritten, last_third_unwritten)
    await storage.purge_thread("t")
    assert (await storage.load_turn("t", last_messages=5)).deleting is False


async def test_nothing_of_a_purged_thread_is_left(
    storage: DynamoDBStorage, faults: Faults, emulator: Stack, table: str
):
    thread = await storage.create_thread(NewThread("t", "r"))
    commit = TurnCommit(thread, tuple(message() for _ in range(40)), Job("run", "t", "agent"))
    await storage.commit_turn(commit)
    await storage.delete_thread("t", resource_id="r")
    faults.plan("BatchWriteItem", last_third_unwritten, lost, THROTTLED, last_third_unwritten)
    await storage.purge_thread("t")
    client = emulator.client("dynamodb")
    rows = client.scan(TableName=table, ConsistentRead=True)["Items"]
    client.close()
    assert [(row["pk"]["S"], row["sk"]["S"], row["threadCount"]["N"]) for row in rows] == [("R#r", "@", "0")]


async def test_a_load_that_fails_ends_after_its_claim_is_made(storage: DynamoDBStorage, monkeypatch: Any):
    claimed = asyncio.Event()
    real = DynamoDBStorage._claim

    async def slowly(self: DynamoDBStorage, receipt: Receipt | None) -> Receipt | None:
        await asyncio.sleep(0.05)
        found = await real(self, receipt)
        claimed.set()
        return found

    async def broken(*_: Any) -> Any:
        raise StoreUnavailable("down")

    monkeypatch.setattr(DynamoDBStorage, "_claim", slowly)
    monkeypatch.setattr(DynamoDBStorage, "_history", broken)
    receipt = Receipt("key", "holder", "hash", "running", clock.now() + 60_000)
    with pytest.raises(StoreUnavailable):
        await storage.load_turn("t", last_messages=5, claim=receipt)
    assert claimed.is_set(), "what is given back now would be claimed later, by nobody"
    await storage.drop_receipt(receipt)
    assert await storage.get_receipt("key") is None
