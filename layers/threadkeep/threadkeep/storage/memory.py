"""A store that keeps everything in the process: for tests, and for using the library without AWS."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from threadkeep import clock, ids, jsontext
from threadkeep.clock import Millis
from threadkeep.errors import AccessDenied, Conflict, NotFound, ThreadGone
from threadkeep.jsontext import Json
from threadkeep.storage import rules, suspended, working_memory
from threadkeep.storage.memory_journals import JournalsInMemory
from threadkeep.storage.memory_live import LiveInMemory
from threadkeep.storage.order import order_key
from threadkeep.storage.port import (
    ALL,
    Budget,
    Clone,
    CloneRequest,
    Committed,
    Direction,
    Include,
    Job,
    MemoryMoved,
    MemorySeed,
    MemoryTarget,
    MemoryWrite,
    Message,
    MessageChange,
    MessageFilter,
    NewThread,
    Origin,
    Page,
    Receipt,
    SavedMessage,
    SuspendedFilter,
    SuspendedRun,
    Thread,
    ThreadChange,
    ThreadField,
    ThreadMessages,
    TurnCommit,
    TurnState,
    WorkingMemory,
)


@dataclass(slots=True)
class _Entry:
    """A thread with everything that hangs on it; `messages` is ascending, by id.

    Of a sub-agent's thread, `parent` is the thread that it came from, and its own owner when it was created.
    """

    thread: Thread
    deleting: bool = False
    source: tuple[str, Millis] | None = None  # the thread of which it is a copy: id and created_at
    messages: dict[str, Message] = field(default_factory=dict[str, Message])
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    memory: WorkingMemory = WorkingMemory()
    parent: tuple[str, str] | None = None

    def seen(self) -> Thread:
        """The thread with its view of its own memory, for a caller."""
        return replace(_thread_copy(self.thread), memory=working_memory.view(self.memory))

    def revision(self, message_id: str) -> int | None:
        message = self.messages.get(message_id)
        return message.revision if message else None

    def write(self, rows: Iterable[Message]) -> None:
        messages = self.messages | {row.id: _message_copy(row) for row in rows}
        self.messages = {m.id: m for m in sorted(messages.values(), key=lambda m: m.order)}

    def newest_first(self) -> list[Message]:
        return list(reversed(self.messages.values()))


class InMemoryStorage(LiveInMemory, JournalsInMemory):
    """The storage port (`threadkeep.storage.port.Storage`) without a database.

    Each method takes effect at one instant, under a lock that is never held while waiting, so one
    store serves any number of tasks, event loops and threads. Values are copied through JSON on the
    way in and out: no caller shares an object with the store. `clock` returns milliseconds since
    1970 and may be replaced at any time.
    """

    def __init__(self, clock: Callable[[], Millis] = clock.now):
        self.clock = clock
        self._lock = Lock()
        self._entries: dict[str, _Entry] = {}
        self._receipts: dict[str, tuple[Receipt, Millis]] = {}  # with the time when each is forgotten
        self._suspended: dict[str, tuple[SuspendedRun, Millis]] = {}  # with the time when each is forgotten
        self._memories: dict[str, WorkingMemory] = {}  # of resources
        self._lanes = {}
        self._accepted = {}
        self._runs = {}
        self._journals = {}
        self._kept_with = {}
        self._sub_keys: dict[str, set[str]] = {}  # of the sub-agents that worked for a resource, by its id
        self._buried: dict[str, Millis] = {}  # created_at of purged threads, by id

    async def load_turn(
        self,
        thread_id: str,
        *,
        last_messages: int,
        message_ids: Sequence[str] = (),
        budget: Budget | None = None,
        claim: Receipt | None = None,
        memory: MemoryTarget | None = None,
    ) -> TurnState:
        await _other_tasks()
        with self._lock:
            claimed = self._claim(claim) if claim else None
            entry = self._entries.get(thread_id)
            remembered = self._memory(memory) if memory else WorkingMemory()
            if entry is None or entry.deleting:
                return TurnState(None, deleting=entry is not None, claimed=claimed, memory=remembered)
            return TurnState(
                thread=_thread_copy(entry.thread),
                history=tuple(map(_message_copy, rules.history_window(entry.newest_first(), last_messages, budget))),
                stored_ids=frozenset(i for i in message_ids if i in entry.messages),
                claimed=claimed,
                memory=remembered,
            )

    async def create_thread(self, new: NewThread) -> Thread:
        rules.check_thread(new.title, new.metadata)
        await _other_tasks()
        with self._lock:
            entry = self._entries.get(new.id)
            if new.origin:
                self._check_origin(new.origin)
            if entry is None:
                thread = self._first_row(new)
                seeded = self._seed(new.memory, thread)
                entry = self._entries[new.id] = _Entry(thread)
                if new.origin:
                    self._link(entry, new.origin)
                return self._seen(entry, seeded)
            elif entry.deleting:
                raise ThreadGone(new.id)
            elif entry.thread.resource_id != new.resource_id:
                raise AccessDenied
            return entry.seen()

    def _check_origin(self, origin: Origin) -> None:
        parent = self._ready(origin.thread_id) if origin.thread_id is not None else None
        if origin.thread_id is not None and (parent is None or parent.thread.resource_id != origin.resource_id):
            raise ThreadGone(origin.thread_id)

    def _link(self, entry: _Entry, origin: Origin) -> None:
        self._sub_keys.setdefault(origin.resource_id, set()).add(origin.key)
        if origin.thread_id is not None:
            entry.parent = origin.thread_id, entry.thread.resource_id

    async def list_sub_resources(self, resource_id: str) -> tuple[str, ...]:
        await _other_tasks()
        with self._lock:
            return tuple(sorted(self._sub_keys.get(resource_id, ())))

    async def get_thread(self, thread_id: str) -> Thread | None:
        await _other_tasks()
        with self._lock:
            entry = self._ready(thread_id)
            return entry.seen() if entry else None

    async def list_threads(
        self,
        resource_id: str | None,
        *,
        page: int = 0,
        per_page: int | None = 100,
        order_by: ThreadField = "createdAt",
        direction: Direction = "DESC",
    ) -> Page[Thread]:
        def rank(thread: Thread) -> tuple[Millis, str]:
            at = thread.created_at if order_by == "createdAt" else thread.updated_at
            return at, ids.encode(thread.id)

        await _other_tasks()
        with self._lock:
            alive = [e for e in self._entries.values() if not e.deleting]
            found = [e for e in alive if resource_id in (None, e.thread.resource_id)]
            found.sort(key=lambda entry: rank(entry.thread), reverse=direction == "DESC")
            items = [entry.seen() for entry in rules.cut(found, page, per_page)]
            return rules.page_of(items, total=len(found), page=page, per_page=per_page)

    async def update_thread(self, thread_id: str, change: ThreadChange, *, resource_id: str | None) -> Thread:
        change = replace(change, metadata=_json_copy(change.metadata))
        await _other_tasks()
        with self._lock:
            entry = self._owned(thread_id, resource_id)
            after = rules.changed(entry.thread, change, self.clock())
            seeded = self._seed(change.memory, after)
            entry.thread = after
            return self._seen(entry, seeded)

    async def transfer_thread(self, thread_id: str, to: str, *, resource_id: str | None) -> Thread:
        await _other_tasks()
        with self._lock:
            entry = self._owned(thread_id, resource_id)
            if entry.thread.resource_id != to:
                entry.thread = replace(entry.thread, resource_id=to, **rules.touched(entry.thread, self.clock()))
            return entry.seen()

    async def delete_thread(self, thread_id: str, *, resource_id: str | None) -> bool:
        await _other_tasks()
        with self._lock:
            entry = self._ready(thread_id)
            if entry is None:
                return False
            rules.check_owner(entry.thread, resource_id)
            entry.deleting = True
            return True

    async def purge_thread(self, thread_id: str, *, limit: int | None = None) -> bool:
        await _other_tasks()
        with self._lock:
            entry = self._entries.get(thread_id)
            if entry is not None and entry.deleting:
                doomed = list(entry.messages)[:limit]
                for message_id in doomed:
                    del entry.messages[message_id]
                if limit is not None and len(doomed) == limit:
                    return False
                self._bury_subs(thread_id)
                self._forget_journals(thread_id)
                self._forget_live(entry.thread.resource_id, thread_id)
                doomed = [r.run_id for r, _ in self._suspended.values() if (r.thread_id, r.open) == (thread_id, True)]
                for run_id in doomed:
                    del self._suspended[run_id]
                self._buried[thread_id] = entry.thread.created_at
                del self._entries[thread_id]
            return True

    def _bury_subs(self, thread_id: str) -> None:
        """Delete the sub-agents' threads that came from a thread and still have the owner that they had then."""
        for entry in self._entries.values():
            if entry.parent and entry.parent[0] == thread_id:
                entry.deleting |= entry.parent[1] == entry.thread.resource_id
                entry.parent = None

    def _is_ready(self, thread_id: str) -> bool:
        return self._ready(thread_id) is not None

    def _is_deleting(self, thread_id: str) -> bool:
        entry = self._entries.get(thread_id)
        return entry is not None and entry.deleting

    async def clone_thread(self, request: CloneRequest, *, resource_id: str | None = None) -> Clone:
        await _other_tasks()
        with self._lock:
            entry = self._ready(request.source_id)
            if entry is None:
                raise NotFound("Source thread not found")
            rules.check_owner(entry.thread, resource_id)
            target = rules.clone_target(entry.thread, request, self._birth(request.new.id))
            if request.new.id in self._entries:
                raise Conflict(f"Thread {request.new.id} exists already")
            match = MessageFilter(since=request.since, until=request.until)
            chosen = [
                m
                for m in entry.messages.values()
                if rules.passes(m, match) and (request.message_ids is None or m.id in request.message_ids)
            ]
            if request.limit is not None:
                chosen = chosen[max(len(chosen) - request.limit, 0) :]
            return self._copy(entry, target, chosen, request.resource_memory)

    def _copy(self, origin: _Entry, target: Thread, chosen: Sequence[Message], resource_memory: bool) -> Clone:
        source = origin.thread
        ids = {m.id: rules.copy_id(target, m.id) for m in chosen}
        copies = [
            replace(m, id=ids[m.id], thread_id=target.id, order=order_key(m.created_at, n), revision=1)
            for n, m in enumerate(chosen, 1)
        ]
        last = chosen[-1].id if chosen else None
        target = replace(
            target,
            metadata=_json_copy(rules.clone_metadata(target.metadata, source.id, target.created_at, last)),
            seq=len(copies),
            message_count=len(copies),
            last_at=max((m.created_at for m in copies), default=0),
        )
        entry = self._entries[target.id] = _Entry(target, source=(source.id, source.created_at))
        entry.write(copies)
        entry.memory = working_memory.copied(origin.memory, source.id, self.clock())
        if resource_memory:
            theirs, ours = (MemoryTarget("resource", t.resource_id) for t in (source, target))
            self._memories[ours.id] = working_memory.overwritten(
                self._memory(ours), self._memory(theirs), source.id, self.clock()
            )
        return Clone(entry.seen(), tuple(map(_message_copy, copies)), ids)

    async def finish_clone(self, thread_id: str) -> None:
        await _other_tasks()  # a copy is made in one go here

    async def list_clones(self, source_id: str) -> tuple[str, ...]:
        await _other_tasks()
        with self._lock:
            entry = self._ready(source_id)
            origin = (source_id, entry.thread.created_at) if entry else None
            return tuple(
                sorted(i for i, e in self._entries.items() if origin and e.source == origin and not e.deleting)
            )

    async def list_messages(
        self,
        thread_id: str,
        *,
        resource_id: str | None = None,
        page: int = 0,
        per_page: int | None = 40,
        direction: Direction = "DESC",
        match: MessageFilter = ALL,
        include: Sequence[Include] = (),
    ) -> ThreadMessages:
        await _other_tasks()
        with self._lock:
            entry = self._owned(thread_id, resource_id)
            found = _page(entry.messages.values(), page, per_page, direction, match)
            more = [m for wanted in include for m in self._around(entry, wanted)]
            return ThreadMessages(_thread_copy(entry.thread), _page_copy(rules.merged(found, more)))

    async def list_resource_messages(
        self,
        resource_id: str,
        *,
        page: int = 0,
        per_page: int | None = 40,
        direction: Direction = "ASC",
        match: MessageFilter = ALL,
    ) -> Page[Message]:
        await _other_tasks()
        with self._lock:
            rows = [m for entry in self._entries_of(resource_id) for m in entry.messages.values()]
            rules.check_walk(len(rows), "resourceId")
            return _page_copy(_page(sorted(rows, key=rules.position), page, per_page, direction, match))

    def _around(self, entry: _Entry, wanted: Include) -> list[Message]:
        """The wanted message and its neighbours: in this thread, or else in the owner's other ones (M-RC-7)."""
        homes = [entry] if wanted.id in entry.messages else self._entries_of(entry.thread.resource_id)
        found: list[Message] = []
        for home in homes:
            if wanted.id in home.messages:
                at = list(home.messages).index(wanted.id)
                found += list(home.messages.values())[max(at - wanted.before, 0) : at + wanted.after + 1]
        return found

    async def save_messages(
        self, thread_id: str, messages: Sequence[SavedMessage], *, resource_id: str | None
    ) -> tuple[Message, ...]:
        saved = rules.with_ids(messages, self.clock())
        await _other_tasks()
        with self._lock:
            entry = self._owned(thread_id, resource_id)
            if not saved:
                return ()
            entry.thread, rows = rules.saved(entry.thread, entry.messages, saved, self.clock())
            entry.write(rows)
            return tuple(map(_message_copy, rows))

    async def update_messages(
        self, thread_id: str, changes: Sequence[MessageChange], *, resource_id: str | None
    ) -> tuple[Message, ...]:
        await _other_tasks()
        with self._lock:
            entry = self._owned(thread_id, resource_id)
            rows = tuple(map(_message_copy, rules.edited(entry.messages, changes)))
            for row in rows:
                rules.content_text(row.content)
            if rows:
                entry.thread = replace(entry.thread, **rules.touched(entry.thread, self.clock()))
                entry.write(rows)
            return tuple(map(_message_copy, rows))

    async def delete_messages(
        self, ids: Sequence[str], *, resource_id: str | None, thread_id: str | None = None
    ) -> int:
        await _other_tasks()
        with self._lock:
            if thread_id is None:
                homes = [e for e in self._entries.values() if not e.deleting]
            else:
                homes = [self._owned(thread_id, resource_id)]
            held = {i: [e.thread for e in homes if i in e.messages] for i in ids}
            doomed = rules.doomed(held, resource_id)
            for home, message_ids in doomed.items():
                entry = self._entries[home]
                entry.thread = rules.without(entry.thread, len(message_ids), self.clock())
                for message_id in message_ids:
                    del entry.messages[message_id]
            return sum(map(len, doomed.values()))

    async def commit_turn(self, commit: TurnCommit) -> Committed:
        rules.turn_bodies(commit.messages, commit.updates)
        job = _job_copy(commit.job) if commit.job else None
        metadata = _json_copy(commit.thread_metadata)
        run = suspended.read(suspended.text(commit.suspended)) if commit.suspended else None
        await _other_tasks()
        with self._lock:
            entry = self._ready(commit.thread.id)
            if entry is None or not rules.same_thread(entry.thread, commit.thread):
                raise ThreadGone(commit.thread.id)
            if taken := [m.id for m in commit.messages if m.id in entry.messages]:
                raise Conflict(f"Message {taken[0]} is stored already")
            if any(entry.revision(u.message.id) != u.message.revision for u in commit.updates):
                raise Conflict("A message that this turn updates was changed or deleted meanwhile")
            thread, messages = rules.number(entry.thread, commit.messages, metadata)
            updated = tuple(map(rules.updated, commit.updates))
            if commit.suspended:
                suspended.check(self._suspended_run(commit.suspended.run_id), commit.suspended)
            durable = self._guarded(commit.within) if commit.within else None
            if commit.receipt:
                self._finish(commit.receipt)
            if durable:
                self._keep_run(durable)
            if run:
                self._suspended[run.run_id] = (run, self.clock() + rules.SUSPENDED_MILLIS)
            entry.thread = thread
            entry.write((*updated, *messages))
            if job:
                entry.jobs[job.run_id] = job
            return Committed(
                _thread_copy(thread), tuple(map(_message_copy, messages)), tuple(map(_message_copy, updated))
            )

    async def get_suspended_run(self, run_id: str) -> SuspendedRun | None:
        await _other_tasks()
        with self._lock:
            return self._suspended_run(run_id)

    async def list_suspended_runs(
        self, match: SuspendedFilter, *, page: int = 0, per_page: int | None = 100
    ) -> Page[SuspendedRun]:
        await _other_tasks()
        with self._lock:
            runs = [run for run_id in self._suspended if (run := self._suspended_run(run_id))]
            alive = [r for r in runs if (e := self._ready(r.thread_id)) and e.thread.resource_id == r.resource_id]
            return suspended.listed(alive, match, page, per_page)

    def _suspended_run(self, run_id: str) -> SuspendedRun | None:
        run, expires = self._suspended.get(run_id, (None, 0))
        return suspended.read(suspended.text(run)) if run and expires > self.clock() else None

    async def get_receipt(self, key: str) -> Receipt | None:
        await _other_tasks()
        with self._lock:
            return self._receipt(key)

    async def drop_receipt(self, receipt: Receipt) -> None:
        await _other_tasks()
        with self._lock:
            stored = self._receipt(receipt.key)
            if stored and (stored.run_id, stored.status) == (receipt.run_id, "running"):
                del self._receipts[receipt.key]

    def _receipt(self, key: str) -> Receipt | None:
        receipt, expires = self._receipts.get(key, (None, 0))
        return _receipt_copy(receipt) if receipt and expires > self.clock() else None

    def _claim(self, claim: Receipt) -> Receipt | None:
        stored, now = self._receipt(claim.key), self.clock()
        if not rules.may_take(stored, claim, now):
            return stored
        self._receipts[claim.key] = (_receipt_copy(claim), now + rules.RECEIPT_MILLIS)
        return None

    def _finish(self, receipt: Receipt) -> None:
        stored = self._receipt(receipt.key)
        if stored is None or (stored.run_id, stored.status) != (receipt.run_id, "running"):
            raise Conflict(rules.TAKEN_OVER)
        self._receipts[receipt.key] = (_receipt_copy(receipt), self.clock() + rules.RECEIPT_MILLIS)

    async def get_job(self, thread_id: str, run_id: str) -> Job | None:
        await _other_tasks()
        with self._lock:
            entry = self._entries.get(thread_id)
            job = entry.jobs.get(run_id) if entry else None
            return _job_copy(job) if job else None

    async def delete_job(self, thread_id: str, run_id: str) -> None:
        await _other_tasks()
        with self._lock:
            if entry := self._entries.get(thread_id):
                entry.jobs.pop(run_id, None)

    async def set_title(self, thread: Thread, title: str) -> bool:
        await _other_tasks()
        with self._lock:
            entry = self._ready(thread.id)
            if entry is None or not rules.same_thread(entry.thread, thread) or entry.thread.title:
                return False
            entry.thread = replace(entry.thread, title=title, version=entry.thread.version + 1)
            return True

    async def get_working_memory(self, target: MemoryTarget) -> WorkingMemory:
        await _other_tasks()
        with self._lock:
            if target.scope == "thread":
                self._owned(target.id, None)
            return self._memory(target)

    async def put_working_memory(self, write: MemoryWrite) -> WorkingMemory:
        thread = working_memory.guard(write)
        after = working_memory.written(write.read, write.text, write.writer, self.clock())
        await _other_tasks()
        with self._lock:
            entry = self._ready(thread.id) if thread else None
            if thread and (entry is None or not rules.same_thread(entry.thread, thread)):
                raise ThreadGone(thread.id)
            current = self._memory(write.target)
            if current.version != write.read.version:
                raise MemoryMoved(current)
            self._write_memory(write.target, after)
            return after

    def _memory(self, target: MemoryTarget) -> WorkingMemory:
        """A memory as it stands; that of a thread which is not ready is not there for anybody."""
        if target.scope == "resource":
            return self._memories.get(target.id, WorkingMemory())
        entry = self._ready(target.id)
        return entry.memory if entry else WorkingMemory()

    def _write_memory(self, target: MemoryTarget, memory: WorkingMemory) -> None:
        if target.scope == "resource":
            self._memories[target.id] = memory
        else:
            self._entries[target.id].memory = memory

    def _seed(self, seed: MemorySeed | None, thread: Thread) -> tuple[MemoryTarget, WorkingMemory] | None:
        """The memory that a seed of this thread is for, as it shall be. Raises `TooLarge`."""
        if seed is None:
            return None
        target = working_memory.owner(seed, thread)
        return target, working_memory.seeded(self._memory(target), seed, self.clock())

    def _seen(self, entry: _Entry, seeded: tuple[MemoryTarget, WorkingMemory] | None) -> Thread:
        """The thread for a caller, once the memory that a seed came for is written."""
        if seeded is None:
            return entry.seen()
        self._write_memory(*seeded)
        return replace(entry.seen(), memory=working_memory.view(seeded[1]))

    def _ready(self, thread_id: str) -> _Entry | None:
        entry = self._entries.get(thread_id)
        return None if entry is None or entry.deleting else entry

    def _owned(self, thread_id: str, resource_id: str | None) -> _Entry:
        entry = self._ready(thread_id)
        if entry is None:
            raise NotFound("Thread not found")
        rules.check_owner(entry.thread, resource_id)
        return entry

    def _entries_of(self, resource_id: str) -> list[_Entry]:
        return [e for e in self._entries.values() if not e.deleting and e.thread.resource_id == resource_id]

    def _birth(self, thread_id: str) -> Millis:
        return max(self.clock(), self._buried.get(thread_id, -1) + 1)

    def _first_row(self, new: NewThread) -> Thread:
        """A new thread. One that takes a purged thread's id is younger, even within one millisecond."""
        now = self._birth(new.id)
        return Thread(new.id, new.resource_id, new.title, _json_copy(new.metadata), created_at=now, updated_at=now)


