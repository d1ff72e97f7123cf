"""Suspended runs are forgotten after 7 days."""

import pytest

from threadkeep.storage import rules
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import NewThread, SuspendedFilter, TurnCommit
from threadkeep.testing.storage_base import message
from threadkeep.testing.storage_suspended import run_of


@pytest.mark.asyncio
async def test_a_suspended_run_is_forgotten_after_seven_days():
    now = 1_000_000
    storage = InMemoryStorage(lambda: now)
    thread = await storage.create_thread(NewThread("t", "r"))
    run = run_of(thread)
    await storage.commit_turn(TurnCommit(thread, (message(),), suspended=run))
    now += rules.SUSPENDED_MILLIS - 1
    assert await storage.get_suspended_run(run.run_id) == run
    now += 1
    assert await storage.get_suspended_run(run.run_id) is None
    assert (await storage.list_suspended_runs(SuspendedFilter(resource_id="r"))).total == 0
    await storage.commit_turn(TurnCommit(thread, (message(),), suspended=run))
    assert await storage.get_suspended_run(run.run_id) == run
