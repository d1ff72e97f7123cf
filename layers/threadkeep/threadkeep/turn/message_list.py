"""The messages of one run: where each came from, and the order in which a model sees them (CTX-1 to CTX-4)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.ids import new_id
from threadkeep.memory import history, signals, tokens
from threadkeep.memory.messages import Content, content, mapped_text, text_of, text_part
from threadkeep.memory.signals import Signal
from threadkeep.models.port import PromptMessage, TextPart
from threadkeep.storage.port import Message, NewMessage

Source = Literal["memory", "context", "input", "response"]
Bucket = Literal["agent", "call", "memory"]

_RANK: dict[Source, int] = {"memory": 0, "context": 1, "input": 2, "response": 3}
_BUCKETS: tuple[Bucket, ...] = ("agent", "call", "memory")


@dataclass(frozen=True, slots=True)
class RunMessage:
    """One message of a run. `content` is the stored form (MS-1).

    `source` tells its fate: `input` and `response` are what the run stores; `memory` is stored already and
    `context` never is, so an edit of these changes the prompt alone.
    """

    id: str
    role: str
    content: Content
    created_at: Millis
    source: Source
    type: str | None = None
    order: str = ""

    @classmethod
    def stored(cls, message: Message) -> "RunMessage":
        """A message of the history."""
        return cls(message.id, message.role, message.content, message.created_at, "memory", message.type, message.order)

    @classmethod
    def new(cls, message: NewMessage, source: Source) -> "RunMessage":
        return cls(message.id, message.role, message.content, message.at, source, message.type)

    @classmethod
    def of_signal(cls, signal: Signal) -> "RunMessage":
        """The signal as new input: seen behind the input, and stored unless it is transient (SIG-2, SIG-4)."""
        return cls(signal.id, signals.ROLE, signal.content, signal.created_at, "input", signal.tag)

    @classmethod
    def saying(cls, text: str, role: str = "user", source: Source = "input") -> "RunMessage":
        """A message of one text, with a new id."""
        at = clock.now()
        return cls(new_id(), role, content([text_part(text, at)]), at, source)

    @property
    def to_store(self) -> NewMessage:
        return NewMessage(self.id, self.role, self.content, self.created_at, self.type)

    @property
    def text(self) -> str:
        """The text parts, one per line."""
        return text_of(self.content)

    def with_text(self, change: Callable[[str], str]) -> "RunMessage":
        """The message with each of its texts changed; calls, results and files stay as they are."""
        return replace(self, content=mapped_text(self.content, change))


@dataclass(frozen=True, slots=True)
class SystemText:
    """One system message. Buckets stand in the prompt in the order agent, call, memory (CTX-1).

    A text with a `key` may get a new version within the run (`MessageList.with_system`); what changes a text
    by `with_text` keeps its key.
    """

    text: str
    bucket: Bucket = "agent"
    key: str = ""

    def with_text(self, change: Callable[[str], str]) -> "SystemText":
        return replace(self, text=change(self.text))


@dataclass(frozen=True, slots=True)
class PromptItem:
    """One prompt message and the message that it was made of; system texts and feedback have no `id`."""

    message: PromptMessage
    source: Source | Literal["system"]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class MessageList:
    """The system texts and messages of a run; it never changes, each method returns a new one.

    Messages stand in the order history, context, input, response, and within the history by their place in
    the thread (CTX-2). Of two with one id the first stays, so what is stored wins over what a caller sends
    along (CTX-4, MS-17). Of equal system texts of one bucket the first stays.
    """

    system: tuple[SystemText, ...] = ()
    messages: tuple[RunMessage, ...] = ()

    def plus(self, *messages: RunMessage) -> "MessageList":
        """With these messages too, each at the end of what has the same source."""
        ranked = sorted((*self.messages, *messages), key=lambda m: (_RANK[m.source], m.order))
        unique: dict[str, RunMessage] = {}
        for message in ranked:
            unique.setdefault(message.id, message)
        return replace(self, messages=tuple(unique.values()))

    def plus_system(self, *texts: SystemText) -> "MessageList":
        """With these system texts too; empty ones are left out."""
        said = [t for t in (*self.system, *texts) if t.text.strip()]
        ranked = sorted(dict.fromkeys(said), key=lambda t: _BUCKETS.index(t.bucket))
        return replace(self, system=tuple(ranked))

    def with_system(self, text: SystemText) -> "MessageList":
        """With a new version of the system text that has this key, in its place; an empty one takes it out.

        A list without a text of this key stays as it is: what a processor took out does not come back.
        """
        now = (text if t.key == text.key != "" else t for t in self.system)
        return replace(self, system=tuple(t for t in now if t.text.strip()))

    def edited(self, kept: Sequence[RunMessage]) -> "MessageList":
        """With exactly these messages: what is omitted is gone, what has a known id keeps its source (PR-2).

        Messages of the system role become system texts. Unknown ids are new input.
        """
        sources = {m.id: m.source for m in self.messages}
        spoken = [replace(m, source=sources.get(m.id, "input")) for m in kept if m.role != "system"]
        system = [SystemText(m.text) for m in kept if m.role == "system"]
        return MessageList(self.system).plus(*spoken).plus_system(*system)

    def of(self, *sources: Source) -> tuple[RunMessage, ...]:
        """The messages from these sources."""
        return tuple(m for m in self.messages if m.source in sources)

    def prompt(self, *, keep_pending: bool = False) -> tuple[PromptItem, ...]:
        """What a model sees: system texts first, then the conversation, calls and results together (CTX-1, CTX-6)."""
        items = [PromptItem(PromptMessage("system", (TextPart(t.text),)), "system") for t in self.system]
        seen: set[str] = set()
        for m in self.messages:
            shown = history.seen_by_model(m.role, m.content, seen, keep_pending=keep_pending)
            items += [PromptItem(p, m.source, m.id) for p in shown]
        return tuple(items)


def opener_cost(first: PromptItem) -> float:
    """What the user message costs that is put before this item if it is the first of the conversation (CTX-5)."""
    return tokens.prompt_message(history.OPENER) if first.message.role == "assistant" else 0


def messages_of(items: Iterable[PromptItem]) -> tuple[PromptMessage, ...]:
    """The prompt messages of these items, opened by a user message where an assistant's would be first (CTX-5)."""
    return history.opened_by_user([item.message for item in items])