async def _other_tasks() -> None:
    """Let other tasks run first, as any real store would: races show up in tests, not in production."""
    await asyncio.sleep(0)


def _page(
    ascending: Iterable[Message], page: int, per_page: int | None, direction: Direction, match: MessageFilter
) -> Page[Message]:
    since, until = rules.time_range(match)
    rows = [m for m in ascending if since <= m.created_at <= until]
    if rules.is_filter(match):
        rules.check_walk(len(rows))
    found = [m for m in rows if rules.passes(m, match)]
    part = rules.cut(found[::-1] if direction == "DESC" else found, page, per_page)
    items = part[::-1] if direction == "DESC" else part
    return rules.page_of(items, total=len(found), page=page, per_page=per_page)


def _page_copy(page: Page[Message]) -> Page[Message]:
    rules.check_page(sum(len(jsontext.dumps(m.content)) for m in page.items))
    return replace(page, items=tuple(map(_message_copy, page.items)))


def _receipt_copy(receipt: Receipt) -> Receipt:
    return replace(receipt, reply=_json_copy(receipt.reply))


def _json_copy(value: Json) -> Json:
    return None if value is None else jsontext.loads(jsontext.dumps(value))


def _thread_copy(thread: Thread) -> Thread:
    return replace(thread, metadata=_json_copy(thread.metadata))


def _message_copy(message: Message) -> Message:
    return replace(message, content=_json_copy(message.content))


def _job_copy(job: Job) -> Job:
    return replace(job, body=_json_copy(job.body))
