"""The storage port: what memory and turns need of a database, and the records that cross it.

Adapters: `threadkeep.storage.memory` (a fake that keeps everything in the process) and
`threadkeep.storage.dynamodb`. Both pass `threadkeep.testing.storage_contract`. All times are milliseconds
since 1970 (`threadkeep.clock.Millis`). Every method is one logical effect: it happens whole or not
at all, and repeating it after an unknown outcome does no harm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from threadkeep.clock import Millis
from threadkeep.jsontext import Json
from threadkeep.storage.live import LiveRuns
from threadkeep.storage.runs import Journals, RunGuard

T = TypeVar("T")
Direction = Literal["ASC", "DESC"]
ThreadField = Literal["createdAt", "updatedAt"]
Scalar = str | int | float | bool | None
MemoryScope = Literal["thread", "resource"]


@dataclass(frozen=True, slots=True)
class MemoryTarget:
    """Whose working memory: that of a thread or of a resource. The two never see each other (WM-2)."""

    scope: MemoryScope
    id: str


@dataclass(frozen=True, slots=True)
class MemoryRevision:
    """That a version of a working memory was written: when, by whom, and the SHA-256 of its text in hex."""

    version: int
    at: Millis
    writer: str
    digest: str


@dataclass(frozen=True, slots=True)
class WorkingMemory:
    """A working memory as it is stored. Each write makes `version` one higher; 0 means never written.

    An empty text is an empty memory. `past` holds the last revisions, newest first, the current one among
    them. `seeds` are the digests of texts that came with a thread's metadata (M-DISC-6).
    """

    text: str = ""
    version: int = 0
    past: tuple[MemoryRevision, ...] = ()
    seeds: tuple[str, ...] = ()


class MemoryMoved(Exception):
    """A working memory was not written because its version is another than the writer read; `current` stands there."""

    def __init__(self, current: WorkingMemory):
        super().__init__(f"version {current.version} is stored")
        self.current = current


@dataclass(frozen=True, slots=True)
class MemoryWrite:
    """A new text for a working memory, provided that its version still is that of `read`.

    `read` is the record as the writer read it: its past goes on in the new one, so that a write reads nothing.
    `writer` says who writes, for people: `run <id>`, `http`, `library`. `thread` is the thread as it was
    loaded; it must still be there, of the same owner. A write to a thread's memory needs it.
    """

    target: MemoryTarget
    text: str
    read: WorkingMemory
    writer: str
    thread: "Thread | None" = None


@dataclass(frozen=True, slots=True)
class MemorySeed:
    """A text for the working memory of a thread, or of the resource that owns it, that comes with the thread.

    It is written in the transaction that writes the thread. A text that came before, or that this memory
    has had among its last revisions, is a stale copy and is ignored (M-DISC-6).
    """

    scope: MemoryScope
    text: str
    writer: str


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation and its owner (TH-1).

    `seq` numbers the thread's messages, `last_at` is the newest `created_at` of any of them,
    `version` grows with each change. `created_at` never changes, so it tells apart a thread from
    another of the same id that was created after a delete.

    `memory` is a view, not part of the row: the text of the thread's own working memory, None where that is
    empty. Reads, lists and changes of threads fill it, turns do not. In the answer to a seed for the owner's
    memory it is the text that stands there.
    """

    id: str
    resource_id: str
    title: str
    metadata: dict[str, Json] | None
    created_at: Millis
    updated_at: Millis
    seq: int = 0
    last_at: Millis = 0
    message_count: int = 0
    version: int = 1
    memory: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sub-agent's thread comes from: the owner for whom it works, its key, and the thread that delegated to it.

    With that thread it is deleted. `thread_id` None means that the supervisor ran without one, or stored none.
    """

    resource_id: str
    key: str
    thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewThread:
    """A thread to create. The store sets its times. `memory` is written with it, if it is created.

    `origin` is set for a sub-agent's thread; its links are written with it.
    """

    id: str
    resource_id: str
    title: str = ""
    metadata: dict[str, Json] | None = None
    memory: MemorySeed | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class ThreadChange:
    """What to change of a thread; None leaves a field as it is (TH-8).

    `merge` False replaces the metadata as a whole (HTTP PATCH), True sets its given top-level keys.
    Metadata never holds working memory, so that replacing it leaves that alone.
    """

    title: str | None = None
    metadata: dict[str, Json] | None = None
    merge: bool = False
    memory: MemorySeed | None = None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store. `at` is the earliest `created_at` it may get.

    `content` is the stored form, "format 2" (MS-1): `{"format": 2, "parts": [...], "content"?: str,
    "metadata"?: {...}}`, kept exactly.
    """

    id: str
    role: str
    content: dict[str, Json]
    at: Millis
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message. `order` is its place in the thread; neither it nor `created_at` ever changes.

    `revision` counts the contents that the message has had.
    """

    id: str
    thread_id: str
    role: str
    content: dict[str, Json]
    created_at: Millis
    order: str
    type: str | None = None
    revision: int = 1


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """A message to save outside of a turn (MS-4). Without `id` it gets one.

    `created_at` None means now, behind everything stored. A time of the past puts it among the messages
    of that time. Both count only if the thread has no message of this id yet (MS-6).
    """

    role: str
    content: dict[str, Json]
    id: str | None = None
    type: str | None = None
    created_at: Millis | None = None


@dataclass(frozen=True, slots=True)
class MessageChange:
    """What to change of a message; None leaves a field as it is (MS-7).

    The keys of `content` replace the stored ones, those of `content["metadata"]` are set one by one.
    """

    id: str
    role: str | None = None
    content: dict[str, Json] | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages to list. `since` and `until` belong to the range; all conditions must hold.

    `metadata` compares top-level values of `content["metadata"]` with their type: 2 is not "2", true is
    not 1, and None matches an explicit null only (M-RC-6). Empty or None does not filter.
    """

    since: Millis | None = None
    until: Millis | None = None
    roles: frozenset[str] | None = None
    metadata: Mapping[str, Scalar] | None = None


