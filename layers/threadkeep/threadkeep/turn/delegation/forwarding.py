"""The conversation that a sub-agent gets to see: what the supervisor's model saw, without what is its own (DEL-12)."""

from collections.abc import Iterable, Sequence

from threadkeep import clock
from threadkeep.ids import new_id
from threadkeep.memory.messages import Content, content, file_part, parts_of, text_part
from threadkeep.models.port import FilePart, Part, TextPart
from threadkeep.turn.delegation.orders import Said
from threadkeep.turn.message_list import PromptItem, RunMessage


def conversation(shown: Iterable[PromptItem], hidden: frozenset[str], *, system_texts: bool) -> tuple[RunMessage, ...]:
    """Texts and files of the messages that a model was shown: no calls, no results, no message that is `hidden`.

    System texts only where they are asked for (D-DISC-19).
    """
    roles = ("system", "user", "assistant") if system_texts else ("user", "assistant")
    wanted = (i for i in shown if i.message.role in roles and i.id not in hidden)
    messages = (_message(i.id, i.message.role, i.message.parts) for i in wanted)
    return tuple(m for m in messages if m.content["parts"])


def _message(id: str | None, role: str, parts: Sequence[Part]) -> RunMessage:
    at = clock.now()
    stored = [part for p in parts if (part := _part(p, at)) is not None]
    return RunMessage(id or new_id(), role, content(stored), at, "context")


def _part(part: Part, at: int) -> Content | None:
    if isinstance(part, TextPart):
        return text_part(part.text, at)
    return file_part(part.data, part.media_type, at) if isinstance(part, FilePart) else None


def said(messages: Iterable[RunMessage]) -> tuple[Said, ...]:
    """The messages as an order carries them."""
    return tuple(
        Said("system" if m.role == "system" else "assistant" if m.role == "assistant" else "user", _parts(m))
        for m in messages
    )


def _parts(message: RunMessage) -> tuple[Content, ...]:
    told = (p for p in parts_of(message.content) if p.get("type") in ("text", "file"))
    return tuple({k: v for k, v in part.items() if k != "createdAt"} for part in told)
