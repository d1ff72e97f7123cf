"""A copy of a thread on its way: what is to be copied, how far it got, and the writes that take it further."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.jsontext import Json
from threadkeep.storage import rules, working_memory
from threadkeep.storage.dynamodb import items, requests
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.order import order_key, place
from threadkeep.storage.port import MemoryTarget, Thread, WorkingMemory

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages of which thread are copied: `first` and `last` are orders, `seq` was its newest number.

    `memory_of` is the resource whose working memory is copied too: the source's owner when the copy was asked for.
    """

    source_id: str
    born: Millis
    seq: int
    first: str
    last: str
    ids: frozenset[str] | None
    memory_of: str | None = None

    def takes(self, row: "Item") -> bool:
        if place(items.get_text(row, "order")).seq > self.seq:
            return False
        return self.ids is None or items.get_text(row, "id") in self.ids

    def to_json(self) -> Json:
        ids = None if self.ids is None else sorted(self.ids)
        return [self.source_id, self.born, self.seq, self.first, self.last, ids, self.memory_of]

    @classmethod
    def from_json(cls, value: Json) -> "Selection":
        source_id, born, seq, first, last, ids, *memory_of = value  # rows of older versions end with the ids
        return cls(source_id, born, seq, first, last, None if ids is None else frozenset(ids), *memory_of)


@dataclass(frozen=True, slots=True)
class Copying:
    """A copy on its way. `cursor` is the order of the source's message that was copied last, `last_id` its id."""

    thread: Thread
    selection: Selection
    cursor: str = ""
    last_id: str | None = None


def row_of(copying: Copying) -> "Item":
    """The row of a copy on its way: in no list, and not ready for anything else."""
    row = items.thread_item(copying.thread)
    for name in ("g1pk", "g1sk", "g2pk", "g2sk"):
        del row[name]
    return row | {
        "state": text(items.CLONING),
        "source": text(copying.selection.source_id),
        "cloning": text(jsontext.dumps(copying.selection.to_json())),
        "cursor": text(copying.cursor),
    }


def copying_of(row: "Item") -> Copying:
    return Copying(
        items.thread_from(row),
        Selection.from_json(jsontext.loads(items.get_text(row, "cloning"))),
        items.get_text(row, "cursor"),
        items.get_text(row, "lastId") if "lastId" in row else None,
    )


def is_left(row: "Item", version: int) -> bool:
    """Whether a copy is still on its way and has made no step since its row had this version."""
    return items.get_text(row, "state") == items.CLONING and items.get_number(row, "version") == version


def advanced(copying: Copying, rows: "Sequence[Item]") -> Copying:
    """The copy once these messages are copied."""
    thread, last = copying.thread, rows[-1]
    thread = replace(
        thread,
        seq=thread.seq + len(rows),
        message_count=thread.message_count + len(rows),
        last_at=max(thread.last_at, items.get_number(last, "createdAt")),
        version=thread.version + 1,
    )
    return replace(copying, thread=thread, cursor=items.get_text(last, "order"), last_id=items.get_text(last, "id"))


def step(copying: Copying, after: Copying) -> list[Action]:
    """Move the copy's numbers and cursor, while its source lives."""
    values = {
        ":seq": number(after.thread.seq),
        ":count": number(after.thread.message_count),
        ":lastAt": number(after.thread.last_at),
        ":version": number(after.thread.version),
        ":cursor": text(after.cursor),
        ":lastId": text(after.last_id or ""),
    }
    change = (
        "SET seq = :seq, messageCount = :count, lastAt = :lastAt, version = :version, #cursor = :cursor, "
        "lastId = :lastId"
    )
    update = while_cloning(copying.thread, change, values)
    update["Update"]["ExpressionAttributeNames"]["#cursor"] = "cursor"
    return [update, source_lives(copying.selection)]


def ready(copying: Copying) -> Action:
    """Turn the copy's row into that of a thread like any other."""
    thread = copying.thread
    metadata = rules.clone_metadata(thread.metadata, copying.selection.source_id, thread.created_at, copying.last_id)
    ready = items.thread_item(replace(thread, metadata=metadata, version=thread.version + 1))
    values = {f":{name}": ready[name] for name in ("metadata", "version", "state", "g1pk", "g1sk", "g2pk", "g2sk")}
    change = (
        "SET metadata = :metadata, version = :version, #state = :state, g1pk = :g1pk, g1sk = :g1sk, g2pk = :g2pk, "
        "g2sk = :g2sk REMOVE cloning, #cursor, lastId"
    )
    update = while_cloning(thread, change, values)
    update["Update"]["ExpressionAttributeNames"]["#cursor"] = "cursor"
    return update


def while_cloning(thread: Thread, change: str, values: "Item") -> Action:
    """An Update of a copy's row that only happens while it is as the last step left it."""
    own = {":born": number(thread.created_at), ":loaded": number(thread.version), ":cloning": text(items.CLONING)}
    return {
        "Update": {
            "Key": items.thread_key(thread.id),
            "UpdateExpression": change,
            "ConditionExpression": "createdAt = :born AND version = :loaded AND #state = :cloning",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {**own, **values},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
    }


def source_lives(chosen: Selection) -> Action:
    return {
        "ConditionCheck": {
            "Key": items.thread_key(chosen.source_id),
            "ConditionExpression": "createdAt = :born AND #state = :ready",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {":born": number(chosen.born), ":ready": text(items.READY)},
        }
    }


def memory_keys(copying: Copying) -> "list[Item]":
    """The working memories to read before the last step."""
    chosen, target = copying.selection, copying.thread
    found = [items.thread_memory_key(chosen.source_id)]
    if chosen.memory_of not in (None, target.resource_id):
        found += [items.memory_key(MemoryTarget("resource", r)) for r in (chosen.memory_of, target.resource_id)]
    return found


def memories(copying: Copying, found: "Sequence[Item]", now: Millis) -> list[Action]:
    """The writes of working memory in the last step (TH-11); `found` is what `memory_keys` name."""
    chosen, target = copying.selection, copying.thread
    own, *resources = (items.find(found, key) for key in memory_keys(copying))
    actions: list[Action] = []
    copy = working_memory.copied(items.memory_from(own, born=chosen.born), chosen.source_id, now)
    if copy.version:
        actions.append(requests.remember(MemoryTarget("thread", target.id), WorkingMemory(), copy, target))
    if resources:
        theirs, ours = map(items.memory_from, resources)
        after = working_memory.overwritten(ours, theirs, chosen.source_id, now)
        if after is not ours:
            actions.append(requests.remember(MemoryTarget("resource", target.resource_id), ours, after))
    return actions


def copies(copying: Copying, rows: "Sequence[Item]", blobs: Mapping[str, str]) -> list[Action]:
    """Write the copies of these messages, with their keys; `blobs` has the copies of bodies in the bucket."""
    actions: list[Action] = []
    target = copying.thread
    for seq, row in enumerate(rows, target.seq + 1):
        message_id = rules.copy_id(target, items.get_text(row, "id"))
        order = order_key(items.get_number(row, "createdAt"), seq)
        copy = row | items.message_place(target.id, message_id, order)
        copy |= {"id": text(message_id), "order": text(order), "revision": number(1), "copyOf": row["id"]}
        if "blob" in row:
            copy["blob"] = text(blobs[items.get_text(row, "blob")])
        actions.append({"Put": {"Item": items.message_key(target.id, message_id) | {"order": text(order)}}})
        actions.append({"Put": {"Item": copy}})
    return actions
