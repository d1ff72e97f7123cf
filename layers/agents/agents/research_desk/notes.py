"""What the desk knows: the Markdown files in `notes`, and a search for words in them. Put your own there."""

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from threadkeep import tool

FOUND = 3  # notes in one answer
_STEM = 6  # words are alike if they begin alike: "decoheres", "decoherence"
_SHORT = 3  # letters that a word needs to count


@dataclass(frozen=True, slots=True)
class Note:
    """One file. `stems` are the beginnings of its words, those of the title three times."""

    name: str
    title: str
    text: str
    stems: tuple[str, ...]


def stems(text: str) -> tuple[str, ...]:
    return tuple(word[:_STEM] for word in re.findall(r"\w+", text.lower()) if len(word) >= _SHORT)


@cache
def notes() -> tuple[Note, ...]:
    """The notes by name, read once."""
    return tuple(_read(path) for path in sorted((Path(__file__).parent / "notes").glob("*.md")))


def _read(path: Path) -> Note:
    head, _, text = path.read_text().partition("\n")
    title = head.lstrip("# ")
    return Note(path.stem, title, text.strip(), (*stems(title) * 3, *stems(text)))


def ranked(query: str) -> list[Note]:
    """The notes that hold a word of the query, best first: what few notes hold counts more than what many do."""
    wanted, known = set(stems(query)), notes()
    weights = {stem: math.log(1 + len(known) / n) for stem in wanted if (n := sum(stem in k.stems for k in known))}
    scores = {note: sum(w * math.log1p(note.stems.count(s)) for s, w in weights.items()) for note in known}
    return sorted((note for note in known if scores[note]), key=lambda note: -scores[note])


@tool
def search_notes(query: str) -> list[dict[str, str]]:
    """Search the notes of the desk for words. Gives the best three, each with its name, which is its source."""
    return [{"source": note.name, "title": note.title, "text": note.text} for note in ranked(query)[:FOUND]]
