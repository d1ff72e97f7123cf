"""Records to DynamoDB items and back. JSON bodies are JSON text (see `threadkeep.jsontext`)."""

from typing import TYPE_CHECKING

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import keys
from threadkeep.storage.port import Job, MemoryRevision, MemoryTarget, Message, Receipt, Thread, WorkingMemory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

    Item = dict[str, AttributeValueTypeDef]

READY = "ready"
CLONING = "cloning"
DELETING = "deleting"
SCHEMA_VERSION = 1
JOB_SECONDS = 86_400


def text(value: str) -> "AttributeValueTypeDef":
    return {"S": value}


def number(value: int) -> "AttributeValueTypeDef":
    return {"N": str(value)}


def key(pk: str, sk: str) -> "Item":
    return {"pk": text(pk), "sk": text(sk)}


def thread_key(thread_id: str) -> "Item":
    return key(keys.thread(thread_id), keys.SELF)


def find(found: "Iterable[Item]", wanted: "Item") -> "Item | None":
    """The item of that key among those that were read."""
    return next((item for item in found if wanted.items() <= item.items()), None)


def get_text(item: "Item", name: str) -> str:
    """The text of a string attribute, or of a number; empty if absent."""
    value = item.get(name, {})
    return value.get("S") or value.get("N") or ""


def get_number(item: "Item", name: str) -> int:
    return int(item[name].get("N", "0")) if name in item else 0


def thread_item(thread: Thread) -> "Item":
    item = thread_key(thread.id) | {
        "resourceId": text(thread.resource_id),
        "title": text(thread.title),
        "state": text(READY),
        "seq": number(thread.seq),
        "lastAt": number(thread.last_at),
        "messageCount": number(thread.message_count),
        "version": number(thread.version),
        "createdAt": number(thread.created_at),
        "updatedAt": number(thread.updated_at),
        "g1pk": text(keys.resource(thread.resource_id)),
        "g1sk": text(keys.moment(thread.updated_at, thread.id)),
        "g2pk": text(keys.shard(thread.id)),
        "g2sk": text(keys.moment(thread.created_at, thread.id)),
    }
    if thread.metadata is not None:
        item["metadata"] = text(jsontext.dumps(thread.metadata))
    return item


def thread_from(item: "Item") -> Thread:
    metadata = get_text(item, "metadata")
    return Thread(
        id=keys.thread_of(get_text(item, "pk")),
        resource_id=get_text(item, "resourceId"),
        title=get_text(item, "title"),
        metadata=jsontext.loads(metadata) if metadata else None,
        created_at=get_number(item, "createdAt"),
        updated_at=get_number(item, "updatedAt"),
        seq=get_number(item, "seq"),
        last_at=get_number(item, "lastAt"),
        message_count=get_number(item, "messageCount"),
        version=get_number(item, "version"),
    )


def is_ready(item: "Item | None") -> bool:
    return item is not None and get_text(item, "state") == READY


def is_deleting(item: "Item") -> bool:
    return get_text(item, "state") == DELETING


def message_place(thread_id: str, message_id: str, order: str) -> "Item":
    """The key of a message's row."""
    return key(keys.thread(thread_id), keys.message(order, message_id))


def message_row_key(message: Message) -> "Item":
    return message_place(message.thread_id, message.id, message.order)


def message_item(message: Message, body: "Item") -> "Item":
    """`body` is the content: its JSON text, or where it is."""
    item = message_row_key(message) | {
        "id": text(message.id),
        "role": text(message.role),
        "createdAt": number(message.created_at),
        "order": text(message.order),
        "schema": number(SCHEMA_VERSION),
        "revision": number(message.revision),
        **body,
    }
    if message.type is not None:
        item["type"] = text(message.type)
    return item


def inline(content: str) -> "Item":
    """A body in its own item."""
    return {"content": text(content)}


def elsewhere(blob: str, size: int) -> "Item":
    """A body in the bucket, under the key `blob`; its size in bytes of JSON text."""
    return {"blob": text(blob), "size": number(size)}


def message_from(item: "Item", content: str | None = None) -> Message:
    """`content` is the JSON text of a body that is elsewhere; without it such a message is empty."""
    return Message(
        id=get_text(item, "id"),
        thread_id=keys.thread_of(get_text(item, "pk")),
        role=get_text(item, "role"),
        content=jsontext.loads(content or get_text(item, "content") or "{}"),
        created_at=get_number(item, "createdAt"),
        order=get_text(item, "order"),
        type=get_text(item, "type") if "type" in item else None,
        revision=get_number(item, "revision"),
    )


