"""Runs that wait for approvals: their records change with the turns that suspend, decide and end them (MS-14)."""

import asyncio
from dataclasses import replace

import pytest

from threadkeep.errors import Conflict, ThreadGone, TooLarge
from threadkeep.storage import rules
from threadkeep.storage.port import (
    Message,
    MessageUpdate,
    NewThread,
    Storage,
    SuspendedCall,
    SuspendedFilter,
    SuspendedRun,
    Thread,
    TurnCommit,
)
from threadkeep.testing.storage_base import FAITHFUL, StorageBase, eventually, faithful_text, message


def run_of(thread: Thread, run_id: str = "", *, at: int = 1_000, agent_id: str = "agent") -> SuspendedRun:
    call = SuspendedCall("call-1", "deleteFile", {"path": "/x", "faithful": FAITHFUL}, "answer")
    other = SuspendedCall("call-2", "deleteFile", {"path": "/y"}, "answer")
    request = {"maxSteps": 3, "faithful": FAITHFUL}
    run_id = run_id or f"run-{thread.id}"
    ids = ("question", "answer")
    return SuspendedRun(run_id, agent_id, thread.id, thread.resource_id, (call, other), ids, at, request)


def decided(run: SuspendedRun, **approved: bool) -> SuspendedRun:
    """The record after a decision, by call number: `_1=True` approves the first."""
    calls = tuple(replace(c, approved=approved.get(f"_{c.id[-1]}", c.approved)) for c in run.calls)
    return replace(run, calls=calls, revision=run.revision + 1)


def over(run: SuspendedRun) -> SuspendedRun:
    calls = tuple(replace(c, approved=c.approved is True) for c in run.calls)
    return replace(run, calls=calls, request={}, open=False, revision=run.revision + 1)


async def suspend(storage: Storage, thread: Thread, run: SuspendedRun) -> Message:
    """Store a turn that ends with the run waiting; its answer."""
    stored = await storage.commit_turn(TurnCommit(thread, (message(role="assistant"),), suspended=run))
    return stored.messages[0]


