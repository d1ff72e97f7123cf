"""Rules of the store that need no store: every adapter applies these, none writes its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypedDict, TypeVar
from uuid import UUID, uuid5

from threadkeep import jsontext
from threadkeep.clock import Millis, iso
from threadkeep.errors import AccessDenied, Conflict, InvalidInput, Issue, TooLarge
from threadkeep.ids import new_id
from threadkeep.jsontext import Json
from threadkeep.storage.order import MAX_MILLIS, order_key
from threadkeep.storage.port import (
    Budget,
    CloneRequest,
    Message,
    MessageChange,
    MessageFilter,
    MessageUpdate,
    NewMessage,
    Page,
    Receipt,
    SavedMessage,
    Thread,
    ThreadChange,
)

T = TypeVar("T")

MAX_TURN_MESSAGES = 44  # two actions each; with thread, job, receipt and runs 94 of 100 in a transaction
MAX_CONTENT_BYTES = 5_000_000  # of one message: what a request or a reply can carry
MAX_TURN_BYTES = 20_000_000  # of a turn's messages together
MAX_BODY_BYTES = 350_000  # of an item's 400 KB
MAX_TRANSACTION_BYTES = 3_500_000  # of a transaction's 4 MB

MAX_PAGE_BYTES = 50_000_000  # of bodies that one call holds in memory
RECEIPT_MILLIS = 86_400_000
MAX_AHEAD_MILLIS = 86_400_000  # of a saved message's own time, for clocks that run ahead
TAKEN_OVER = "Another run has taken over this request"
RUN_MOVED = "The suspended run was changed meanwhile, or another run has its id"
SUSPENDED_MILLIS = 7 * 86_400_000  # how long a suspended run waits
MAX_CLONE_IDS = 1_000
MAX_FILTERED = 10_000  # messages that a filter may look at

_COPIES = UUID("6f0b5a0e-0b0c-4c58-9d7c-3b1f5d1a7d25")  # names the ids of copied messages

CONVERSATION_ROLES = frozenset({"user", "assistant"})
HIDDEN_ROLES = frozenset({"system"})  # instructions are made anew for each turn, never replayed


class HasRole(Protocol):
    @property
    def role(self) -> str: ...


Row = TypeVar("Row", bound=HasRole)


def body_text(body: Json) -> str:
    """The JSON text of a body that must fit an item. Raises `TooLarge` above 350 KB of UTF-8."""
    return within(MAX_BODY_BYTES, jsontext.dumps(body))


def content_text(content: Json) -> str:
    """The JSON text of a message's content. Raises `TooLarge` above 5 MB of UTF-8."""
    return within(MAX_CONTENT_BYTES, jsontext.dumps(content))


def within(limit: int, text: str) -> str:
    """The text itself. Raises `TooLarge` if it has more bytes of UTF-8."""
    size = len(text.encode())
    if size > limit:
        raise TooLarge(f"A stored body may have {limit} bytes, received {size}")
    return text


def outsourced(sizes: Sequence[int]) -> frozenset[int]:
    """Which bodies of a transaction, by their places, go elsewhere: those too big for an item, then the biggest."""
    left, chosen = sum(sizes), set[int]()
    for place in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        if sizes[place] <= MAX_BODY_BYTES and left <= MAX_TRANSACTION_BYTES:
            break
        chosen.add(place)
        left -= sizes[place]
    return frozenset(chosen)


def turn_bodies(messages: Sequence[NewMessage], updates: Sequence[MessageUpdate] = ()) -> tuple[str, ...]:
    """The JSON text of each message's content, then of each update's, once they are known to be storable.

    Raises `TooLarge` above 44 of them, 5 MB in one or 20 MB together, `Conflict` if two of them
    have the same id.
    """
    ids = [m.id for m in messages] + [u.message.id for u in updates]
    if len(ids) > MAX_TURN_MESSAGES:
        raise TooLarge(f"One turn may store {MAX_TURN_MESSAGES} messages, received {len(ids)}")
    if len(set(ids)) < len(ids):
        raise Conflict("Two messages of one turn have the same id")
    texts = tuple(content_text(m.content) for m in (*messages, *updates))
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_TURN_BYTES:
        raise TooLarge(f"One turn may store {MAX_TURN_BYTES} bytes of messages, received {size}")
    return texts


def check_thread(title: str, metadata: dict[str, Json] | None) -> None:
    """Raises `TooLarge` if title and metadata do not fit a thread's row."""
    body_text({"title": title, "metadata": metadata})


