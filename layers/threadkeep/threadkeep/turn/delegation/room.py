"""How much of what sub-agents bring goes into their supervisor's answer, which is one stored message (DEL-3).

All of it is in the sub-agents' own threads, and a hook is told all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from threadkeep import jsontext
from threadkeep.jsontext import Json

ANSWER = 3_500_000  # bytes of JSON for the results of one run, of the 5,000,000 of a message
TEXT = 1_000_000  # for the text of one delegation
RESULTS = 50_000  # for the results of its tools

_LEFT_OUT = "Left out: {} bytes, which are stored in the sub-agent's thread"
_CUT = "\n\n[Cut: these are {} of {} characters]"


@dataclass
class Room:
    """What is left in the answer of one run."""

    left: int = ANSWER

    def text(self, text: str) -> str:
        """The text, or as much of its beginning as there is room for, with a note that says so."""
        room, size = min(TEXT, self.left), _size(text)
        if size > room:
            kept = text.encode()[: max(room - 2, 0) * len(text.encode()) // size].decode(errors="ignore")
            while kept and _size(kept) > room:  # where what is escaped stands at the beginning
                kept = kept[: len(kept) * 3 // 4]
            text = kept + _CUT.format(len(kept), len(text))
        self.left = max(self.left - _size(text), 0)
        return text

    def results(self, results: Sequence[dict[str, Json]]) -> list[Json]:
        """The results of a sub-agent's tools; of one that there is no room for its size."""
        room, kept = min(RESULTS, self.left), list[Json]()
        for result in results:
            size = _size(result)
            kept.append(result if size <= room else {**result, "args": {}, "result": _LEFT_OUT.format(size)})
            room -= size if size <= room else 0
        self.left = max(self.left - _size(kept), 0)
        return kept


def _size(value: Json) -> int:
    return len(jsontext.dumps(value).encode())
