"""Working memory that comes with a thread's metadata, under the key `workingMemory` (WM-20)."""

from threadkeep import jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.working_memory.invalid import Invalid
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.updates import replaced
from threadkeep.storage.port import MemorySeed

KEY = "workingMemory"


def divided(
    options: WorkingMemoryOptions, metadata: dict[str, Json] | None, writer: str
) -> tuple[dict[str, Json] | None, MemorySeed | None]:
    """Metadata without the key, and the seed that it carried.

    A text, with a schema also an object, is a seed; an empty text and null say nothing. With working memory
    disabled the key is metadata like any other. Raises `Invalid` for another type, or a text that must not be
    stored.
    """
    if metadata is None or KEY not in metadata or not options.enabled:
        return metadata, None
    text = _text(options, metadata[KEY])
    rest = {key: value for key, value in metadata.items() if key != KEY}
    return rest, MemorySeed(options.scope, text, writer) if text else None


def _text(options: WorkingMemoryOptions, value: Json) -> str:
    if value is None:
        return ""
    if isinstance(value, dict) and options.json_schema is not None:
        value = jsontext.dumps(value)
    if not isinstance(value, str):
        expected = "a string" if options.json_schema is None else "an object or its JSON text"
        raise Invalid({"root": f"expected {expected}, received {jsontext.kind(value)}"})
    return replaced(options, "", value)
