"""Writers of working memory, each crew member in a process of its own, as functions in their containers are.

The processes are forked from one that has imported everything, so that a new one is there in milliseconds
and can be killed without regret. What each does and is told goes into a file of its own (`tests.history`).
`structured` and `markdown` are the changes that they make: those of the domain, by the tool, HTTP and Python.
"""

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from local.stack import REGION, Stack
from tests.counting import Counter
from tests.history import Apply, Kind, Operation, Recorder, recorded
from threadkeep.errors import Conflict, NotFound, StoreUnavailable, VersionMismatch
from threadkeep.memory.working_memory import Invalid
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.updates import by_tool, patched, replaced
from threadkeep.memory.working_memory.writing import changed
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.port import MemorySeed, MemoryTarget, NewThread, Storage, Thread

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.writers", "pytest", "boto3"])


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "town": {"type": "string"},
        "unit": {"type": "string"},
        "facts": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}
_FIELDS = WorkingMemoryOptions(enabled=True, schema=SCHEMA)
_TEXT = WorkingMemoryOptions(enabled=True)


def structured(text: str, kind: str, payload: Any) -> str:
    """A change to a memory with `SCHEMA`: a merge is the tool's."""
    if kind == "merge":
        update = by_tool(_FIELDS, text, {"memory": payload})
        return text if update.text is None else update.text
    if kind == "patch":
        return patched(_FIELDS, text, payload)
    return replaced(_FIELDS, text, payload["text"] if kind == "conditional" else payload)


def markdown(text: str, kind: str, payload: Any) -> str:
    """A change to a memory with a template: always the whole text."""
    return replaced(_TEXT, text, payload["text"] if kind == "conditional" else payload)


@dataclass(frozen=True, slots=True)
class Place:
    """A table of an emulator, and how its working memory is written: `storage` of the table's name and a client."""

    endpoint: str
    table: str
    storage: Callable[[str, Any], Storage] = DynamoDBStorage

    @classmethod
    def of(cls, stack: Stack) -> "Place":
        return cls(stack.endpoint, stack.outputs["TableName"])

    def client(self) -> Any:
        """A client with the retries of the deployed functions and a connection for every writer."""
        import boto3
        from botocore.config import Config

        config = Config(retries={"mode": "standard", "total_max_attempts": 5}, max_pool_connections=200)
        return boto3.client(
            "dynamodb", endpoint_url=self.endpoint, region_name=REGION, aws_access_key_id="test",
            aws_secret_access_key="test", config=config,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process does on `target`: operations (id, kind, payload), all `together` or one after another.

    The version of a `conditional` is the one that is stored when its turn comes. With `seeds` each replace
    comes with a new thread of the resource, as its initial value; nobody is told the version of such a one.
    """

    target: MemoryTarget
    operations: Sequence[tuple[str, Kind, Any]]
    apply: Apply = structured
    together: bool = True
    thread: Thread | None = None
    seeds: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What a process sent for its plan: `requests` to the table, and the writes that each operation needed."""

    requests: int
    attempts: list[int]


@dataclass
class Writer:
    """One process and this end of its pipe."""

    process: Any
    pipe: Connection

    def kill(self) -> None:
        """As SIGKILL does, wherever it stands."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.pipe.close()
        self.process.join()
        self.process.close()


@dataclass
class Crew:
    """Processes that write to one place; their records are in `folder`."""

    place: Place
    folder: Path
    _writers: list[Writer] = field(default_factory=list[Writer])
    _names: int = 0

    def hire(self, count: int) -> list[Writer]:
        """More processes, once they are ready."""
        hired: list[Writer] = []
        for _ in range(count):
            ours, theirs = _FORKS.Pipe()
            self._names += 1
            arguments = (self.place, self.folder, f"p{self._names}", theirs)
            process = _FORKS.Process(target=_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            hired.append(Writer(process, ours))
        self._writers += hired
        for writer in hired:
            assert writer.pipe.recv() == "ready"
        return hired

    def race(self, plans: Sequence[Plan]) -> list[Done]:
        """Do each plan in a process of its own, all at the same time."""
        self.hire(max(0, len(plans) - len(self._writers)))
        racing = list(zip(self._writers, plans, strict=False))
        for writer, plan in racing:
            start(writer, plan)
        for writer, _ in racing:
            go(writer)
        return [writer.pipe.recv() for writer, _ in racing]

    def dismiss(self, writer: Writer) -> None:
        """Kill one of the processes."""
        self._writers.remove(writer)
        writer.kill()

    def history(self, prefix: str = "") -> list[Operation]:
        """What was recorded of operations whose ids begin like that."""
        return [o for o in recorded(self.folder) if o.id.startswith(prefix)]


@contextmanager
def crew(place: Place, folder: Path) -> Iterator[Crew]:
    folder.mkdir()
    hired = Crew(place, folder)
    try:
        yield hired
    finally:
        for writer in hired._writers:
            writer.kill()


def start(writer: Writer, plan: Plan) -> None:
    """Hand over a plan; returns once the process waits for `go`."""
    writer.pipe.send(plan)
    assert writer.pipe.recv() == "waiting"


def go(writer: Writer) -> None:
    writer.pipe.send("go")


# --- in the process ---


def _main(place: Place, folder: Path, name: str, pipe: Connection) -> None:
    client, counter = place.client(), Counter(latency=0)
    counter.register(client)
    storage, recorder = place.storage(place.table, client), Recorder(folder / name, name)
    pipe.send("ready")
    while True:
        try:
            plan: Plan = pipe.recv()
        except EOFError:
            return
        pipe.send("waiting")
        pipe.recv()
        counter.clear()
        attempts = asyncio.run(_follow(plan, storage, recorder))
        pipe.send(Done(len(counter.requests), attempts))


async def _follow(plan: Plan, storage: Storage, recorder: Recorder) -> list[int]:
    act = _seed if plan.seeds else _write
    if not plan.together:
        return [await act(plan, storage, recorder, *operation) for operation in plan.operations]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(plan.operations)))
    return await asyncio.gather(*(act(plan, storage, recorder, *operation) for operation in plan.operations))


async def _write(plan: Plan, storage: Storage, recorder: Recorder, name: str, kind: Kind, payload: Any) -> int:
    """One operation, with its record. Returns how many writes were sent."""
    if kind == "conditional":
        payload = {"version": (await storage.get_working_memory(plan.target)).version, "text": payload}
    recorder.invoke(name, kind, payload)
    try:
        written = await changed(
            storage,
            plan.target,
            lambda text: plan.apply(text, kind, payload),
            writer=name,
            thread=plan.thread,
            expected=payload["version"] if kind == "conditional" else None,
        )
    except VersionMismatch as error:
        recorder.complete(name, "conflict", error.version)
    except (Conflict, NotFound, Invalid):
        recorder.complete(name, "refused")
    except StoreUnavailable:
        recorder.complete(name, "unknown")
    else:
        recorder.complete(name, "ok", written.read, written.memory.version, written.memory.text)
        return written.attempts
    return 0


async def _seed(plan: Plan, storage: Storage, recorder: Recorder, name: str, kind: Kind, payload: Any) -> int:
    recorder.invoke(name, kind, payload)
    seed = MemorySeed(plan.target.scope, payload, name)
    thread = await storage.create_thread(NewThread(name, plan.target.id, memory=seed))
    assert thread.memory == payload
    recorder.complete(name, "unknown")
    return 1
