"""The checker of concurrent histories takes every history of a right store and notices what a wrong one does."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.history import Operation, Recorder, check, digest, faults, operations, recorded
from threadkeep.storage.port import MemoryRevision, WorkingMemory

RANDOMS = st.randoms(use_true_random=True)


def apply(text: str, kind: str, payload: Any) -> str:
    if kind == "conditional":
        return payload["text"]
    if kind == "replace":
        return payload
    merged = json.loads(text or "{}") | payload
    return json.dumps({name: value for name, value in merged.items() if value is not None})


# --- a store, writers that race on it, and stores that are wrong ---


class Store:
    def __init__(self) -> None:
        self.memory = WorkingMemory()

    def read(self) -> WorkingMemory:
        return self.memory

    def put(self, text: str, read: int, writer: str) -> WorkingMemory | None:
        """The new record, None if another version is stored."""
        return self.set(text, read + 1, writer) if read == self.memory.version else None

    def set(self, text: str, version: int, writer: str) -> WorkingMemory:
        revision = MemoryRevision(version, 0, writer, digest(text))
        self.memory = WorkingMemory(text, version, (revision, *self.memory.past)[:8])
        return self.memory


class Naive(Store):
    """Reads, then writes, without a condition."""

    def put(self, text: str, read: int, writer: str) -> WorkingMemory | None:
        return self.set(text, read + 1, writer)


class Hasty(Store):
    """Counts right and asks for nothing: what others have written is gone."""

    def put(self, text: str, read: int, writer: str) -> WorkingMemory | None:
        return self.set(text, self.memory.version + 1, writer)


class Forgetful(Store):
    """Acknowledges what it does not keep."""

    def put(self, text: str, read: int, writer: str) -> WorkingMemory | None:
        before = self.memory
        told = super().put(text, read, writer)
        self.memory = before if told and told.version % 5 == 4 else self.memory
        return told


class Skipping(Store):
    def put(self, text: str, read: int, writer: str) -> WorkingMemory | None:
        return self.set(text, read + 2, writer) if read == self.memory.version else None


class Stale(Store):
    """Serves reads that are one write late."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self.memory

    def read(self) -> WorkingMemory:
        return self.before

    def set(self, text: str, version: int, writer: str) -> WorkingMemory:
        self.before = self.memory
        return super().set(text, version, writer)


class Torn(Store):
    """Stores a part of what it is given, once."""

    def set(self, text: str, version: int, writer: str) -> WorkingMemory:
        part = json.dumps(dict(list(json.loads(text).items())[:-1]))
        return super().set(part if version == 5 else text, version, writer)


@dataclass
class Run:
    """Writers that take steps in an order that `chance` decides, on a clock that ticks at each of them."""

    store: Store
    chance: random.Random
    killed: float = 0.0
    clock: int = 0

    def __post_init__(self) -> None:
        self.lines: list[str] = []

    def go(self, plans: list[list[tuple[str, Any]]]) -> list[Operation]:
        running = [self.process(f"p{n}", plan) for n, plan in enumerate(plans)]
        while running:
            process = self.chance.choice(running)
            if self.chance.random() < self.killed or next(process, "ended") == "ended":
                running.remove(process)
        return operations(self.lines)

    def write(self, **event: Any) -> None:
        self.clock += 1
        self.lines.append(json.dumps({"at": self.clock, **event}))

    def process(self, name: str, plan: list[tuple[str, Any]]) -> Iterator[None]:
        for n, (kind, payload) in enumerate(plan):
            operation = f"{name}-{n}"
            if kind == "conditional":
                payload = {"version": self.store.memory.version, "text": payload}
            self.write(event="invoke", operation=operation, process=name, kind=kind, payload=payload)
            yield
            yield from self.attempts(operation, kind, payload)
            yield

    def attempts(self, operation: str, kind: str, payload: Any) -> Iterator[None]:
        told: dict[str, Any] = {"outcome": "ok"}
        while True:
            current = self.store.read()
            yield
            if kind == "conditional" and current.version != payload["version"]:
                told = {"outcome": "conflict", "read": current.version}
                break
            text = apply(current.text, kind, payload)
            after = current if text == current.text else self.store.put(text, current.version, operation)
            yield
            if after:
                told |= {"read": current.version, "written": after.version, "digest": digest(after.text)}
                break
        self.write(event="complete", operation=operation, **told)


def plans(chance: random.Random, processes: int = 4, each: int = 4) -> list[list[tuple[str, Any]]]:
    def one(process: int, n: int) -> tuple[str, Any]:
        kind = chance.choice(["merge", "merge", "merge", "patch", "replace", "conditional"])
        field = {chance.choice([f"k{process}-{n}", "shared"]): chance.choice([process, n, 1])}
        return kind, json.dumps({"whole": f"{process}-{n}"}) if kind in ("replace", "conditional") else field

    return [[one(process, n) for n in range(each)] for process in range(processes)]


