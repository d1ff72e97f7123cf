"""Working memory on the table: faults, copies that are cut off, what is left of it, and what its calls cost."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from local.stack import Stack
from tests.counting import Counter
from tests.faults import (
    IN_PROGRESS,
    THROTTLED,
    Fault,
    Faults,
    collision,
    half_read,
    last_third_unread,
    lost,
    refused,
    sent,
)
from threadkeep.errors import NotFound, StoreUnavailable, ThreadGone
from threadkeep.storage.dynamodb import DynamoDBStorage, clones, items
from threadkeep.storage.port import (
    CloneRequest,
    MemoryMoved,
    MemoryScope,
    MemorySeed,
    MemoryTarget,
    MemoryWrite,
    NewThread,
    SavedMessage,
    Thread,
    ThreadChange,
    WorkingMemory,
)

DENIED = refused("AccessDeniedException")  # what no repetition mends: the process might as well have been killed
NOTHING = WorkingMemory()
OWNER = MemoryTarget("resource", "r")
OWN = MemoryTarget("thread", "t")
FAULTS = pytest.mark.parametrize(
    "fault", [collision, lost, THROTTLED, IN_PROGRESS], ids=["collision", "lost", "throttled", "in progress"]
)
SCOPES = pytest.mark.parametrize("scope", ["thread", "resource"])


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def client(emulator: Stack) -> Iterator[Any]:
    client = boto3.client(
        "dynamodb",
        endpoint_url=emulator.endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"mode": "standard"}),
    )
    yield client
    client.close()


@pytest.fixture
def storage(client: Any, table: str, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[DynamoDBStorage]:
    monkeypatch.setattr(clones, "WATCH_SECONDS", 0.05)
    client.meta.events.register("before-send.dynamodb", faults)
    yield DynamoDBStorage(table, client)
    assert not faults.planned, "a planned fault never happened"


@pytest.fixture
def counter(storage: DynamoDBStorage, client: Any) -> Counter:
    """Faults come first: they answer in the counter's place."""
    counter = Counter()
    counter.register(client)
    return counter


def seed(scope: MemoryScope, text: str = "seed") -> MemorySeed:
    return MemorySeed(scope, text, "http")


def where(scope: MemoryScope) -> MemoryTarget:
    return OWN if scope == "thread" else OWNER


async def write(storage: DynamoDBStorage, thread: Thread, scope: MemoryScope, text: str) -> WorkingMemory:
    read = await storage.get_working_memory(where(scope))
    return await storage.put_working_memory(MemoryWrite(where(scope), text, read, "library", thread))


# --- faults ---


@FAULTS
@SCOPES
async def test_h09_a_memory_is_written_once(storage: DynamoDBStorage, faults: Faults, fault: Fault, scope: MemoryScope):
    thread = await storage.create_thread(NewThread("t", "r"))
    first = await write(storage, thread, scope, "one")
    faults.plan("TransactWriteItems", fault)
    second = await storage.put_working_memory(MemoryWrite(where(scope), "two", first, "library", thread))
    assert second.version == 2
    assert await storage.get_working_memory(where(scope)) == second


@FAULTS
@SCOPES
async def test_wm20_a_seed_is_written_once(storage: DynamoDBStorage, faults: Faults, fault: Fault, scope: MemoryScope):
    faults.plan("TransactWriteItems", fault)
    made = await storage.create_thread(NewThread("t", "r", memory=seed(scope)))
    assert (made.memory, (await storage.list_threads("r")).total) == ("seed", 1)
    faults.plan("TransactWriteItems", fault)
    after = await storage.update_thread("t", ThreadChange("x", memory=seed(scope, "other")), resource_id="r")
    memory = await storage.get_working_memory(where(scope))
    assert (after.memory, after.version, memory.text, memory.version) == ("other", 2, "other", 2)


@FAULTS
async def test_th11_a_copy_comes_with_its_memory_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    source = await storage.create_thread(NewThread("t", "r", memory=seed("thread", "own")))
    await write(storage, source, "resource", "owner's")
    faults.plan("TransactWriteItems", fault, sent, fault)
    request = CloneRequest("t", NewThread("copy", "other"), resource_memory=True)
    assert (await storage.clone_thread(request)).thread.memory == "own"
    theirs = await storage.get_working_memory(MemoryTarget("resource", "other"))
    assert (theirs.text, theirs.version) == ("owner's", 1)