def check_owner(thread: Thread, resource_id: str | None) -> Thread:
    """The thread itself. Raises `AccessDenied` if a resource is named that does not own it."""
    if resource_id not in (None, thread.resource_id):
        raise AccessDenied
    return thread


def changed(thread: Thread, change: ThreadChange, now: Millis) -> Thread:
    """The thread after a change of title or metadata (TH-8). Raises `TooLarge`."""
    metadata = thread.metadata
    if change.metadata is not None:
        metadata = {**(thread.metadata or {}), **change.metadata} if change.merge else change.metadata
    title = thread.title if change.title is None else change.title
    check_thread(title, metadata)
    return replace(thread, title=title, metadata=metadata, **touched(thread, now))


def touched(thread: Thread, now: Millis) -> "Touched":
    """What every change of a thread's row sets; `updated_at` rises, whatever the clock says."""
    return {"updated_at": max(now, thread.updated_at + 1), "version": thread.version + 1}


class Touched(TypedDict):
    updated_at: Millis
    version: int


def may_take(stored: Receipt | None, claim: Receipt, now: Millis) -> bool:
    """Whether a run may hold a receipt: there is none, it is this very one, or its deadline is over (H21)."""
    return stored is None or stored == claim or stored.deadline < now


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
    if metadata:
        metadata = {**(thread.metadata or {}), **metadata}
        check_thread(thread.title, metadata)
    after = replace(
        thread,
        seq=seq,
        last_at=last_at,
        message_count=thread.message_count + len(numbered),
        updated_at=max(thread.updated_at, last_at),
        version=thread.version + 1,
        metadata=metadata or thread.metadata,
    )
    return after, tuple(numbered)


def with_ids(messages: Iterable[SavedMessage], now: Millis) -> dict[str, SavedMessage]:
    """The messages by id, each with one; the last of several with the same. Raises `InvalidInput`, `TooLarge`.

    System messages are left out: they are never stored (MS-4, case H19).
    """
    found: dict[str, SavedMessage] = {}
    for message in messages:
        if message.role in HIDDEN_ROLES:
            continue
        content_text(message.content)
        if message.created_at is not None and not 0 <= message.created_at <= now + MAX_AHEAD_MILLIS:
            raise InvalidInput(Issue("createdAt", "must not be before 1970 or more than a day ahead"))
        found[message.id or new_id()] = message
    return found


def saved(
    thread: Thread, stored: Mapping[str, Message], messages: Mapping[str, SavedMessage], now: Millis
) -> tuple[Thread, tuple[Message, ...]]:
    """The thread and the messages after a save; `stored` are those that the thread has already (MS-4, MS-6)."""
    seq, last_at, rows = thread.seq, thread.last_at, list[Message]()
    for message_id, new in messages.items():
        if old := stored.get(message_id):
            rows.append(replace(old, role=new.role, content=new.content, type=new.type, revision=old.revision + 1))
            continue
        seq += 1
        at = max(now, last_at + 1) if new.created_at is None else new.created_at
        last_at = max(last_at, at)
        rows.append(Message(message_id, thread.id, new.role, new.content, at, order_key(at, seq), new.type))
    count = thread.message_count + seq - thread.seq
    return replace(thread, seq=seq, last_at=last_at, message_count=count, **touched(thread, now)), tuple(rows)


def edited(stored: Mapping[str, Message], changes: Iterable[MessageChange]) -> tuple[Message, ...]:
    """The stored messages after their changes, in the order of these; unknown ids are left out (MS-7).

    Raises `InvalidInput` for a message that would become a system message: those are never stored (MS-1).
    """
    after: dict[str, Message] = {}
    for change in changes:
        if change.role in HIDDEN_ROLES:
            raise InvalidInput(Issue("role", f"a stored message cannot become a {change.role} message"))
        old = after.get(change.id, stored.get(change.id))
        if old is not None:
            after[change.id] = replace(
                old,
                role=change.role or old.role,
                type=old.type if change.type is None else change.type,
                content=_merged_content(old.content, change.content or {}),
                revision=stored[change.id].revision + 1,
            )
    return tuple(after.values())


def _merged_content(old: dict[str, Json], new: dict[str, Json]) -> dict[str, Json]:
    merged = {**old, **new}
    before, after = jsontext.as_object(old.get("metadata")), jsontext.as_object(new.get("metadata"))
    if before is not None and after is not None:
        merged["metadata"] = {**before, **after}
    return merged