@pytest.mark.asyncio
class SuspendedContract(StorageBase):
    async def test_ms14_a_suspended_run_is_stored_with_its_turn(self, storage: Storage, thread: Thread):
        run = run_of(thread)
        assert await storage.get_suspended_run(run.run_id) is None
        await suspend(storage, thread, run)
        stored = await storage.get_suspended_run(run.run_id)
        assert stored == run
        assert faithful_text(stored.request["faithful"]) == faithful_text(FAITHFUL)
        assert faithful_text(stored.calls[0].args["faithful"]) == faithful_text(FAITHFUL)

    async def test_a_decision_changes_answer_and_record_together(self, storage: Storage, thread: Thread):
        run = run_of(thread)
        answer = await suspend(storage, thread, run)
        first = decided(run, _1=True)
        update = MessageUpdate(answer, {**answer.content, "decided": 1})
        committed = await storage.commit_turn(TurnCommit(thread, (), updates=(update,), suspended=first))
        assert committed.updated[0].content["decided"] == 1
        assert await storage.get_suspended_run(run.run_id) == first
        assert [call.id for call in first.waiting] == ["call-2"]

    async def test_of_two_decisions_on_one_record_one_wins(self, storage: Storage, thread: Thread):
        run = run_of(thread)
        await suspend(storage, thread, run)
        wanted = [decided(run, _1=True), decided(run, _1=False)]
        commits = [TurnCommit(thread, (message(f"m{n}"),), suspended=r) for n, r in enumerate(wanted)]
        done = await asyncio.gather(*map(storage.commit_turn, commits), return_exceptions=True)
        assert sorted(isinstance(d, Conflict) for d in done) == [False, True]
        winner = next(n for n, d in enumerate(done) if not isinstance(d, Conflict))
        assert await storage.get_suspended_run(run.run_id) == wanted[winner]
        stored = await storage.list_messages(thread.id)
        assert [m.id for m in stored.page.items][1:] == [f"m{winner}"]

    async def test_a_record_follows_only_the_one_before(self, storage: Storage, thread: Thread):
        run = run_of(thread)
        with pytest.raises(Conflict):
            await suspend(storage, thread, decided(run, _1=True))
        await suspend(storage, thread, run)
        with pytest.raises(Conflict):
            await suspend(storage, thread, run)
        with pytest.raises(Conflict):
            await suspend(storage, thread, replace(run, revision=3))
        assert (await storage.list_messages(thread.id)).page.total == 1
        assert await storage.get_suspended_run(run.run_id) == run

    async def test_nobody_takes_the_run_id_of_another_thread(self, storage: Storage, thread: Thread, unique: str):
        run = run_of(thread)
        await suspend(storage, thread, run)
        other = await storage.create_thread(NewThread(f"o-{unique}", f"o-{unique}"))
        with pytest.raises(Conflict):
            await suspend(storage, other, run_of(other, run.run_id))
        await storage.commit_turn(TurnCommit(thread, (), suspended=over(run)))
        with pytest.raises(Conflict):
            await suspend(storage, other, run_of(other, run.run_id))
        assert (await storage.list_messages(other.id)).page.total == 0

    async def test_a_run_that_is_over_makes_room_for_one_of_its_thread(self, storage: Storage, thread: Thread):
        run = run_of(thread)
        await suspend(storage, thread, run)
        await storage.commit_turn(TurnCommit(thread, (), suspended=over(run)))
        assert await storage.get_suspended_run(run.run_id) == over(run)
        again = run_of(thread, at=2_000)
        await suspend(storage, thread, again)
        assert await storage.get_suspended_run(run.run_id) == again

    async def test_a_turn_that_is_refused_leaves_the_record(self, storage: Storage, thread: Thread):
        run = run_of(thread)
        answer = await suspend(storage, thread, run)
        stale = MessageUpdate(replace(answer, revision=7), answer.content)
        with pytest.raises(Conflict):
            await storage.commit_turn(TurnCommit(thread, (), updates=(stale,), suspended=decided(run, _1=True)))
        assert await storage.get_suspended_run(run.run_id) == run
        await storage.delete_thread(thread.id, resource_id=None)
        with pytest.raises(ThreadGone):
            await storage.commit_turn(TurnCommit(thread, (), suspended=decided(run, _1=True)))
        assert await storage.get_suspended_run(run.run_id) == run

    async def test_a_record_that_is_too_big_is_refused(self, storage: Storage, thread: Thread):
        run = replace(run_of(thread), request={"system": "x" * rules.MAX_BODY_BYTES})
        with pytest.raises(TooLarge):
            await suspend(storage, thread, run)
        assert (await storage.list_messages(thread.id)).page.total == 0

    async def test_runs_that_wait_are_listed_newest_first_without_their_requests(
        self, storage: Storage, thread: Thread, unique: str
    ):
        runs = [run_of(thread, f"run {n}#/{unique}", at=1_000 + n) for n in range(3)]
        for run in runs:
            await suspend(storage, thread, run)
        match = SuspendedFilter(thread_id=thread.id)
        page = await storage.list_suspended_runs(match)
        assert page.items == tuple(replace(run, request={}) for run in reversed(runs))
        assert (page.total, page.has_more) == (3, False)
        page = await storage.list_suspended_runs(match, page=1, per_page=2)
        assert (ids(page.items), page.total) == ([runs[0].run_id], 3)

    async def test_a_decided_run_is_listed_no_more(self, storage: Storage, thread: Thread):
        run, match = run_of(thread), SuspendedFilter(resource_id=thread.resource_id)
        await suspend(storage, thread, run)
        first = decided(run, _1=True)
        await storage.commit_turn(TurnCommit(thread, (), suspended=first))
        assert ids((await storage.list_suspended_runs(match)).items) == [run.run_id]
        await storage.commit_turn(TurnCommit(thread, (), suspended=decided(first, _2=False)))
        assert (await storage.list_suspended_runs(match)).total == 0

    async def test_lists_obey_every_condition(self, storage: Storage, thread: Thread, unique: str):
        other = await storage.create_thread(NewThread(f"o-{unique}", thread.resource_id))
        mine = run_of(thread, f"1-{unique}", at=1_000)
        theirs = run_of(other, f"2-{unique}", at=2_000, agent_id="other")
        for where, run in ((thread, mine), (other, theirs)):
            await suspend(storage, where, run)

        async def found(**conditions: str | int) -> list[str]:
            match = SuspendedFilter(resource_id=thread.resource_id)
            return ids((await storage.list_suspended_runs(replace(match, **conditions))).items)  # type: ignore[arg-type]

        assert await found() == [theirs.run_id, mine.run_id]
        assert await found(agent_id="other") == await found(thread_id=other.id) == [theirs.run_id]
        assert await found(since=1_001) == await found(since=2_000) == [theirs.run_id]
        assert await found(until=1_999) == await found(until=1_000) == [mine.run_id]
        assert await found(resource_id=f"nobody-{unique}") == []
        assert await found(resource_id=f"nobody-{unique}", thread_id=thread.id) == []

    async def test_all_runs_of_an_agent_are_listed(self, storage: Storage, thread: Thread, unique: str):
        run = run_of(thread, agent_id=f"agent-{unique}")
        await suspend(storage, thread, run)

        async def listed(expected: list[str]) -> None:
            assert ids((await storage.list_suspended_runs(SuspendedFilter(run.agent_id))).items) == expected

        await eventually(lambda: listed([run.run_id]), self.lag_seconds)
        await storage.commit_turn(TurnCommit(thread, (), suspended=over(run)))
        await eventually(lambda: listed([]), self.lag_seconds)

    async def test_runs_of_threads_that_are_gone_are_not_listed(self, storage: Storage, thread: Thread, unique: str):
        await suspend(storage, thread, run_of(thread))
        match = SuspendedFilter(resource_id=thread.resource_id)
        await storage.transfer_thread(thread.id, f"new-{unique}", resource_id=None)
        assert (await storage.list_suspended_runs(match)).total == 0
        assert (await storage.list_suspended_runs(SuspendedFilter(thread_id=thread.id))).total == 0
        await storage.transfer_thread(thread.id, thread.resource_id, resource_id=None)
        assert (await storage.list_suspended_runs(match)).total == 1
        await storage.delete_thread(thread.id, resource_id=None)
        assert (await storage.list_suspended_runs(match)).total == 0
        await storage.purge_thread(thread.id)
        assert (await storage.list_suspended_runs(match)).total == 0

    async def test_a_purge_removes_what_open_runs_of_the_thread_would_need(
        self, storage: Storage, thread: Thread, unique: str
    ):
        other = await storage.create_thread(NewThread(f"o-{unique}", thread.resource_id))
        run, decided_one, kept = run_of(thread), run_of(thread, f"d-{unique}"), run_of(other)
        for where, one in ((thread, run), (thread, decided_one), (other, kept)):
            await suspend(storage, where, one)
        await storage.commit_turn(TurnCommit(thread, (), suspended=decided(decided_one, _1=True, _2=True)))
        await storage.delete_thread(thread.id, resource_id=None)
        assert await storage.purge_thread(thread.id)
        assert await storage.get_suspended_run(run.run_id) is None
        assert await storage.get_suspended_run(decided_one.run_id) is None
        assert await storage.get_suspended_run(kept.run_id) == kept


def ids(runs: tuple[SuspendedRun, ...]) -> list[str]:
    return [run.run_id for run in runs]
