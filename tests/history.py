"""Did a working memory that many wrote at once fork, skip, or lose anything? Checks what real processes recorded.

Each process writes one JSON line when it invokes an operation and one when it is told the outcome
(`Recorder`); `operations` reads them back. `faults` then looks for one serial order that explains all of
it. The order is that of the versions, so there is little to search::

    invoke ───────── read v3 ── change ── write v4 ───────── complete      takes effect once, in between
             invoke ─── read v3 ── write ✗ v4 ── write v5 ── complete

    version    1     2     3     4     5                 each has exactly one writer: no fork, no gap
    written by a     ?     b     d     e                 ? is for an operation of unknown outcome only
    text       "…" → "…" → "…" → "…" → the final text    each is the change of its writer to the text before

Operations overlap in time or do not: one that was complete before another was invoked must not come after it.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from threadkeep.storage.port import WorkingMemory

Kind = Literal["merge", "replace", "patch", "conditional"]
Outcome = Literal["ok", "refused", "conflict", "unknown"]
# What an operation of a kind makes of a text. It may not depend on anything else.
Apply = Callable[[str, str, Any], str]

_STEPS = 200_000  # of the search; histories of the tests need as many as they have versions
_SHOWN = 10  # values and versions of a report


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Operation:
    """What one writer asked for, and what it was told.

    The payload of a `conditional` is `{"version": n, "text": ...}`: a replace of version n only. `invoked`
    and `completed` are nanoseconds of a clock that all processes share. `ok` with `written` equal to `read`
    means that the text was already as it should be. `read` is None where the writer was told the version
    that it wrote only. `digest` is of the text that the writer was told, if it was.
    """

    id: str
    process: str
    kind: Kind
    payload: Any
    invoked: int
    completed: int | None = None
    outcome: Outcome = "unknown"
    read: int | None = None
    written: int | None = None
    digest: str | None = None

    @property
    def idle(self) -> bool:
        """Whether it was acknowledged without a write."""
        return self.outcome == "ok" and self.read is not None and self.read == self.written

    @property
    def wrote(self) -> bool:
        return self.outcome == "ok" and not self.idle

    @property
    def place(self) -> tuple[int, int]:
        """Where an acknowledged operation is in the serial order: a write before what only saw its version."""
        assert self.written is not None
        return self.written, int(self.idle)

    def __str__(self) -> str:
        return f"{self.kind} {self.id} by {self.process}"


class Recorder:
    """Appends the events of one process to a file. A line is one write, so a kill leaves no half of it."""

    def __init__(self, path: Path, process: str):
        self._process = process
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def invoke(self, operation: str, kind: Kind, payload: Any) -> None:
        self._write(event="invoke", process=self._process, operation=operation, kind=kind, payload=payload)

    def complete(
        self, operation: str, outcome: Outcome, read: int | None = None, written: int | None = None,
        text: str | None = None,
    ) -> None:  # fmt: skip
        """`text` is what the writer was told that stands there."""
        found = None if text is None else digest(text)
        self._write(event="complete", operation=operation, outcome=outcome, read=read, written=written, digest=found)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, **event: Any) -> None:
        line = json.dumps({"at": time.monotonic_ns(), **event}) + "\n"
        assert os.write(self._file, line.encode()) == len(line.encode())


def operations(lines: Iterable[str]) -> list[Operation]:
    """The operations of recorded lines, of any number of processes in any order. Raises `ValueError` for nonsense."""
    events = sorted((json.loads(line) for line in lines), key=lambda event: event["at"])
    found: dict[str, Operation] = {}
    for event in (e for e in events if e["event"] == "invoke"):
        if event["operation"] in found:
            raise ValueError(f"{event['operation']} is invoked twice")
        found[event["operation"]] = Operation(
            event["operation"], event["process"], event["kind"], event["payload"], event["at"]
        )
    for event in (e for e in events if e["event"] == "complete"):
        begun = found.get(event["operation"])
        if begun is None or begun.completed is not None or begun.invoked > event["at"]:
            raise ValueError(f"{event['operation']} is completed, but does not run")
        told = {name: event.get(name) for name in ("outcome", "read", "written", "digest")}
        found[begun.id] = replace(begun, completed=event["at"], **told)
    return list(found.values())


def recorded(folder: Path) -> list[Operation]:
    """The operations of all files of a folder."""
    return operations(line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines())


def check(done: Sequence[Operation], final: WorkingMemory, apply: Apply, start: WorkingMemory | None = None) -> None:
    """Fail with a report unless some serial order explains the history. Arguments as those of `faults`."""
    if found := faults(done, final, apply, start):
        outcomes = {outcome: sum(o.outcome == outcome for o in done) for outcome in sorted({o.outcome for o in done})}
        told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        head = f"{len(done)} operations of {len({o.process for o in done})} processes ({told})"
        lines = "".join(f"\n- {fault}" for fault in found)
        raise AssertionError(f"{head} do not explain version {final.version}:{lines}")


def faults(
    done: Sequence[Operation], final: WorkingMemory, apply: Apply, start: WorkingMemory | None = None
) -> list[str]:
    """What is wrong with a history; empty if nothing is.

    `start` stood there before the first operation, `final` after the last one. Among `final.past` a writer
    that is the id of an operation must be the one that wrote the version.
    """
    start = start or WorkingMemory()
    found = [*_steps(done), *_bounds(done, start, final), *_forks(done), *_gaps(done, start, final), *_past(final)]
    found += _real_time([o for o in done if o.outcome == "ok" and o.written is not None])
    return found or _Search(done, start, final, apply).faults()


def _steps(done: Sequence[Operation]) -> Iterable[str]:
    """Each outcome for itself: a write makes the version that it read one higher, anything else writes nothing."""
    for o in done:
        if o.outcome != "ok":
            if o.written is not None:
                yield f"step: {o} ended as {o.outcome} and yet wrote version {o.written}"
            if o.outcome == "conflict" and o.kind == "conditional" and o.read == o.payload["version"]:
                yield f"step: {o} asked for version {o.read}, met it, and was told of a conflict"
        elif o.written is None:
            yield f"step: {o} was acknowledged without a version"
        elif o.read is not None and o.written not in (o.read, o.read + 1):
            yield f"step: {o} read version {o.read} and wrote version {o.written}"
        elif o.kind == "conditional" and o.payload["version"] != (o.written - 1 if o.read is None else o.read):
            yield f"step: {o} asked for version {o.payload['version']} and wrote version {o.written} all the same"


def _bounds(done: Sequence[Operation], start: WorkingMemory, final: WorkingMemory) -> Iterable[str]:
    for o in done:
        if o.outcome == "ok" and o.written is not None:
            if o.written > final.version:
                yield f"missing: {o} was acknowledged as version {o.written}, but the last version is {final.version}"
            if o.written < start.version + o.wrote:
                yield f"step: {o} was acknowledged as version {o.written}, but the first was {start.version}"


def _forks(done: Sequence[Operation]) -> Iterable[str]:
    writers: dict[int, Operation] = {}
    for o in done:
        if o.wrote and o.written is not None:
            other = writers.setdefault(o.written, o)
            if other is not o:
                yield f"fork: version {o.written} was acknowledged to {other} and to {o}"


def _gaps(done: Sequence[Operation], start: WorkingMemory, final: WorkingMemory) -> Iterable[str]:
    told = {o.written for o in done if o.wrote}
    gaps = [version for version in range(start.version + 1, final.version + 1) if version not in told]
    unknown = sum(o.outcome == "unknown" for o in done)
    if len(gaps) > unknown:
        yield f"gap: nobody was acknowledged version {_some(gaps)}, and only {unknown} outcomes are unknown"
    if final.version < start.version:
        yield f"gap: version {start.version} went back to {final.version}"


def _past(final: WorkingMemory) -> Iterable[str]:
    versions = [revision.version for revision in final.past]
    if versions != list(range(final.version, final.version - len(versions), -1)):
        yield f"gap: the record of version {final.version} names the revisions {versions}"
    if final.version and final.past and final.past[0].digest != digest(final.text):
        yield f"text: the text is not the one that was written as version {final.version}"


def _real_time(told: Sequence[Operation]) -> Iterable[str]:
    """Whoever was complete before another was invoked has the earlier place."""
    ended = sorted(((o.completed, o) for o in told if o.completed is not None), key=lambda pair: pair[0])
    last, n = None, 0
    for o in sorted(told, key=lambda o: o.invoked):
        while n < len(ended) and ended[n][0] < o.invoked:
            if last is None or ended[n][1].place > last.place:
                last = ended[n][1]
            n += 1
        if last is not None and last.place > o.place:
            yield (
                f"real time: {last} was complete, with version {last.written}, "
                f"before {o} was invoked, which has version {o.written}"
            )


@dataclass
class _Search:
    """Replays the history in the order of the versions; whoever fits may have written a version that nobody was told.

    Goes depth first and remembers how far it came: that is what a failure tells.
    """

    done: Sequence[Operation]
    start: WorkingMemory
    final: WorkingMemory
    apply: Apply
    _reached: int = field(default=-1, init=False)
    _problem: list[str] = field(default_factory=list[str], init=False)

    def __post_init__(self) -> None:
        self._writers = {o.written: o for o in self.done if o.wrote}
        self._unknown = [(o, self._floor(o)) for o in self.done if o.outcome == "unknown"]
        self._known = {r.version: r for r in self.final.past}
        self._ids = {o.id for o in self.done}
        self._seen: dict[int, list[Operation]] = {}
        for o in self.done:
            if o.outcome == "ok" and o.written is not None:
                self._seen.setdefault(o.written, []).append(o)

    def faults(self) -> list[str]:
        open_ends: list[tuple[int, str, tuple[Operation, ...]]] = [(self.start.version, self.start.text, ())]
        if self.start.version == self.final.version and self.start.text != self.final.text:
            return self._lost((), self.start.text)
        if problem := self._misfit(self.start.version, self.start.text):
            return [problem]
        for _ in range(_STEPS):
            if not open_ends:
                return self._problem
            version, text, chain = open_ends.pop()
            if version == self.final.version:
                return []
            open_ends += self._next(version + 1, text, chain)
        return [f"undecided: {_STEPS} steps found no order"]

    def _next(
        self, version: int, before: str, chain: tuple[Operation, ...]
    ) -> Iterable[tuple[int, str, tuple[Operation, ...]]]:
        """The ways to go on to `version`."""
        writer = self._writers.get(version)
        fitting = [writer] if writer else self._candidates(version, {o.id for o in chain})
        if not fitting:
            self._fail(version, [f"gap: no operation of unknown outcome can have written version {version}"])
        for o in fitting:
            text, so_far = self.apply(before, o.kind, o.payload), (*chain, o)
            problem = self._misfit(version, text, o)
            if version == self.final.version and text != self.final.text:
                self._fail(version, self._lost(so_far, text))
            elif problem:
                self._fail(version, [problem])
            else:
                yield version, text, so_far

    def _candidates(self, version: int, used: set[str]) -> list[Operation]:
        revision = self._known.get(version)
        named = revision.writer if revision and revision.writer in self._ids else None
        return [
            o
            for o, floor in self._unknown
            if floor < version and o.id not in used and named in (None, o.id)
            and (o.kind != "conditional" or o.payload["version"] == version - 1)
        ]  # fmt: skip

    def _fail(self, version: int, problem: list[str]) -> None:
        if version > self._reached:
            self._reached, self._problem = version, problem

    def _misfit(self, version: int, text: str, writer: Operation | None = None) -> str | None:
        """Why `text`, as `writer` left it, cannot be that of `version`."""
        revision = self._known.get(version)
        if writer and revision and revision.writer in self._ids and revision.writer != writer.id:
            return f"writer: version {version} is of {writer}, but the record names {revision.writer}"
        if revision and revision.digest != digest(text):
            return f"text: the record has another text as version {version} than {writer or 'the start'} makes"
        for o in self._seen.get(version, ()):
            if o.digest not in (None, digest(text)):
                return f"text: {o} was told another text as version {version} than the order of the versions makes"
            if o.idle and self.apply(text, o.kind, o.payload) != text:
                return f"missing: {o} was acknowledged without a write, but changes version {version}"
        return None

    def _lost(self, chain: tuple[Operation, ...], replayed: str) -> list[str]:
        """What the final text lacks or has too much, and who was told that it is there."""
        missing = []
        for path in _different(replayed, self.final.text)[:_SHOWN]:
            text, author = self.start.text, "the start"
            for o in chain:
                before, text = _at(text, path), self.apply(text, o.kind, o.payload)
                if _at(text, path) != before:
                    author = f"{o}, version {self.start.version + chain.index(o) + 1}"
            ours, theirs = _at(replayed, path), _at(self.final.text, path)
            missing.append(f"missing: {'/'.join(path) or 'the text'} is {theirs}, not {ours} as {author} left it")
        return missing

    def _floor(self, operation: Operation) -> int:
        """The highest version that was told before `operation` was invoked: it can only have written a later one."""
        told = (o.written for o in self.done if o.outcome == "ok" and (o.completed or 0) < operation.invoked)
        return max((version for version in told if version is not None), default=self.start.version)


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _at(text: str, path: tuple[str, ...]) -> str:
    value = _tree(text)
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return "nothing"
        value = value[part]
    return json.dumps(value)


def _different(one: str, other: str) -> list[tuple[str, ...]]:
    """The paths of the values that differ; the empty path if the texts cannot be told apart by values."""

    def walk(a: Any, b: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if isinstance(a, dict) and isinstance(b, dict):
            names = [*a, *(name for name in b if name not in a)]
            return [p for n in names for p in walk(a.get(n, ...), b.get(n, ...), (*path, n))]
        return [path] if type(a) is not type(b) or a != b else []

    return walk(_tree(one), _tree(other), ()) or [()]


def _some(versions: Sequence[int]) -> str:
    listed = ", ".join(map(str, versions[:_SHOWN]))
    return listed + (f" and {len(versions) - _SHOWN} more" if len(versions) > _SHOWN else "")
