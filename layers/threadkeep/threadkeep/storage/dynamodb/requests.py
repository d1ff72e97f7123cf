"""Queries and actions that several parts of the adapter send."""

from typing import TYPE_CHECKING, Any

from threadkeep.clock import Millis
from threadkeep.storage.dynamodb import items, keys
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.port import Direction, MemoryTarget, NewThread, Origin, Thread, WorkingMemory

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item

Action = dict[str, dict[str, Any]]

NEW = {"ConditionExpression": "attribute_not_exists(pk)"}
_ALIVE = "resourceId = :owner AND createdAt = :born AND #state = :ready"


def prefix(pk: str, sk: str, direction: Direction) -> dict[str, Any]:
    """A consistent Query of the items of a partition whose sort keys begin with `sk`."""
    return _query("pk = :pk AND begins_with(sk, :sk)", {":pk": text(pk), ":sk": text(sk)}, direction)


def partition(pk: str) -> dict[str, Any]:
    """A consistent Query of a whole partition."""
    return _query("pk = :pk", {":pk": text(pk)}, "ASC")


def between(pk: str, first: str, last: str, direction: Direction) -> dict[str, Any]:
    """A consistent Query of the items of a partition with sort keys from `first` to `last`."""
    values = {":pk": text(pk), ":first": text(first), ":last": text(last)}
    return _query("pk = :pk AND sk BETWEEN :first AND :last", values, direction)


def index(name: str, pk: str, direction: Direction) -> dict[str, Any]:
    """A Query of an index, which may lag behind the table."""
    return {
        "IndexName": f"{name}-index",
        "KeyConditionExpression": f"{name}pk = :pk",
        "ExpressionAttributeValues": {":pk": text(pk)},
        "ScanIndexForward": direction == "ASC",
    }


def _query(condition: str, values: "Item", direction: Direction) -> dict[str, Any]:
    return {
        "KeyConditionExpression": condition,
        "ExpressionAttributeValues": values,
        "ScanIndexForward": direction == "ASC",
        "ConsistentRead": True,
    }


def if_alive(thread: Thread, change: str, values: "Item | None" = None, *, also: str = "") -> Action:
    """An Update of a thread that only happens while it is the same thread and ready."""
    update = _alive(thread)
    if also:
        update["ConditionExpression"] += f" AND {also}"
    update["ExpressionAttributeValues"] |= values or {}
    return {"Update": update | {"UpdateExpression": change, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}}


def is_alive(thread: Thread) -> Action:
    """The check that a thread is the same thread and ready."""
    return {"ConditionCheck": _alive(thread)}


def not_deleting(thread_id: str) -> Action:
    """The check that a thread is not being deleted; it need not be there."""
    return {
        "ConditionCheck": {
            "Key": items.thread_key(thread_id),
            "ConditionExpression": "attribute_not_exists(pk) OR #state <> :deleting",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {":deleting": text(items.DELETING)},
        }
    }


def is_ready(thread_id: str) -> Action:
    """The check that a thread is there, whosever it is, and not being deleted."""
    return {
        "ConditionCheck": {
            "Key": items.thread_key(thread_id),
            "ConditionExpression": "#state = :ready",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {":ready": text(items.READY)},
        }
    }


def link(new: NewThread, origin: Origin, created_at: Millis) -> list[Action]:
    """Make a sub-agent's thread known to the resource for which it works and to the thread that it came from.

    The check that this thread is there, and that resource's, is the first action, if there is a thread.
    """
    known: Action = {"Put": {"Item": items.key(keys.resource(origin.resource_id), keys.sub(origin.key))}}
    if origin.thread_id is None:
        return [known]
    identity = {"threadId": text(new.id), "resourceId": text(new.resource_id), "createdAt": number(created_at)}
    parent = {
        "Key": items.thread_key(origin.thread_id),
        "ConditionExpression": "resourceId = :owner AND #state = :ready",
        "ExpressionAttributeNames": {"#state": "state"},
        "ExpressionAttributeValues": {":owner": text(origin.resource_id), ":ready": text(items.READY)},
    }
    entry = items.key(keys.thread(origin.thread_id), keys.sub(new.id)) | identity
    return [{"ConditionCheck": parent}, {"Put": {"Item": entry}}, known]


def _alive(thread: Thread) -> dict[str, Any]:
    return {
        "Key": items.thread_key(thread.id),
        "ConditionExpression": _ALIVE,
        "ExpressionAttributeNames": {"#state": "state"},
        "ExpressionAttributeValues": {
            ":owner": text(thread.resource_id),
            ":born": number(thread.created_at),
            ":ready": text(items.READY),
        },
    }


def remember(target: MemoryTarget, read: WorkingMemory, after: WorkingMemory, thread: Thread | None = None) -> Action:
    """Write a working memory, if its version still is the one that was read; a thread's needs that thread."""
    condition: dict[str, Any] = NEW
    if read.version:
        condition = {
            "ConditionExpression": "version = :read",
            "ExpressionAttributeValues": {":read": number(read.version)},
        }
    put = {"Item": items.memory_item(target, after, thread), **condition}
    return {"Put": put | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}}


def rewrite(stored: Thread, after: Thread) -> Action:
    """Bring a thread's row from what was read to what it shall be, if nothing has changed it since."""
    old, new = items.thread_item(stored), items.thread_item(after)
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    change = "SET " + ", ".join(f"{name} = :{name}" for name in changed)
    values = {f":{name}": value for name, value in changed.items()} | {":loaded": number(stored.version)}
    return if_alive(stored, change, values, also="version = :loaded")


def directory_key(thread: Thread) -> "Item":
    return items.key(keys.resource(thread.resource_id), keys.directory(thread.created_at, thread.id))


def enter(thread: Thread) -> list[Action]:
    """List a thread among its owner's, and count it."""
    entry = directory_key(thread) | {"threadId": text(thread.id)}
    return [{"Put": {"Item": entry}}, _count(thread.resource_id, 1)]


def leave(thread: Thread) -> list[Action]:
    """Take a thread off its owner's list and count."""
    return [{"Delete": {"Key": directory_key(thread)}}, _count(thread.resource_id, -1)]


def _count(resource_id: str, by: int) -> Action:
    return {
        "Update": {
            "Key": items.key(keys.resource(resource_id), keys.SELF),
            "UpdateExpression": "ADD threadCount :by",
            "ExpressionAttributeValues": {":by": number(by)},
        }
    }
