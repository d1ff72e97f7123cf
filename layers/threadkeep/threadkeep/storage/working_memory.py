"""Rules of stored working memory that need no store: the next record, stale seeds, copies, and the view."""

from dataclasses import replace
from hashlib import sha256

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.errors import TooLarge
from threadkeep.storage import rules
from threadkeep.storage.port import MemoryRevision, MemorySeed, MemoryTarget, MemoryWrite, Thread, WorkingMemory

REVISIONS = 8  # of a working memory that are remembered, the current one among them
SEEDS = 8


def written(current: WorkingMemory, text: str, writer: str, now: Millis) -> WorkingMemory:
    """The record after a write. Raises `TooLarge` if it does not fit an item."""
    text, writer = jsontext.valid(text), jsontext.valid(writer)
    revision = MemoryRevision(current.version + 1, now, writer, digest(text))
    past = (revision, *current.past)[:REVISIONS]
    size = sum(len(part.encode()) for part in (text, *(r.writer for r in past)))
    if size > rules.MAX_BODY_BYTES:
        raise TooLarge(f"A working memory may have {rules.MAX_BODY_BYTES} bytes, received {size}")
    return replace(current, text=text, version=revision.version, past=past)


def seeded(current: WorkingMemory, seed: MemorySeed, now: Millis) -> WorkingMemory:
    """The record after a seed; the current one itself if the seed is stale (M-DISC-6). Raises `TooLarge`."""
    mark = digest(jsontext.valid(seed.text))
    if mark in current.seeds or mark in {revision.digest for revision in current.past}:
        return current
    return replace(written(current, seed.text, seed.writer, now), seeds=(mark, *current.seeds)[:SEEDS])


def copied(source: WorkingMemory, source_id: str, now: Millis) -> WorkingMemory:
    """The first version of the memory of a thread's copy; what is stale for the source is for the copy (TH-11)."""
    if not source.text:
        return WorkingMemory()
    return replace(written(WorkingMemory(), source.text, _copier(source_id), now), seeds=source.seeds)


def overwritten(current: WorkingMemory, source: WorkingMemory, source_id: str, now: Millis) -> WorkingMemory:
    """A resource's memory after a copy came with another resource's; itself if that changes nothing (TH-11)."""
    if source.text in ("", current.text):
        return current
    return written(current, source.text, _copier(source_id), now)


def _copier(source_id: str) -> str:
    return f"clone of {source_id}"


def digest(text: str) -> str:
    """The SHA-256 of a text in hex."""
    return sha256(text.encode()).hexdigest()


def view(memory: WorkingMemory) -> str | None:
    """What a thread shows of its memory: an empty one is not there (WM-5)."""
    return memory.text or None


def owner(seed: MemorySeed, thread: Thread) -> MemoryTarget:
    """Whose memory a seed is for."""
    return MemoryTarget(seed.scope, thread.id if seed.scope == "thread" else thread.resource_id)


def guard(write: MemoryWrite) -> Thread | None:
    """The thread that must be there for a write. Raises `ValueError` if the memory of a thread comes without it."""
    if write.target.scope == "thread" and (write.thread is None or write.thread.id != write.target.id):
        raise ValueError("a write to the memory of a thread needs that thread")
    return write.thread
