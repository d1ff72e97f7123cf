"""What a write of working memory costs where many write at once: `make bench`.

Deploys nothing: an emulated DynamoDB, and writers in processes of their own that each change a field of the same
memory. Requests are counted as boto3 sends them, so the numbers are the same on a slow machine, up to chance. The
naive writers read and then put without a condition, in the same processes, on the same table, in the same run.
Prints a table and writes `bench/results/working_memory.json`.
"""

import asyncio
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from local.stack import ROOT, Stack
from tests.template import create_table
from tests.writers import Crew, Place, Plan, crew
from threadkeep.ids import new_id
from threadkeep.storage.dynamodb import DynamoDBStorage, items
from threadkeep.storage.port import MemoryTarget, MemoryWrite, Storage, WorkingMemory
from threadkeep.storage.working_memory import written

RESULTS = ROOT / "bench/results/working_memory.json"
WRITERS = (1, 10, 50)
PROCESSES = 5
ROUNDS = 10


class Naive:
    """Reads, then puts what it made of that: what a store without versions does."""

    def __init__(self, table: str, client: Any):
        self._client, self._table = client, table
        self.get_working_memory = DynamoDBStorage(table, client).get_working_memory

    async def put_working_memory(self, write: MemoryWrite) -> WorkingMemory:
        after = written(write.read, write.text, write.writer, 0)
        item = items.memory_item(write.target, after, write.thread)
        await asyncio.to_thread(self._client.put_item, TableName=self._table, Item=item)
        return after


@dataclass(frozen=True)
class Result:
    """`lost` is the share of acknowledged updates that are not there in the end; requests are per acknowledged one."""

    writers: int
    acknowledged: int
    requests: float
    most_attempts: int
    lost: float


def measure(endpoint: str, table: str, storage: Callable[[str, Any], Storage], folder: Path) -> list[Result]:
    with crew(Place(endpoint, table, storage), folder) as hired:
        return [asyncio.run(_measure(hired, writers, ROUNDS)) for writers in WRITERS]


async def _measure(hired: Crew, writers: int, rounds: int) -> Result:
    """Each round is of a new memory and as many writers, at once."""
    requests, attempts, present = 0, list[int](), 0
    client = hired.place.client()
    for _ in range(rounds):
        target = MemoryTarget("resource", new_id())
        steps = [(new_id(), "merge", {"facts": {f"k{n}": n}}) for n in range(writers)]
        shares = [steps[n::PROCESSES] for n in range(min(PROCESSES, writers))]
        done = hired.race([Plan(target, share) for share in shares])
        requests += sum(process.requests for process in done)
        attempts += [count for process in done for count in process.attempts]
        memory = await DynamoDBStorage(hired.place.table, client).get_working_memory(target)
        present += len(json.loads(memory.text)["facts"])
    client.close()
    acknowledged = sum(count > 0 for count in attempts)
    return Result(writers, acknowledged, requests / acknowledged, max(attempts), 1 - present / acknowledged)


def table_of(ours: list[Result], naive: list[Result]) -> str:
    head = ["writers at once", "acknowledged updates", "requests for each", "most writes for one", "lost"]
    head += ["naive: requests", "naive: lost"]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    rows += [
        f"| {a.writers} | {a.acknowledged} | {a.requests:.1f} | {a.most_attempts} | {a.lost:.0%} "
        f"| {b.requests:.1f} | {b.lost:.0%} |"
        for a, b in zip(ours, naive, strict=True)
    ]
    return "\n".join(rows)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder) / "stack")
        stack.start()
        try:
            table = create_table(stack.client("dynamodb"))
            ours = measure(stack.endpoint, table, DynamoDBStorage, Path(folder) / "ours")
            naive = measure(stack.endpoint, table, Naive, Path(folder) / "naive")  # type: ignore[arg-type]
        finally:
            stack.stop()
    RESULTS.parent.mkdir(exist_ok=True)
    found = {"threadkeep": [asdict(r) for r in ours], "naive": [asdict(r) for r in naive]}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(table_of(ours, naive))


if __name__ == "__main__":
    main()
