"""What a run begins with: its system texts, its context and its new input (CTX-1 to CTX-4, MS-16, MS-17)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from threadkeep.clock import Millis
from threadkeep.ids import new_id
from threadkeep.memory.messages import content
from threadkeep.storage.port import Message, NewMessage, TurnState
from threadkeep.turn.message_list import MessageList, RunMessage, SystemText
from threadkeep.turn.request import InputMessage, TurnAgent, TurnRequest


@dataclass(frozen=True, slots=True)
class Input:
    """What the caller sent, divided: `known` the thread has already, `new` is to be stored."""

    known: tuple[InputMessage, ...]
    new: tuple[InputMessage, ...]


def divided(request: TurnRequest, state: TurnState) -> Input:
    """Tell what is new from what a client sends along of an older transcript (MS-16, case H12).

    On a thread that has messages, only what follows the last assistant message counts, unless
    `retain_full_input` is set; a message whose id the thread holds already is not new either (MS-17).
    System messages are for this prompt only and are neither (case H19).
    """
    said = [m for m in request.messages if m.role != "system"]
    start = 0
    if state.thread is not None and state.thread.message_count and not request.options.retain_full_input:
        start = 1 + max((i for i, m in enumerate(said) if m.role == "assistant"), default=-1)
    is_new = [n >= start and (m.id is None or m.id not in state.stored_ids) for n, m in enumerate(said)]
    known = tuple(m for m, new in zip(said, is_new, strict=True) if not new)
    return Input(known, tuple(m for m, new in zip(said, is_new, strict=True) if new))


def opening(
    agent: TurnAgent, request: TurnRequest, given: Input, state: TurnState, now: Millis, *, window: int
) -> MessageList:
    """The list that a run begins with; the history is added to it by its processor.

    Where no history is loaded (`window` 0), what the caller sent of it is shown, but not stored again. Messages get the
    time now, or one after the thread's last, each a millisecond later than the one before (CTX-3).
    """
    shown = (*(given.known if window == 0 else ()), *(m for m in request.context if m.role != "system"))
    at = max(now, state.thread.last_at + 1 if state.thread else 0)
    context = [RunMessage.new(stored_form(m, at + n), "context") for n, m in enumerate(shown)]
    new = [RunMessage.new(stored_form(m, at + len(shown) + n), "input") for n, m in enumerate(given.new)]
    return MessageList().plus(*context, *new).plus_system(*_system(agent, request))


def stored_form(message: InputMessage, at: Millis) -> NewMessage:
    """An input message as it will be stored; an id is made where the caller gave none."""
    parts = [{**part, "createdAt": at} for part in message.parts]
    return NewMessage(message.id or new_id(), message.role, content(parts, message.metadata), at)


def _system(agent: TurnAgent, request: TurnRequest) -> Sequence[SystemText]:
    """Instructions, which the call may replace, then those of context and input; then the call's own (CTX-1)."""
    given = [m for m in (*request.context, *request.messages) if m.role == "system"]
    texts = [agent.instructions if request.instructions is None else request.instructions, *map(_text, given)]
    wanted = request.structured_output
    own = (request.system or "", (wanted.instructions if wanted else None) or "")
    return [*map(SystemText, texts), *(SystemText(text, "call") for text in own)]


def _text(message: InputMessage) -> str:
    return "\n".join(str(p.get("text", "")) for p in message.parts if p.get("type") == "text")


def roles(messages: Iterable[Message | NewMessage]) -> list[str]:
    return [m.role for m in messages]