async def test_h11_keys_that_a_batch_hands_back_are_read_again(storage: DynamoDBStorage, faults: Faults):
    thread = await storage.create_thread(NewThread("t", "r"))
    memory = await write(storage, thread, "thread", "text")
    faults.plan("BatchGetItem", half_read, last_third_unread)
    assert await storage.get_working_memory(OWN) == memory
    faults.plan("BatchGetItem", half_read)
    assert (await storage.load_turn("t", last_messages=1, memory=OWN)).memory == memory
    for n in range(5):
        await storage.create_thread(NewThread(f"t{n}", "r", memory=seed("thread", f"text {n}")))
    faults.plan("BatchGetItem", last_third_unread, last_third_unread)
    shown = {t.id: t.memory for t in (await storage.list_threads("r")).items}
    assert shown == {"t": "text"} | {f"t{n}": f"text {n}" for n in range(5)}


@SCOPES
async def test_a_store_that_stays_busy_writes_nothing(storage: DynamoDBStorage, faults: Faults, scope: MemoryScope):
    thread = await storage.create_thread(NewThread("t", "r"))
    memory = await write(storage, thread, scope, "text")
    faults.always("TransactWriteItems", collision)
    for call in (
        storage.put_working_memory(MemoryWrite(where(scope), "lost", memory, "library", thread)),
        storage.update_thread("t", ThreadChange(memory=seed(scope)), resource_id="r"),
        storage.create_thread(NewThread("other", "r", memory=seed(scope))),
    ):
        with pytest.raises(StoreUnavailable):
            await call
    faults.over()
    assert await storage.get_working_memory(where(scope)) == memory
    assert (await storage.list_threads("r")).total == 1


class Meanwhile:
    """Lets other requests come between a call's reads and its write, so many times."""

    def __init__(self, other: Any, times: int = 1):
        self.other, self.times = other, times

    def __call__(self, request: AWSPreparedRequest) -> AWSResponse:
        self.times -= 1
        self.other()
        return sent(request)


@pytest.fixture
def rival(emulator: Stack, table: str) -> Iterator[DynamoDBStorage]:
    """The same table for another process."""
    client = emulator.client("dynamodb")
    yield DynamoDBStorage(table, client)
    client.close()


@SCOPES
@pytest.mark.parametrize("resource", ["r", None])
async def test_h09_a_seed_that_meets_another_writer_goes_on_top(
    storage: DynamoDBStorage, rival: DynamoDBStorage, faults: Faults, scope: MemoryScope, resource: str | None
):
    thread = await storage.create_thread(NewThread("t", "r"))

    def other() -> None:
        asyncio.run(write(rival, thread, scope, "by another run"))

    faults.plan("TransactWriteItems", Meanwhile(other))
    after = await storage.update_thread("t", ThreadChange("x", memory=seed(scope)), resource_id=resource)
    memory = await storage.get_working_memory(where(scope))
    assert (after.memory, memory.version, [r.writer for r in memory.past]) == ("seed", 2, ["http", "library"])
    assert after.version == 2


async def test_mdisc6_a_seed_that_another_call_brings_meanwhile_is_not_written_twice(
    storage: DynamoDBStorage, rival: DynamoDBStorage, faults: Faults
):
    def other() -> None:
        asyncio.run(rival.create_thread(NewThread("other", "r", memory=seed("resource"))))

    faults.plan("TransactWriteItems", Meanwhile(other))
    made = await storage.create_thread(NewThread("t", "r", memory=seed("resource")))
    memory = await storage.get_working_memory(OWNER)
    assert (made.memory, memory.text, memory.version) == ("seed", "seed", 1)
    assert (await storage.list_threads("r")).total == 2


async def test_h02_a_seed_for_an_owner_who_gives_the_thread_away_meanwhile_goes_to_nobody_else(
    storage: DynamoDBStorage, rival: DynamoDBStorage, faults: Faults
):
    """A service that names no owner means the owner at the time of the write."""
    await storage.create_thread(NewThread("t", "r"))

    def other() -> None:
        asyncio.run(rival.transfer_thread("t", "new", resource_id=None))

    faults.plan("TransactWriteItems", Meanwhile(other))
    after = await storage.update_thread("t", ThreadChange(memory=seed("resource")), resource_id=None)
    assert (after.resource_id, after.memory) == ("new", "seed")
    assert await storage.get_working_memory(OWNER) == NOTHING
    assert (await storage.get_working_memory(MemoryTarget("resource", "new"))).text == "seed"


# --- copies that are cut off ---


def batch(count: int) -> list[SavedMessage]:
    return [SavedMessage("user", {"format": 2, "n": n}, f"m{n:03}") for n in range(count)]


