"""JSON Schema: which schemas can be used, and what is wrong with a value.

Schemas come from callers and from deployers. They are never fetched (a `$ref` must stay inside its
schema), and neither their references (`schemawork`) nor a regular expression can take exponential time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from threadkeep import jsontext, schemawork
from threadkeep.jsontext import Json

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

UNTOLD = ""  # the keyword of what is said of the whole value, where its rules cannot be told one by one

_EXCERPT = 200  # characters of a reason: it may repeat the whole value
_TOLD = 50  # reasons; a model that is told thousands learns no more
_DEEPEST = 128  # levels of a value
_EXPLAINED = 10_000  # steps; telling what is wrong takes far longer than finding that something is
_BACKTRACKS = 20_000  # of one regular expression on one text


def unusable(schema: Json) -> str | None:
    """The reason why this is no schema that can be used, or None."""
    try:
        _validator(jsontext.dumps(schema))
        schemawork.check(schema)
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
    return by_path((dotted(rule.path), rule.reason) for rule in broken(schema, value))


def by_path(reasons: Iterable[tuple[str, str]]) -> dict[str, str]:
    """All that is said of each path; after 50 reasons only how many more there are, at `root`."""
    found: dict[str, list[str]] = {}
    said = list(reasons)
    more = len(said) - _TOLD
    for path, reason in [*said[:_TOLD], *([("root", f"and {more} more")] if more > 0 else ())]:
        found.setdefault(path, []).append(reason)
    return {path: "; ".join(dict.fromkeys(reasons)) for path, reasons in found.items()}


def dotted(path: Iterable[str | int]) -> str:
    """A path as people write it; `root` for the whole."""
    return ".".join(map(str, path)) or "root"


def broken(schema: Json, value: Json) -> list[Broken]:
    """The rules that the value breaks. Where only one of several alternatives is not null, that one's rules.

    A single one, `UNTOLD` and without a path, for a value of more than 128 levels, one that takes too long to
    check (`schemawork`), and one that breaks the schema in more ways than can be told.
    Raises `ValueError` for a schema that is `unusable`.
    """
    validator = _validator(jsontext.dumps(schema))
    if jsontext.depth(value) > _DEEPEST:
        return [_untold(f"may have at most {_DEEPEST} levels")]
    value = jsontext.sendable(value)
    steps = schemawork.steps(schema, value)
    if steps is None:
        return [_untold("takes too long to check against the schema, whose alternatives look alike")]
    if validator.is_valid(value):
        return []
    if steps > _EXPLAINED:
        return [_untold("breaks the schema, and is too large to tell where")]
    return [_broken(inner) for error in validator.iter_errors(value) for inner in _precise(error)]


def _untold(reason: str) -> Broken:
    return Broken((), (), UNTOLD, reason)


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

    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS)
    return jsonschema_rs.validator_for(jsontext.loads(schema), retriever=_refuse, pattern_options=patterns)


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema")
