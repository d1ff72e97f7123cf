"""Signals: what the house, not a person, says to a model inside a conversation (SIG-1 to SIG-5).

A signal is stored as a message of the role `signal`. Models see it as a user message in a tag of its
own; its content is escaped, so that it can neither end its tag nor open another (case H05).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from threadkeep import clock, jsontext
from threadkeep.clock import Millis
from threadkeep.errors import ConfigurationError
from threadkeep.ids import new_id
from threadkeep.jsontext import Json
from threadkeep.memory.messages import Content, content, text_of, text_part

Kind = Literal["user", "state", "reactive", "notification"]
Mode = Literal["snapshot", "delta"]
ROLE = "signal"

_TAGS: dict[Kind, str] = {
    "user": "user",
    "state": "state",
    "reactive": "system-reminder",
    "notification": "notification",
}
_KINDS: dict[str, Kind] = {"user-message": "user", "system-reminder": "reactive", **{kind: kind for kind in _TAGS}}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)  # of XML's names those that every reader takes


@dataclass(frozen=True, slots=True)
class StateMark:
    """Which state a signal tells: `version` counts its emissions in the thread, `cache_key` is that of its value."""

    id: str
    thread_id: str
    cache_key: str
    mode: Mode
    version: int

    @property
    def stored(self) -> Content:
        return {
            "id": self.id,
            "threadId": self.thread_id,
            "cacheKey": self.cache_key,
            "mode": self.mode,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal. `tag_name` empty means the type's own; attributes that are None are left out.

    A `transient` signal is seen by the model and never stored. Raises `ConfigurationError` for an unknown
    type, a tag or attribute name that is no XML name, and a transient state signal (SIG-4).
    """

    type: Kind
    contents: str
    tag_name: str = ""
    attributes: Mapping[str, str | int | float | bool | None] = field(default_factory=dict[str, str | None])
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    transient: bool = False
    id: str = field(default_factory=new_id)
    created_at: Millis = field(default_factory=clock.now)
    state: StateMark | None = None

    def __post_init__(self) -> None:
        if self.type not in _TAGS:
            raise ConfigurationError(f"There is no signal type {self.type!r}, only {', '.join(_TAGS)}")
        for name in (self.tag, *self.attributes):
            if not _NAME.fullmatch(name):
                raise ConfigurationError(f"A signal's tag and attributes need XML names, received {name!r}")
        if self.type == "state" and self.transient:
            raise ConfigurationError("State signals cannot be transient")
        if self.type == "state" and self.state is None:
            raise ConfigurationError("A state signal needs its state's id and cacheKey")

    @property
    def tag(self) -> str:
        return self.tag_name or _TAGS[self.type]

    @property
    def content(self) -> Content:
        """The stored form (SIG-2)."""
        told: Content = {
            "id": self.id,
            "type": self.type,
            "tagName": self.tag,
            "createdAt": clock.iso(self.created_at),
        }
        if self.attributes:
            told["attributes"] = {name: value for name, value in self.attributes.items() if value is not None}
        more = self.metadata | ({"state": self.state.stored} if self.state else {})
        if more:
            told["metadata"] = more
        if self.transient:
            told["transient"] = True
        return content([text_part(self.contents, self.created_at)], {"signal": told})


def told(stored: Content) -> Content:
    """What a stored message says of its signal; empty for another message."""
    metadata = jsontext.as_object(stored.get("metadata")) or {}
    return jsontext.as_object(metadata.get("signal")) or {}


def is_transient(stored: Content) -> bool:
    return told(stored).get("transient") is True


def kind_of(name: Json) -> Kind | None:
    """The type of this name, in the spelling of today or an older one (SIG-1)."""
    return _KINDS.get(name) if isinstance(name, str) else None


def rendered(stored: Content) -> str | None:
    """What a model reads of a stored signal (SIG-3); None for a message that is no signal that we know."""
    signal, text = told(stored), text_of(stored)
    kind = kind_of(signal.get("type"))
    if kind is None:
        return None
    attributes = jsontext.as_object(signal.get("attributes")) or {}
    given = {name: _attribute(value) for name, value in attributes.items() if value is not None}
    tag = signal.get("tagName", _TAGS[kind])
    if not isinstance(tag, str) or not all(_NAME.fullmatch(name) for name in (tag, *given)):
        return None
    if kind == "user" and not given:
        return text or None
    opening = " ".join((tag, *(f'{name}="{escaped(value, quotes=True)}"' for name, value in given.items())))
    return f"<{opening}>{escaped(text)}</{tag}>" if text else f"<{opening} />"


def escaped(text: str, *, quotes: bool = False) -> str:
    """The text as it may stand inside a tag, or with `quotes` inside an attribute."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;") if quotes else text


def _attribute(value: Json) -> str:
    return value if isinstance(value, str) else jsontext.dumps(value)