async def cut_off(storage: DynamoDBStorage, faults: Faults, steps: int) -> Thread:
    """A source with 50 messages, of which a copy for another owner was killed after so many steps."""
    source = await storage.create_thread(NewThread("t", "r", memory=seed("thread", "own")))
    await write(storage, source, "resource", "owner's")
    await storage.save_messages("t", batch(50), resource_id="r")
    faults.plan("TransactWriteItems", sent, *[sent] * steps, DENIED)
    with pytest.raises(StoreUnavailable):
        await storage.clone_thread(CloneRequest("t", NewThread("copy", "other"), resource_memory=True))
    return source


@pytest.mark.parametrize("steps", [0, 2])
async def test_th11_a_copy_that_was_killed_is_finished_with_its_memory(
    storage: DynamoDBStorage, faults: Faults, steps: int
):
    source = await cut_off(storage, faults, steps)
    copy = MemoryTarget("thread", "copy")
    with pytest.raises(NotFound):
        await storage.get_working_memory(copy)
    assert (await storage.load_turn("copy", last_messages=1, memory=copy)).memory == NOTHING
    row = await storage._row("copy")
    assert row is not None
    with pytest.raises(ThreadGone):
        await storage.put_working_memory(MemoryWrite(copy, "early", NOTHING, "run", items.thread_from(row)))
    assert await storage.get_working_memory(MemoryTarget("resource", "other")) == NOTHING
    await write(storage, source, "thread", "newer")
    await storage.transfer_thread("t", "third", resource_id=None)
    await storage.put_working_memory(MemoryWrite(MemoryTarget("resource", "third"), "private", NOTHING, "http"))
    await storage.finish_clone("copy")
    made = await storage.get_working_memory(copy)
    assert (made.text, made.version, made.past[0].writer) == ("newer", 1, "clone of t")
    theirs = await storage.get_working_memory(MemoryTarget("resource", "other"))
    assert (theirs.text, theirs.version) == ("owner's", 1)  # of the owner who was copied, not of a later one (H02)
    assert (await storage.list_threads("other")).items[0].memory == "newer"


@pytest.mark.parametrize("steps", [0, 2])
async def test_h29_a_copy_whose_source_went_gets_no_memory(storage: DynamoDBStorage, faults: Faults, steps: int):
    await cut_off(storage, faults, steps)
    await storage.delete_thread("t", resource_id=None)
    with pytest.raises(NotFound):
        await storage.finish_clone("copy")
    with pytest.raises(NotFound):
        await storage.get_working_memory(MemoryTarget("thread", "copy"))
    assert await storage.get_working_memory(MemoryTarget("resource", "other")) == NOTHING
    assert (await storage.load_turn("copy", last_messages=1)).deleting is True


async def test_a_copy_that_meets_a_writer_of_the_memory_goes_on_top(
    storage: DynamoDBStorage, rival: DynamoDBStorage, faults: Faults
):
    await cut_off(storage, faults, 2)
    target = MemoryTarget("resource", "other")
    faults.plan(
        "TransactWriteItems",
        Meanwhile(lambda: asyncio.run(rival.put_working_memory(MemoryWrite(target, "own", NOTHING, "http")))),
    )
    await storage.finish_clone("copy")
    memory = await storage.get_working_memory(target)
    assert [r.writer for r in memory.past] == ["clone of t", "http"]
    assert memory.text == "owner's"


async def test_a_copy_that_an_older_version_began_is_finished(storage: DynamoDBStorage, faults: Faults, client: Any):
    await cut_off(storage, faults, 0)
    row = await storage._row("copy")
    assert row is not None
    begun = json.loads(items.get_text(row, "cloning"))
    client.put_item(TableName=storage._table.name, Item=row | {"cloning": {"S": json.dumps(begun[:6])}})
    await storage.finish_clone("copy")
    assert (await storage.list_messages("copy")).page.total == 50
    assert (await storage.get_working_memory(MemoryTarget("thread", "copy"))).text == "own"
    assert await storage.get_working_memory(MemoryTarget("resource", "other")) == NOTHING


# --- what is left ---


async def test_what_an_earlier_thread_left_is_not_read(storage: DynamoDBStorage, client: Any):
    """A batch may read the memory of a thread, and then the row of the next one with its id."""
    earlier = await storage.create_thread(NewThread("t", "r"))
    await write(storage, earlier, "thread", "private")
    left = await storage._table.get(items.memory_key(OWN))
    await storage.delete_thread("t", resource_id=None)
    await storage.purge_thread("t")
    assert await storage._table.get(items.memory_key(OWN)) is None
    await storage.create_thread(NewThread("t", "other"))
    client.put_item(TableName=storage._table.name, Item=left)
    thread = await storage.get_thread("t")
    assert thread is not None
    assert thread.memory is None
    assert await storage.get_working_memory(OWN) == NOTHING
    assert (await storage.load_turn("t", last_messages=1, memory=OWN)).memory == NOTHING
    assert [t.memory for t in (await storage.list_threads("other")).items] == [None]
    assert (await storage.clone_thread(CloneRequest("t", NewThread("copy", "other")))).thread.memory is None