def merges(processes: int = 4, each: int = 4) -> list[list[tuple[str, Any]]]:
    """Every writer has a field of its own."""
    return [[("merge", {f"k{p}-{n}": n}) for n in range(each)] for p in range(processes)]


def kinds(found: list[str]) -> set[str]:
    return {fault.partition(":")[0] for fault in found}


# --- histories of a right store ---


@given(RANDOMS)
def test_what_a_right_store_did_is_explained(chance: random.Random) -> None:
    store = Store()
    check(Run(store, chance).go(plans(chance)), store.memory, apply)


@given(RANDOMS)
def test_killed_writers_may_have_written_or_not(chance: random.Random) -> None:
    store = Store()
    done = Run(store, chance, killed=0.03).go(plans(chance))
    check(done, store.memory, apply)
    untold = [replace(o, digest=None) for o in done]  # as over HTTP
    check(untold, replace(store.memory, past=()), apply)


@given(RANDOMS)
def test_a_history_may_begin_anywhere(chance: random.Random) -> None:
    store = Store()
    Run(store, chance).go(plans(chance))
    start = store.memory
    run = Run(store, chance)
    done = [replace(o, id=f"later-{o.id}") for o in run.go(plans(chance))]
    final = replace(store.memory, past=tuple(replace(r, writer="") for r in store.memory.past))
    check(done, final, apply, start)


def test_nothing_was_done() -> None:
    check([], WorkingMemory(), apply)
    assert kinds(faults([], WorkingMemory("{}"), apply)) == {"missing"}


# --- histories of wrong stores ---


@pytest.mark.parametrize("store", [Naive, Hasty])
@given(chance=RANDOMS)
def test_no_lost_update_goes_unnoticed(store: Callable[[], Store], chance: random.Random) -> None:
    """Fields of their own: none may be missing in the end."""
    racing, wanted = store(), merges()
    done = Run(racing, chance).go(wanted)
    lost = {f for plan in wanted for _, payload in plan for f in payload} - set(json.loads(racing.memory.text))
    assume(lost)
    assert faults(done, racing.memory, apply)
    bare = [replace(o, digest=None) for o in done]
    assert faults(bare, replace(racing.memory, past=()), apply)


@pytest.mark.parametrize("store", [Forgetful, Skipping, Stale, Torn])
@given(chance=RANDOMS)
def test_a_wrong_store_is_noticed(store: Callable[[], Store], chance: random.Random) -> None:
    racing = store()
    run = Run(racing, chance)
    if store is Stale:  # its writers would try forever
        racing.put = lambda text, read, writer: racing.set(text, racing.memory.version + 1, writer)  # type: ignore[method-assign]
    assert faults(run.go(merges()), racing.memory, apply)


# --- each kind of fault, planted by hand ---


def write(n: int, version: int, payload: Any = None, **other: Any) -> Operation:
    """The n-th operation in time, none of which overlap unless `other` says so."""
    given = {"completed": 10 * n + 5, "outcome": "ok", "read": version - 1, "written": version} | other
    return Operation(f"o{n}", f"p{n}", given.pop("kind", "merge"), payload or {f"k{n}": n}, 10 * n, **given)


def unknown(n: int, payload: Any = None, **other: Any) -> Operation:
    return write(n, 0, payload, **{"completed": None, "outcome": "unknown", "read": None, "written": None} | other)


def texts(*fields: int) -> str:
    return json.dumps({f"k{n}": n for n in fields})


def final(version: int, text: str, *past: MemoryRevision) -> WorkingMemory:
    return WorkingMemory(text, version, past)


THREE = [write(1, 1), write(2, 2), write(3, 3)]


