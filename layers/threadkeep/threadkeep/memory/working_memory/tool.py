"""The tool with which a model updates working memory, as the model sees it (WM-8, WM-9, VN-1, SS-1)."""

from dataclasses import dataclass

from threadkeep import jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.working_memory.form import form_of
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.schema import Schema
from threadkeep.memory.working_memory.vnext import APPEND, REASONS

ID = "update-working-memory"
NAME, SIGNAL_NAME = "updateWorkingMemory", "setWorkingMemory"
_SHARED = ("$defs", "definitions")  # references find these at the root, wherever they stand

_TEXT = (
    "Save what you know, for later turns. The text you send takes the place of all that is stored: whatever you "
    "leave out is lost. Send the complete text in `memory`, as one string in Markdown and never as an object."
)
_FIELDS = (
    "Save what you have learned, for later turns. `memory` is merged into what is stored: send only the fields that "
    "change and leave out the rest, which stays. Set a field to null to delete it. A list takes the place of the "
    "stored list, so send it whole."
)
_PASSAGE = (
    "Save one new piece of information, or correct one. `newMemory` is appended; to replace a passage instead, quote "
    "it exactly in `searchString` and say why in `updateReason`. All other text stays as it is."
)
_SIGNAL = (
    " The current content reaches you in a `<working-memory>` block, which the system writes: do not write such a "
    "block yourself."
)


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How a tool is offered; `parameters` is a JSON Schema."""

    name: str
    id: str
    description: str
    parameters: dict[str, Json]


def tool_form(options: WorkingMemoryOptions) -> ToolForm:
    """The tool for these options. Its arguments are checked by `updates.by_tool`, not by this schema."""
    name, more = (SIGNAL_NAME, _SIGNAL) if options.use_state_signals else (NAME, "")
    schema = form_of(options).schema
    if schema is not None:
        return ToolForm(name, ID, _FIELDS + more, _of_fields(schema))
    description, parameters = (_PASSAGE, _passage()) if options.vnext else (_TEXT, _text())
    return ToolForm(name, ID, description + more, parameters)


def _text() -> Schema:
    memory = {"type": "string", "description": "The complete Markdown text"}
    return {"type": "object", "properties": {"memory": memory}, "required": ["memory"]}


def _passage() -> Schema:
    return {
        "type": "object",
        "properties": {
            "newMemory": {"type": "string", "description": "The new text, in Markdown"},
            "searchString": {"type": "string", "description": "The stored passage to replace, quoted exactly"},
            "updateReason": {"type": "string", "enum": list(REASONS), "default": APPEND},
        },
    }


def _of_fields(schema: Schema) -> Schema:
    """An object with the schema as its property `memory`; references inside it find what they did before."""
    inner = {key: _moved(value) for key, value in schema.items() if key not in (*_SHARED, "$schema", "$id")}
    shared = {key: _moved(schema[key]) for key in _SHARED if key in schema}
    return {"type": "object", "properties": {"memory": inner}, "required": ["memory"]} | shared


def _moved(schema: Json) -> Json:
    items = jsontext.as_array(schema)
    if items is not None:
        return [_moved(item) for item in items]
    fields = jsontext.as_object(schema)
    if fields is None:
        return schema
    moved = {key: _moved(value) for key, value in fields.items()}
    ref = fields.get("$ref")
    if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")) and not ref[2:].startswith(_PREFIXES):
        moved["$ref"] = "#/properties/memory" + ref[1:]
    return moved


_PREFIXES = tuple(f"{name}/" for name in _SHARED)
