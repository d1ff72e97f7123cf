"""The prompt of a turn, in the order of CTX-1 to CTX-5: system texts, history, context, new input."""

from collections.abc import Iterable, Sequence

from threadkeep.clock import Millis
from threadkeep.ids import new_id
from threadkeep.memory import history
from threadkeep.memory.messages import content
from threadkeep.models.port import PromptMessage, TextPart
from threadkeep.storage.port import Message, NewMessage, TurnState
from threadkeep.turn.request import InputMessage, TurnAgent, TurnRequest


def new_input(request: TurnRequest, state: TurnState, now: Millis) -> tuple[NewMessage, ...]:
    """The input that is new: what a client sent along of an older transcript is left out (MS-16, case H12).

    On a thread that has messages, only what follows the last assistant message counts; a message whose id
    the thread holds already is not new either (MS-17). System messages are for this prompt only (H19).
    """
    said = [m for m in request.messages if m.role != "system"]
    if state.thread is not None and state.thread.message_count:
        last_answer = max((i for i, m in enumerate(said) if m.role == "assistant"), default=-1)
        said = said[last_answer + 1 :]
    return tuple(stored_form(m, now) for m in said if m.id is None or m.id not in state.stored_ids)


def stored_form(message: InputMessage, now: Millis) -> NewMessage:
    """An input message as it will be stored; an id is made where the caller gave none."""
    parts = [{**part, "createdAt": now} for part in message.parts]
    return NewMessage(message.id or new_id(), message.role, content(parts), now)


def assemble(
    agent: TurnAgent, request: TurnRequest, remembered: Sequence[Message], new: Sequence[NewMessage], now: Millis
) -> tuple[PromptMessage, ...]:
    """The whole prompt. Messages of the context are seen once and never stored (CTX-4)."""
    context = [_as_message(stored_form(m, now)) for m in request.context if m.role != "system"]
    conversation = history.prompt_messages([*remembered, *context, *map(_as_message, new)])
    return history.opened_by_user((*_system(agent, request), *conversation))


def _system(agent: TurnAgent, request: TurnRequest) -> list[PromptMessage]:
    """The system texts, each a message of its own, without repetitions (CTX-1)."""
    given = [m for m in (*request.context, *request.messages) if m.role == "system"]
    texts = [agent.instructions if request.instructions is None else request.instructions]
    texts += [_text(m) for m in given]
    texts.append(request.system or "")
    return [PromptMessage("system", (TextPart(t),)) for t in dict.fromkeys(texts) if t.strip()]


def _text(message: InputMessage) -> str:
    return "\n".join(str(p.get("text", "")) for p in message.parts if p.get("type") == "text")


def _as_message(new: NewMessage) -> Message:
    return Message(new.id, "", new.role, new.content, new.at, "")


def roles(messages: Iterable[Message | NewMessage]) -> list[str]:
    return [m.role for m in messages]
