"""What an update makes of a stored working memory. Pure: the caller reads, and writes what comes back.

Every way in ends here, and `_sized` is the one limit of them all (case H27): the model's tool (`by_tool`), a
whole new text from HTTP, Python or a thread's metadata (`replaced`), a JSON merge patch (`patched`). What must
not be stored raises `Invalid` and leaves everything as it was.
"""

from dataclasses import dataclass

from threadkeep import jsontext, schemas
from threadkeep.jsontext import Json
from threadkeep.memory.working_memory import judging, vnext
from threadkeep.memory.working_memory.form import form_of
from threadkeep.memory.working_memory.invalid import Invalid
from threadkeep.memory.working_memory.merge import merged
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.schema import MAX_DEPTH, Schema


@dataclass(frozen=True, slots=True)
class ToolUpdate:
    """`text` is to be stored, None to write nothing; `result` goes to the model (WM-10)."""

    text: str | None
    result: dict[str, Json]


def replaced(options: WorkingMemoryOptions, stored: str, text: Json) -> str:
    """A whole new text. With a schema it is a JSON object that the schema accepts, or empty, and is kept as it is."""
    if not isinstance(text, str):
        raise Invalid({"root": f"expected a string, received {jsontext.kind(text)}"})
    text = jsontext.valid(text)
    if options.json_schema is None or len(text) > options.max_bytes:
        return _sized(options, text)
    if not text.strip():
        return ""
    value = _shallow(_object(_parsed(text)))
    if found := schemas.broken(options.json_schema, value):
        raise Invalid(judging.reasons(found))
    return _sized(options, text)


def patched(options: WorkingMemoryOptions, stored: str, patch: Json) -> str:
    """The stored object with a JSON merge patch (RFC 7396), judged as the tool's updates are."""
    if options.json_schema is None:
        raise Invalid({"root": "memory of this agent is text; replace it as a whole"})
    update = judging.cleaned(options.json_schema, _shallow(_object(patch)), drop_nulls=False)
    return _merged(options, options.json_schema, stored, update)


def by_tool(options: WorkingMemoryOptions, stored: str, args: Json) -> ToolUpdate:
    """What a call of the model's tool does (WM-9 to WM-12, WM-17, VN-1 to VN-5). No arguments count as none given."""
    given = _object({} if args is None else args)
    if options.json_schema is not None:
        return _by_fields(options, options.json_schema, stored, given)
    if not options.vnext:
        return _by_text(options, stored, given)
    passage = vnext.read(given)
    text, reason = vnext.applied(form_of(options).content, options.scope, stored, passage)
    return ToolUpdate(None if text is None else _sized(options, text), {"success": text is not None, "reason": reason})


def _by_fields(options: WorkingMemoryOptions, schema: Schema, stored: str, given: dict[str, Json]) -> ToolUpdate:
    memory = given.get("memory", given)
    update = jsontext.as_object({} if memory is None else memory)
    if update is None:
        raise Invalid({"root": f"memory: expected an object of fields to change, received {jsontext.kind(memory)}"})
    update = judging.cleaned(schema, _shallow(update), drop_nulls=True)
    if not update:
        return ToolUpdate(None, {"success": True, "message": "No field to change was given; the memory is as it was."})
    return ToolUpdate(_merged(options, schema, stored, update), {"success": True})


def _by_text(options: WorkingMemoryOptions, stored: str, given: dict[str, Json]) -> ToolUpdate:
    memory = given.get("memory")
    if not isinstance(memory, str):
        received = jsontext.kind(memory) if "memory" in given else "nothing"
        raise Invalid({"memory": f"expected a string with the whole text, received {received}"})
    text, template = jsontext.valid(memory), vnext.collapsed(form_of(options).content)
    if vnext.collapsed(text) == template and vnext.collapsed(stored) not in ("", template):
        message = (
            "This is the empty template; it would erase what is known. Send the whole text with all that is known."
        )
        return ToolUpdate(None, {"success": False, "message": message})
    return ToolUpdate(_sized(options, text), {"success": True})


def _merged(options: WorkingMemoryOptions, schema: Schema, stored: str, update: dict[str, Json]) -> str:
    """The stored text with the update: compact JSON, or the very same text if nothing changed (WM-17)."""
    old = stored_object(stored)
    new = merged(old, update)
    if found := judging.refusals(schema, old, update, new):
        raise Invalid(found)
    return stored if jsontext.same(old, new) else _sized(options, jsontext.dumps(new))


def stored_object(stored: str) -> dict[str, Json]:
    """The stored JSON object; empty where the text is something else, or too deep: it counts as absent then (W14)."""
    try:
        found = jsontext.as_object(jsontext.loads(stored)) or {}
    except ValueError:
        return {}
    return found if jsontext.depth(found) <= MAX_DEPTH else {}


def _parsed(text: str) -> Json:
    try:
        return jsontext.loads(text)
    except ValueError as error:
        raise Invalid({"root": f"expected a JSON object, for this memory has a schema: {error}"}) from error


def _object(value: Json) -> dict[str, Json]:
    fields = jsontext.as_object(value)
    if fields is None:
        raise Invalid({"root": f"expected a JSON object, received {jsontext.kind(value)}"})
    return fields


def _shallow(fields: dict[str, Json]) -> dict[str, Json]:
    """The fields as they can be stored: two keys must not become one then (case H24)."""
    if jsontext.depth(fields) > MAX_DEPTH:
        raise Invalid({"root": f"may have at most {MAX_DEPTH} levels"})
    return jsontext.sendable(fields)


def _sized(options: WorkingMemoryOptions, text: str) -> str:
    if (size := len(text.encode())) > options.max_bytes:
        raise Invalid({"root": f"working memory may have at most {options.max_bytes} bytes, this text has {size}"})
    return text
