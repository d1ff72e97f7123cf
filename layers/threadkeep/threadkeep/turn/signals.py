"""State signals: a state that is told to the model where it changed, not in each prompt (SIG-5 to SIG-8).

A whole copy of the state is a snapshot; a delta says what changed since the copy before it. Both stay in
the conversation. What the model knows is judged by the copies in its window, so a copy that scrolled out,
or was deleted, is told again. The thread's metadata tracks what was told last:

`mastra.stateSignals[<state id>]` = `{currentCacheKey, currentMode, version, lastSignalId,
lastSnapshotSignalId, updatedAt, activeCopies}`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from threadkeep import clock, jsontext
from threadkeep.errors import ConfigurationError
from threadkeep.jsontext import Json
from threadkeep.memory import signals
from threadkeep.memory.messages import Content
from threadkeep.memory.signals import Mode, Signal, StateMark
from threadkeep.storage.port import Thread
from threadkeep.turn.message_list import RunMessage

_KEY = "mastra"  # the thread's metadata key, shared with others
_MOST_COPIES = 20  # ids of copies that are tracked for each state


@dataclass(frozen=True, slots=True)
class StateSignal:
    """What a state's producer wants told. `cache_key` tells values apart; `contents` is what the model reads.

    `value` is the whole state after the signal, kept with it so that the next delta has something to compare
    with. Raises `ConfigurationError` for a missing id or cache key (SIG-4).
    """

    id: str
    mode: Mode
    cache_key: str
    contents: str
    value: Json = None
    tag_name: str = ""
    attributes: Mapping[str, str | None] = field(default_factory=dict[str, str | None])

    def __post_init__(self) -> None:
        if not self.id or not self.cache_key:
            raise ConfigurationError("A state signal needs its state's id and cacheKey")
        if self.mode not in ("snapshot", "delta"):
            raise ConfigurationError(f"A state signal is a snapshot or a delta, not {self.mode!r}")


@dataclass(frozen=True, slots=True)
class StateCopy:
    """A copy of a state that the model has in its window."""

    message_id: str
    mode: Mode
    cache_key: str
    value: Json
    attributes: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class StateWindow:
    """What the model knows of one state: the copies in its window, oldest first, and what the thread tracks."""

    copies: tuple[StateCopy, ...] = ()
    tracking: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def last_snapshot(self) -> StateCopy | None:
        return next((copy for copy in reversed(self.copies) if copy.mode == "snapshot"), None)

    @property
    def deltas_since_snapshot(self) -> tuple[StateCopy, ...]:
        snapshot = self.last_snapshot
        return self.copies[self.copies.index(snapshot) + 1 :] if snapshot else ()

    @property
    def has_snapshot(self) -> bool:
        return self.last_snapshot is not None

    @property
    def latest(self) -> StateCopy | None:
        """The newest copy that builds on a snapshot which the model sees."""
        return self.copies[-1] if self.has_snapshot else None


class StateSignals:
    """The state signals of one run: what its thread tracks, and what the run adds to that."""

    def __init__(self, thread_id: str, thread: Thread | None):
        self._thread_id = thread_id
        metadata = (thread.metadata if thread else None) or {}
        self._shared = jsontext.as_object(metadata.get(_KEY)) or {}
        self._tracked = jsontext.as_object(self._shared.get("stateSignals")) or {}
        self._changed: dict[str, Json] = {}

    @property
    def thread_metadata(self) -> dict[str, Json]:
        """What the thread's metadata is to hold afterwards; empty if the run told no state (SIG-6)."""
        if not self._changed:
            return {}
        return {_KEY: {**self._shared, "stateSignals": {**self._tracked, **self._changed}}}

    def window(self, state_id: str, messages: Iterable[RunMessage]) -> StateWindow:
        """What a model that sees these messages knows of a state."""
        copies = [c for m in messages if m.role == signals.ROLE and (c := _copy(m, state_id)) is not None]
        return StateWindow(tuple(copies), self._tracking(state_id))

    def message(self, wanted: StateSignal, window: StateWindow) -> RunMessage | None:
        """The message that tells the state; None if the model knows it already (SIG-7).

        The same state told again, because its copy left the window, keeps its version.
        """
        before = window.tracking
        same = (before.get("currentCacheKey"), before.get("currentMode")) == (wanted.cache_key, wanted.mode)
        if same and any((c.cache_key, c.mode) == (wanted.cache_key, wanted.mode) for c in window.copies):
            return None
        known = before.get("version")
        version = (known if isinstance(known, int) else 0) + (not same)
        mark = StateMark(wanted.id, self._thread_id, wanted.cache_key, wanted.mode, version)
        more = {} if wanted.value is None else {"value": wanted.value}
        return RunMessage.of_signal(
            Signal("state", wanted.contents, wanted.tag_name, wanted.attributes, metadata=more, state=mark)
        )

    def track(self, message: RunMessage, window: StateWindow) -> None:
        """Take note that the model is told a state by this message; `window` is what it knew before."""
        state = state_of(message.content)
        self._changed[str(state["id"])] = _tracked(message, state, window)

    def _tracking(self, state_id: str) -> Mapping[str, Json]:
        return jsontext.as_object(self._changed.get(state_id, self._tracked.get(state_id))) or {}


def stored_only(messages: Sequence[RunMessage]) -> tuple[RunMessage, ...]:
    """The messages without transient signals, which are never stored (SIG-4)."""
    return tuple(m for m in messages if m.role != signals.ROLE or not signals.is_transient(m.content))


def later(message: RunMessage) -> RunMessage:
    """A signal that came after the first model call: it is stored behind the answer."""
    return replace(message, source="response")


def state_of(content: Content) -> dict[str, Json]:
    """What a stored message says of the state that it tells; empty for another message."""
    metadata = jsontext.as_object(signals.told(content).get("metadata")) or {}
    return jsontext.as_object(metadata.get("state")) or {}


def _copy(message: RunMessage, state_id: str) -> StateCopy | None:
    state, told = state_of(message.content), signals.told(message.content)
    mode, key = state.get("mode"), state.get("cacheKey")
    if state.get("id") != state_id or mode not in ("snapshot", "delta") or not isinstance(key, str):
        return None
    metadata = jsontext.as_object(told.get("metadata")) or {}
    return StateCopy(message.id, mode, key, metadata.get("value"), jsontext.as_object(told.get("attributes")) or {})


def _tracked(message: RunMessage, state: Mapping[str, Json], window: StateWindow) -> dict[str, Json]:
    base, copies = window.last_snapshot, list[str]()
    if state["mode"] == "snapshot" or base is None:
        snapshot = message.id
    else:
        snapshot, copies = base.message_id, [c.message_id for c in (base, *window.deltas_since_snapshot)]
    return {
        "currentCacheKey": state["cacheKey"],
        "currentMode": state["mode"],
        "version": state["version"],
        "lastSignalId": message.id,
        "lastSnapshotSignalId": snapshot,
        "updatedAt": clock.iso(message.created_at),
        "activeCopies": [*copies, message.id][-_MOST_COPIES:],
    }
