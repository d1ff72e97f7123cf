"""How large a reply may be."""

import json

from threadkeep import jsontext
from threadkeep.jsontext import Json

MAX_REPLY_BYTES = 5_000_000  # Lambda refuses a buffered answer above 6 MB, which the caller would see as a 502


def in_reply(value: Json) -> int:
    """The bytes that a value takes in a reply: what counts is its text as a string inside Lambda's own JSON."""
    return len(json.dumps(jsontext.dumps(value), ensure_ascii=False).encode())