@pytest.mark.parametrize(
    ("done", "end", "kind"),
    [
        pytest.param([write(1, 1), write(2, 1)], final(1, texts(2)), "fork", id="two writers of one version"),
        pytest.param([write(1, 1), write(3, 3)], final(3, texts(1, 3)), "gap", id="a version of nobody"),
        pytest.param(THREE, final(5, texts(1, 2, 3)), "gap", id="versions of nobody at the end"),
        pytest.param([write(1, 1), unknown(2), write(5, 4)], final(4, texts(1, 2, 5)), "gap", id="too few unknown"),
        pytest.param([write(1, 1), unknown(2, written=2)], final(2, texts(1, 2)), "step", id="unknown, and a version"),
        pytest.param(THREE, final(2, texts(1, 2)), "missing", id="the last write is gone"),
        pytest.param(THREE, final(3, texts(1, 3)), "missing", id="a field is gone"),
        pytest.param(THREE, final(3, texts(1, 2, 3, 4)), "missing", id="a field of nobody"),
        pytest.param(THREE, final(3, texts(1, 2, 3)[:-3]), "missing", id="half a text"),
        pytest.param(THREE, final(3, texts(3, 2, 1)), "missing", id="an order that is not that of the versions"),
        pytest.param([write(1, 1), write(2, 2, read=0)], final(2, texts(1, 2)), "step", id="not read + 1"),
        pytest.param([write(1, 1, written=None)], final(0, ""), "step", id="acknowledged without a version"),
        pytest.param([write(1, 1), write(2, 1, read=1, outcome="refused")], final(1, texts(1)), "step", id="refused"),
        pytest.param([write(1, 2), write(2, 1)], final(2, texts(2, 1)), "real time", id="later, and yet before"),
        pytest.param(
            [write(1, 1), write(2, 2), write(3, 1, {"k1": 1}, read=1)], final(2, texts(1, 2)), "real time",
            id="sees an old version later",
        ),
        pytest.param(
            [write(1, 1), write(2, 1, read=1)], final(1, texts(1)), "missing", id="acknowledged, but not written"
        ),
        pytest.param(
            [unknown(1), write(5, 2), write(6, 3)], final(3, texts(5, 6)), "missing", id="a version without effect"
        ),
        pytest.param(
            [write(1, 1), write(2, 2), write(4, 4), unknown(9)], final(4, texts(1, 2, 9, 4)), "gap",
            id="written before it was asked for",
        ),
        pytest.param(
            [write(1, 1), write(2, 2, kind="conditional", payload={"version": 0, "text": "{}"})],
            final(2, "{}"), "step", id="a condition that did not hold",
        ),
        pytest.param(
            [write(1, 1), unknown(2, kind="conditional", payload={"version": 0, "text": "{}"})], final(2, "{}"), "gap",
            id="a condition that cannot have held",
        ),
        pytest.param(
            [unknown(1, kind="conditional", payload={"version": 0, "text": "{}"}, outcome="conflict", read=0)],
            final(0, ""), "step", id="a conflict without one",
        ),
        pytest.param(
            [write(1, 1, kind="replace", payload="aaaa"), write(2, 2, kind="replace", payload="bbbb")],
            final(2, "aabb"), "missing", id="a mixture",
        ),
        pytest.param(
            [write(1, 1, digest=digest(texts(2))), write(2, 2, kind="replace", payload="x")], final(2, "x"), "text",
            id="wrong text, replaced later",
        ),
        pytest.param(
            THREE, final(3, texts(1, 2, 3), MemoryRevision(3, 0, "o2", digest(texts(1, 2, 3)))), "writer",
            id="the record names another writer",
        ),
        pytest.param(
            THREE, final(3, texts(1, 2, 3), MemoryRevision(2, 0, "o2", digest(texts(1, 2)))), "gap",
            id="the record lacks the last revision",
        ),
        pytest.param(
            THREE, final(3, texts(1, 2, 3), MemoryRevision(3, 0, "o3", digest(texts(1)))), "text",
            id="the record has another text",
        ),
    ],
)  # fmt: skip
def test_a_planted_fault_is_named(done: list[Operation], end: WorkingMemory, kind: str) -> None:
    assert kind in kinds(faults(done, end, apply))


def test_unknown_outcomes_explain_what_they_can() -> None:
    done = [write(1, 1), unknown(2), unknown(3), write(5, 3)]
    check(done, final(3, texts(1, 2, 5)), apply)
    check(done, final(3, texts(1, 3, 5)), apply)
    assert kinds(faults(done, final(3, texts(1, 2, 3, 5)), apply)) == {"missing"}


def test_a_report_says_what_is_lost_and_whose_it_was() -> None:
    with pytest.raises(AssertionError) as failed:
        check([*THREE, unknown(9)], final(3, texts(1, 3)), apply)
    assert str(failed.value) == (
        "4 operations of 4 processes (3 ok, 1 unknown) do not explain version 3:\n"
        "- missing: k2 is nothing, not 2 as merge o2 by p2, version 2 left it"
    )


# --- the record ---


def test_a_record_is_read_back(tmp_path: Path) -> None:
    one, two = Recorder(tmp_path / "one", "p1"), Recorder(tmp_path / "two", "p2")
    one.invoke("a", "merge", {"town": "Lyon"})
    two.invoke("b", "replace", "# Notes")
    one.complete("a", "ok", 4, 5, "text")
    one.close()
    two.close()
    first, second = recorded(tmp_path)
    assert (first.id, first.process, first.kind, first.payload) == ("a", "p1", "merge", {"town": "Lyon"})
    assert (first.outcome, first.read, first.written, first.digest) == ("ok", 4, 5, digest("text"))
    assert first.completed is not None and first.invoked < second.invoked < first.completed
    assert (second.outcome, second.completed) == ("unknown", None)


@pytest.mark.parametrize(
    "lines",
    [
        [{"event": "complete", "operation": "a", "at": 1, "outcome": "ok"}],
        [{"event": "invoke", "operation": "a", "at": n, "process": "p", "kind": "merge", "payload": 0} for n in (1, 2)],
        [
            {"event": "complete", "operation": "a", "at": 1, "outcome": "ok"},
            {"event": "invoke", "operation": "a", "at": 2, "process": "p", "kind": "merge", "payload": 0},
        ],
    ],
    ids=["never invoked", "invoked twice", "completed before"],
)  # fmt: skip
def test_a_record_that_cannot_be_is_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="a is "):
        operations(map(json.dumps, lines))
