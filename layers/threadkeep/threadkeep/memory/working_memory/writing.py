"""Writing working memory so that no update is lost: read, change, write if nobody else did, else again (case H09).

::

    writer A    read v1 ──── merge a ──── write v2 if v1 ✓
    writer B    read v1 ──── merge b ──── write v2 if v1 ✗ (meets v2) ──── merge b ──── write v3 if v2 ✓

The change is computed anew on what the failed write met, so that both stay. That comes back with the failure
and is fresh for as long as a request takes, so the next write follows at once: two writers need no more. Whoever
loses twice is one of many. It pauses, for up to twice as long each time, and reads again, as what it met is stale
by then; a pause without that read costs more than it saves. `docs/benchmarks.md` has the requests that it takes.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from threadkeep.errors import PreconditionFailed, VersionMismatch
from threadkeep.storage.port import MemoryMoved, MemoryTarget, MemoryWrite, Storage, Thread, WorkingMemory

ATTEMPTS = 200  # each lost one means that another writer won; more is a runaway
# Measured with requests of 5 to 20 ms: a shorter pause only adds rounds that ten writers lose; the cap is what lets
# 200 writers through a store that answers 300 requests a second.
_BASE_SECONDS, _CAP_SECONDS = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class Written:
    """`memory` is what stands there now, made from version `read`; `attempts` counts the writes that were sent.

    Nothing was written where `memory.version` is `read`: the change left the text as it was.
    """

    memory: WorkingMemory
    read: int
    attempts: int


async def changed(
    storage: Storage,
    target: MemoryTarget,
    change: Callable[[str], str],
    *,
    writer: str,
    known: WorkingMemory | None = None,
    thread: Thread | None = None,
    expected: int | None = None,
    match: int | None = None,
    seconds: float = math.inf,
) -> Written:
    """Apply `change` to the stored text, on top of whatever others write meanwhile.

    `change` is pure and may raise; it is called for each attempt. `known` is what the caller has read already;
    that a text needs no change is judged by a fresh read. With `expected` (a version that the caller names) or
    `match` (the one of its If-Match) only that version is changed. Raises `VersionMismatch` (409) for another
    `expected` version, or if other writers won 200 times, or for so many `seconds`; `PreconditionFailed` (412)
    for another `match`, `NotFound`, `ThreadGone`, `StoreUnavailable`.
    """
    ends = asyncio.get_running_loop().time() + seconds
    current = await storage.get_working_memory(target) if known is None else known
    for attempt in range(ATTEMPTS):
        _check(current, expected, match)
        text = change(current.text)
        if text == current.text and current is known:  # as it was when the caller read it
            current = await storage.get_working_memory(target)
            _check(current, expected, match)
            text = change(current.text)
        if text == current.text:
            return Written(current, current.version, attempt)
        try:
            memory = await storage.put_working_memory(MemoryWrite(target, text, current, writer, thread))
            return Written(memory, current.version, attempt + 1)
        except MemoryMoved as moved:
            current = moved.current
        left = ends - asyncio.get_running_loop().time()
        if left <= 0:
            break
        if attempt:
            await _pause(attempt - 1, left)
            current = await storage.get_working_memory(target)
    raise VersionMismatch(current.version, "Working memory is too busy: other writers kept winning; try again")


async def _pause(earlier: int, left: float) -> None:
    """Sleep with full jitter, for twice as long as the pause before at most, and no longer than there is time left."""
    await asyncio.sleep(min(left, random.uniform(0, min(_CAP_SECONDS, _BASE_SECONDS * 2**earlier))))


def _check(current: WorkingMemory, expected: int | None, match: int | None) -> None:
    if expected not in (None, current.version):
        raise VersionMismatch(current.version)
    if match not in (None, current.version):
        raise PreconditionFailed(current.version)
