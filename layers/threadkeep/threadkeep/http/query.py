"""Query strings as data: bracket notation, JSON text, dates (spec-http 1; case H31)."""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.errors import InvalidInput, Issue
from threadkeep.jsontext import Json

MAX_BRACKETS = 4

_BRACKETED = re.compile(rf"([^\[\]]+)((?:\[[^\[\]]*\]){{1,{MAX_BRACKETS}}})")
_DATE = re.compile(r"(?a)\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999
_EXPECTED_MOMENT = "expected a date as ISO 8601 text or milliseconds since 1970"


def nested(query: Mapping[str, Sequence[str]]) -> dict[str, Json]:
    """A query as a tree: `a[b]=c` becomes `{"a": {"b": "c"}}`, `a[]=c` and `a[0]=c` become `{"a": ["c"]}`.

    Of a repeated parameter the last value counts.
    """
    tree: dict[str, Json] = {}
    for name, values in query.items():
        bracketed = _BRACKETED.fullmatch(name)
        path = [bracketed[1], *bracketed[2][1:-1].split("][")] if bracketed else [name]
        if path[-1] == "" and len(path) > 1:
            _put(tree, path[:-1], list(values))
        elif values:
            _put(tree, path, values[-1])
    return {name: _with_arrays(value) for name, value in tree.items()}


def parsed(tree: Mapping[str, Json], json_fields: AbstractSet[str]) -> dict[str, Json]:
    """The tree with the JSON text of these parameters parsed.

    Text that begins like no array or object stays, for the parameter's own type to judge. Raises
    `InvalidInput` naming the parameter whose text is not JSON.
    """
    return {name: _json(name, value) if name in json_fields else value for name, value in tree.items()}


def moment(value: Json) -> Json:
    """Milliseconds since 1970 of ISO 8601 text, or of milliseconds. A time without offset is in UTC.

    Raises `ValueError` for anything else, and outside the years 1 to 9999.
    """
    match value:
        case bool():
            at = None
        case int() | float():
            at = int(value) if value == value // 1 else None
        case str():
            at = _from_text(value)
        case _:
            at = None
    if at is None or not _FIRST <= at <= _LAST:
        raise ValueError(f"{_EXPECTED_MOMENT}, received {value[:40] if isinstance(value, str) else _shown(value)}")
    return at


Moment = Annotated[
    Millis,
    BeforeValidator(moment),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}]}),
]


def _put(tree: dict[str, Json], path: Sequence[str], value: Json) -> None:
    for part in path[:-1]:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    tree[path[-1]] = value


def _with_arrays(value: Json) -> Json:
    """The value with objects whose keys count up from 0 made into arrays."""
    branch = jsontext.as_object(value)
    if not branch:
        return value
    inner = {key: _with_arrays(found) for key, found in branch.items()}
    counted = [str(n) for n in range(len(inner))]
    return [inner[n] for n in counted] if inner.keys() == set(counted) else inner


def _json(name: str, value: Json) -> Json:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return jsontext.loads(value)
    except ValueError as error:
        raise InvalidInput(Issue(name, f"is not JSON: {error}"), where="query parameters") from error


def _from_text(text: str) -> Millis | None:
    if re.fullmatch(r"[0-9]{12,15}", text):  # numbers in a query are text; fewer digits may mean a date
        return int(text)
    try:
        found = datetime.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None
    if found is None:
        return None
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else jsontext.kind(value)
