"""Big bodies in the bucket: written before the item, removed after it, and swept where a write was cut off."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from local.stack import Stack
from tests.template import create_bucket, template
from threadkeep import clock, outbox
from threadkeep.errors import Conflict, StoreUnavailable, TooLarge
from threadkeep.storage.dynamodb import DynamoDBStorage, items, requests
from threadkeep.storage.dynamodb.bucket import Bucket
from threadkeep.storage.port import CloneRequest, Job, MessageUpdate, NewThread, TurnCommit
from threadkeep.storage.runs import Entry
from threadkeep.testing.storage_base import message

BIG = "x" * 400_000
DAY = 86_400_000


@pytest.fixture
def s3(emulator: Stack) -> Iterator[Any]:
    client = emulator.client("s3")
    yield client
    client.close()


@pytest.fixture
def bucket(s3: Any) -> Bucket:
    return Bucket(lambda: s3, create_bucket(s3))


@pytest.fixture
def storage(emulator: Stack, table: str, bucket: Bucket) -> Iterator[DynamoDBStorage]:
    client = emulator.client("dynamodb")
    yield DynamoDBStorage(table, client, bucket)
    client.close()


async def blobs(bucket: Bucket) -> set[str]:
    return {blob.key async for page in bucket.all() for blob in page}


def later(storage: DynamoDBStorage, days: float) -> None:
    storage._now = lambda: clock.now() + int(days * DAY)


async def test_only_what_does_not_fit_goes_to_the_bucket(storage: DynamoDBStorage, bucket: Bucket, s3: Any):
    thread = await storage.create_thread(NewThread("t#ü", "r"))
    await storage.commit_turn(TurnCommit(thread, (message("big/ü", pad=BIG), message("small"))))
    (key,) = await blobs(bucket)
    stored = s3.get_object(Bucket=bucket.name, Key=key)
    assert stored["ContentEncoding"] == "gzip"
    assert stored["ContentLength"] < 2_000
    assert await bucket.owner(key) == ("message", "t#ü", "big/ü")
    assert "t#" not in key and "big" not in key


async def test_a_turn_above_four_megabytes_is_one_transaction_all_the_same(storage: DynamoDBStorage, bucket: Bucket):
    thread = await storage.create_thread(NewThread("t", "r"))
    new = tuple(message(f"m{n}", pad="x" * (90_000 + n)) for n in range(44))
    done = await storage.commit_turn(TurnCommit(thread, new, Job("run", "t", "agent")))
    owners = [await bucket.owner(key) for key in await blobs(bucket)]
    assert {owner.id for owner in owners if owner} == {f"m{n}" for n in range(38, 44)}
    assert (await storage.list_messages("t", per_page=None)).page.items == done.messages


async def test_without_a_bucket_big_bodies_are_refused(emulator: Stack, table: str):
    client = emulator.client("dynamodb")
    storage = DynamoDBStorage(table, client)
    thread = await storage.create_thread(NewThread("t", "r"))
    with pytest.raises(TooLarge, match="Without a bucket"):
        await storage.commit_turn(TurnCommit(thread, (message(pad=BIG),)))
    assert await storage.get_thread("t") == thread
    assert await storage.sweep_bodies() == 0
    client.close()


async def test_the_outbox_removes_what_images_show_as_gone(storage: DynamoDBStorage, bucket: Bucket, emulator: Stack):
    thread = await storage.create_thread(NewThread("t", "r"))
    first = await storage.commit_turn(TurnCommit(thread, (message("a", pad=BIG), message("b", pad=BIG))))
    before = await rows(storage)
    update = MessageUpdate(first.messages[0], {"format": 2, "pad": BIG + "y"})
    await storage.commit_turn(TurnCommit(first.thread, (), updates=(update,)))
    after = await rows(storage)
    changed = {"dynamodb": {"OldImage": before["a"], "NewImage": after["a"]}}
    kept = {"dynamodb": {"OldImage": before["b"], "NewImage": after["b"]}}
    new = {"dynamodb": {"NewImage": after["b"]}}
    assert len(await blobs(bucket)) == 3
    await outbox.remove_bodies([changed, kept, new], bucket)
    assert await blobs(bucket) == {items.get_text(row, "blob") for row in after.values()}
    await storage.delete_messages(["b"], resource_id=None)
    gone = {"dynamodb": {"OldImage": after["b"]}}
    for _ in range(2):
        await outbox.remove_bodies([gone], bucket)
    assert await blobs(bucket) == {items.get_text(after["a"], "blob")}
    assert [m.content["pad"] for m in (await storage.list_messages("t")).page.items] == [BIG + "y"]


async def rows(storage: DynamoDBStorage) -> dict[str, Any]:
    found = await storage._first(None, requests.prefix("T#t", "M#", "ASC"))
    return {items.get_text(row, "id"): row for row in found}


async def test_a_sweep_removes_what_cut_off_writes_left_and_nothing_else(
    storage: DynamoDBStorage, bucket: Bucket, s3: Any
):
    thread = await storage.create_thread(NewThread("t", "r"))
    done = await storage.commit_turn(TurnCommit(thread, (message("a", pad=BIG),)))
    clone = await storage.clone_thread(CloneRequest("t", NewThread("copy", "r")))
    used = await blobs(bucket)
    assert len(used) == 2
    with pytest.raises(Conflict):
        await storage.commit_turn(TurnCommit(done.thread, (message("a", pad=BIG),)))
    with pytest.raises(Conflict):
        await storage.commit_turn(TurnCommit(done.thread, (message("a", pad=BIG), message("b", pad=BIG))))
    s3.put_object(Bucket=bucket.name, Key="not/ours", Body=b"")
    assert len(await blobs(bucket)) == 6
    assert await storage.sweep_bodies() == 0
    later(storage, 9)
    assert await storage.sweep_bodies() == 0
    later(storage, 2)
    assert await storage.sweep_bodies() == 3
    assert await blobs(bucket) == used | {"not/ours"}
    assert (await storage.list_messages("copy")).page.items == clone.messages
    await storage.delete_messages(["a"], resource_id=None, thread_id="t")
    assert await storage.sweep_bodies() == 1
    assert (await storage.list_messages("copy")).page.items == clone.messages


async def test_the_outbox_removes_the_bodies_of_entries_that_are_gone(
    storage: DynamoDBStorage, bucket: Bucket, emulator: Stack
):
    await storage.create_thread(NewThread("t", "r"))
    big = (Entry("a", BIG), Entry("b", BIG))
    await storage.write_entries("j/ü", (*big, Entry("small", 1)), thread_id="t")
    (one, other) = await blobs(bucket)
    assert {await bucket.owner(one), await bucket.owner(other)} == {("entry", "j/ü", "a"), ("entry", "j/ü", "b")}
    assert "j/" not in one and "/entry/" in one
    images = await storage._first(None, requests.partition("N#j%2Fü"))
    removed = [{"eventName": "REMOVE", "dynamodb": {"OldImage": image}} for image in images]
    assert passed(images) == images
    await storage.delete_thread("t", resource_id=None)
    assert await storage.purge_thread("t")
    assert await blobs(bucket) == {one, other}  # the table's stream asks for their removal
    await outbox.remove_bodies(removed, bucket)
    assert await blobs(bucket) == set()


def passed(images: list[Any]) -> list[Any]:
    """Those of the rows that the template lets the outbox see."""
    function = template()["Resources"]["OutboxFunction"]["Properties"]["Events"]["Stream"]["Properties"]
    (filter_,) = function["FilterCriteria"]["Filters"]
    rules = json.loads(filter_["Pattern"])["dynamodb"]["Keys"]["sk"]["S"]
    starts = tuple(rule["prefix"] for rule in rules if isinstance(rule, dict))
    return [image for image in images if image["sk"]["S"].startswith(starts) or image["sk"]["S"] in rules]


async def test_a_sweep_removes_the_bodies_of_entries_that_lost_and_nothing_else(
    storage: DynamoDBStorage, bucket: Bucket
):
    big = (Entry("a", BIG), Entry("b", BIG + "b"))
    assert await storage.write_entries("j", big, thread_id=None) == big
    used = await blobs(bucket)
    for again in (big, big[:1], (*big, Entry("c", BIG))):
        await storage.write_entries("j", again, thread_id=None)
    assert len(await blobs(bucket)) == 8
    later(storage, 2)
    assert await storage.sweep_bodies() == 5
    assert len(await blobs(bucket) - used) == 1
    assert await storage.list_entries("j", "") == (*big, Entry("c", BIG))


async def test_without_a_bucket_big_entries_are_refused(emulator: Stack, table: str):
    client = emulator.client("dynamodb")
    storage = DynamoDBStorage(table, client)
    with pytest.raises(TooLarge, match="Without a bucket"):
        await storage.write_entries("j", (Entry("a", 1), Entry("b", BIG)), thread_id=None)
    assert await storage.list_entries("j", "") == ()
    client.close()


class Broken:
    """An S3 client of which every call fails."""

    def __init__(self, error: Exception):
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def fail(**_: Any) -> None:
            raise self.error

        return fail


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "SlowDown"}}, "PutObject"),
        EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
    ],
)
async def test_a_bucket_that_fails_stores_nothing(emulator: Stack, table: str, error: Exception):
    client = emulator.client("dynamodb")
    broken = Bucket(lambda: Broken(error), "name")  # type: ignore[arg-type, return-value]
    storage = DynamoDBStorage(table, client, broken)
    thread = await storage.create_thread(NewThread("t", "r"))
    with pytest.raises(StoreUnavailable):
        await storage.commit_turn(TurnCommit(thread, (message(pad=BIG),)))
    assert await storage.get_thread("t") == thread
    with pytest.raises(StoreUnavailable):
        await broken.owner("key")
    client.close()


async def test_bodies_that_cannot_be_removed_are_said():
    class Refusing:
        def delete_objects(self, **_: Any) -> dict[str, Any]:
            return {"Errors": [{"Code": "AccessDenied"}]}

    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        await Bucket(Refusing, "name").delete(["a", "b"])  # type: ignore[arg-type]


async def test_all_pages_of_a_bucket_are_seen(bucket: Bucket, s3: Any, monkeypatch: pytest.MonkeyPatch):
    for n in range(5):
        s3.put_object(Bucket=bucket.name, Key=str(n), Body=b"")
    whole = s3.list_objects_v2
    monkeypatch.setattr(s3, "list_objects_v2", lambda **request: whole(MaxKeys=2, **request))
    assert await blobs(bucket) == {str(n) for n in range(5)}
    assert await bucket.owner("none") is None
    assert await bucket.owner("0") is None
    with pytest.raises(StoreUnavailable, match="changed or deleted"):
        await bucket.get("none")
