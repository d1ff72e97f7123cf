"""Identifiers: which are allowed, how they become keys, how new ones are made."""

import hashlib
import re
import unicodedata
import uuid
from urllib.parse import unquote

from threadkeep.errors import InvalidInput, Issue

MAX_BYTES = 256
MAX_ENCODED_BYTES = 450

_SUB = "\x1f"  # between a resource and the key of its sub-agent; no id that anybody may choose contains it
_ALONE = "\x1e"  # between the name that a run without owner goes by and the run

_HTTP_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~:@|+=,-]{1,256}")
_ESCAPES = str.maketrans({"%": "%25", "#": "%23", "/": "%2F"})


def new_id() -> str:
    """A random id (UUID v4) for a thread, a message or a run."""
    return str(uuid.uuid4())


def sub_resource(resource_id: str, key: str) -> str:
    """The resource of a sub-agent that works for a resource: a pair, so that no other id ever equals it (case H17)."""
    return f"{resource_id}{_SUB}{key}"


def nobodys_resource(name: str, run_id: str) -> str:
    """The resource of a run that has no owner: its own, by the name that all such runs show."""
    return f"{name}{_ALONE}{run_id}"


def resource_parts(resource_id: str) -> tuple[str, ...]:
    """The owner, and the keys of the sub-agents below it."""
    return tuple(resource_id.split(_SUB))


def owner_of(resource_id: str) -> str | None:
    """The resource for which a sub-agent works in the end, or the resource itself; None for a run without owner."""
    owner = resource_parts(resource_id)[0]
    return None if _ALONE in owner else owner


def shown_resource(resource_id: str) -> str:
    """The resource as it is spelled on the wire: `<resource>-<key>` for a sub-agent's (DEL-5)."""
    owner, *keys = resource_parts(resource_id)
    return "-".join((owner.partition(_ALONE)[0], *keys))


def derived(*parts: str) -> str:
    """An id made of others, joined by `-`; their SHA-256 in hex where that is too long."""
    joined = "-".join(parts)
    return joined if problem(joined) is None else hashlib.sha256(joined.encode()).hexdigest()


def encode(identifier: str) -> str:
    """Escape the characters that separate parts of a key, one-to-one (case H03)."""
    return identifier.translate(_ESCAPES)


def decode(segment: str) -> str:
    """The inverse of `encode`."""
    return unquote(segment)


def problem(identifier: str) -> str | None:
    """The rule that an id breaks, in words, or None: 1 to 256 bytes of UTF-8 without control characters."""
    try:
        size = len(identifier.encode())
    except UnicodeEncodeError:
        return "must be valid Unicode"
    if not 1 <= size <= MAX_BYTES:
        return f"must be 1 to {MAX_BYTES} bytes of UTF-8, received {size}"
    if any(unicodedata.category(c) == "Cc" for c in identifier):
        return "must not contain control characters"
    if len(encode(identifier).encode()) > MAX_ENCODED_BYTES:
        return f"must be at most {MAX_ENCODED_BYTES} bytes once %, # and / are escaped"
    return None


def check(field: str, identifier: str) -> str:
    """Return the id, or raise `InvalidInput` naming `field`."""
    if broken := problem(identifier):
        raise InvalidInput(Issue(field, broken), where="argument")
    return identifier


def http_problem(identifier: str) -> str | None:
    """As `problem`, for ids that travel over HTTP: clients do not encode paths, so the set is narrower."""
    if _HTTP_ID.fullmatch(identifier):
        return None
    if identifier in (".", ".."):
        return "must not be . or .., which clients take out of a path"
    return problem(identifier) or "may only contain letters, digits and . _ ~ : @ | + = , -"


def from_path(field: str, raw: str) -> str:
    """Decode an id from a URL path and check it.

    No legal id contains `%`, so decoding here gives the same answer whether or not the gateway has
    decoded already; what is still encoded after one decode is refused (case H32).
    """
    identifier = unquote(raw)
    if broken := http_problem(identifier):
        raise InvalidInput(Issue(field, broken), where="path parameters")
    return identifier
