"""Several processes on one table: the conditions of the writes are all that holds them apart."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import boto3
import pytest

from local.stack import ROOT, Stack
from threadkeep.errors import AccessDenied, RunEnded
from threadkeep.ids import new_id
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.order import place
from threadkeep.storage.port import NewMessage, NewThread, Thread, TurnCommit
from threadkeep.storage.runs import DurableRun, Entry, RunGuard

PROCESSES = 4
ROUNDS = 50


def run(emulator: Stack, table: str, tasks: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Do each task (the name of a function below, its arguments) in a process of its own, all at the same time."""
    environment = os.environ | emulator.credentials() | {"TABLE_NAME": table}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in (".", "layers/threadkeep"))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.contract.test_dynamodb_races", name, json.dumps(arguments)],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name, arguments in tasks
    ]
    try:
        for process in processes:
            assert process.stdout and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# --- what the processes do ---


async def create(storage: DynamoDBStorage, owner: str, ids: list[str], times: int) -> list[list[str]]:
    """Create each thread several times at once; who owns it according to each answer (empty: refused)."""

    async def once(thread_id: str) -> str:
        try:
            return (await storage.create_thread(NewThread(thread_id, owner, title=owner))).resource_id
        except AccessDenied:
            return ""

    return [list(await asyncio.gather(*(once(i) for _ in range(times)))) for i in ids]


async def commit(storage: DynamoDBStorage, thread_id: str, turns: int) -> list[dict[str, Any]]:
    """Store turns of one to three messages on one stale row; when each began and ended, and where it is."""
    thread = await storage.get_thread(thread_id)
    assert thread is not None
    return [await _commit(storage, thread, 1 + n % 3) for n in range(turns)]


async def _commit(storage: DynamoDBStorage, thread: Thread, messages: int) -> dict[str, Any]:
    new = tuple(NewMessage(new_id(), "user", {"format": 2, "parts": []}, at=0) for _ in range(messages))
    began = time.monotonic()
    done = await storage.commit_turn(TurnCommit(thread, new))
    return {"began": began, "ended": time.monotonic(), "orders": [message.order for message in done.messages]}


async def write(storage: DynamoDBStorage, who: int, thread_id: str | None, rounds: int) -> list[Any]:
    """Write the same entry as others, with one of one's own beside it; whose it is according to each answer."""
    began, told = time.monotonic(), list[Any]()
    for n in range(rounds):
        await _round(began, n)
        batch = [Entry(f"{n}", who), Entry(f"{n}-{who}", who)]
        told.append([entry.body for entry in await storage.write_entries("j", batch, thread_id=thread_id)])
    return told


async def _round(began: float, n: int) -> None:
    """Wait for the n-th round, in which each process is now before the others, now behind them."""
    await asyncio.sleep(max(0, began + n * 0.08 + random.uniform(0, 0.03) - time.monotonic()))


async def end(storage: DynamoDBStorage, rounds: int, cancels: bool) -> list[str]:
    """Cancel runs, or commit the last turn of each, at about the same time as another process; what became of it."""
    thread, began, told = await storage.get_thread("t"), time.monotonic(), list[str]()
    assert thread is not None
    for n in range(rounds):
        await _round(began, n)
        if cancels:
            told.append((await storage.end_run(f"run-{n}", "cancelled")).state)
            continue
        new = NewMessage(f"m{n}", "assistant", {"format": 2, "parts": []}, at=0)
        try:
            await storage.commit_turn(TurnCommit(thread, (new,), within=RunGuard(f"run-{n}", {"n": n})))
            told.append("succeeded")
        except RunEnded:
            told.append("cancelled")
    return told


async def main() -> None:
    storage = DynamoDBStorage(os.environ["TABLE_NAME"], boto3.client("dynamodb"))
    task = {"create": create, "commit": commit, "write": write, "end": end}[sys.argv[1]]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(await task(storage, **json.loads(sys.argv[2]))), flush=True)


# --- the tests ---