async def test_the_item_is_as_it_has_always_been(storage: DynamoDBStorage):
    storage._now = lambda: 1_700_000_000_000
    thread = await storage.create_thread(NewThread("t", "r", memory=seed("thread")))
    await write(storage, thread, "resource", "text")
    digest = "19b25856e1c150ca834cffc8b59b23adbd0ec0389e58eb22b3b64768098d002b"
    assert await storage._table.get({"pk": {"S": "T#t"}, "sk": {"S": "W"}}) == {
        "pk": {"S": "T#t"},
        "sk": {"S": "W"},
        "text": {"S": "seed"},
        "version": {"N": "1"},
        "past": {"S": f'[{{"version":1,"at":1700000000000,"writer":"http","digest":"{digest}"}}]'},
        "seeds": {"S": f'["{digest}"]'},
        "threadCreatedAt": {"N": "1700000000000"},
    }
    found = await storage._table.get({"pk": {"S": "R#r"}, "sk": {"S": "W"}})
    assert found is not None
    assert found.keys() == {"pk", "sk", "text", "version", "past", "seeds"}


# --- what it costs ---


async def spent(counter: Counter, call: Any) -> tuple[list[str], int]:
    """The requests of a call and its round trips."""
    counter.clear()
    with suppress(MemoryMoved):
        await call
    return counter.operations, counter.round_trips


@SCOPES
async def test_a_write_is_one_request_also_if_it_loses(storage: DynamoDBStorage, counter: Counter, scope: MemoryScope):
    thread = await storage.create_thread(NewThread("t", "r"))
    for _ in range(2):  # the second one meets the first
        call = storage.put_working_memory(MemoryWrite(where(scope), "text", NOTHING, "library", thread))
        assert await spent(counter, call) == (["TransactWriteItems"], 1)


@SCOPES
async def test_a_read_is_one_request_and_rides_with_a_turn(
    storage: DynamoDBStorage, counter: Counter, scope: MemoryScope
):
    thread = await storage.create_thread(NewThread("t", "r"))
    await write(storage, thread, scope, "text")
    read = ["BatchGetItem" if scope == "thread" else "GetItem"]
    assert await spent(counter, storage.get_working_memory(where(scope))) == (read, 1)
    load = storage.load_turn("t", last_messages=5, message_ids=["m"], memory=where(scope))
    assert await spent(counter, load) == (["BatchGetItem", "Query"], 1)


async def test_threads_show_their_memories_without_a_further_round_trip(storage: DynamoDBStorage, counter: Counter):
    for n in range(60):
        await storage.create_thread(NewThread(f"t{n}", "r", memory=seed("thread", f"text {n}")))
    assert await spent(counter, storage.get_thread("t1")) == (["BatchGetItem"], 1)
    assert await spent(counter, storage.list_threads("r")) == (["BatchGetItem"] * 2 + ["GetItem", "Query"], 2)


@pytest.mark.parametrize(
    ("scope", "owner", "create", "update"),
    [
        ("thread", "r", (["TransactWriteItems"], 1), (["BatchGetItem", "TransactWriteItems"], 2)),
        ("thread", None, (["TransactWriteItems"], 1), (["BatchGetItem", "TransactWriteItems"], 2)),
        ("resource", "r", (["GetItem", "TransactWriteItems"], 2), (["BatchGetItem", "TransactWriteItems"], 2)),
        (
            "resource",
            None,
            (["GetItem", "TransactWriteItems"], 2),
            (["BatchGetItem", "GetItem", "TransactWriteItems"], 3),
        ),
    ],
)
async def test_a_seed_costs_at_most_one_read(
    storage: DynamoDBStorage, counter: Counter, scope: MemoryScope, owner: str | None, create: Any, update: Any
):
    new = NewThread("t", "r", memory=seed(scope))
    assert await spent(counter, storage.create_thread(new)) == create
    change = ThreadChange(memory=seed(scope, "other"))
    assert await spent(counter, storage.update_thread("t", change, resource_id=owner)) == update
    assert (await storage.get_working_memory(where(scope))).text == "other"
