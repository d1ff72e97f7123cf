"""The function `delegate` with the events in `events/delegate`."""

import asyncio
import json
import runpy
from types import SimpleNamespace

import pytest

from local.stack import ROOT
from tests.unit.turn.delegation.conftest import asks
from threadkeep.storage.runs import Entry

EVENTS = sorted((ROOT / "events/delegate").glob("*.json"))


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_the_function_runs_what_its_event_names(office, monkeypatch, path):
    """The journal of the event has what the newest step of another run has."""
    event, o = json.loads(path.read_text()), office((asks("researcher"), "done"), ("one", "two"))
    item = event["order"]

    async def fill() -> None:
        await o.turn()
        task = o.task()
        names = [f"order.{task.item['id']}", task.item["said"]]
        order, said = [(await o.storage.read_entries(task.journal, names))[name] for name in names]
        entries = [Entry(f"order.{item['id']}", order | {"id": item["id"]}), Entry(item["said"], said)]
        await o.storage.write_entries(event["journal"], entries, thread_id=None)

    asyncio.run(fill())
    app = runpy.run_path(str(ROOT / "functions/delegate/app.py"))
    names = app["handler"].__globals__
    monkeypatch.setitem(names, "registry", lambda: o.machine.registry)
    monkeypatch.setitem(names, "services", lambda: o.services)
    monkeypatch.setattr("threadkeep.clock.now", lambda: item["deadline"] - 20_000)
    returned = app["handler"](event, SimpleNamespace(get_remaining_time_in_millis=lambda: 300_000))
    names["_runner"]().close()
    assert returned == {"id": item["id"]}
    [report] = asyncio.run(o.storage.list_entries(event["journal"], "report."))
    assert report.body["text"] == "two"
