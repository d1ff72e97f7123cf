"""JSON Schema: which schemas can be used, and what is wrong with a value.

Schemas come from callers and from deployers. They are never fetched (a `$ref` must stay inside its
schema), and no regular expression in one can take exponential time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from threadkeep import jsontext
from threadkeep.jsontext import Json

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

_EXCERPT = 200  # characters of a reason: it may repeat the whole value


def unusable(schema: Json) -> str | None:
    """The reason why this is no schema that can be used, or None."""
    try:
        _validator(jsontext.dumps(schema))
    except ValueError as error:
        return str(error).partition("\n")[0][:_EXCERPT]
    return None


@dataclass(frozen=True, slots=True)
class Broken:
    """One rule of a schema that a value breaks.

    `path` leads to the value, `place` to the rule in the schema, `keyword` is its name. `names` are the
    properties that the rule misses or does not allow, if it is about names.
    """

    path: tuple[str | int, ...]
    place: tuple[str | int, ...]
    keyword: str
    reason: str
    names: tuple[str, ...] = ()


def problems(schema: Json, value: Json) -> dict[str, str]:
    """What breaks the schema: dotted path (`root` for the whole) to reason; empty if the value is valid.

    Raises `ValueError` for a schema that is `unusable`.
    """
    found: dict[str, list[str]] = {}
    for rule in broken(schema, value):
        found.setdefault(dotted(rule.path), []).append(rule.reason)
    return {path: "; ".join(dict.fromkeys(reasons)) for path, reasons in found.items()}


def dotted(path: Iterable[str | int]) -> str:
    """A path as people write it; `root` for the whole."""
    return ".".join(map(str, path)) or "root"


def broken(schema: Json, value: Json) -> list[Broken]:
    """The rules that the value breaks. Where only one of several alternatives is not null, that one's rules.

    Raises `ValueError` for a schema that is `unusable`.
    """
    errors = _validator(jsontext.dumps(schema)).iter_errors(value)
    return [_broken(inner) for error in errors for inner in _precise(error)]


def _broken(error: "ValidationError") -> Broken:
    kind: Any = error.kind
    match kind.name:
        case "required":
            names = (kind.property,)
        case "additionalProperties" | "unevaluatedProperties":
            names = tuple(kind.unexpected)
        case "propertyNames":
            names = (str(kind.error.instance),)
        case _:
            names = ()
    reason = " or ".join(dict.fromkeys(e.message for branch in _branches(error) for e in branch)) or error.message
    return Broken(tuple(error.instance_path), tuple(error.schema_path), kind.name, reason[:_EXCERPT], names)


def _precise(error: "ValidationError") -> list["ValidationError"]:
    branches = _branches(error)
    return [inner for e in branches[0] for inner in _precise(e)] if len(branches) == 1 else [error]


def _branches(error: "ValidationError") -> list[list["ValidationError"]]:
    """Why each of several alternatives failed, the alternative null left out; empty if one of them did not fail."""
    branches: list[list[ValidationError]] = getattr(error.kind, "context", [])
    return [b for b in branches if not _is_null(b, error)] if all(branches) else []


def _is_null(branch: list["ValidationError"], error: "ValidationError") -> bool:
    return all(e.instance_path == error.instance_path and getattr(e.kind, "types", None) == ["null"] for e in branch)


@lru_cache(maxsize=64)
def _validator(schema: str) -> "Validator":
    import jsonschema_rs

    return jsonschema_rs.validator_for(jsontext.loads(schema), retriever=_refuse)


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema")
