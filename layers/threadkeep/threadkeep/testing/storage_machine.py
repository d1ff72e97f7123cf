"""Random histories of one store, checked step by step against a model that fits on a page."""

import asyncio
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from threadkeep.errors import AccessDenied, Conflict, NotFound, ThreadGone
from threadkeep.storage.port import (
    CloneRequest,
    Job,
    MemoryMoved,
    MemoryScope,
    MemorySeed,
    MemoryTarget,
    MemoryWrite,
    MessageChange,
    NewMessage,
    NewThread,
    SavedMessage,
    Storage,
    Thread,
    ThreadChange,
    TurnCommit,
    WorkingMemory,
)

T = TypeVar("T")

NAMES = st.sampled_from(["a", "a#", "b/#"])
OWNERS = st.sampled_from(["x", "x#a"])
MESSAGE_NAMES = st.sampled_from([f"m{n}" for n in range(12)])
ROLES = st.sampled_from(["user", "assistant", "signal", "system"])
TURNS = st.lists(st.tuples(MESSAGE_NAMES, ROLES), min_size=1, max_size=4, unique_by=lambda m: m[0])
SCOPES: st.SearchStrategy[MemoryScope] = st.sampled_from(("thread", "resource"))
SEEDS = st.one_of(st.none(), st.tuples(SCOPES, st.integers(0, 12).map(str)))
PAGES = st.one_of(st.none(), st.integers(0, 5))


Seed = tuple[MemoryScope, str] | None


@dataclass
class ExpectedMemory:
    """A working memory in the model: the texts of all its versions, and those that seeds brought."""

    texts: list[str] = field(default_factory=list[str])
    seeds: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return self.texts[-1] if self.texts else ""

    def seed(self, text: str) -> None:
        if text not in self.texts[-8:] and text not in self.seeds[-8:]:
            self.texts.append(text)
            self.seeds.append(text)

    def check(self, stored: WorkingMemory) -> None:
        assert (stored.text, stored.version) == (self.text, len(self.texts))
        digests = [sha256(text.encode()).hexdigest() for text in self.texts]
        assert [(r.version, r.digest) for r in stored.past] == list(enumerate(digests, 1))[:-9:-1]
        assert stored.seeds == tuple(sha256(text.encode()).hexdigest() for text in self.seeds[:-9:-1])


@dataclass
class Expected:
    """A thread in the model. `birth` numbers it among all threads that ever had a row."""

    owner: str
    birth: int
    created_at: int
    title: str
    deleting: bool = False
    messages: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])  # id, role, created_at
    seq: int = 0
    last_at: int = 0
    runs: set[str] = field(default_factory=set[str])
    memory: ExpectedMemory = field(default_factory=ExpectedMemory)


