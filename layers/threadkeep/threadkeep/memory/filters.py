"""What a filter by metadata may name (TH-7, M-RC-6)."""

import re

MAX_KEY = 128  # characters

KEY_PATTERN = "[A-Za-z_][A-Za-z0-9_]*"

_KEY = re.compile(KEY_PATTERN)
_RESERVED = {"__proto__", "prototype", "constructor"}


def metadata_key_problem(key: str) -> str | None:
    """The rule that a key of a metadata filter breaks, in words, or None."""
    if len(key) > MAX_KEY:
        return f"must have at most {MAX_KEY} characters"
    if not _KEY.fullmatch(key):
        return "must be letters, digits and underscores, and not begin with a digit"
    return "is reserved" if key in _RESERVED else None
