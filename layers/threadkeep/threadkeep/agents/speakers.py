"""Threads with several people: who says a message stands in the message itself (MUT-1 to MUT-7).

All pass the same thread and the same resource, which names the conversation, not a person. A message then reads::

    <turn author_id="u-7" author_name="Ana" functional_role="editor">
    Please shorten the second part.
    </turn>

The speaker comes from the verified identity or from a trusted server, never from the text: wherever a text
looks like the start of such a tag, in any case and with any spaces, it is escaped, so that nobody can close
a turn or open one for somebody else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from threadkeep import jsontext
from threadkeep.errors import ConfigurationError, InvalidInput, Issue
from threadkeep.jsontext import Json
from threadkeep.turn.context import SPEAKER_KEY
from threadkeep.turn.message_list import MessageList, RunMessage
from threadkeep.turn.processors.base import Processor, ProcessorCall

MAX_SPEAKER = 256  # characters of each value

_UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
)
_GAP = rf"[\s/\\{_UNSEEN}]*"
_TURN = f"{_GAP}" + f"[{_UNSEEN}]*".join("turn")  # a model may read over spaces and invisible characters
_FORGED = re.compile(rf"(?:<|&(?:amp;)*lt;)(?={_TURN})", re.IGNORECASE)
_ESCAPED = re.compile(rf"&(?:amp;)*lt;(?={_TURN})", re.IGNORECASE)
_WHOLE = re.compile(
    r'<turn author_id="([^"]*)" author_name="([^"]*)" functional_role="([^"]*)">\n(.*)\n</turn>', re.DOTALL
)
_QUOTED = (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"))
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who says a message. Raises `InvalidInput` for an empty id, control characters, or over 256 characters."""

    author_id: str
    author_name: str = ""
    functional_role: str = ""

    def __post_init__(self) -> None:
        named = (
            ("authorId", self.author_id),
            ("authorName", self.author_name),
            ("functionalRole", self.functional_role),
        )
        issues = [Issue(f"speaker.{field}", reason) for field, value in named if (reason := _problem(value))]
        if not self.author_id:
            issues.append(Issue("speaker.authorId", "must not be empty"))
        if issues:
            raise InvalidInput(*issues)

    def to_json(self) -> dict[str, Json]:
        return {"authorId": self.author_id, "authorName": self.author_name, "functionalRole": self.functional_role}


def as_user_turn(speaker: Speaker, text: str) -> str:
    """A text as it is stored and shown, with its speaker (MUT-2)."""
    name, author, role = map(_quoted, (speaker.author_id, speaker.author_name, speaker.functional_role))
    return f'<turn author_id="{name}" author_name="{author}" functional_role="{role}">\n{harmless(text)}\n</turn>'


def read_user_turn(text: str) -> tuple[Speaker, str] | None:
    """Speaker and text of what `as_user_turn` made; None for any other text."""
    found = _WHOLE.fullmatch(text)
    if found is None:
        return None
    *values, inner = found.groups()
    try:
        speaker = Speaker(*map(_unquoted, values))
    except InvalidInput:
        return None
    said = _ESCAPED.sub(lambda match: "<" if match[0] == "&lt;" else "&" + match[0][5:], inner)
    return (speaker, said) if as_user_turn(speaker, said) == text else None


def harmless(text: str) -> str:
    """The text without anything that reads as the start or the end of a turn; `read_user_turn` undoes it."""
    return _FORGED.sub(lambda match: "&lt;" if match[0] == "<" else "&amp;" + match[0][1:], text)


class SpeakerTurns(Processor):
    """Input processor: puts the speaker of the run around each new text of a user.

    The speaker is that of the request: over HTTP the user of the token, or whom a service names; in Python the
    argument `speaker` of `Agent.generate`. Without one a text stays bare, but cannot pose as somebody's turn;
    nor can the context and the answers that a request brings (MUT-7).
    """

    id = "speaker-turns"
    name = "SpeakerTurns"

    def process_input(self, messages: MessageList, call: ProcessorCall) -> Sequence[RunMessage] | MessageList:
        speaker = _speaker_of(call.request_context.get(SPEAKER_KEY))

        def said(text: str) -> str:
            return as_user_turn(speaker, text) if speaker else harmless(text)

        def safe(message: RunMessage) -> RunMessage:
            if message.source not in ("input", "context") or message.role not in ("user", "assistant"):
                return message
            is_said = message.source == "input" and message.role == "user"
            return message.with_text(said if is_said else harmless)

        return messages.edited([safe(m) for m in messages.messages])


def _speaker_of(value: Any) -> Speaker | None:
    if value is None:
        return None
    match jsontext.as_object(value):
        case {"authorId": str(author_id), "authorName": str(name), "functionalRole": str(role)}:
            return Speaker(author_id, name, role)
        case _:
            raise ConfigurationError(f"The request context's {SPEAKER_KEY} must be a speaker")


def _problem(value: str) -> str | None:
    if len(value) > MAX_SPEAKER:
        return f"must have at most {MAX_SPEAKER} characters"
    return "must not have control characters" if _CONTROL.search(value) else None


def _quoted(value: str) -> str:
    for raw, safe in _QUOTED:
        value = value.replace(raw, safe)
    return value


def _unquoted(value: str) -> str:
    for raw, safe in reversed(_QUOTED):
        value = value.replace(safe, raw)
    return value