class StorageMachine(RuleBasedStateMachine):
    """`loaded` holds thread rows as some caller once read them, most of them out of date."""

    loaded = Bundle("loaded")

    def __init__(self, storage: Storage):
        super().__init__()
        self.storage = storage
        self.loop = asyncio.new_event_loop()
        self.unique = uuid.uuid4().hex[:12]
        self.threads: dict[str, Expected] = {}
        self.births: dict[tuple[str, int], int] = {}
        self.runs = 0
        self.memories: dict[str, ExpectedMemory] = {}  # of resources

    def teardown(self) -> None:
        self.loop.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def name(self, short: str) -> str:
        return f"{short}{self.unique}"

    def live(self, thread_id: str) -> Expected | None:
        expected = self.threads.get(thread_id)
        return None if expected is None or expected.deleting else expected

    def alive(self, row: Thread) -> Expected | None:
        """The model's thread, if it is the very one that the row was read from."""
        expected = self.live(row.id)
        same = expected and expected.birth == self.births[row.id, row.created_at] and expected.owner == row.resource_id
        return expected if same else None

    def memory(self, expected: Expected, scope: MemoryScope) -> ExpectedMemory:
        if scope == "thread":
            return expected.memory
        return self.memories.setdefault(expected.owner, ExpectedMemory())

    @staticmethod
    def seed(seed: Seed) -> MemorySeed | None:
        return MemorySeed(*seed, writer="http") if seed else None

    @initialize(target=loaded, owner=OWNERS, seed=SEEDS)
    def begin(self, owner: str, seed: Seed) -> Thread:
        return self.create("a", owner, "", seed)

    @rule(target=loaded, short=NAMES, owner=OWNERS, title=st.sampled_from(["", "Title"]), seed=SEEDS)
    def create_or_load(self, short: str, owner: str, title: str, seed: Seed) -> Thread:
        expected = self.threads.get(self.name(short))
        if expected is None:
            return self.create(short, owner, title, seed)
        if expected.deleting or expected.owner != self.name(owner):
            self.refuses(ThreadGone if expected.deleting else AccessDenied, short, owner)
            return self.create("spare" + uuid.uuid4().hex, owner, title, seed)
        new = NewThread(self.name(short), self.name(owner), "Other", memory=self.seed(seed))
        row = self.run(self.storage.create_thread(new))
        assert (row.title, row.created_at) == (expected.title, expected.created_at)
        assert row.memory == (expected.memory.text or None)
        return row

    def create(self, short: str, owner: str, title: str, seed: Seed) -> Thread:
        new = NewThread(self.name(short), self.name(owner), title, {"title": title}, self.seed(seed))
        row = self.run(self.storage.create_thread(new))
        assert (row.resource_id, row.title, row.metadata) == (new.resource_id, title, {"title": title})
        birth = len(self.births)
        assert self.births.setdefault((row.id, row.created_at), birth) == birth, "created_at told no threads apart"
        expected = self.threads[row.id] = Expected(new.resource_id, birth, row.created_at, title)
        self.check_seed(expected, seed, row)
        return row

    def check_seed(self, expected: Expected, seed: Seed, row: Thread) -> None:
        scope, text = seed or ("thread", None)
        memory = self.memory(expected, scope)
        if text is not None:
            memory.seed(text)
        assert row.memory == (memory.text or None)

    def refuses(self, error: type[Exception], short: str, owner: str) -> None:
        try:
            self.run(self.storage.create_thread(NewThread(self.name(short), self.name(owner))))
        except error:
            return
        raise AssertionError(f"expected {error.__name__}")

    @rule(target=loaded, row=loaded)
    def read(self, row: Thread) -> Thread:
        stored = self.run(self.storage.get_thread(row.id))
        assert (stored is None) == (self.live(row.id) is None)
        return stored or row

    @rule(row=loaded, turn=TURNS, behind=st.integers(-100, 10_000))
    def commit(self, row: Thread, turn: list[tuple[str, str]], behind: int) -> None:
        at = row.created_at - behind
        messages = tuple(NewMessage(i, role, {"format": 2, "parts": [], "of": i}, at) for i, role in turn)
        self.runs += 1
        job = Job(f"run#{self.runs}", row.id, "agent", {"n": self.runs})
        expected = self.alive(row)
        taken = {i for i, _, _ in expected.messages} & {i for i, _ in turn} if expected else set[str]()
        try:
            done = self.run(self.storage.commit_turn(TurnCommit(row, messages, job)))
        except ThreadGone:
            assert expected is None
            return
        except Conflict:
            assert taken
            return
        assert expected is not None
        assert not taken
        last = expected.last_at
        for stored, (message_id, role) in zip(done.messages, turn, strict=True):
            last = max(at, last + 1)
            assert (stored.id, stored.role, stored.created_at) == (message_id, role, last)
            self.append(expected, message_id, role, last)
        expected.runs.add(job.run_id)

    @staticmethod
    def append(expected: Expected, message_id: str, role: str, at: int) -> None:
        """Put a message behind those of the same or an earlier time."""
        place = sum(1 for _, _, other in expected.messages if other <= at)
        expected.messages.insert(place, (message_id, role, at))
        expected.seq, expected.last_at = expected.seq + 1, max(expected.last_at, at)

    @rule(row=loaded, batch=TURNS, at=st.one_of(st.none(), st.integers(0, 50)), owner=st.one_of(st.none(), OWNERS))
    def save(self, row: Thread, batch: list[tuple[str, str]], at: int | None, owner: str | None) -> None:
        new = [SavedMessage(role, {"format": 2, "of": i}, i, created_at=at) for i, role in batch]
        expected = self.live(row.id)
        try:
            done = self.run(self.storage.save_messages(row.id, new, resource_id=owner and self.name(owner)))
        except (NotFound, AccessDenied) as refusal:
            self.check_refusal(refusal, expected, owner)
            return
        assert expected is not None
        kept = [(i, role) for i, role in batch if role != "system"]  # these are never saved (MS-4)
        for stored, (message_id, role) in zip(done, kept, strict=True):
            assert (stored.id, stored.role) == (message_id, role)
            held = next((n for n, m in enumerate(expected.messages) if m[0] == message_id), None)
            if held is not None:
                assert stored.created_at == expected.messages[held][2]
                expected.messages[held] = (message_id, role, stored.created_at)
                continue
            assert stored.created_at > expected.last_at if at is None else stored.created_at == at
            self.append(expected, message_id, role, stored.created_at)

    @rule(row=loaded, ids=st.lists(MESSAGE_NAMES, max_size=4), role=st.sampled_from(["user", "assistant", "signal"]))
    def update(self, row: Thread, ids: list[str], role: str) -> None:
        expected = self.live(row.id)
        changes = [MessageChange(i, role=role) for i in ids]
        try:
            done = self.run(self.storage.update_messages(row.id, changes, resource_id=None))
        except NotFound:
            assert expected is None
            return
        assert expected is not None
        assert {m.id for m in done} == {i for i, _, _ in expected.messages} & set(ids)
        expected.messages = [(i, role if i in ids else old, at) for i, old, at in expected.messages]

    @rule(row=loaded, ids=st.lists(MESSAGE_NAMES, max_size=4))
    def delete_messages(self, row: Thread, ids: list[str]) -> None:
        expected = self.live(row.id)
        try:
            count = self.run(self.storage.delete_messages(ids, resource_id=None, thread_id=row.id))
        except NotFound:
            assert expected is None
            return
        assert expected is not None
        left = [m for m in expected.messages if m[0] not in ids]
        assert count == len(expected.messages) - len(left)
        expected.messages = left

    @rule(target=loaded, row=loaded, to=OWNERS, owner=st.one_of(st.none(), OWNERS))
    def transfer(self, row: Thread, to: str, owner: str | None) -> Thread:
        expected = self.live(row.id)
        try:
            moved = self.run(
                self.storage.transfer_thread(row.id, self.name(to), resource_id=owner and self.name(owner))
            )
        except (NotFound, AccessDenied) as refusal:
            self.check_refusal(refusal, expected, owner)
            return row
        assert expected is not None
        expected.owner = self.name(to)
        assert (moved.resource_id, moved.created_at) == (expected.owner, expected.created_at)
        return moved

    @rule(
        row=loaded,
        title=st.sampled_from(["", "Named"]),
        merge=st.booleans(),
        seed=SEEDS,
        owner=st.one_of(st.none(), OWNERS),
    )
    def change(self, row: Thread, title: str, merge: bool, seed: Seed, owner: str | None) -> None:
        expected = self.live(row.id)
        change = ThreadChange(title, {"title": title}, merge, self.seed(seed))
        try:
            changed = self.run(self.storage.update_thread(row.id, change, resource_id=owner and self.name(owner)))
        except (NotFound, AccessDenied) as refusal:
            self.check_refusal(refusal, expected, owner)
            return
        assert expected is not None
        assert changed.title == title
        assert changed.metadata is not None and changed.metadata["title"] == title
        expected.title = title
        self.check_seed(expected, seed, changed)

    @rule(row=loaded, scope=SCOPES, text=st.integers(0, 12).map(lambda n: str(n or "")), late=st.booleans())
    def remember(self, row: Thread, scope: MemoryScope, text: str, late: bool) -> None:
        """A run writes what it made of the memory as it loaded it, one version ago if it is late."""
        expected = self.alive(row)
        target = MemoryTarget(scope, row.id if scope == "thread" else row.resource_id)
        stored = self.run(self.storage.load_turn(row.id, last_messages=0, memory=target)).memory
        read = replace(stored, version=max(stored.version - late, 0))
        memory = self.memory(expected, scope) if expected else ExpectedMemory()
        try:
            written = self.run(self.storage.put_working_memory(MemoryWrite(target, text, read, "run", row)))
        except ThreadGone:
            assert expected is None
            return
        except MemoryMoved as moved:
            assert read != stored
            memory.check(moved.current)
            return
        assert read == stored
        assert expected is not None
        memory.texts.append(text)
        memory.check(written)

    @rule(row=loaded)
    def read_memory(self, row: Thread) -> None:
        expected = self.live(row.id)
        try:
            stored = self.run(self.storage.get_working_memory(MemoryTarget("thread", row.id)))
        except NotFound:
            assert expected is None
            return
        assert expected is not None
        expected.memory.check(stored)

    @rule(
        target=loaded,
        row=loaded,
        short=NAMES,
        owner=OWNERS,
        limit=st.one_of(st.none(), st.integers(0, 5)),
        memory=st.booleans(),
    )
    def clone(self, row: Thread, short: str, owner: str, limit: int | None, memory: bool) -> Thread:
        source, target = self.live(row.id), self.name(short)
        request = CloneRequest(row.id, NewThread(target, self.name(owner), "Copy"), limit, resource_memory=memory)
        try:
            clone = self.run(self.storage.clone_thread(request))
        except NotFound:
            assert source is None
            return row
        except Conflict:
            assert target in self.threads
            return row
        assert source is not None
        rows = source.messages[len(source.messages) - limit :] if limit is not None else source.messages
        rows = source.messages if limit is not None and limit > len(source.messages) else rows
        assert list(clone.ids) == [i for i, _, _ in rows]
        assert [(m.role, m.created_at) for m in clone.messages] == [(role, at) for _, role, at in rows]
        made = clone.thread
        birth = len(self.births)
        assert self.births.setdefault((made.id, made.created_at), birth) == birth
        expected = self.threads[target] = Expected(self.name(owner), birth, made.created_at, "Copy")
        for stored in clone.messages:
            self.append(expected, stored.id, stored.role, stored.created_at)
        if source.memory.text:
            expected.memory = ExpectedMemory([source.memory.text], list(source.memory.seeds))
        assert made.memory == (source.memory.text or None)
        theirs, ours = self.memory(source, "resource"), self.memory(expected, "resource")
        if memory and theirs.text not in ("", ours.text):
            ours.texts.append(theirs.text)
        return made

    def check_refusal(self, refusal: Exception, expected: Expected | None, owner: str | None) -> None:
        if isinstance(refusal, NotFound):
            assert expected is None
        else:
            assert expected is not None and owner and self.name(owner) != expected.owner

    @rule(row=loaded, title=st.sampled_from(["One", "Two"]))
    def set_title(self, row: Thread, title: str) -> None:
        expected = self.alive(row)
        writes = expected is not None and not expected.title
        assert self.run(self.storage.set_title(row, title)) is writes
        if expected and writes:
            expected.title = title

    @rule(row=loaded, owner=st.one_of(st.none(), OWNERS))
    def delete(self, row: Thread, owner: str | None) -> None:
        expected = self.live(row.id)
        named = owner and self.name(owner)
        try:
            done = self.run(self.storage.delete_thread(row.id, resource_id=named))
        except AccessDenied:
            assert expected
            assert named not in (None, expected.owner)
            return
        assert done is (expected is not None)
        if expected:
            assert named in (None, expected.owner)
            expected.deleting = True

    @rule(row=loaded)
    def purge(self, row: Thread) -> None:
        self.run(self.storage.purge_thread(row.id))
        if row.id in self.threads and self.threads[row.id].deleting:
            del self.threads[row.id]

    @rule(row=loaded, n=st.integers(1, 6))
    def do_job(self, row: Thread, n: int) -> None:
        expected, run_id = self.live(row.id), f"run#{n}"
        if expected:
            job = self.run(self.storage.get_job(row.id, run_id))
            assert job == (Job(run_id, row.id, "agent", {"n": n}) if run_id in expected.runs else None)
            self.run(self.storage.delete_job(row.id, run_id))
            expected.runs.discard(run_id)

    @rule(row=loaded, last=st.integers(0, 5), asked=st.lists(MESSAGE_NAMES, max_size=3))
    def load_turn(self, row: Thread, last: int, asked: list[str]) -> None:
        target = MemoryTarget("thread", row.id)
        state = self.run(self.storage.load_turn(row.id, last_messages=last, message_ids=asked, memory=target))
        expected = self.live(row.id)
        assert (state.thread is None) == (expected is None)
        assert state.deleting == (expected is None and row.id in self.threads)
        (expected.memory if expected else ExpectedMemory()).check(state.memory)
        messages = expected.messages if expected else []
        assert state.stored_ids == {i for i, _, _ in messages} & set(asked)
        counted = [i for i, role, _ in messages if role in ("user", "assistant")]
        shown = [m.id for m in state.history if m.role in ("user", "assistant")]
        assert shown == (counted[-last:] if last else [])
        history = [m.id for m in state.history]
        assert history == [i for i, role, _ in messages if i in history and role != "system"]

    @rule(row=loaded, page=st.integers(0, 3), per_page=PAGES, newest=st.booleans())
    def list_messages(self, row: Thread, page: int, per_page: int | None, newest: bool) -> None:
        expected, direction = self.live(row.id), "DESC" if newest else "ASC"
        try:
            answer = self.run(
                self.storage.list_messages(row.id, page=page, per_page=per_page, direction=direction)
            ).page
        except NotFound:
            assert expected is None
            return
        assert expected is not None
        rows = expected.messages[::-1] if newest else expected.messages
        cut = rows if per_page is None else rows[page * per_page : (page + 1) * per_page]
        assert [(m.id, m.role, m.created_at) for m in answer.items] == (cut[::-1] if newest else cut)
        assert answer.total == len(rows)
        assert answer.has_more == (per_page is not None and len(rows) > (page + 1) * per_page)

    @invariant()
    def owners_have_their_threads(self) -> None:
        for owner in ("x", "x#a"):
            page = self.run(self.storage.list_threads(self.name(owner), per_page=None))
            alive = {i: t for i, t in self.threads.items() if t.owner == self.name(owner) and not t.deleting}
            assert page.total == len(page.items) == len(alive)
            for row in page.items:
                expected = alive[row.id]
                assert (row.title, row.created_at, row.seq, row.message_count, row.last_at) == (
                    expected.title,
                    expected.created_at,
                    expected.seq,
                    len(expected.messages),
                    expected.last_at,
                )
                assert row.updated_at >= row.created_at
                assert row.memory == (expected.memory.text or None)

    @invariant()
    def owners_have_their_memories(self) -> None:
        for owner in (self.name("x"), self.name("x#a")):
            stored = self.run(self.storage.get_working_memory(MemoryTarget("resource", owner)))
            self.memories.get(owner, ExpectedMemory()).check(stored)


def run_random_histories(storage: Storage, examples: int) -> None:
    """Run `examples` histories of up to 40 steps. Raises the first failure, shrunk. Needs a thread without a loop."""
    run_state_machine_as_test(
        lambda: StorageMachine(storage),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
