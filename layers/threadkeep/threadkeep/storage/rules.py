"""Rules of the store that need no store: every adapter applies these, none writes its own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from threadkeep import jsontext
from threadkeep.errors import Conflict, TooLarge
from threadkeep.jsontext import Json
from threadkeep.storage.order import order_key
from threadkeep.storage.port import Budget, Message, MessageUpdate, NewMessage, Page, Thread

T = TypeVar("T")

MAX_TURN_MESSAGES = 44  # two actions each, with the thread and its job below 90 of 100 in a transaction
MAX_TURN_BYTES = 3_500_000  # of a transaction's 4 MB
MAX_BODY_BYTES = 350_000  # of an item's 400 KB

CONVERSATION_ROLES = frozenset({"user", "assistant"})
HIDDEN_ROLES = frozenset({"system"})  # instructions are made anew for each turn, never replayed


class HasRole(Protocol):
    @property
    def role(self) -> str: ...


Row = TypeVar("Row", bound=HasRole)


def body_text(body: Json) -> str:
    """The JSON text of one body, as it is stored. Raises `TooLarge` above 350 KB of UTF-8."""
    text = jsontext.dumps(body)
    size = len(text.encode())
    if size > MAX_BODY_BYTES:
        raise TooLarge(f"A stored body may have {MAX_BODY_BYTES} bytes, received {size}")
    return text


def turn_bodies(messages: Sequence[NewMessage], updates: Sequence[MessageUpdate] = ()) -> tuple[str, ...]:
    """The JSON text of each message's content, then of each update's, once they are known to fit one transaction.

    Raises `TooLarge` above 44 of them, 350 KB in one or 3.5 MB together, `Conflict` if two of them
    have the same id.
    """
    ids = [m.id for m in messages] + [u.message.id for u in updates]
    if len(ids) > MAX_TURN_MESSAGES:
        raise TooLarge(f"One turn may store {MAX_TURN_MESSAGES} messages, received {len(ids)}")
    if len(set(ids)) < len(ids):
        raise Conflict("Two messages of one turn have the same id")
    texts = tuple(body_text(m.content) for m in (*messages, *updates))
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_TURN_BYTES:
        raise TooLarge(f"One turn may store {MAX_TURN_BYTES} bytes of messages, received {size}")
    return texts


def number(
    thread: Thread, messages: Sequence[NewMessage], metadata: dict[str, Json] | None = None
) -> tuple[Thread, tuple[Message, ...]]:
    """Give the messages their places at the end of the thread; returns the thread as it is afterwards.

    `created_at = max(at, last_at + 1)`, message by message, so a clock that runs behind cannot
    reorder a thread. Numbering the same messages on a newer row of the thread moves them behind what
    was stored meanwhile and keeps them together. `metadata` is merged over the thread's own, key by key.
    """
    seq, last_at, numbered = thread.seq, thread.last_at, list[Message]()
    for new in messages:
        seq, last_at = seq + 1, max(new.at, last_at + 1)
        place = order_key(last_at, seq)
        numbered.append(Message(new.id, thread.id, new.role, new.content, last_at, place, new.type))
    after = replace(
        thread,
        seq=seq,
        last_at=last_at,
        message_count=thread.message_count + len(numbered),
        updated_at=max(thread.updated_at, last_at),
        version=thread.version + 1,
        metadata={**(thread.metadata or {}), **metadata} if metadata else thread.metadata,
    )
    return after, tuple(numbered)


def updated(update: MessageUpdate) -> Message:
    """The message as it is after the update."""
    return replace(update.message, content=update.content, revision=update.message.revision + 1)


def same_thread(stored: Thread, loaded: Thread) -> bool:
    """Whether a stored row is still the thread that was loaded, not one created later under its id (case H10)."""
    return (stored.id, stored.resource_id, stored.created_at) == (loaded.id, loaded.resource_id, loaded.created_at)


def is_conversation(row: HasRole) -> bool:
    """Whether a message counts towards a window of N messages."""
    return row.role in CONVERSATION_ROLES


class Window:
    """The history that a turn loads, filled from the newest row on until it is `full`.

    It takes the newest `last_messages` conversation messages and what lies between them. Rows of other
    roles stay in their places without being counted (case H18); system rows are left out (case H19).
    With a budget it is also full once its messages weigh more than the limit (CFG-4).
    """

    def __init__(self, last_messages: int, budget: Budget | None = None):
        self._missing = last_messages
        self._budget = budget
        self._weight = 0.0
        self._newest_first: list[Message] = []

    @property
    def full(self) -> bool:
        return self._missing <= 0 or (self._budget is not None and self._weight > self._budget.limit)

    def add(self, row: Message) -> None:
        """Take the next older row."""
        if row.role in HIDDEN_ROLES:
            return
        self._newest_first.append(row)
        self._missing -= is_conversation(row)
        if self._budget is not None:
            self._weight += self._budget.weigh(row)

    @property
    def ascending(self) -> tuple[Message, ...]:
        return tuple(reversed(self._newest_first))


def history_window(
    newest_first: Iterable[Message], last_messages: int, budget: Budget | None = None
) -> tuple[Message, ...]:
    """The window that these rows fill, ascending; where the thread holds fewer, nothing is cut off."""
    window = Window(last_messages, budget)
    for row in newest_first:
        if window.full:
            break
        window.add(row)
    return window.ascending


def cut(rows: Sequence[T], page: int, per_page: int | None) -> Sequence[T]:
    """The rows of one page, counted from the first row given; all of them if `per_page` is None."""
    return rows if per_page is None else rows[page * per_page : (page + 1) * per_page]


def page_of(items: Sequence[T], *, total: int, page: int, per_page: int | None) -> Page[T]:
    """Wrap the items of one page. There is more while `total` reaches past the page's end (TH-6)."""
    has_more = per_page is not None and (page + 1) * per_page < total
    return Page(tuple(items), total, page, per_page, has_more)