async def test_one_owner_wins_each_thread_that_many_create_at_once(emulator: Stack, table: str) -> None:
    """200 creations of one id, and of 10 more ids: everybody is told the same, and the counters are exact."""
    ids = ["first", *(f"thread-{n}" for n in range(10))]
    tasks = [("create", {"owner": owner, "ids": ids, "times": 50}) for owner in ("ana", "bo") * (PROCESSES // 2)]
    told = run(emulator, table, tasks)
    client = emulator.client("dynamodb")
    storage = DynamoDBStorage(table, client)
    owned: dict[str, list[str]] = {"ana": [], "bo": []}
    for n, thread_id in enumerate(ids):
        thread = await storage.get_thread(thread_id)
        assert thread is not None
        assert (thread.title, thread.version) == (thread.resource_id, 1)
        owned[thread.resource_id].append(thread_id)
        for (_, arguments), answers in zip(tasks, told, strict=True):
            expected = thread.resource_id if arguments["owner"] == thread.resource_id else ""
            assert answers[n] == [expected] * 50
    for owner, threads in owned.items():
        page = await storage.list_threads(owner, per_page=None)
        assert (sorted(t.id for t in page.items), page.total) == (sorted(threads), len(threads))
    rows = client.scan(TableName=table, ConsistentRead=True)["Items"]
    client.close()
    owners = sum(1 for threads in owned.values() if threads)
    assert len(rows) == 2 * len(ids) + owners  # thread and directory entry of each, a counter for each owner


async def test_turns_of_many_processes_are_contiguous_and_in_the_order_of_their_commits(
    emulator: Stack, table: str
) -> None:
    client = emulator.client("dynamodb")
    storage = DynamoDBStorage(table, client)
    await storage.create_thread(NewThread("t", "ana"))
    told = run(emulator, table, [("commit", {"thread_id": "t", "turns": 25})] * PROCESSES)
    page = (await storage.list_messages("t", per_page=None)).page
    thread = await storage.get_thread("t")
    client.close()
    turns = sorted((turn for process in told for turn in process), key=lambda turn: turn["orders"][0])
    assert [order for turn in turns for order in turn["orders"]] == [message.order for message in page.items]
    assert [place(message.order).seq for message in page.items] == list(range(1, len(page.items) + 1))
    assert thread is not None
    assert (thread.seq, thread.message_count, page.total) == (len(page.items),) * 3
    assert thread.last_at == page.items[-1].created_at
    latest = float("-inf")
    for turn in turns:  # no turn comes after one that began when it had already ended
        assert turn["ended"] > latest
        latest = max(latest, turn["began"])


async def test_of_many_processes_that_write_an_entry_one_wins_and_all_see_it(emulator: Stack, table: str) -> None:
    client = emulator.client("dynamodb")
    storage = DynamoDBStorage(table, client)
    await storage.create_thread(NewThread("t", "ana"))
    homes = (None, "t", None, "t")
    told = run(emulator, table, [("write", {"who": n, "thread_id": homes[n], "rounds": 30}) for n in range(PROCESSES)])
    stored = {entry.name: entry.body for entry in await storage.list_entries("j", "")}
    client.close()
    for n in range(30):
        assert {answers[n][0] for answers in told} == {stored[f"{n}"]}
    assert all(answers[n][1] == who for who, answers in enumerate(told) for n in range(30))
    assert len({stored[f"{n}"] for n in range(30)}) > 1, "they never met"


async def test_of_cancel_and_last_commit_exactly_one_wins(emulator: Stack, table: str) -> None:
    client = emulator.client("dynamodb")
    storage = DynamoDBStorage(table, client)
    await storage.create_thread(NewThread("t", "ana"))
    for n in range(ROUNDS):
        await storage.create_run(DurableRun(f"run-{n}", "agent", "ana", "t", "hash"))
    tasks = [("end", {"rounds": ROUNDS, "cancels": cancels}) for cancels in (True, False)]
    seen_by_cancel, seen_by_commit = run(emulator, table, tasks)
    runs = [await storage.get_run(f"run-{n}") for n in range(ROUNDS)]
    stored = {message.id for message in (await storage.list_messages("t", per_page=None)).page.items}
    client.close()
    became = [(run.state, run.result) for run in runs if run]
    assert became == [(s, {"n": n} if s == "succeeded" else None) for n, s in enumerate(seen_by_commit)]
    assert seen_by_cancel == seen_by_commit
    assert stored == {f"m{n}" for n, state in enumerate(seen_by_commit) if state == "succeeded"}
    assert set(seen_by_commit) == {"succeeded", "cancelled"}, "they never met"


async def test_a_process_that_fails_fails_the_test(emulator: Stack, table: str) -> None:
    """A thread that is not there ends it."""
    with pytest.raises(json.JSONDecodeError):
        run(emulator, table, [("commit", {"thread_id": "nothing", "turns": 1})])


if __name__ == "__main__":
    asyncio.run(main())
