"""The form of a working memory: the Markdown template or the JSON Schema that it follows (WM-3, WM-4)."""

from dataclasses import dataclass
from typing import Literal

from threadkeep import jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.working_memory import schema as schema_of
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.schema import Schema

DEFAULT_TEMPLATE = "\n".join(
    (
        "# User Information",
        *(
            f"- **{label}**:"
            for label in (
                "First Name",
                "Last Name",
                "Location",
                "Occupation",
                "Interests",
                "Goals",
                "Events",
                "Facts",
                "Projects",
            )
        ),
    )
)
_NODES = 500  # of an empty object; a schema of a few lines can describe one of millions

Format = Literal["markdown", "json"]
_EMPTY: dict[str, Json] = {"string": "", "array": [], "number": 0, "integer": 0, "boolean": False}


@dataclass(frozen=True, slots=True)
class Form:
    """`content` is the template, or the JSON Schema as JSON text; `schema` the latter as an object."""

    format: Format
    content: str
    schema: Schema | None = None


def form_of(options: WorkingMemoryOptions) -> Form:
    """What the memory of these options looks like. A template is trimmed; a blank one is the default (WM-3)."""
    if options.json_schema is not None:
        schema = schema_of.shown(options.json_schema)
        return Form("json", jsontext.dumps(schema), schema)
    return Form("markdown", (options.template or "").strip() or DEFAULT_TEMPLATE)


def empty_value(schema: Schema) -> dict[str, Json] | None:
    """An empty object of the schema (WM-24): each property's default, or the empty value of its type.

    None if the root describes no object. References are followed, and of several alternatives the only one that
    is not null; where that has no end, or after 500 properties, the value is null.
    """
    return jsontext.as_object(_Filling(schema).of(schema, ()))


class _Filling:
    def __init__(self, root: Schema):
        self.root = root
        self.nodes = 0

    def of(self, schema: Json, through: tuple[str, ...]) -> Json:
        node = jsontext.as_object(schema) or {}
        self.nodes += 1
        if node.get("default") is not None:
            return node["default"]
        if self.nodes > _NODES:
            return None
        if (inner := schema_of.referred(node, self.root)) is not None:
            ref = str(node["$ref"])
            return None if ref in through else self.of(inner, (*through, ref))
        if (inner := schema_of.only_alternative(node)) is not None:
            return self.of(inner, through)
        kind = node.get("type")
        if kind == "object" or (kind is None and "properties" in node):
            fields = jsontext.as_object(node.get("properties")) or {}
            return {key: self.of(field, through) for key, field in fields.items()}
        return _EMPTY.get(kind) if isinstance(kind, str) else None
