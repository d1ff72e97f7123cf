"""History within a budget of tokens: what is loaded, and where it begins (CFG-4, PR-14)."""

from dataclasses import dataclass

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.jsontext import Json
from threadkeep.memory import tokens
from threadkeep.memory.history import prompt_messages
from threadkeep.memory.messages import text_of
from threadkeep.memory.options import HistoryBudget
from threadkeep.storage.port import Message

METADATA_KEY = "memoryTokenLimiter"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Messages up to `created_at` left the prompt for good; `message_ids` are those of just that time."""

    created_at: Millis
    message_ids: tuple[str, ...]

    def holds(self, created_at: Millis, message_id: str) -> bool:
        """Whether a message has left."""
        return created_at < self.created_at or message_id in self.message_ids


def stored_boundary(metadata: dict[str, Json] | None, limits: HistoryBudget) -> Boundary | None:
    """The boundary that a thread keeps, if it was drawn with these limits."""
    kept = jsontext.as_object((metadata or {}).get(METADATA_KEY)) or {}
    at, ids = kept.get("createdAt"), jsontext.as_array(kept.get("messageIds"))
    if not isinstance(at, int) or ids is None or _limits(limits) != {name: kept.get(name) for name in _limits(limits)}:
        return None
    return Boundary(at, tuple(map(str, ids)))


def as_metadata(boundary: Boundary, limits: HistoryBudget) -> dict[str, Json]:
    """The thread's metadata with which a later turn finds the boundary. Times are milliseconds since 1970."""
    place = {"createdAt": boundary.created_at, "messageIds": list(boundary.message_ids)}
    return {METADATA_KEY: place | _limits(limits)}


def moved(before: Boundary | None, created_at: Millis, message_id: str) -> Boundary:
    """The boundary after one more message left."""
    if before is None or created_at > before.created_at:
        return Boundary(created_at, (message_id,))
    return Boundary(before.created_at, (*before.message_ids, message_id))


def weight(message: Message) -> float:
    """What a stored message takes of the prompt."""
    return sum(map(tokens.prompt_message, prompt_messages([message])))


def text_weight(message: Message) -> float:
    """What the texts of a stored message take: a filter may take the rest out before the budget is measured."""
    return tokens.count(text_of(message.content))


def _limits(limits: HistoryBudget) -> dict[str, Json]:
    return {"maxTokens": limits.max_tokens, "atMaxRemoveTokens": limits.removed}