def doomed(homes: Mapping[str, Iterable[Thread]], resource_id: str | None) -> dict[str, list[str]]:
    """Of the threads that hold each message id: from which to delete it. Message ids by thread (MS-8).

    Raises `AccessDenied` for an id that only other resources have, `Conflict` for one that several have.
    """
    found: dict[str, list[str]] = {}
    for message_id, threads in homes.items():
        held = list(threads)
        own = [t for t in held if resource_id in (None, t.resource_id)]
        if held and not own:
            raise AccessDenied("Access denied: message belongs to a different resource")
        if len({t.resource_id for t in own}) > 1:
            raise Conflict(f"Several resources have a message {message_id}; name the resourceId")
        for thread in own:
            found.setdefault(thread.id, []).append(message_id)
    return found


def without(thread: Thread, deleted: int, now: Millis) -> Thread:
    """The thread after some of its messages were deleted."""
    return replace(thread, message_count=thread.message_count - deleted, **touched(thread, now))


def chunks(rows: Sequence[T], size: int = MAX_TURN_MESSAGES) -> list[Sequence[T]]:
    """The rows in parts that fit one transaction."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def clone_target(source: Thread, request: CloneRequest, now: Millis) -> Thread:
    """The row of a copy before its messages come. Raises `InvalidInput`, `TooLarge`, `Conflict`."""
    if len(request.message_ids or ()) > MAX_CLONE_IDS:
        raise InvalidInput(Issue("options.messageFilter.messageIds", f"may name at most {MAX_CLONE_IDS} messages"))
    new = request.new
    if new.id == source.id:
        raise Conflict(f"Thread {new.id} exists already")
    title = new.title or (f"Clone of {source.title}" if source.title else "")
    target = Thread(new.id, new.resource_id, title, clone_metadata(new.metadata, source.id, now, None), now, now)
    check_thread(title, target.metadata)
    return target


def clone_metadata(
    metadata: dict[str, Json] | None, source_id: str, now: Millis, last_id: str | None
) -> dict[str, Json]:
    """The metadata of a copy: the given ones, and where it comes from (M-DISC-4). `last_id` is the source's."""
    origin = {"sourceThreadId": source_id, "clonedAt": iso(now)}
    return {**(metadata or {}), "clone": origin if last_id is None else {**origin, "lastMessageId": last_id}}


def copy_id(target: Thread, message_id: str) -> str:
    """The id of a message's copy: the same each time, so that a copy that was cut off can be taken up."""
    return str(uuid5(_COPIES, f"{target.id}\0{target.created_at}\0{message_id}"))


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


def time_range(match: MessageFilter) -> tuple[Millis, Millis]:
    """The first and the last millisecond that a filter lets pass, within what an order key can hold."""
    since = 0 if match.since is None else max(match.since, 0)
    until = MAX_MILLIS if match.until is None else match.until
    return min(since, MAX_MILLIS), max(min(until, MAX_MILLIS), -1)


def is_filter(match: MessageFilter) -> bool:
    """Whether the filter leaves anything out."""
    return match.since is not None or match.until is not None or match.roles is not None or bool(match.metadata)


def passes(message: Message, match: MessageFilter) -> bool:
    """Whether a message passes a filter (M-RC-5, M-RC-6)."""
    since, until = time_range(match)
    if not since <= message.created_at <= until:
        return False
    if match.roles is not None and message.role not in match.roles:
        return False
    return not match.metadata or has_values(jsontext.as_object(message.content.get("metadata")) or {}, match.metadata)


def has_values(metadata: Mapping[str, Json], wanted: Mapping[str, Json]) -> bool:
    """Whether all wanted values are there, equal in type too: true is not 1, null is not an absent key."""
    return all(key in metadata and _same(metadata[key], value) for key, value in wanted.items())


def _same(value: Json, wanted: Json) -> bool:
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def check_page(size: int) -> None:
    """Raises `TooLarge` if the bodies of a page, of so many bytes together, are more than a process should hold."""
    if size > MAX_PAGE_BYTES:
        raise TooLarge("The messages of one page are too large together; ask for fewer with perPage")


def check_walk(seen: int, what: str = "filter") -> None:
    """Raises `InvalidInput` once a list has looked at more messages than it may."""
    if seen > MAX_FILTERED:
        issue = Issue(what, f"would have to look at more than {MAX_FILTERED} messages; name a shorter range of dates")
        raise InvalidInput(issue, where="query parameters")


def position(message: Message) -> tuple[Millis, str, str, str]:
    """Sorts messages of several threads by time."""
    return message.created_at, message.order, message.thread_id, message.id


def merged(page: Page[Message], more: Iterable[Message]) -> Page[Message]:
    """The page with further messages among its own, each once, ascending."""
    found = {(m.thread_id, m.id): m for m in (*page.items, *more)}
    return replace(page, items=tuple(sorted(found.values(), key=position)))
