"""Client-side tools: the results that a caller brings are joined to the calls that wait for them.

A run that calls a tool of the caller ends with the call stored as waiting (MS-3). The caller comes back
with its own copy of the call, with the result, or with the result alone. What is stored stays the truth:
the waiting call gets its result where it stands, whatever else the copy says, and nothing is stored
twice (cases H07, H12). Results of calls that nobody made are dropped.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from threadkeep import jsontext
from threadkeep.memory.messages import Content, parts_of
from threadkeep.storage import rules
from threadkeep.storage.port import Message, MessageUpdate
from threadkeep.turn.request import InputMessage
from threadkeep.turn.tools import CallOutcome

WINDOW = 20  # newest messages among which waiting calls are looked for, however short the history is

_OUTCOME = {"result": ("state", "result"), "output-error": ("state", "errorText")}


@dataclass(frozen=True, slots=True)
class Joined:
    """Input and history with the results in their places; `updates` are the stored messages that got some."""

    messages: tuple[InputMessage, ...]
    history: tuple[Message, ...]
    updates: tuple[MessageUpdate, ...] = ()


def brings_results(messages: Iterable[InputMessage]) -> bool:
    return bool(_results(messages))


def joined(messages: Sequence[InputMessage], history: Sequence[Message], last_messages: int) -> Joined:
    """Join the results in the input to the calls in the history and in the input itself.

    `history` may reach further back than `last_messages`; of what does, only messages that got a result stay.
    """
    results = _results(messages)
    said = tuple(replace(m, parts=_with_results(m.parts, results)) for m in messages if m.role != "tool")
    if not results:
        return Joined(said, tuple(history))
    answered = {m.id: c for m in history if m.role == "assistant" and (c := _answered(m.content, results)) != m.content}
    window = {m.id for m in rules.history_window(reversed(history), last_messages)}
    return Joined(
        said,
        tuple(replace(m, content=answered.get(m.id, m.content)) for m in history if m.id in window | answered.keys()),
        tuple(MessageUpdate(m, answered[m.id]) for m in history if m.id in answered),
    )


async def finished(update: MessageUpdate, finish: Callable[[CallOutcome], Awaitable[CallOutcome]]) -> MessageUpdate:
    """The update with each result that it brings as `finish` leaves it: a result is one wherever it ran (case H27)."""
    before = list(parts_of(update.message.content))
    parts = [p if p in before else await _finished(p, finish) for p in parts_of(update.content)]
    return replace(update, content={**update.content, "parts": parts})


async def _finished(part: Content, finish: Callable[[CallOutcome], Awaitable[CallOutcome]]) -> Content:
    invocation = jsontext.as_object(part.get("toolInvocation")) or {}
    known = {name: value for name, value in invocation.items() if name not in ("result", "errorText")}
    return {**part, "toolInvocation": known | (await finish(CallOutcome.read(invocation))).stored}


def _results(messages: Iterable[InputMessage]) -> dict[str, Content]:
    """State and result by call id; of two results for one call the first counts."""
    found: dict[str, Content] = {}
    for message in messages:
        for part in message.parts:
            invocation = jsontext.as_object(part.get("toolInvocation")) or {}
            fields = _OUTCOME.get(str(invocation.get("state")))
            if fields is not None and message.role in ("assistant", "tool"):
                found.setdefault(str(invocation["toolCallId"]), {f: invocation.get(f) for f in fields})
    return found


def _answered(content: Content, results: Mapping[str, Content]) -> Content:
    """A stored content whose waiting calls have got their results."""
    return {**content, "parts": list(_with_results(tuple(parts_of(content)), results))}


def _with_results(parts: tuple[Content, ...], results: Mapping[str, Content]) -> tuple[Content, ...]:
    return tuple(_with_result(part, results) for part in parts)


def _with_result(part: Content, results: Mapping[str, Content]) -> Content:
    invocation = jsontext.as_object(part.get("toolInvocation"))
    if part.get("type") != "tool-invocation" or invocation is None or invocation.get("state") != "call":
        return part
    result = results.get(str(invocation.get("toolCallId")))
    return part if result is None else {**part, "toolInvocation": {**invocation, **result}}
