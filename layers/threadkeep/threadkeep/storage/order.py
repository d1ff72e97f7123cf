"""The place of a message in its thread, as text that sorts the same way (DESIGN 3).

An order key is the milliseconds of `created_at` in 15 digits, a hyphen, and the thread's own sequence
number in 10 digits. Comparing two keys as text, or as the bytes of a sort key, compares
`(created_at, seq)` as numbers.
"""

import re
from typing import NamedTuple

from threadkeep.clock import Millis

MAX_MILLIS: Millis = 10**15 - 1
MAX_SEQ = 10**10 - 1

_KEY = re.compile(r"([0-9]{15})-([0-9]{10})")


class Place(NamedTuple):
    created_at: Millis
    seq: int


def order_key(created_at: Millis, seq: int) -> str:
    """The key of a place. Raises `ValueError` for numbers that do not fit their digits."""
    if not (0 <= created_at <= MAX_MILLIS and 0 <= seq <= MAX_SEQ):
        raise ValueError(f"no order key for created_at {created_at} and seq {seq}")
    return f"{created_at:015d}-{seq:010d}"


def place(key: str) -> Place:
    """The inverse of `order_key`. Raises `ValueError` for any other text."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"not an order key: {key[:40]!r}")
    return Place(int(match[1]), int(match[2]))


def bounds(since: Millis = 0, until: Millis = MAX_MILLIS) -> tuple[str, str]:
    """The lowest and the highest key of the messages created from `since` to `until`, both included."""
    return order_key(since, 0), order_key(until, MAX_SEQ)
