"""Writing the contents of messages."""

from collections.abc import Sequence

from threadkeep.storage.dynamodb import items, requests
from threadkeep.storage.dynamodb.items import number, text
from threadkeep.storage.dynamodb.requests import Action
from threadkeep.storage.port import Message


def writes(rows: Sequence[Message], bodies: Sequence[str]) -> list[Action]:
    """The keys of the new messages, then the rows of all: new, or changed from the revision before this one."""
    actions: list[Action] = [
        {"Put": {"Item": items.message_key_item(row), **requests.NEW}} for row in rows if row.revision == 1
    ]
    for row, body in zip(rows, bodies, strict=True):
        new = row.revision == 1
        actions.append({"Put": {"Item": items.message_item(row, body)}} if new else _change(row, body))
    return actions


def _change(row: Message, body: str) -> Action:
    kind = " REMOVE #type" if row.type is None else ", #type = :type"
    values = {
        ":content": text(body),
        ":role": text(row.role),
        ":revision": number(row.revision),
        ":before": number(row.revision - 1),
    }
    return {
        "Update": {
            "Key": items.message_row_key(row),
            "UpdateExpression": f"SET content = :content, #role = :role, revision = :revision{kind}",
            "ConditionExpression": "revision = :before",
            "ExpressionAttributeNames": {"#role": "role", "#type": "type"},
            "ExpressionAttributeValues": values if row.type is None else values | {":type": text(row.type)},
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
