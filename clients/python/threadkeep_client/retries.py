"""When a request is sent again, and after which pause."""

import random
from dataclasses import dataclass
from typing import Literal

from threadkeep_client.errors import ConnectionFailed, StillRunning, ThreadkeepError, Unavailable

Repeat = Literal["always", "keyed", "unsent"]
"""Whether repeating is safe: `always` for what only reads; `keyed` where the server recognises the repeat by its
`Idempotency-Key`; `unsent` where it is only safe as long as the request cannot have arrived."""


@dataclass(frozen=True, slots=True)
class Retries:
    """`attempts` counts the first one. Pauses are in seconds.

    The pause is drawn evenly between 0 and `first_pause`, doubled with each attempt up to `longest_pause` (full
    jitter). What the server asks for with `Retry-After` is waited for on top, if it is at most `longest_wait`.
    """

    attempts: int = 4
    first_pause: float = 0.25
    longest_pause: float = 8.0
    longest_wait: float = 60.0

    def pause(self, repeat: Repeat, attempt: int, error: ThreadkeepError) -> float | None:
        """How long to wait before the next attempt; None if there shall be none."""
        if attempt >= self.attempts or not _is_safe(repeat, error):
            return None
        asked = error.retry_after or 0.0 if isinstance(error, StillRunning | Unavailable) else 0.0
        if asked > self.longest_wait:
            return None
        return asked + random.uniform(0, min(self.longest_pause, self.first_pause * 2 ** (attempt - 1)))


USUAL = Retries()
NEVER = Retries(attempts=1)


def _is_safe(repeat: Repeat, error: ThreadkeepError) -> bool:
    if isinstance(error, ConnectionFailed) and not error.sent:
        return True
    return repeat != "unsent" and isinstance(error, ConnectionFailed | Unavailable | StillRunning)
