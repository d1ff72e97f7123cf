"""What people read on a terminal: tables and texts, without anything that could steer it."""

import json
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel


def as_json(value: Any) -> None:
    """For machines: JSON as the API wrote it."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns side by side. On a terminal the last one is cut where the line would not fit."""
    cells = [[_one_line(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        print(line if room is None or len(line) <= room else line[: room - 1] + "…")


def text(content: str, end: str = "\n") -> None:
    """Text as it is in files and pipes; on a terminal without control characters."""
    print(clean(content) if sys.stdout.isatty() else content, end=end, flush=True)


def clean(content: str) -> str:
    """Without control characters but line breaks and tabs: no text of others may move the cursor."""
    return "".join(c for c in content if c in "\n\t" or unicodedata.category(c) != "Cc")


def _one_line(cell: str) -> str:
    return clean(" ".join(cell.split()))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value