def message_key(thread_id: str, message_id: str) -> "Item":
    """The key of the row that tells a message's place in its thread."""
    return key(keys.message_key(message_id), keys.encode(thread_id))


def is_message_key(item: "Item") -> bool:
    return get_text(item, "pk").startswith("K#")


def place_of(home: "Item") -> "Item":
    """From a message's key row to the key of its own row."""
    thread_id, message_id = keys.decode(get_text(home, "sk")), keys.message_id_of(get_text(home, "pk"))
    return message_place(thread_id, message_id, get_text(home, "order"))


def message_key_item(message: Message) -> "Item":
    return message_key(message.thread_id, message.id) | {"order": text(message.order)}


def entry_key(journal: str, name: str) -> "Item":
    """The key of an entry's row."""
    return key(keys.run(journal), keys.entry(name))


def entry_name(item: "Item") -> str:
    return get_text(item, "sk").removeprefix(keys.ENTRY)


def job_item(job: Job, now: Millis) -> "Item":
    return key(keys.thread(job.thread_id), keys.job(job.run_id)) | {
        "agentId": text(job.agent_id),
        "body": text(jsontext.dumps(job.body)),
        "expiresAt": number(now // 1000 + JOB_SECONDS),
    }


def job_from(item: "Item") -> Job:
    return Job(
        run_id=keys.decode(get_text(item, "sk").removeprefix(keys.JOB)),
        thread_id=keys.thread_of(get_text(item, "pk")),
        agent_id=get_text(item, "agentId"),
        body=jsontext.loads(get_text(item, "body")),
    )


def receipt_key(receipt_id: str) -> "Item":
    return key(keys.receipt(receipt_id), keys.SELF)


def receipt_item(receipt: Receipt, now: Millis) -> "Item":
    return receipt_key(receipt.key) | {
        "key": text(receipt.key),
        "runId": text(receipt.run_id),
        "requestHash": text(receipt.request_hash),
        "status": text(receipt.status),
        "deadline": number(receipt.deadline),
        "reply": text(jsontext.dumps(receipt.reply)),
        "expiresAt": number((now + rules.RECEIPT_MILLIS) // 1000),
    }


def receipt_from(item: "Item") -> Receipt:
    return Receipt(
        key=get_text(item, "key"),
        run_id=get_text(item, "runId"),
        request_hash=get_text(item, "requestHash"),
        status="done" if get_text(item, "status") == "done" else "running",
        deadline=get_number(item, "deadline"),
        reply=jsontext.loads(get_text(item, "reply")),
    )


def memory_key(target: MemoryTarget) -> "Item":
    pk = keys.thread(target.id) if target.scope == "thread" else keys.resource(target.id)
    return key(pk, keys.MEMORY)


def thread_memory_key(thread_id: str) -> "Item":
    return memory_key(MemoryTarget("thread", thread_id))


def memory_item(target: MemoryTarget, memory: WorkingMemory, thread: Thread | None) -> "Item":
    """The memory of a thread tells which one it is of: `created_at` tells apart two of one id."""
    past = [{"version": r.version, "at": r.at, "writer": r.writer, "digest": r.digest} for r in memory.past]
    item = memory_key(target) | {
        "text": text(memory.text),
        "version": number(memory.version),
        "past": text(jsontext.dumps(past)),
        "seeds": text(jsontext.dumps(memory.seeds)),
    }
    if target.scope == "thread" and thread is not None:
        item["threadCreatedAt"] = number(thread.created_at)
    return item


def memory_from(item: "Item | None", born: Millis | None = None) -> WorkingMemory:
    """An absent item is a memory that was never written.

    So is one that is not of the thread that was created at `born`, but of an earlier one of its id.
    """
    if item is None or (born is not None and get_number(item, "threadCreatedAt") != born):
        return WorkingMemory()
    past = jsontext.loads(get_text(item, "past"))
    return WorkingMemory(
        text=get_text(item, "text"),
        version=get_number(item, "version"),
        past=tuple(MemoryRevision(r["version"], r["at"], r["writer"], r["digest"]) for r in past),
        seeds=tuple(jsontext.loads(get_text(item, "seeds"))),
    )
