"""From the table's stream to the queue and back (DESIGN 4, case H30)."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.fakes import FakeModel
from threadkeep import outbox
from threadkeep.errors import NotFound, StoreUnavailable, ThreadGone
from threadkeep.models.registry import Models
from threadkeep.storage.dynamodb import items
from threadkeep.storage.dynamodb.stream import Task, task_of
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Job, NewMessage, NewThread, Thread, TurnCommit
from threadkeep.turn.request import Services

EVENTS = Path(__file__).parents[2] / "events"

THREAD = items.thread_item(Thread("a#b", "ana", "", None, 1, 1))
TOMBSTONE = THREAD | {"state": {"S": "deleting"}}
COPY = THREAD | {"state": {"S": "cloning"}}
JOB = items.job_item(Job("run/1", "a#b", "assistant", {}), 5)


def record(image: dict[str, Any] | None, event: str = "INSERT", number: int = 1) -> dict[str, Any]:
    change: dict[str, Any] = {"SequenceNumber": f"seq-{number}"}
    if image is not None:
        change["NewImage"] = image
    return {"eventID": f"event-{number}", "eventName": event, "dynamodb": change}


@pytest.mark.parametrize(
    ("image", "event", "task"),
    [
        (JOB, "INSERT", Task("finish_turn", "a#b", "run/1")),
        (JOB, "MODIFY", None),
        (None, "REMOVE", None),
        (THREAD, "INSERT", None),
        (THREAD, "MODIFY", None),
        (TOMBSTONE, "MODIFY", Task("purge", "a#b")),
        (COPY, "INSERT", Task("clone", "a#b")),
        (COPY, "MODIFY", None),
        (items.key("R#ana", "@"), "MODIFY", None),
    ],
)
def test_a_record_asks_for_work_or_for_nothing(image, event, task):
    assert task_of(record(image, event)) == task


class Queue:
    """Takes batches as SQS does; refuses the entries with these ids."""

    def __init__(self, *refused: str):
        self.refused = refused
        self.entries: list[dict[str, str]] = []

    def send_message_batch(self, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        assert QueueUrl == "url" and 1 <= len(Entries) <= 10
        self.entries += [e for e in Entries if e["Id"] not in self.refused]
        return {"Failed": [{"Id": e["Id"]} for e in Entries if e["Id"] in self.refused]}


def test_tasks_of_one_thread_form_one_group_and_repeats_are_recognised():
    queue = Queue()
    records = [record(THREAD, number=1), record(JOB, number=2), record(TOMBSTONE, "MODIFY", number=3)]
    assert outbox.forward(records, queue, "url") is None  # type: ignore[arg-type]
    assert outbox.forward(records, queue, "url") is None  # type: ignore[arg-type]
    first, second, again, _ = queue.entries
    assert json.loads(first["MessageBody"]) == {"kind": "finish_turn", "threadId": "a#b", "runId": "run/1"}
    assert first["MessageGroupId"] == second["MessageGroupId"]
    assert first["MessageDeduplicationId"] == again["MessageDeduplicationId"] != second["MessageDeduplicationId"]


def test_the_first_task_that_could_not_be_sent_is_where_the_stream_goes_on():
    records = [record(JOB if n % 2 else THREAD, number=n) for n in range(40)]
    assert outbox.forward(records, Queue("27", "25"), "url") == "seq-25"  # type: ignore[arg-type]


def test_a_batch_without_work_sends_nothing():
    queue = Queue()
    assert outbox.forward([record(THREAD)], queue, "url") is None  # type: ignore[arg-type]
    assert queue.entries == []


@pytest.mark.parametrize(("event", "kind"), [("new-job", "finish_turn"), ("deleted-thread", "purge")])
def test_the_outbox_event_leads_to_the_after_turn_event(event: str, kind: str) -> None:
    queue = Queue()
    records = json.loads((EVENTS / f"outbox/{event}.json").read_text())["Records"]
    assert outbox.forward(records, queue, "url") is None  # type: ignore[arg-type]
    received = json.loads((EVENTS / f"after_turn/{kind.replace('_', '-')}.json").read_text())["Records"][0]
    assert json.loads(queue.entries[0]["MessageBody"]) == json.loads(received["body"])


async def test_the_after_turn_events_are_performed() -> None:
    storage = InMemoryStorage()
    thread = await storage.create_thread(NewThread("thr-1", "user-ada"))
    services = Services(storage, Models(adapters={"scripted": FakeModel("A title")}))
    said = NewMessage("m", "user", {"format": 2, "parts": [{"type": "text", "text": "hi"}]}, 1)
    job = Job("run-1", "thr-1", "assistant", {"title": {"model": "scripted/model", "messages": 2}})
    await storage.commit_turn(TurnCommit(thread, (said,), job))
    for kind in ("finish-turn", "purge"):
        body = json.loads((EVENTS / f"after_turn/{kind}.json").read_text())["Records"][0]["body"]
        await outbox.perform(services, body)
    found = await storage.get_thread("thr-1")
    assert found is not None and found.title == "A title"
    await storage.delete_thread("thr-1", resource_id="user-ada")
    await outbox.perform(services, body)
    assert (await storage.load_turn("thr-1", last_messages=1)).deleting is False


@pytest.mark.parametrize("gone", [NotFound("Source thread not found"), ThreadGone("copy")])
async def test_a_copy_that_cannot_be_finished_does_not_hold_back_its_purge(gone: Exception) -> None:
    class Gone(InMemoryStorage):
        async def finish_clone(self, thread_id: str) -> None:
            raise gone

    services = Services(Gone(), Models(adapters={}))
    await outbox.perform(services, json.dumps({"kind": "clone", "threadId": "copy", "runId": ""}))


def test_tasks_are_sent_also_while_the_bucket_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()

    class Broken:
        async def delete(self, blobs: list[str]) -> None:
            raise StoreUnavailable("the bucket is down")

    monkeypatch.setenv("AFTER_TURN_QUEUE_URL", "url")
    app = runpy.run_path(str(EVENTS.parent / "functions/outbox/app.py"))
    names = app["handler"].__globals__
    monkeypatch.setitem(names, "bucket", Broken)
    monkeypatch.setitem(names, "queue", lambda: queue)
    monkeypatch.setitem(names, "settings", lambda: SimpleNamespace(after_turn_queue_url="url"))
    with pytest.raises(StoreUnavailable):
        app["handler"]({"Records": [record(TOMBSTONE, "MODIFY")]}, None)
    assert len(queue.entries) == 1
