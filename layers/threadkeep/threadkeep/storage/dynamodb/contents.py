"""Writing the contents of messages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from threadkeep.storage.dynamodb import items, requests
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.port import Message

if TYPE_CHECKING:
    from threadkeep.storage.dynamodb.items import Item


def writes(rows: Sequence[Message], bodies: "Sequence[Item]") -> list[Action]:
    """The keys of the new messages, then the rows of all: new, or changed from the revision before this one."""
    actions: list[Action] = [
        {"Put": {"Item": items.message_key_item(row), **requests.NEW}} for row in rows if row.revision == 1
    ]
    for row, body in zip(rows, bodies, strict=True):
        new = row.revision == 1
        actions.append({"Put": {"Item": items.message_item(row, body)}} if new else _change(row, body))
    return actions


def _change(row: Message, body: "Item") -> Action:
    sets = {"role": text(row.role), "revision": number(row.revision), **body}
    if row.type is not None:
        sets["type"] = text(row.type)
    removes = [name for name in ("type", "content", "blob", "size") if name not in sets]
    change = "SET " + ", ".join(f"#{name} = :{name}" for name in sets)
    change += " REMOVE " + ", ".join(f"#{name}" for name in removes)
    return {
        "Update": {
            "Key": items.message_row_key(row),
            "UpdateExpression": change,
            "ConditionExpression": "#revision = :before",
            "ExpressionAttributeNames": {f"#{name}": name for name in (*sets, *removes)},
            "ExpressionAttributeValues": {
                **{f":{name}": value for name, value in sets.items()},
                ":before": number(row.revision - 1),
            },
        }
    }


def deletes(thread_id: str, message_id: str, order: str) -> list[Action]:
    """Delete a message and its key, if it still is where it was."""
    return [
        {
            "Delete": {
                "Key": items.message_key(thread_id, message_id),
                "ConditionExpression": "#order = :order",
                "ExpressionAttributeNames": {"#order": "order"},
                "ExpressionAttributeValues": {":order": text(order)},
            }
        },
        {"Delete": {"Key": items.message_place(thread_id, message_id, order)}},
    ]