ALL = MessageFilter()


@dataclass(frozen=True, slots=True)
class Include:
    """A message to add to a page, with its neighbours (M-RC-7)."""

    id: str
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class CloneRequest:
    """A thread to copy (TH-10). The newest `limit` of the messages that pass all conditions are copied.

    `new` is the copy. An empty title becomes `Clone of <the source's title>`, or stays empty where the
    source has none; the metadata gets the key `clone`. `since` and `until` belong to the range.

    The thread's own working memory is copied too, as the copy's first version; `new.memory` is not looked at.
    `resource_memory` puts the text of the source owner's memory into that of the copy's owner as well, if that
    is another resource (TH-11). An empty memory overwrites nothing.
    """

    source_id: str
    new: NewThread
    limit: int | None = None
    since: Millis | None = None
    until: Millis | None = None
    message_ids: frozenset[str] | None = None
    resource_memory: bool = False


@dataclass(frozen=True, slots=True)
class Clone:
    """A finished copy. `messages` ascend; `ids` maps a source message's id to that of its copy."""

    thread: Thread
    messages: tuple[Message, ...]
    ids: dict[str, str]


@dataclass(frozen=True, slots=True)
class Receipt:
    """That a request is being answered, or has been, so that repeating it has no second effect (DESIGN 4).

    A receipt holds until `deadline`; then another run may take it over (case H21). `reply` is small and set
    only when done. Receipts are forgotten after a day.
    """

    key: str
    run_id: str
    request_hash: str
    status: Literal["running", "done"]
    deadline: Millis
    reply: dict[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Job:
    """Work that is due after a turn: written in the turn's transaction, done by `after_turn`."""

    run_id: str
    thread_id: str
    agent_id: str
    body: dict[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class SuspendedCall:
    """A call of a run that waits for a person's approval, or did.

    `message_id` is the stored answer that holds it. `approved` is what was decided, None while it waits.
    """

    id: str
    name: str
    args: dict[str, Json]
    message_id: str
    approved: bool | None = None


@dataclass(frozen=True, slots=True)
class SuspendedRun:
    """A run that waits for people to approve calls, and what it needs to go on (MS-14).

    `calls` are all that ever waited in it, `message_ids` the messages that it has stored, oldest first. `at` is when
    it was suspended. `request` is the turn's, until the run is over (`open` False). `revision` counts the records
    that the run has had. A record is forgotten 7 days after it was written.
    """

    run_id: str
    agent_id: str
    thread_id: str
    resource_id: str
    calls: tuple[SuspendedCall, ...]
    message_ids: tuple[str, ...]
    at: Millis
    request: dict[str, Json] = field(default_factory=dict[str, Json])
    open: bool = True
    revision: int = 1

    @property
    def waiting(self) -> tuple[SuspendedCall, ...]:
        """The calls that nobody has decided yet."""
        return tuple(call for call in self.calls if call.approved is None)


@dataclass(frozen=True, slots=True)
class SuspendedFilter:
    """Which suspended runs to list. `since` and `until` belong to the range; all conditions must hold."""

    agent_id: str | None = None
    thread_id: str | None = None
    resource_id: str | None = None
    since: Millis | None = None
    until: Millis | None = None


@dataclass(frozen=True, slots=True)
class TurnState:
    """What one turn starts from, read in one parallel round.

    `thread` is None when it does not exist, is being deleted (`deleting` tells) or still being cloned.
    `history` is ascending. `stored_ids` are those of the asked-for message ids that the thread holds.
    `claimed` is the receipt that another run holds or has finished; None if ours was written, or none
    was asked for. `memory` is the working memory that was asked for: a resource's also where the thread is
    None, a thread's only with the thread.
    """

    thread: Thread | None
    history: tuple[Message, ...] = ()
    stored_ids: frozenset[str] = frozenset()
    deleting: bool = False
    claimed: Receipt | None = None
    memory: WorkingMemory = WorkingMemory()


@dataclass(frozen=True, slots=True)
class Budget:
    """A window of history by weight: reading stops once the newest messages weigh more than `limit` (CFG-4)."""

    limit: float
    weigh: Callable[[Message], float]


@dataclass(frozen=True, slots=True)
class MessageUpdate:
    """New content for a stored message, provided that it still is as it was loaded (`message.revision`)."""

    message: Message
    content: dict[str, Json]


@dataclass(frozen=True, slots=True)
class TurnCommit:
    """What one turn stores: new messages, and new contents of messages that the thread holds already.

    `thread` is the row that the turn loaded or created. `thread_metadata` is merged into the thread's
    metadata key by key, on top of what others wrote meanwhile. `receipt` is the
    one that the turn claimed, as it shall be once the turn is stored: done. `suspended` is the record of a
    run of this thread that waits for approvals, as it shall be: of revision 1 if it is new, else of the next.
    `within` is the durable run that the turn is part of.
    """

    thread: Thread
    messages: tuple[NewMessage, ...]
    job: Job | None = None
    thread_metadata: dict[str, Json] | None = None
    updates: tuple[MessageUpdate, ...] = ()
    receipt: Receipt | None = None
    suspended: SuspendedRun | None = None
    within: RunGuard | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """`messages` are the new ones, `updated` those that got new content, as they are now."""

    thread: Thread
    messages: tuple[Message, ...]
    updated: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. `per_page` None means all."""

    items: tuple[T, ...]
    total: int
    page: int
    per_page: int | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class ThreadMessages:
    """A page of messages and the thread that they belong to, which tells their owner."""

    thread: Thread
    page: Page[Message]


class Storage(LiveRuns, Journals, Protocol):
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
        """Read thread, newest history and known message ids, consistently, in one parallel round.

        `claim`, a running receipt, is written in the same round, unless another run's is there that is not
        past its deadline. `memory`, this thread's working memory or a resource's, is read in it.

        History holds the newest `last_messages` conversation messages (roles user and assistant),
        and what lies between them; rows of other roles do not count (case H18). 0 loads none.
        With `budget` it ends as soon as its messages weigh more than the limit: the oldest of them may
        reach over it, and reading costs no more however long the thread is.
        """
        ...

    async def create_thread(self, new: NewThread) -> Thread:
        """Create a thread, or return the stored one unchanged if the same owner has it already.

        A seed is written in the same transaction, unless it is stale; one that comes with a thread that exists
        already is not looked at. Raises `AccessDenied` if another resource owns the id, `ThreadGone` while it
        is being deleted, `Conflict` while it is being cloned, `TooLarge` above 350 KB of title and metadata or
        of a working memory. For a sub-agent's thread also `ThreadGone` of the thread that delegated to it, if
        that is not there any more or is not of the origin's resource.
        """
        ...

    async def get_thread(self, thread_id: str) -> Thread | None:
        """The thread, read consistently; None if it does not exist, is being deleted or still being cloned."""
        ...

    async def list_threads(
        self,
        resource_id: str | None,
        *,
        page: int = 0,
        per_page: int | None = 100,
        order_by: ThreadField = "createdAt",
        direction: Direction = "DESC",
    ) -> Page[Thread]:
        """The threads of a resource, or of all resources if None (for a trusted server only).

        Lists by `createdAt` of one resource are consistent; the other three follow an index and may
        lag. Raises nothing: bounds are the caller's to check.
        """
        ...

    async def update_thread(self, thread_id: str, change: ThreadChange, *, resource_id: str | None) -> Thread:
        """Change title or metadata and refresh `updated_at` (TH-8); never the owner.

        A seed is written in the same transaction, unless it is stale. Raises `NotFound`, `AccessDenied` if
        `resource_id` is given and is not the owner, `TooLarge`.
        """
        ...

    async def transfer_thread(self, thread_id: str, to: str, *, resource_id: str | None) -> Thread:
        """Give the thread, with all its messages, to another resource (TH-15).

        `created_at` and its own working memory stay, `updated_at` is refreshed. The threads of sub-agents that came
        from it stay with their owners, and are deleted with it all the same. The same owner again changes nothing.
        Raises `NotFound`, `AccessDenied` if `resource_id` is given and is not the owner.
        """
        ...

    async def delete_thread(self, thread_id: str, *, resource_id: str | None) -> bool:
        """Make the thread a tombstone in one write; from then on it reads as missing.

        Returns False if there was none (or already a tombstone). With `resource_id`, raises
        `AccessDenied` if another resource owns it. `purge_thread` removes the rest.
        """
        ...

    async def purge_thread(self, thread_id: str, *, limit: int | None = None) -> bool:
        """Remove everything of a tombstone, the tombstone last. Resumable; no effect on a live thread.

        Sub-agents' threads that came from it become tombstones, each to be purged by itself; one that was given to
        another resource stays. Journals and durable runs that are kept with it go.
        With `limit` it stops after so many rows; what asks for the work then asks again. True if nothing
        of a tombstone is left.
        """
        ...

    async def clone_thread(self, request: CloneRequest, *, resource_id: str | None = None) -> Clone:
        """Copy a thread with its messages, each under a new id and at its old time (TH-10).

        The copy appears when it is complete; until then its id reads as missing and is taken
        (`Conflict`). Messages that the source gets meanwhile are not copied. A copy that was cut off is
        finished by `finish_clone`. Raises `NotFound` for an unknown source, also one that is deleted
        meanwhile, `AccessDenied` if `resource_id` is given and does not own the source, `Conflict` if the
        new id exists, `InvalidInput` above 1,000 `message_ids`, `TooLarge` above 350 KB of title and metadata.
        """
        ...

    async def finish_clone(self, thread_id: str) -> None:
        """Bring a copy to its end whose call was cut off. No effect on any other thread."""
        ...

    async def list_clones(self, source_id: str) -> tuple[str, ...]:
        """The ids of the existing copies of a thread, sorted."""
        ...

    async def list_sub_resources(self, resource_id: str) -> tuple[str, ...]:
        """The keys of the sub-agents that ever had a thread for this resource, sorted, read consistently.

        The resource of each is `ids.sub_resource(resource_id, key)`, and may have sub-agents below it in turn.
        """
        ...

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
        """One page of a thread's messages, **always ascending** (M-RC-2).

        `direction` only tells from which end pages are cut: DESC makes page 0 the newest. `include` adds
        messages with their neighbours, each in its own thread, to the page; those of other owners are
        left out (M-RC-7). The total is exact and does not count them. Raises `NotFound`, `AccessDenied`
        if `resource_id` is given and is not the owner, `InvalidInput` where a filter would have to look
        at more than 10,000 messages, `TooLarge` above 50 MB in one page.
        """
        ...

    async def list_resource_messages(
        self,
        resource_id: str,
        *,
        page: int = 0,
        per_page: int | None = 40,
        direction: Direction = "ASC",
        match: MessageFilter = ALL,
    ) -> Page[Message]:
        """One page of the messages of all threads of a resource, ascending (MS-9).

        Raises `InvalidInput` where it would have to look at more than 10,000 messages, `TooLarge`.
        """
        ...

    async def save_messages(
        self, thread_id: str, messages: Sequence[SavedMessage], *, resource_id: str | None
    ) -> tuple[Message, ...]:
        """Store messages outside of a turn, in their order, and refresh the thread's `updated_at` (MS-4).

        System messages are left out. A message whose id the thread holds gets the new role, type and content, and
        keeps its place and time (MS-6); of several with one id the last counts. Up to 44 messages are stored whole or
        not at all, more in steps of which each is; repeating is harmless where ids are given. Raises `NotFound`,
        `AccessDenied`, `InvalidInput` for a time that lies ahead by more than a day, `TooLarge`, and
        `StoreUnavailable` naming what was not stored (case H11).
        """
        ...

    async def update_messages(
        self, thread_id: str, changes: Sequence[MessageChange], *, resource_id: str | None
    ) -> tuple[Message, ...]:
        """Change stored messages; returns those that the thread has, as they are now (MS-7).

        Unknown ids are left out. Changes that meet are applied one after the other, none is lost. In
        steps, as `save_messages`. Raises `NotFound`, `AccessDenied`, `TooLarge`, `InvalidInput` for the role system.
        """
        ...

    async def delete_messages(
        self, ids: Sequence[str], *, resource_id: str | None, thread_id: str | None = None
    ) -> int:
        """Delete messages, in whichever threads they are; returns how many there were (MS-8).

        Unknown ids are fine. With `resource_id` an id means that resource's messages; raises
        `AccessDenied`, before anything is deleted, for an id that only others have. Without, raises
        `Conflict` for an id that several resources have. `thread_id` narrows to one thread, which must
        exist (`NotFound`).
        """
        ...

    async def commit_turn(self, commit: TurnCommit) -> Committed:
        """Store a turn's messages, contiguous and after everything stored so far, in one transaction.

        Order and `created_at` are given here: `created_at = max(at, thread.last_at + 1)`, rising
        within the turn. Another turn that committed meanwhile only shifts the numbers. An update
        keeps order, time, role and type. Raises `ThreadGone` if the thread was deleted (or replaced)
        since it was loaded, `Conflict` if a message id is stored already or a message to update was
        changed or deleted meanwhile, if another run took the receipt over, or if the suspended run's record
        is not the one before this, `TooLarge` above 44 messages, updates included, 5 MB in one of them, or
        350 KB in the record, `RunEnded` if the durable run of `within` is not running. A new record takes the place
        of one of the same thread that is over.
        """
        ...

    async def get_suspended_run(self, run_id: str) -> SuspendedRun | None:
        """The record of a run that waits for approvals, or did, read consistently; its thread may be gone."""
        ...

    async def list_suspended_runs(
        self, match: SuspendedFilter, *, page: int = 0, per_page: int | None = 100
    ) -> Page[SuspendedRun]:
        """Runs with a call that waits, newest first, without their requests.

        Those of threads that are gone, or have another owner now, are left out. Consistent where the filter names
        a thread or a resource; else it follows an index and may lag, and names an agent. Looks at 10,000 runs.
        """
        ...

    async def get_receipt(self, key: str) -> Receipt | None: ...

    async def drop_receipt(self, receipt: Receipt) -> None:
        """Forget a receipt whose run came to nothing, if it is still running and that run's."""
        ...

    async def get_job(self, thread_id: str, run_id: str) -> Job | None: ...

    async def delete_job(self, thread_id: str, run_id: str) -> None: ...

    async def set_title(self, thread: Thread, title: str) -> bool:
        """Write the title where it is still empty (case H34); False if it is not, or the thread is gone."""
        ...

    async def get_working_memory(self, target: MemoryTarget) -> WorkingMemory:
        """A working memory, read consistently; one of version 0 if it was never written.

        Raises `NotFound` for the memory of a thread that does not exist, is being deleted or still being cloned.
        """
        ...

    async def put_working_memory(self, write: MemoryWrite) -> WorkingMemory:
        """Write a text as the next version; returns the new record. One request to the store, also if it fails.

        Raises `MemoryMoved` with what stands there if the version is another than the one read, `ThreadGone`
        if `write.thread` was deleted, replaced or given to another resource since it was loaded, `TooLarge`
        above 350 KB.
        """
        ...
