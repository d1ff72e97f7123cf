"""Copies of threads, and what they are copies of (TH-11a).

What a copy knows of its source is in its metadata, under `clone`. These functions check no owner: they
are for programs that may see every thread, and metadata is only as true as those who write it.
"""

from threadkeep import clock, jsontext
from threadkeep.jsontext import Json
from threadkeep.storage.port import Storage, Thread


def clone_origin(thread: Thread) -> dict[str, Json] | None:
    """`{"sourceThreadId", "clonedAt", "lastMessageId"?}` of a copy, None for any other thread."""
    origin = jsontext.as_object((thread.metadata or {}).get("clone")) or {}
    whole = isinstance(origin.get("sourceThreadId"), str) and isinstance(origin.get("clonedAt"), str)
    return origin if whole else None


def is_clone(thread: Thread) -> bool:
    """Whether a thread is a copy."""
    return clone_origin(thread) is not None


async def source_thread(storage: Storage, thread_id: str) -> Thread | None:
    """The thread of which this one is a copy; None if it is none, or if one of the two is gone."""
    thread = await storage.get_thread(thread_id)
    return await _source(storage, thread) if thread else None


async def clones(storage: Storage, source_id: str, resource_id: str | None = None) -> tuple[Thread, ...]:
    """The copies of a thread that a resource owns, by default the source's own owner; none of an unknown thread."""
    source = await storage.get_thread(source_id)
    if source is None:
        return ()
    found = [await storage.get_thread(clone_id) for clone_id in await storage.list_clones(source_id)]
    owner = resource_id or source.resource_id
    return tuple(thread for thread in found if thread and thread.resource_id == owner)


async def clone_history(storage: Storage, thread_id: str) -> tuple[Thread, ...]:
    """The threads from the first source to this copy, both included; none of an unknown thread."""
    history: dict[str, Thread] = {}
    thread = await storage.get_thread(thread_id)
    while thread and thread.id not in history:
        history[thread.id] = thread
        thread = await _source(storage, thread)
    return tuple(reversed(history.values()))


async def _source(storage: Storage, thread: Thread) -> Thread | None:
    """The source, unless another thread has taken its id since the copy was made."""
    origin = clone_origin(thread)
    source = await storage.get_thread(str(origin["sourceThreadId"])) if origin else None
    return source if origin and source and clock.iso(source.created_at) <= str(origin["clonedAt"]) else None
