"""JSON Schema: which schemas can be used, and what is wrong with a value.

Schemas come from callers and from deployers. They are never fetched (a `$ref` must stay inside its
schema), and no regular expression in one can take exponential time.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

from threadkeep import jsontext
from threadkeep.jsontext import Json

if TYPE_CHECKING:
    from jsonschema_rs import Validator

_EXCERPT = 200  # characters of a reason: it may repeat the whole value


def unusable(schema: Json) -> str | None:
    """The reason why this is no schema that can be used, or None."""
    try:
        _validator(jsontext.dumps(schema))
    except ValueError as error:
        return str(error).partition("\n")[0][:_EXCERPT]
    return None


def problems(schema: Json, value: Json) -> dict[str, str]:
    """What breaks the schema: dotted path (`root` for the whole) to reason; empty if the value is valid.

    Raises `ValueError` for a schema that is `unusable`.
    """
    found: dict[str, list[str]] = {}
    for error in _validator(jsontext.dumps(schema)).iter_errors(value):
        path = ".".join(map(str, error.instance_path)) or "root"
        found.setdefault(path, []).append(error.message[:_EXCERPT])
    return {path: "; ".join(dict.fromkeys(reasons)) for path, reasons in found.items()}


@lru_cache(maxsize=64)
def _validator(schema: str) -> "Validator":
    import jsonschema_rs

    return jsonschema_rs.validator_for(jsontext.loads(schema), retriever=_refuse)


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema")
