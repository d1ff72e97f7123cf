"""Versions as entity tags: `ETag` in replies, `If-Match` in requests (RFC 9110)."""

import re
from collections.abc import Mapping

from threadkeep.errors import InvalidInput, Issue, PreconditionFailed

_TAGS = re.compile(r'[\s,]*(?:"[\x21\x23-\x7e]*"\s*(?:,[\s,]*|$))+')


def tag(version: int) -> str:
    """The entity tag of a version: `"3"`."""
    return f'"{version}"'


def check(headers: Mapping[str, str], version: int) -> int | None:
    """The version that a write may replace according to `If-Match`; None where it may replace any.

    `*` wants something that was written before. Raises `PreconditionFailed` where the header names other
    versions than this, `InvalidInput` where it is no list of strong tags: weak ones never match.
    """
    given = headers.get("if-match")
    if given is None:
        return None
    if given.strip() == "*":
        return _met(None, version > 0, version)
    if not _TAGS.fullmatch(given):
        issue = Issue("If-Match", 'must be * or a list of strong entity tags such as "3"')
        raise InvalidInput(issue, where="headers")
    return _met(version, tag(version) in re.findall(r'"[^"]*"', given), version)


def _met(may_replace: int | None, condition: bool, version: int) -> int | None:
    if not condition:
        raise PreconditionFailed(version)
    return may_replace
