"""Updates of version "vnext": the model appends to a Markdown memory or replaces passages of it (VN-1 to VN-5)."""

from dataclasses import dataclass

from threadkeep import jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.working_memory.invalid import Invalid
from threadkeep.storage.port import MemoryScope

APPEND, CLARIFY, REPLACE = REASONS = ("append-new-memory", "clarify-existing-memory", "replace-irrelevant-memory")


@dataclass(frozen=True, slots=True)
class Passage:
    """`text` is new; it takes the place of `search`, or is appended where that is empty."""

    text: str
    search: str
    reason: str


def read(args: dict[str, Json]) -> Passage:
    """The arguments of the tool, all optional; null counts as absent (VN-1). Raises `Invalid` naming each bad one."""
    given = {name: args.get(name) for name in ("newMemory", "searchString", "updateReason")}
    problems = {
        name: f"expected a string, received {jsontext.kind(value)}"
        for name, value in given.items()
        if not isinstance(value, str | None)
    }
    reason = given["updateReason"] or APPEND
    if "updateReason" not in problems and reason not in REASONS:
        problems["updateReason"] = f"expected one of {', '.join(REASONS)}"
    if problems:
        raise Invalid(problems)
    text, search = (jsontext.valid(given[name] or "") for name in ("newMemory", "searchString"))
    return Passage(text, "" if reason == APPEND else search, reason)


def applied(template: str, scope: MemoryScope, stored: str, passage: Passage) -> tuple[str | None, str]:
    """The new text, None if nothing is to be written, and why (VN-2 to VN-5)."""
    if passage.reason == REPLACE and scope == "resource":
        return None, "what is known of a resource is never irrelevant; use clarify-existing-memory to correct it"
    if passage.reason != APPEND and not passage.search:
        return None, f"{passage.reason} needs a searchString, the passage to replace"
    text, reason = _placed(template, stored, passage)
    return (None if text is None else _without(template, text)), reason


def _placed(template: str, stored: str, passage: Passage) -> tuple[str | None, str]:
    if passage.search and passage.search in stored:
        return stored.replace(passage.search, passage.text, 1), "replaced the passage"
    if collapsed(passage.text) == collapsed(template):
        return None, "newMemory is the empty template; send what is new"
    if not passage.text.strip() or passage.text in stored:
        return None, "duplicate: the memory has this already"
    if not stored:
        return passage.text, "started new memory"
    appended = f"{stored}\n{passage.text}"
    return appended, "the searchString was not found; appended instead" if passage.search else "appended"


def _without(template: str, text: str) -> str:
    """The text without copies of the bare template that stand on lines of their own."""
    lines, bare = text.split("\n"), template.split("\n")
    kept: list[str] = []
    place = 0
    while place < len(lines):
        if lines[place : place + len(bare)] == bare:
            place += len(bare)
        else:
            kept.append(lines[place])
            place += 1
    return "\n".join(kept)


def collapsed(text: str) -> str:
    """The text with each run of white space as one space."""
    return " ".join(text.split())
