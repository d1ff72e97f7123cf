"""The schema of a working memory: which ones can be used, and how one is walked beside a value.

A pydantic model is turned into JSON Schema once, when the options are made. Models drop what they do not
know unless they say otherwise; JSON Schema cannot say so, hence the annotation `x-unknown`.
"""

from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from threadkeep import jsontext, schemas, schemawork
from threadkeep.jsontext import Json

MAX_BYTES = 100_000  # of the schema as compact JSON in UTF-8
MAX_DEPTH = 32  # of arrays and objects inside each other, in a schema and in what is stored
UNKNOWN = "x-unknown"  # "ignore": properties that the object does not name are left out of updates
_FOLLOWED = 32  # references in a row; more is a circle

Schema = dict[str, Json]


class _Marked(GenerateJsonSchema):
    """The schema of a model, in which each object that ignores unknown properties says so."""

    def model_schema(self, schema: Any) -> Any:
        return _marked(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> Any:
        return _marked(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> Any:
        return _marked(super().typed_dict_schema(schema))


def _marked(found: Schema) -> Schema:
    return found if "properties" not in found or "additionalProperties" in found else found | {UNKNOWN: "ignore"}


def usable(given: Any) -> Schema:
    """The JSON Schema of what a deployer or a caller gave: a pydantic model or a JSON Schema.

    Raises `ValueError` with the reason for anything else, for a root that describes no object, a reference
    that leaves the schema, more than 100,000 bytes or 32 levels.
    """
    schema = _of_model(given) if isinstance(given, type) else jsontext.as_object(given)
    if schema is None:
        raise ValueError(f"expected a pydantic model or a JSON Schema, received {jsontext.kind(given)}")
    if jsontext.depth(schema) > MAX_DEPTH:
        raise ValueError(f"the schema may have at most {MAX_DEPTH} levels")
    try:
        text = jsontext.dumps(schema)
    except TypeError as error:
        raise ValueError(f"the schema is not JSON: {error}") from error
    if (size := len(text.encode())) > MAX_BYTES:
        raise ValueError(f"the schema may have at most {MAX_BYTES} bytes, received {size}")
    if reason := schemas.unusable(schema):
        raise ValueError(f"the schema cannot be used: {reason}")
    if not _describes_object(resolved(schema, schema)):
        raise ValueError("the root of the schema must describe an object")
    return jsontext.loads(text)


def _of_model(given: type[Any]) -> Schema:
    if not issubclass(given, BaseModel):
        raise ValueError(f"expected a pydantic model or a JSON Schema, received the class {given.__name__}")
    try:
        return given.model_json_schema(schema_generator=_Marked)
    except PydanticUserError as error:
        raise ValueError(f"{given.__name__} has no JSON Schema: {error.message}") from error


def _describes_object(schema: Schema) -> bool:
    return schema.get("type") == "object" or ("type" not in schema and "properties" in schema)


def resolved(schema: Json, root: Schema) -> Schema:
    """What describes a value here: references followed, and the one alternative that is not null."""
    node = jsontext.as_object(schema) or {}
    for _ in range(_FOLLOWED):
        inner = None if "properties" in node else referred(node, root) or only_alternative(node)
        if inner is None:
            return node
        node = inner
    return {}


def referred(node: Schema, root: Schema) -> Schema | None:
    """What the `$ref` of a schema points at inside `root`; None without one, or where it leads nowhere."""
    return jsontext.as_object(schemawork.referred(node.get("$ref"), root))


def only_alternative(node: Schema) -> Schema | None:
    """The alternative that is not null, if there is just one."""
    for keyword in ("anyOf", "oneOf", "allOf"):
        options = [jsontext.as_object(o) or {} for o in jsontext.as_array(node.get(keyword)) or []]
        options = [option for option in options if option.get("type") != "null"]
        if len(options) == 1:
            return options[0]
    return None


def of_property(schema: Schema, key: str) -> Json:
    """What describes one property of an object; None if nothing does. `schema` is `resolved`."""
    return (jsontext.as_object(schema.get("properties")) or {}).get(key, schema.get("additionalProperties"))


def ignores(schema: Schema, key: str) -> bool:
    """Whether the object leaves a property of this name out (pydantic's `extra="ignore"`)."""
    return schema.get(UNKNOWN) == "ignore" and key not in (jsontext.as_object(schema.get("properties")) or {})


def shown(schema: Json) -> Json:
    """The schema as people and models see it, without our annotation."""
    items = jsontext.as_array(schema)
    if items is not None:
        return [shown(item) for item in items]
    fields = jsontext.as_object(schema)
    return schema if fields is None else {k: shown(v) for k, v in fields.items() if (k, v) != (UNKNOWN, "ignore")}
