"""What a record of the table's stream asks for: the stream drives everything that happens after a write."""

from dataclasses import dataclass
from typing import Any, Literal

from threadkeep.storage.dynamodb import items, keys


@dataclass(frozen=True, slots=True)
class Task:
    """Work for `after_turn`: finish a turn (with `run_id`), purge a deleted thread, or finish a copy."""

    kind: Literal["finish_turn", "purge", "clone"]
    thread_id: str
    run_id: str = ""

    @property
    def group(self) -> str:
        """Tasks of one group are done one after another."""
        return keys.thread(self.thread_id)


def task_of(record: dict[str, Any]) -> Task | None:
    """The task that a stream record asks for, or None.

    A new job asks to be done; a thread that has become a tombstone asks for the removal of its rest, also
    when it is touched because a part of that is done; a new thread that waits for its messages asks that
    they be copied.
    """
    image = record["dynamodb"].get("NewImage")
    if image is None:
        return None
    pk, sk = items.get_text(image, "pk"), items.get_text(image, "sk")
    if sk.startswith(keys.JOB) and record["eventName"] == "INSERT":
        return Task("finish_turn", keys.thread_of(pk), keys.decode(sk.removeprefix(keys.JOB)))
    state = items.get_text(image, "state") if pk.startswith("T#") and sk == keys.SELF else ""
    if state == items.DELETING:
        return Task("purge", keys.thread_of(pk))
    if state == items.CLONING and record["eventName"] == "INSERT":
        return Task("clone", keys.thread_of(pk))
    return None


def unused_blob(record: dict[str, Any]) -> str | None:
    """The body in the bucket to which the item of a stream record pointed, and points no more."""
    images = record["dynamodb"]
    old, new = (items.get_text(images.get(name) or {}, "blob") for name in ("OldImage", "NewImage"))
    return old if old and old != new else None
