"""The part of the in-memory store that carries durable runs and journals (see `storage.runs`)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.errors import NotFound, RunEnded, ThreadGone
from threadkeep.jsontext import Json
from threadkeep.storage import journals, rules
from threadkeep.storage.runs import JOURNAL_MILLIS, DurableRun, Entry, RunGuard, RunState


class JournalsInMemory:
    """`Journals` under the lock and the clock of the store that it is a part of."""

    clock: Callable[[], Millis]
    _lock: Lock
    _runs: dict[str, tuple[DurableRun, Millis]]  # with the time when each is forgotten
    _journals: dict[str, dict[str, tuple[str, Millis]]]  # JSON text by name, with the time when each is forgotten
    _kept_with: dict[str, set[str]]  # the journals that go with a thread, by its id

    def _is_deleting(self, thread_id: str) -> bool:
        raise NotImplementedError

    def _is_ready(self, thread_id: str) -> bool:
        raise NotImplementedError

    async def create_run(self, run: DurableRun) -> DurableRun:
        run = _copy(run)
        await asyncio.sleep(0)
        with self._lock:
            if stored := self._run(run.run_id):
                return journals.known(stored, run)
            if run.thread_id is not None and self._is_deleting(run.thread_id):
                raise ThreadGone(run.thread_id)
            self._lead(run.thread_id, run.run_id)
            now = self.clock()
            run = replace(run, created_at=now, updated_at=now)
            self._keep_run(run)
            return _copy(run)

    async def get_run(self, run_id: str) -> DurableRun | None:
        await asyncio.sleep(0)
        with self._lock:
            return self._run(run_id)

    async def list_runs(
        self, thread_id: str, *, agent_id: str, resource_id: str, limit: int = 100
    ) -> tuple[DurableRun, ...]:
        await asyncio.sleep(0)
        with self._lock:
            wanted = (thread_id, agent_id, resource_id)
            runs = [run for run_id in self._runs if (run := self._run(run_id))]
            found = [run for run in runs if (run.thread_id, run.agent_id, run.resource_id) == wanted]
            found.sort(key=lambda run: (run.created_at, run.run_id), reverse=True)
            return tuple(map(journals.brief, found[:limit]))

    async def end_run(
        self,
        run_id: str,
        state: RunState,
        *,
        result: dict[str, Json] | None = None,
        error: dict[str, Json] | None = None,
    ) -> DurableRun:
        result, error = _outcome(result), _outcome(error)
        await asyncio.sleep(0)
        with self._lock:
            run = self._run(run_id)
            if run is None:
                raise NotFound("Run not found")
            if journals.may_become(run.state, state):
                run = journals.ended(run, state, result, error, self.clock())
                self._keep_run(run)
            return _copy(run)

    async def forget_run(self, run_id: str) -> None:
        await asyncio.sleep(0)
        with self._lock:
            if run_id not in self._runs:
                self._journals.pop(run_id, None)

    async def write_entries(
        self, journal: str, entries: Sequence[Entry], *, thread_id: str | None
    ) -> tuple[Entry, ...]:
        texts = journals.entry_texts(entries)
        await asyncio.sleep(0)
        with self._lock:
            if entries and thread_id is not None and not self._is_ready(thread_id):
                raise ThreadGone(thread_id)
            self._lead(thread_id if entries else None, journal)
            expires = self.clock() + JOURNAL_MILLIS
            standing = self._standing(journal)
            self._journals[journal] = {name: (text, expires) for name, text in texts.items()} | standing
            return tuple(Entry(e.name, jsontext.loads(self._journals[journal][e.name][0])) for e in entries)

    async def read_entries(self, journal: str, names: Sequence[str]) -> dict[str, Json]:
        await asyncio.sleep(0)
        with self._lock:
            standing = self._standing(journal)
            return {name: jsontext.loads(standing[name][0]) for name in names if name in standing}

    async def list_entries(self, journal: str, prefix: str) -> tuple[Entry, ...]:
        await asyncio.sleep(0)
        with self._lock:
            standing = sorted(self._standing(journal).items())
            return tuple(Entry(name, jsontext.loads(text)) for name, (text, _) in standing if name.startswith(prefix))

    def _run(self, run_id: str) -> DurableRun | None:
        run, expires = self._runs.get(run_id, (None, 0))
        return _copy(run) if run and expires > self.clock() else None

    def _standing(self, journal: str) -> dict[str, tuple[str, Millis]]:
        now = self.clock()
        return {name: e for name, e in self._journals.get(journal, {}).items() if e[1] > now}

    def _lead(self, thread_id: str | None, journal: str) -> None:
        """Have a journal go with a thread."""
        if thread_id is not None:
            self._kept_with.setdefault(thread_id, set()).add(journal)

    def _guarded(self, guard: RunGuard) -> DurableRun | None:
        """What a commit makes of its run, None if nothing. Raises `RunEnded` if it does not run any more."""
        run = self._run(guard.run_id)
        if run is None or run.state != "running":
            raise RunEnded
        if guard.result is None:
            return None
        return journals.ended(run, "succeeded", _outcome(guard.result), None, self.clock())

    def _keep_run(self, run: DurableRun) -> None:
        self._runs[run.run_id] = run, self.clock() + JOURNAL_MILLIS

    def _forget_journals(self, thread_id: str) -> None:
        for journal in self._kept_with.pop(thread_id, ()):
            self._runs.pop(journal, None)
            self._journals.pop(journal, None)


def _copy(run: DurableRun) -> DurableRun:
    request = jsontext.loads(rules.body_text(run.request))
    return replace(run, request=request, result=_outcome(run.result), error=_outcome(run.error))


def _outcome(outcome: dict[str, Json] | None) -> dict[str, Json] | None:
    return None if outcome is None else jsontext.loads(journals.outcome_text(outcome))
