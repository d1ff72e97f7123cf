"""`WorkingMemoryState`: working memory told where it changes, not in each prompt's system text (SS-1 to SS-7)."""

import difflib
import hashlib
import re
from collections.abc import Iterator
from typing import Literal

from threadkeep.storage.port import MemoryScope
from threadkeep.turn.processors.base import Processor, ProcessorCall
from threadkeep.turn.signals import StateSignal, StateWindow

MAX_DELTA_LINES = 2_000  # a longer text is told whole: comparing it would take its time

_TAG = "working-memory"
_HEADER = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


class WorkingMemoryState(Processor):
    """Tells the model the run's working memory: whole where it has no copy in its window, then what changed.

    It judges by the newest copy in the window, and before each model call, so that a write shows in the
    next step. An empty memory is told only where the window holds a copy that says otherwise. JSON is
    always told whole.
    """

    id = "working-memory-state"
    name = "WorkingMemoryState"
    state_id = "working-memory"

    def __init__(self, format: Literal["markdown", "json"], scope: MemoryScope):
        self.format = format
        self.scope = scope

    def compute_state_signal(self, state: StateWindow, call: ProcessorCall) -> StateSignal | None:
        memory, latest = call.facts.memory, state.latest
        if memory is None:
            return None
        value, attributes = memory.current.text.strip(), {"format": self.format, "scope": self.scope}
        told = latest is not None and {k: latest.attributes.get(k) for k in attributes} == attributes
        key = cache_key(self.format, value)
        if latest is None or not told:
            return self._snapshot(value, key, attributes) if value or latest is not None else None
        if latest.cache_key == key:
            return None
        delta = unified_diff(latest.value, value) if self.format == "markdown" and value else None
        if delta is None:
            return self._snapshot(value, key, attributes)
        shown = attributes | {"patch": "unified-diff"}
        return StateSignal(self.state_id, "delta", key, delta, value, _TAG, shown)

    def _snapshot(self, value: str, key: str, attributes: dict[str, str]) -> StateSignal:
        return StateSignal(self.state_id, "snapshot", key, value, value, _TAG, dict(attributes))


def cache_key(format: str, value: str) -> str:
    """`sha256:` and the hex digest of the format, a NUL byte and the trimmed value (SS-3)."""
    return "sha256:" + hashlib.sha256(f"{format}\0{value.strip()}".encode(errors="surrogatepass")).hexdigest()


def unified_diff(before: object, after: str) -> str | None:
    """What changed, as hunks without context and without file headers (SS-5).

    None where `before` is no text, both say the same line by line, or there are too many lines to compare.
    """
    if not isinstance(before, str):
        return None
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MAX_DELTA_LINES:
        return None
    return "\n".join(_hunks(old, new)) or None


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    lines = difflib.unified_diff(old, new, n=0, lineterm="")
    for number, line in enumerate(lines):
        if number >= 2:  # the first two name files
            yield _HEADER.sub(_with_counts, line) if line.startswith("@@ ") else line


def _with_counts(header: re.Match[str]) -> str:
    start, count, then, more = header.groups()
    return f"@@ -{start}{count or ',1'} +{then}{more or ',1'} @@"
