"""Journals and durable runs on the table: their keys, what they cost, faults, times that are over, and purges."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.config import Config

from local.stack import Stack
from tests.counting import Counter
from tests.faults import IN_PROGRESS, THROTTLED, Fault, Faults, collision, half_read, lost, nothing_written, refused
from threadkeep import clock
from threadkeep.errors import NotFound, RunEnded, StoreUnavailable
from threadkeep.ids import sub_resource
from threadkeep.storage.dynamodb import DynamoDBStorage, items
from threadkeep.storage.dynamodb.stream import Task, task_of
from threadkeep.storage.port import NewThread, Origin, Thread, TurnCommit
from threadkeep.storage.runs import DurableRun, Entry, RunGuard
from threadkeep.testing.storage_base import message
from threadkeep.testing.storage_journals import entries

WEEK = 7 * 86_400_000
TRANSACTION_FAULTS = {"collision": collision, "lost": lost, "throttled": THROTTLED, "in progress": IN_PROGRESS}
PUT_FAULTS = {"collision": refused("TransactionConflictException"), "lost": lost, "throttled": THROTTLED}
RUN = DurableRun("run/1", "agent", "ana", "t#1", "hash", {"prompt": "x"})
SUB = NewThread("sub/1", sub_resource("ana", "a/b"), origin=Origin("ana", "a/b", "t#1"))


@pytest.fixture
def counter() -> Counter:
    return Counter(latency=0)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def client(emulator: Stack, faults: Faults) -> Iterator[Any]:
    credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    client = boto3.client(
        "dynamodb",
        endpoint_url=emulator.endpoint,
        region_name="us-east-1",
        config=Config(retries={"mode": "standard"}),
        **credentials,
    )
    client.meta.events.register("before-send.dynamodb", faults)
    yield client
    client.close()
    assert not faults.planned, "a planned fault never happened"


@pytest.fixture
def storage(table: str, client: Any) -> DynamoDBStorage:
    return DynamoDBStorage(table, client)


@pytest.fixture
async def thread(storage: DynamoDBStorage) -> Thread:
    return await storage.create_thread(NewThread("t#1", "ana"))


def rows(client: Any, table: str) -> dict[tuple[str, str], Any]:
    found = client.scan(TableName=table, ConsistentRead=True)["Items"]
    return {(row["pk"]["S"], row["sk"]["S"]): row for row in found}


def expiries(client: Any, table: str) -> dict[tuple[str, str], int]:
    return {key: int(row["expiresAt"]["N"]) for key, row in rows(client, table).items() if "expiresAt" in row}


def later(storage: DynamoDBStorage, millis: int) -> None:
    storage._now = lambda: clock.now() + millis


async def test_every_row_has_the_key_that_it_will_always_have(
    storage: DynamoDBStorage, thread: Thread, client: Any, table: str
):
    before = set(rows(client, table))
    run = await storage.create_run(RUN)
    await storage.write_entries("run/1", entries("step#1"), thread_id=None)
    await storage.write_entries("j#1", entries("a", "b"), thread_id="t#1")
    await storage.create_thread(SUB)
    found = rows(client, table)
    assert set(found) - before == {
        ("N#run%2F1", "R"),
        ("N#run%2F1", "E#step#1"),
        ("T#t%231", f"N#{run.created_at:015d}#run%2F1"),
        ("N#j%231", "E#a"),
        ("N#j%231", "E#b"),
        ("T#t%231", "N#000000000000000#j%231"),
        ("T#sub%2F1", "@"),
        ("R#ana/a%2Fb", "@"),
        ("R#ana/a%2Fb", f"T#{(await storage.create_thread(SUB)).created_at:015d}#sub%2F1"),
        ("T#t%231", "S#sub%2F1"),
        ("R#ana", "S#a%2Fb"),
    }
    kept = {pk[0]: (until - run.created_at // 1000) / 604_800 for (pk, _), until in expiries(client, table).items()}
    assert kept == {"N": pytest.approx(1, abs=1e-4), "T": pytest.approx(2, abs=1e-4)}
    assert not [row for row in found.values() if task_of({"eventName": "INSERT", "dynamodb": {"NewImage": row}})]


async def test_what_journals_and_runs_cost_in_requests(
    storage: DynamoDBStorage, thread: Thread, client: Any, counter: Counter
):
    counter.register(client)

    async def cost(call: Any, *operations: str) -> None:
        counter.clear()
        await call
        assert counter.operations == sorted(operations)

    names = [f"e{n}" for n in range(44)]
    for journal, thread_id in (("1", None), ("2", "t#1")):
        await cost(storage.write_entries(journal, entries(*names[:43]), thread_id=thread_id), "TransactWriteItems")
        await cost(storage.write_entries(journal, entries(*names[:43]), thread_id=thread_id), "TransactWriteItems")
    await cost(storage.write_entries("1", entries("alone"), thread_id=None), "PutItem")
    await cost(storage.write_entries("1", entries("alone"), thread_id=None), "PutItem")
    await cost(storage.write_entries("1", entries(*names), thread_id=None), "TransactWriteItems", "PutItem")
    await cost(storage.write_entries("1", (), thread_id=None))
    await cost(storage.read_entries("1", names), "BatchGetItem")
    await cost(storage.list_entries("1", "e"), "Query")
    await cost(storage.create_run(RUN), "TransactWriteItems")
    await cost(storage.get_run("run/1"), "GetItem")
    await cost(storage.list_runs("t#1", agent_id="agent", resource_id="ana"), "Query", "BatchGetItem")
    await cost(storage.create_thread(SUB), "TransactWriteItems")
    await cost(storage.list_sub_resources("ana"), "Query")
    within = RunGuard("run/1")
    await cost(storage.commit_turn(TurnCommit(thread, (message(),), within=within)), "TransactWriteItems")
    await cost(storage.end_run("run/1", "cancelled"), "GetItem", "TransactWriteItems")
    await cost(storage.end_run("run/1", "cancelled"), "GetItem")


async def test_lists_of_runs_read_no_requests(storage: DynamoDBStorage, thread: Thread, client: Any, counter: Counter):
    for n in range(10):
        await storage.create_run(replace(RUN, run_id=f"run-{n}", request={"pad": "x" * 300_000}))
    counter.register(client)
    assert len(await storage.list_runs("t#1", agent_id="agent", resource_id="ana")) == 10
    assert counter.bytes_read < 20_000


# --- faults ---


@pytest.mark.parametrize("fault", TRANSACTION_FAULTS.values(), ids=TRANSACTION_FAULTS)
async def test_entries_and_runs_are_written_once(
    storage: DynamoDBStorage, thread: Thread, faults: Faults, fault: Fault
):
    faults.plan("TransactWriteItems", fault)
    assert await storage.write_entries("j", entries("a", "b"), thread_id="t#1") == entries("a", "b")
    faults.plan("TransactWriteItems", fault)
    run = await storage.create_run(RUN)
    assert await storage.get_run("run/1") == run
    faults.plan("TransactWriteItems", fault)
    ended = await storage.end_run("run/1", "failed", error={"name": "E", "message": "m"})
    assert (ended.state, await storage.get_run("run/1")) == ("failed", ended)
    faults.plan("TransactWriteItems", fault)
    assert (await storage.create_thread(SUB)).resource_id == SUB.resource_id
    assert (await storage.list_threads(SUB.resource_id)).total == 1


@pytest.mark.parametrize("fault", PUT_FAULTS.values(), ids=PUT_FAULTS)
async def test_an_entry_alone_is_written_once(storage: DynamoDBStorage, faults: Faults, fault: Fault):
    for body in (1, 2):
        faults.plan("PutItem", fault)
        assert await storage.write_entries("j", [Entry("a", body)], thread_id=None) == (Entry("a", 1),)
    assert await storage.read_entries("j", ["a"]) == {"a": 1}


@pytest.mark.parametrize("fault", TRANSACTION_FAULTS.values(), ids=TRANSACTION_FAULTS)
async def test_the_last_commit_of_a_run_happens_once(
    storage: DynamoDBStorage, thread: Thread, faults: Faults, fault: Fault
):
    await storage.create_run(RUN)
    first = await storage.commit_turn(TurnCommit(thread, (message(),)))
    faults.plan("TransactWriteItems", fault, fault)
    done = await storage.commit_turn(TurnCommit(thread, (message(),), within=RunGuard("run/1", {"n": 1})))
    assert (await storage.list_messages("t#1")).page.items == first.messages + done.messages
    run = await storage.get_run("run/1")
    assert run is not None and (run.state, run.result) == ("succeeded", {"n": 1})


async def test_keys_that_a_batch_hands_back_are_read_again(storage: DynamoDBStorage, thread: Thread, faults: Faults):
    names = [f"e{n}" for n in range(5)]
    await storage.write_entries("j", entries(*names), thread_id=None)
    faults.plan("BatchGetItem", half_read, half_read)
    assert await storage.read_entries("j", names) == {e.name: e.body for e in entries(*names)}
    made = [await storage.create_run(replace(RUN, run_id=f"run-{n}", request={})) for n in range(3)]
    faults.plan("BatchGetItem", half_read, half_read)
    found = await storage.list_runs("t#1", agent_id="agent", resource_id="ana")
    assert sorted(found, key=lambda run: run.run_id) == made


async def test_writers_who_keep_colliding_are_told_that_the_store_is_busy(
    storage: DynamoDBStorage, faults: Faults, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("threadkeep.storage.dynamodb.table._BASE_SECONDS", 0)
    faults.always("TransactWriteItems", collision)
    with pytest.raises(StoreUnavailable, match="busy"):
        await storage.write_entries("j", entries("a", "b"), thread_id=None)
    faults.over()
    assert await storage.list_entries("j", "") == ()


# --- times that are over, before the table has removed the rows ---


async def test_after_a_week_entries_and_runs_are_not_there_any_more(storage: DynamoDBStorage, thread: Thread):
    await storage.create_run(RUN)
    await storage.write_entries("j", entries("a", "b"), thread_id="t#1")
    later(storage, WEEK - 60_000)
    assert await storage.list_entries("j", "") == entries("a", "b")
    assert await storage.get_run("run/1") is not None
    later(storage, WEEK + 60_000)
    assert await storage.list_entries("j", "") == ()
    assert await storage.read_entries("j", ["a", "b"]) == {}
    assert await storage.get_run("run/1") is None
    assert await storage.list_runs("t#1", agent_id="agent", resource_id="ana") == ()
    with pytest.raises(NotFound):
        await storage.end_run("run/1", "cancelled")
    for guard in (RunGuard("run/1"), RunGuard("run/1", {})):
        with pytest.raises(RunEnded):
            await storage.commit_turn(TurnCommit(thread, (message(),), within=guard))
    new = (Entry("a", "new"), Entry("b", "new"))
    assert await storage.write_entries("j", new, thread_id="t#1") == new
    assert await storage.list_entries("j", "") == new
    again = await storage.create_run(replace(RUN, agent_id="other"))
    assert await storage.get_run("run/1") == again


async def test_a_change_keeps_a_run_for_another_week_and_its_pointer_for_longer(
    storage: DynamoDBStorage, thread: Thread, client: Any, table: str
):
    await storage.create_run(RUN)
    later(storage, WEEK - 60_000)
    await storage.end_run("run/1", "failed")
    await storage.end_run("run/1", "running")
    later(storage, 2 * WEEK - 180_000)
    await storage.commit_turn(TurnCommit(thread, (message(),), within=RunGuard("run/1", {})))
    until = {pk[0]: at for (pk, _), at in expiries(client, table).items()}
    assert until["T"] >= until["N"] > (clock.now() + 2.9 * WEEK) // 1000
    later(storage, 3 * WEEK - 240_000)
    run = await storage.get_run("run/1")
    assert run is not None and run.state == "succeeded"
    assert len(await storage.list_runs("t#1", agent_id="agent", resource_id="ana")) == 1
    await storage.delete_thread("t#1", resource_id=None)
    assert await storage.purge_thread("t#1")
    assert set(rows(client, table)) == {("R#ana", "@")}


# --- purges ---


async def crowded(storage: DynamoDBStorage, thread: Thread) -> list[str]:
    """A thread with all that may hang on one; the ids of its sub-threads."""
    subs = [f"sub{n}" for n in range(3)]
    for sub in subs:
        await storage.create_thread(replace(SUB, id=sub))
    await storage.commit_turn(TurnCommit(thread, tuple(message() for _ in range(20))))
    await storage.create_run(RUN)
    for n in range(3):
        for start in (0, 30):
            names = [f"{i:02}" for i in range(start, start + 30)]
            await storage.write_entries(f"j{n}", entries(*names), thread_id="t#1")
            await storage.write_entries("run/1", entries(*(f"{n}-{name}" for name in names)), thread_id=None)
    await storage.delete_thread("t#1", resource_id="ana")
    return subs


KEPT = [("R#ana", "@"), ("R#ana", "S#a%2Fb"), ("R#ana/a%2Fb", "@")]


def left_of(client: Any, table: str) -> list[tuple[str, str]]:
    return sorted(set(rows(client, table)) - set(KEPT))


def tombstones(subs: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"T#{sub}", "@") for sub in subs]


async def test_a_purge_is_bounded_and_goes_on_where_it_stopped(
    storage: DynamoDBStorage, thread: Thread, client: Any, table: str
):
    subs = await crowded(storage, thread)
    before, calls, done = len(left_of(client, table)), 0, False
    while not done:
        done = await storage.purge_thread("t#1", limit=40)
        left = len(left_of(client, table))
        assert 0 < before - left <= 40 + 20, "at least something, and with the messages' keys no more than the limit"
        before, calls = left, calls + 1
    assert calls >= 10
    assert left_of(client, table) == tombstones(subs)
    for sub in subs:
        image = rows(client, table)[f"T#{sub}", "@"]
        assert task_of({"eventName": "MODIFY", "dynamodb": {"NewImage": image}}) == Task("purge", sub)
        assert await storage.purge_thread(sub)
    assert left_of(client, table) == []
    assert {row["threadCount"]["N"] for key, row in rows(client, table).items() if key[1] == "@"} == {"0"}


async def test_a_purge_of_the_smallest_steps_removes_what_leads_to_the_rest_last(
    storage: DynamoDBStorage, thread: Thread, client: Any, table: str
):
    for sub in ("sub0", "sub1"):
        await storage.create_thread(replace(SUB, id=sub))
    await storage.write_entries("j", entries("a", "b"), thread_id="t#1")
    await storage.delete_thread("t#1", resource_id=None)
    pointer = "N#000000000000000#j"
    expected = (["E#a", "E#b", pointer, "S#sub1"], ["E#a", "E#b", pointer], ["E#b", pointer], [pointer], [])
    for left in expected:
        assert await storage.purge_thread("t#1", limit=1) is False
        assert sorted(sk for pk, sk in rows(client, table) if pk in ("T#t%231", "N#j") and sk != "@") == left
    assert await storage.purge_thread("t#1", limit=1) is True
    assert left_of(client, table) == tombstones(["sub0", "sub1"])


@pytest.mark.parametrize("limit", [None, 40])
@pytest.mark.parametrize("served", [0, 1, 2, 4, 7, 12])
async def test_a_purge_that_fails_at_any_point_is_taken_up_again(
    storage: DynamoDBStorage, thread: Thread, client: Any, table: str, faults: Faults, served: int, limit: int | None,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr("threadkeep.storage.dynamodb.table._BASE_SECONDS", 0)
    subs = await crowded(storage, thread)
    batches = 0

    def breaks_down(request: Any) -> Any:
        nonlocal batches
        batches += 1
        return None if batches <= served else nothing_written(request)

    faults.standing["BatchWriteItem"] = breaks_down  # type: ignore[assignment]
    with pytest.raises(StoreUnavailable):
        while not await storage.purge_thread("t#1", limit=limit):
            pass
    faults.over()
    while not await storage.purge_thread("t#1", limit=limit):
        pass
    assert left_of(client, table) == tombstones(subs)


async def test_a_purge_leaves_other_rows_of_a_runs_partition(
    storage: DynamoDBStorage, thread: Thread, client: Any, table: str
):
    await storage.create_run(RUN)
    kept = [items.key("N#run%2F1", sk) for sk in ("@", "Q")]
    for row in kept:
        client.put_item(TableName=table, Item=row)
    await storage.delete_thread("t#1", resource_id=None)
    assert await storage.purge_thread("t#1")
    assert left_of(client, table) == [("N#run%2F1", "@"), ("N#run%2F1", "Q")]


async def test_a_sub_thread_that_is_purged_leaves_no_link(
    storage: DynamoDBStorage, thread: Thread, client: Any, table: str
):
    await storage.create_thread(SUB)
    await storage.delete_thread("sub/1", resource_id=None)
    assert ("T#t%231", "S#sub%2F1") in rows(client, table)
    assert await storage.purge_thread("sub/1")
    assert ("T#t%231", "S#sub%2F1") not in rows(client, table)
