"""Requests that may be sent again without a second effect: what they create gets the same ids (DESIGN 4)."""

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

from threadkeep import ids, jsontext
from threadkeep.errors import InvalidInput, Issue
from threadkeep.http.route import Call

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_DERIVED = UUID("7d1f6a3c-5b0e-4c39-9a7b-2f8e1d4c6b90")  # never changes: what was made under a key is found by it


def key_of(headers: Mapping[str, str]) -> str | None:
    """The caller's `Idempotency-Key`. Raises `InvalidInput` unless it is 1 to 255 visible ASCII characters."""
    key = headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidInput(Issue("Idempotency-Key", "must be 1 to 255 visible ASCII characters"), where="headers")
    return key


def new_id(call: Call[Any, Any], owner: str | None, route: str, *about: str | int) -> str:
    """An id for something that this request creates: the same whenever it is sent under the same key, else random.

    `about` tells apart what one request creates.
    """
    key = key_of(call.headers)
    return ids.new_id() if key is None else str(uuid5(_DERIVED, jsontext.dumps([owner, route, key, *about])))
