"""JSON in, the same JSON out: the one place that reads and writes JSON text.

Bodies are stored as JSON text, not as DynamoDB numbers and maps, so that `3` stays `3`, `0.1` stays
`0.1` and a 20-digit integer keeps every digit.
"""

import json
import math
from decimal import Decimal
from typing import Any, NoReturn, cast

type_names = {"bool": "boolean", "int": "number", "float": "number", "str": "string", "list": "array", "dict": "object"}

Json = Any  # a JSON value: None, bool, int, float, str, list[Json] or dict[str, Json]

_EXACT_DIGITS = 17  # every binary double survives 17 significant digits
_NO_POINT = str.maketrans("", "", "-.")


def loads(text: str | bytes) -> Json:
    """Parse JSON text.

    Raises `ValueError` for text that is not JSON, for NaN and Infinity, and for a decimal number that
    a double cannot hold, rather than rounding it in silence.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_exact_float)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dumps(value: Json) -> str:
    """Write compact JSON text; a lone surrogate is replaced, NaN and Infinity raise `ValueError`."""
    return valid(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def valid(text: str) -> str:
    """The text with lone surrogates replaced and pairs of them joined, so that it can be sent as UTF-8 (case H24)."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def sendable(value: Any) -> Any:
    """The same arrays and objects with every text `valid`; for clients that write JSON themselves."""
    match value:
        case str():
            return value if value.isascii() else valid(value)
        case dict():
            return {sendable(key): sendable(item) for key, item in cast(dict[Any, Any], value).items()}
        case list():
            return [sendable(item) for item in cast(list[Any], value)]
        case _:
            return value


def depth(value: Json) -> int:
    """How deeply arrays and objects are nested: 0 for a scalar. Takes no stack, however deep the value is."""
    deepest, level = 0, [value]
    while level:
        inner: list[Json] = []
        for found in level:
            inner += as_array(found) or list((as_object(found) or {}).values())
        deepest += any(isinstance(found, list | dict) for found in level)
        level = inner
    return deepest


def same(one: Json, other: Json) -> bool:
    """Whether two JSON values are equal, at any depth: `true` is not `1`, the order of keys does not matter."""
    ones, others = as_object(one), as_object(other)
    if ones is not None and others is not None:
        return ones.keys() == others.keys() and all(same(ones[key], others[key]) for key in ones)
    rows, other_rows = as_array(one), as_array(other)
    if rows is not None and other_rows is not None:
        return len(rows) == len(other_rows) and all(map(same, rows, other_rows))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def kind(value: Json) -> str:
    """The JSON name of a value's type, for error messages."""
    if value is None:
        return "null"
    name: str = type(value).__name__
    return type_names.get(name, name)


def as_object(value: Json) -> dict[str, Json] | None:
    """The value if it is a JSON object, else None."""
    return cast(dict[str, Json], value) if isinstance(value, dict) else None


def as_array(value: Json) -> list[Json] | None:
    """The value if it is a JSON array, else None."""
    return cast(list[Json], value) if isinstance(value, list) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _exact_float(text: str) -> float:
    number = float(text)
    mantissa = text.lower().partition("e")[0]
    digits = mantissa.translate(_NO_POINT).strip("0")
    if math.isinf(number) or (number == 0 and digits):
        raise ValueError(f"the number {text[:24]} is out of range")
    if len(digits) > _EXACT_DIGITS and Decimal(number) != Decimal(text):
        raise ValueError(f"the number {text[:24]}... has more digits than can be kept")
    return number
