"""How each error leaves the house: status and JSON body (spec-http section 1)."""

from collections.abc import Sized
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from threadkeep import jsontext
from threadkeep.errors import InvalidInput, Issue, StillRunning, ThreadkeepError, VersionMismatch
from threadkeep.http import versions
from threadkeep.jsontext import Json

_SHOWN = 64  # characters of a refused value that an answer repeats
_PLACES = ("request body", "query parameters", "path parameters", "headers")
_EXPECTED = {
    "string_type": "string",
    "int_type": "integer",
    "int_parsing": "integer",
    "int_from_float": "integer",
    "int_parsing_size": "integer",
    "float_type": "number",
    "float_parsing": "number",
    "finite_number": "finite number",
    "bool_type": "boolean",
    "bool_parsing": "boolean",
    "none_required": "null",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
    "dataclass_type": "object",
    "list_type": "array",
    "tuple_type": "array",
}


def reply(error: ThreadkeepError) -> tuple[int, dict[str, Json]]:
    """Status and body of an error that was raised on purpose. What is our own fault (500) is not explained."""
    if isinstance(error, InvalidInput):
        summary = error.summary if error.where in _PLACES else "Invalid request body"
        issues = [{"field": i.field, "message": i.message} for i in error.issues]
        return error.status, {"error": summary, "issues": issues} if issues else {"error": summary}
    if isinstance(error, VersionMismatch):
        return error.status, {"error": str(error), "version": error.version}
    return error.status, {"error": "Internal error" if error.status == 500 else str(error)}


def headers(error: Exception) -> dict[str, str]:
    """The headers that go with an error: when to come back, or which version is stored."""
    match error:
        case StillRunning():
            return {"retry-after": str(error.retry_after)}
        case VersionMismatch():
            return {"etag": versions.tag(error.version)}
        case _:
            return {}


def invalid(error: ValidationError, given: Json, where: str) -> InvalidInput:
    """Translate pydantic's report about `given` into one issue per field, in the words of the wire."""
    rules: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        found = rules.setdefault(_field(detail, given), [])
        if (message := _message(detail)) not in found:
            found.append(message)
    return InvalidInput(*(Issue(field, " or ".join(found)) for field, found in rules.items()), where=where)


def _field(detail: ErrorDetails, given: Json) -> str:
    """The dotted path as the caller sees it: pydantic also names the members of unions, which are not in the input."""
    path: list[str] = []
    for part in detail["loc"]:
        fields, rows = jsontext.as_object(given), jsontext.as_array(given)
        if fields is not None and part in fields:
            given = fields[str(part)]
        elif rows is not None and isinstance(part, int):
            given = rows[part]
        elif detail["type"] != "missing" or part != detail["loc"][-1]:
            continue
        path.append(str(part))
    return ".".join(path) or "root"


def _message(detail: ErrorDetails) -> str:
    kind, given = detail["type"], detail["input"]
    context: dict[str, Any] = detail.get("ctx", {})
    if expected := _EXPECTED.get(kind):
        return f"expected {expected}, received {jsontext.kind(given)}"
    match kind:
        case "missing":
            return "required, received undefined"
        case "value_error":
            return str(context["error"])
        case "literal_error" | "enum":
            return f"expected {context['expected']}, received {_shown(given)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, received {_shown(given)}"
        case "less_than_equal":
            return f"must be at most {context['le']}, received {_shown(given)}"
        case "string_too_long" | "too_long":
            return f"must have a length of at most {context['max_length']}, received {_length(given)}"
        case "string_too_short" | "too_short":
            return f"must have a length of at least {context['min_length']}, received {_length(given)}"
        case "string_unicode":
            return "must be valid Unicode"
        case _:
            return detail["msg"][:1].lower() + detail["msg"][1:]


def _shown(value: Json) -> str:
    return str(value) if isinstance(value, str | int | float) and len(str(value)) <= _SHOWN else jsontext.kind(value)


def _length(value: Json) -> int | str:
    return len(value) if isinstance(value, Sized) else jsontext.kind(value)
