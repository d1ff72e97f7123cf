"""The storage port: what memory and turns need of a database, and the records that cross it.

Adapters: `threadkeep.storage.memory` (a fake that keeps everything in the process) and
`threadkeep.storage.dynamodb`. Both pass the suite in `tests/contract`. All times are milliseconds
since 1970 (`threadkeep.clock.Millis`). Every method is one logical effect: it happens whole or not
at all, and repeating it after an unknown outcome does no harm.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from threadkeep.clock import Millis
from threadkeep.jsontext import Json

T = TypeVar("T")
Direction = Literal["ASC", "DESC"]
ThreadField = Literal["createdAt", "updatedAt"]


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation and its owner (TH-1).

    `seq` numbers the thread's messages, `last_at` is the newest `created_at` of any of them,
    `version` grows with each change. `created_at` never changes, so it tells apart a thread from
    another of the same id that was created after a delete.
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


@dataclass(frozen=True, slots=True)
class NewThread:
    """A thread to create. The store sets its times."""

    id: str
    resource_id: str
    title: str = ""
    metadata: dict[str, Json] | None = None


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
class Job:
    """Work that is due after a turn: written in the turn's transaction, done by `after_turn`."""

    run_id: str
    thread_id: str
    agent_id: str
    body: dict[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class TurnState:
    """What one turn starts from, read in one parallel round.

    `thread` is None when it does not exist or is being deleted (`deleting` tells which).
    `history` is ascending. `stored_ids` are those of the asked-for message ids that the thread holds.
    """

    thread: Thread | None
    history: tuple[Message, ...] = ()
    stored_ids: frozenset[str] = frozenset()
    deleting: bool = False


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
    metadata key by key, on top of what others wrote meanwhile.
    """

    thread: Thread
    messages: tuple[NewMessage, ...]
    job: Job | None = None
    thread_metadata: dict[str, Json] | None = None
    updates: tuple[MessageUpdate, ...] = ()


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


class Storage(Protocol):
    async def load_turn(
        self, thread_id: str, *, last_messages: int, message_ids: Sequence[str] = (), budget: Budget | None = None
    ) -> TurnState:
        """Read thread, newest history and known message ids, consistently, in one parallel round.

        History holds the newest `last_messages` conversation messages (roles user and assistant),
        and what lies between them; rows of other roles do not count (case H18). 0 loads none.
        With `budget` it ends as soon as its messages weigh more than the limit: the oldest of them may
        reach over it, and reading costs no more however long the thread is.
        """
        ...

    async def create_thread(self, new: NewThread) -> Thread:
        """Create a thread, or return the stored one unchanged if the same owner has it already.

        Raises `AccessDenied` if another resource owns the id, `ThreadGone` while it is being deleted.
        """
        ...

    async def get_thread(self, thread_id: str) -> Thread | None:
        """The thread, read consistently; None if it does not exist or is being deleted."""
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

    async def delete_thread(self, thread_id: str, *, resource_id: str | None) -> bool:
        """Make the thread a tombstone in one write; from then on it reads as missing.

        Returns False if there was none (or already a tombstone). With `resource_id`, raises
        `AccessDenied` if another resource owns it. `purge_thread` removes the rest.
        """
        ...

    async def purge_thread(self, thread_id: str) -> None:
        """Remove everything of a tombstone, the tombstone last. Resumable; no effect on a live thread."""
        ...

    async def list_messages(
        self, thread_id: str, *, page: int = 0, per_page: int | None = 40, direction: Direction = "DESC"
    ) -> Page[Message]:
        """One page of a thread's messages, **always ascending** (M-RC-2).

        `direction` only tells from which end pages are cut: DESC makes page 0 the newest. Raises
        `NotFound` if the thread does not exist. The total is exact.
        """
        ...

    async def commit_turn(self, commit: TurnCommit) -> Committed:
        """Store a turn's messages, contiguous and after everything stored so far, in one transaction.

        Order and `created_at` are given here: `created_at = max(at, thread.last_at + 1)`, rising
        within the turn. Another turn that committed meanwhile only shifts the numbers. An update
        keeps order, time, role and type. Raises `ThreadGone` if the thread was deleted (or replaced)
        since it was loaded, `Conflict` if a message id is stored already or a message to update was
        changed or deleted meanwhile, `TooLarge` above 44 messages or 3.5 MB, updates included.
        """
        ...

    async def get_job(self, thread_id: str, run_id: str) -> Job | None: ...

    async def delete_job(self, thread_id: str, run_id: str) -> None: ...

    async def set_title(self, thread: Thread, title: str) -> bool:
        """Write the title where it is still empty (case H34); False if it is not, or the thread is gone."""
        ...
