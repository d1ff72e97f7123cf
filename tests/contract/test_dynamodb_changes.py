"""Faults while threads and messages are changed, copied and purged: one request has one effect, or none (H11)."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import boto3
import pytest
from botocore.config import Config

from local.stack import Stack
from tests.faults import IN_PROGRESS, THROTTLED, Fault, Faults, collision, last_third_unread, lost, refused, sent
from threadkeep import clock
from threadkeep.errors import Conflict, NotFound, StoreUnavailable, ThreadGone
from threadkeep.storage.dynamodb import DynamoDBStorage, clones
from threadkeep.storage.port import (
    CloneRequest,
    MessageChange,
    NewThread,
    Receipt,
    SavedMessage,
    ThreadChange,
    TurnCommit,
)
from threadkeep.testing.storage_base import message, turn

DENIED = refused("AccessDeniedException")  # what no repetition mends: the process might as well have been killed
FAULTS = pytest.mark.parametrize(
    "fault", [collision, lost, THROTTLED, IN_PROGRESS], ids=["collision", "lost", "throttled", "in progress"]
)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def storage(emulator: Stack, table: str, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[DynamoDBStorage]:
    monkeypatch.setattr(clones, "WATCH_SECONDS", 0.05)
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


def batch(count: int) -> list[SavedMessage]:
    return [SavedMessage("user", {"format": 2, "n": n}, f"m{n:03}") for n in range(count)]


@FAULTS
async def test_a_thread_is_changed_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    made = await storage.create_thread(NewThread("t", "r", metadata={"a": 1}))
    faults.plan("TransactWriteItems", fault)
    after = await storage.update_thread("t", ThreadChange("new", {"b": 2}, merge=True), resource_id="r")
    assert (after.title, after.metadata, after.version) == ("new", {"a": 1, "b": 2}, made.version + 1)
    assert await storage.get_thread("t") == after


@FAULTS
async def test_a_thread_is_transferred_and_counted_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    await storage.create_thread(NewThread("t", "r"))
    faults.plan("TransactWriteItems", fault)
    after = await storage.transfer_thread("t", "to", resource_id="r")
    assert [(await storage.list_threads(owner)).items for owner in ("r", "to")] == [(), (after,)]
    assert [(await storage.list_threads(owner)).total for owner in ("r", "to")] == [0, 1]


@FAULTS
async def test_messages_are_saved_changed_and_deleted_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    await storage.create_thread(NewThread("t", "r"))
    faults.plan("TransactWriteItems", fault)
    rows = await storage.save_messages("t", batch(3), resource_id="r")
    faults.plan("TransactWriteItems", fault)
    (new,) = await storage.update_messages("t", [MessageChange("m001", role="assistant")], resource_id="r")
    assert new.revision == 2
    faults.plan("TransactWriteItems", fault)
    assert await storage.delete_messages(["m000", "m002"], resource_id="r") == 2
    listed = await storage.list_messages("t")
    assert (listed.page.items, listed.page.total, listed.thread.seq) == ((new,), 1, 3)
    assert listed.thread.version == 4
    assert rows[1].order == new.order


async def test_h11_a_save_copy_and_delete_with_leftovers_are_whole(storage: DynamoDBStorage, faults: Faults):
    await storage.create_thread(NewThread("t", "r"))
    faults.plan("BatchGetItem", last_third_unread, last_third_unread)
    await storage.save_messages("t", batch(60), resource_id="r")
    assert [m.id for m in (await storage.list_messages("t", per_page=None)).page.items] == [m.id for m in batch(60)]
    clone = await storage.clone_thread(CloneRequest("t", NewThread("copy", "r")))
    assert len(clone.messages) == 60


async def test_h11_a_save_that_broke_off_says_what_is_not_stored_and_may_be_repeated(
    storage: DynamoDBStorage, faults: Faults
):
    await storage.create_thread(NewThread("t", "r"))
    faults.plan("TransactWriteItems", sent, DENIED)
    with pytest.raises(StoreUnavailable, match="44 of 60 messages are stored, not stored: m044, m045.* and 6 more"):
        await storage.save_messages("t", batch(60), resource_id="r")
    assert (await storage.list_messages("t")).page.total == 44
    await storage.save_messages("t", batch(60), resource_id="r")
    listed = await storage.list_messages("t", per_page=None)
    assert [m.id for m in listed.page.items] == [m.id for m in batch(60)]
    assert (listed.page.total, listed.thread.seq) == (60, 60)


async def long_thread(storage: DynamoDBStorage, count: int = 150) -> None:
    await storage.create_thread(NewThread("t", "r", "Title"))
    await storage.save_messages("t", batch(count), resource_id="r")


@pytest.mark.parametrize("steps", [0, 1, 3, 4])
async def test_h29_a_copy_that_was_killed_is_finished(storage: DynamoDBStorage, faults: Faults, steps: int):
    """Steps: the messages in four transactions; the fifth lists the copy."""
    await long_thread(storage)
    faults.plan("TransactWriteItems", sent, *[sent] * steps, DENIED)
    with pytest.raises(StoreUnavailable):
        await storage.clone_thread(CloneRequest("t", NewThread("copy", "r", metadata={"a": 1})))
    assert await storage.get_thread("copy") is None
    assert (await storage.list_threads("r")).total == 1
    assert await storage.list_clones("t") == ()
    for write in (
        storage.create_thread(NewThread("copy", "r")),
        storage.update_thread("copy", ThreadChange(title="x"), resource_id="r"),
        storage.save_messages("copy", batch(1), resource_id="r"),
        storage.transfer_thread("copy", "other", resource_id="r"),
        storage.delete_thread("copy", resource_id="r"),
        storage.clone_thread(CloneRequest("t", NewThread("copy", "r"))),
    ):
        with pytest.raises(Conflict):
            await write
    await storage.finish_clone("copy")
    listed = await storage.list_messages("copy", per_page=None)
    assert [m.content for m in listed.page.items] == [m.content for m in batch(150)]
    assert (listed.page.total, listed.thread.seq, listed.thread.title) == (150, 150, "Clone of Title")
    assert listed.thread.metadata is not None
    assert (listed.thread.metadata["a"], listed.thread.metadata["clone"]["lastMessageId"]) == (1, "m149")
    assert (await storage.list_threads("r")).total == 2
    assert await storage.list_clones("t") == ("copy",)
    done = await storage.commit_turn(TurnCommit(listed.thread, turn()))
    assert done.thread.message_count == 152


@FAULTS
async def test_each_step_of_a_copy_happens_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    await long_thread(storage, 50)
    faults.plan("TransactWriteItems", *[fault, sent] * 4)
    clone = await storage.clone_thread(CloneRequest("t", NewThread("copy", "r")))
    assert [m.content for m in clone.messages] == [m.content for m in batch(50)]
    assert (clone.thread.message_count, (await storage.list_threads("r")).total) == (50, 2)


async def test_a_copy_whose_source_is_deleted_meanwhile_is_given_up(storage: DynamoDBStorage, faults: Faults):
    await long_thread(storage)
    faults.plan("TransactWriteItems", sent, sent, DENIED)
    with pytest.raises(StoreUnavailable):
        await storage.clone_thread(CloneRequest("t", NewThread("copy", "r")))
    await storage.delete_thread("t", resource_id="r")
    with pytest.raises(NotFound):
        await storage.finish_clone("copy")
    assert (await storage.load_turn("copy", last_messages=1)).deleting is True
    await storage.purge_thread("t")
    await storage.purge_thread("copy")
    assert (await storage.load_turn("copy", last_messages=1)).deleting is False
    assert (await storage.list_threads("r")).total == 0


async def test_a_source_deleted_before_the_copys_row_is_there(storage: DynamoDBStorage, faults: Faults):
    await long_thread(storage, 2)

    def deleted_first(request):
        faults.over()
        client = storage._table._client
        key = {"pk": {"S": "T#t"}, "sk": {"S": "@"}}
        client.delete_item(TableName=storage._table.name, Key=key)
        return sent(request)

    faults.plan("TransactWriteItems", deleted_first)
    with pytest.raises(NotFound):
        await storage.clone_thread(CloneRequest("t", NewThread("copy", "r")))
    assert await storage.get_thread("copy") is None


async def test_a_claim_whose_answer_was_lost_is_ones_own(storage: DynamoDBStorage, faults: Faults):
    thread = await storage.create_thread(NewThread("t", "r"))
    claim = Receipt("key", "run", "hash", "running", clock.now() + 60_000)
    faults.plan("PutItem", lost)
    assert (await storage.load_turn("t", last_messages=1, claim=claim)).claimed is None
    faults.plan("TransactWriteItems", lost)
    done = Receipt("key", "run", "hash", "done", claim.deadline, {"a": 1})
    await storage.commit_turn(TurnCommit(thread, turn(), receipt=done))
    assert await storage.get_receipt("key") == done
    assert (await storage.list_messages("t")).page.total == 2


async def test_a_receipt_is_forgotten_after_a_day_though_its_row_is_there(emulator: Stack, table: str):
    times = [1_000_000]
    client = emulator.client("dynamodb")
    storage = DynamoDBStorage(table, client, now=lambda: times[0])
    old = Receipt("key", "run", "hash", "done", 10**15)
    claim = Receipt("key", "new", "hash", "running", 10**15)
    thread = await storage.create_thread(NewThread("t", "r"))
    running = Receipt("key", "run", "hash", "running", 10**15)
    await storage.load_turn("t", last_messages=0, claim=running)
    await storage.commit_turn(TurnCommit(thread, (message(),), receipt=old))
    times[0] += 86_399_000
    assert await storage.get_receipt("key") == old
    assert (await storage.load_turn("t", last_messages=0, claim=claim)).claimed == old
    times[0] += 2_000
    assert await storage.get_receipt("key") is None
    assert (await storage.load_turn("t", last_messages=0, claim=claim)).claimed is None
    assert await storage.get_receipt("key") == claim
    client.close()


async def test_a_thread_that_changes_under_every_write_is_too_busy(storage: DynamoDBStorage, faults: Faults):
    await storage.create_thread(NewThread("t", "r"))
    await storage.save_messages("t", batch(1), resource_id="r")
    faults.always("TransactWriteItems", collision)
    for write in (
        storage.update_thread("t", ThreadChange("x"), resource_id="r"),
        storage.transfer_thread("t", "o", resource_id="r"),
        storage.update_messages("t", [MessageChange("m000", role="x")], resource_id="r"),
        storage.delete_messages(["m000"], resource_id="r"),
        storage.clone_thread(CloneRequest("t", NewThread("copy", "r"))),
    ):
        with pytest.raises(StoreUnavailable):
            await write
    faults.over()
    assert (await storage.list_messages("t")).thread.version == 2


async def test_a_turn_on_a_copy_on_its_way_is_refused(storage: DynamoDBStorage, faults: Faults):
    await long_thread(storage, 2)
    faults.plan("TransactWriteItems", sent, DENIED)
    with pytest.raises(StoreUnavailable):
        await storage.clone_thread(CloneRequest("t", NewThread("copy", "r")))
    state = await storage.load_turn("copy", last_messages=1)
    assert (state.thread, state.deleting) == (None, False)
    source = await storage.get_thread("t")
    assert source is not None
    with pytest.raises(ThreadGone):
        await storage.commit_turn(TurnCommit(source.__class__("copy", "r", "", None, 1, 1), turn()))


async def test_a_copy_that_is_given_up_while_it_is_watched_is_left_alone(
    storage: DynamoDBStorage, faults: Faults, monkeypatch: pytest.MonkeyPatch
):
    await long_thread(storage)
    faults.plan("TransactWriteItems", sent, sent, DENIED)
    with pytest.raises(StoreUnavailable):
        await storage.clone_thread(CloneRequest("t", NewThread("copy", "r")))
    await storage.delete_thread("t", resource_id="r")
    row = await storage._row("copy")
    assert row is not None

    async def given_up(_: float) -> None:
        await storage._abandon(clones.steps.copying_of(row))

    own = SimpleNamespace(sleep=given_up, gather=asyncio.gather)  # the real module belongs to other threads, too
    monkeypatch.setattr(clones, "asyncio", own)
    await storage.finish_clone("copy")
    assert (await storage.load_turn("copy", last_messages=1)).deleting is True


async def test_h02_a_list_that_is_older_than_a_transfer_shows_nobody_the_thread(
    storage: DynamoDBStorage, monkeypatch: pytest.MonkeyPatch
):
    """The index by updatedAt lags behind the table, and the directory is read before the threads."""
    await storage.create_thread(NewThread("t", "ana", "private"))
    await storage.create_thread(NewThread("mine", "ana"))
    await storage.transfer_thread("t", "bo", resource_id="ana")

    async def stale(*_: object) -> list[str]:
        return ["t", "mine", "mine"]

    monkeypatch.setattr(storage, "_by_update", stale)
    monkeypatch.setattr(storage, "_directory", stale)
    for field in ("updatedAt", "createdAt"):
        page = await storage.list_threads("ana", order_by=field)
        assert [thread.id for thread in page.items] == ["mine"]
