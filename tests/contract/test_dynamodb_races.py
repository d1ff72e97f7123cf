"""Several processes on one table: the conditions of the writes are all that holds them apart."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import boto3
import pytest

from local.stack import ROOT, Stack
from threadkeep.errors import AccessDenied
from threadkeep.ids import new_id
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.order import place
from threadkeep.storage.port import NewMessage, NewThread, Thread, TurnCommit

PROCESSES = 4


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


async def main() -> None:
    storage = DynamoDBStorage(os.environ["TABLE_NAME"], boto3.client("dynamodb"))
    task = {"create": create, "commit": commit}[sys.argv[1]]
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


async def test_a_process_that_fails_fails_the_test(emulator: Stack, table: str) -> None:
    """A thread that is not there ends it."""
    with pytest.raises(json.JSONDecodeError):
        run(emulator, table, [("commit", {"thread_id": "nothing", "turns": 1})])


if __name__ == "__main__":
    asyncio.run(main())
