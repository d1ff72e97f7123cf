"""Durable runs and journals: entries written once, and commits that need their run to go on (DESIGN 6)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from threadkeep.errors import Conflict, InvalidInput, NotFound, RunEnded, ThreadGone, TooLarge
from threadkeep.ids import sub_resource
from threadkeep.storage import journals
from threadkeep.storage.port import NewThread, Receipt, Storage, Thread, TurnCommit
from threadkeep.storage.runs import DurableRun, Entry, RunGuard, RunState
from threadkeep.testing.storage_base import FAITHFUL, StorageBase, faithful_text, message

STATES: tuple[RunState, ...] = ("running", "succeeded", "failed", "cancelled")
OUTCOME: dict[str, Any] = {"messageIds": ["m1", "m2"], "faithful": FAITHFUL}


def run_of(thread: Thread, run_id: str = "", **more: Any) -> DurableRun:
    request = {"prompt": "Compare", "faithful": FAITHFUL}
    run = DurableRun(run_id or f"run/{thread.id}", "agent", thread.resource_id, thread.id, "hash", request)
    return replace(run, **more)


def entries(*names: str, **more: Any) -> tuple[Entry, ...]:
    return tuple(Entry(name, {"of": name, **more}) for name in names)


async def gone(storage: Storage, thread: Thread) -> None:
    """Delete a thread with everything that is kept with it."""
    await storage.delete_thread(thread.id, resource_id=None)
    while not await storage.purge_thread(thread.id):
        pass


@pytest.mark.asyncio
class JournalsContract(StorageBase):
    # Durable runs

    async def test_a_durable_run_is_stored_as_it_was_given_with_the_stores_times(
        self, storage: Storage, thread: Thread
    ):
        run = run_of(thread)
        assert await storage.get_run(run.run_id) is None
        made = await storage.create_run(run)
        assert made == replace(run, created_at=made.created_at, updated_at=made.created_at)
        assert made.created_at >= thread.created_at
        stored = await storage.get_run(run.run_id)
        assert stored == made
        assert faithful_text(stored.request) == faithful_text(run.request)

    async def test_a_run_of_nobody_and_without_thread_is_stored(self, storage: Storage, unique: str):
        run = DurableRun(f"run-{unique}", "agent", None, None, "hash")
        made = await storage.create_run(run)
        stored = await storage.get_run(run.run_id)
        assert stored == made == replace(run, created_at=made.created_at, updated_at=made.created_at)
        assert (await storage.end_run(run.run_id, "cancelled")).state == "cancelled"

    async def test_a_run_that_is_created_again_stays_as_it_is(self, storage: Storage, thread: Thread):
        made = await storage.create_run(run_of(thread))
        again = replace(run_of(thread), request_hash="other", request={})
        assert await storage.create_run(again) == made
        ended = await storage.end_run(made.run_id, "failed", error={"name": "E", "message": "m"})
        assert await storage.create_run(again) == ended == await storage.get_run(made.run_id)

    async def test_nobody_takes_the_run_id_of_another(self, storage: Storage, thread: Thread):
        made = await storage.create_run(run_of(thread))
        for other in ({"agent_id": "other"}, {"resource_id": "other"}, {"resource_id": None}):
            with pytest.raises(Conflict):
                await storage.create_run(replace(run_of(thread), **other))
        assert await storage.get_run(made.run_id) == made

    async def test_of_many_who_create_a_run_all_get_the_same(self, storage: Storage, thread: Thread):
        runs = [run_of(thread, request_hash=f"hash {n}") for n in range(5)]
        made = await asyncio.gather(*map(storage.create_run, runs))
        assert {run.request_hash for run in made} == {made[0].request_hash}

    @pytest.mark.parametrize("state", STATES)
    async def test_a_running_run_is_brought_to_any_state(self, storage: Storage, thread: Thread, state: RunState):
        made = await storage.create_run(run_of(thread))
        ended = await storage.end_run(made.run_id, state, result=OUTCOME, error={"name": "E", "message": "m"})
        if state == "running":
            assert ended == made
        else:
            outcome = {"result": OUTCOME, "error": {"name": "E", "message": "m"}}
            assert ended == replace(made, state=state, updated_at=ended.updated_at, **outcome)
            assert faithful_text(ended.result) == faithful_text(OUTCOME)
        assert ended.updated_at >= made.updated_at
        assert await storage.get_run(made.run_id) == ended

    @pytest.mark.parametrize("before", STATES[1:])
    @pytest.mark.parametrize("after", STATES)
    async def test_a_run_that_is_over_stays_so_but_a_failed_one_may_run_again(
        self, storage: Storage, thread: Thread, before: RunState, after: RunState
    ):
        made = await storage.create_run(run_of(thread))
        ended = await storage.end_run(made.run_id, before, result={"n": 1}, error={"name": "E", "message": "m"})
        then = await storage.end_run(made.run_id, after, result={"n": 2})
        if (before, after) == ("failed", "running"):
            assert then == replace(made, state="running", result={"n": 2}, updated_at=then.updated_at)
        else:
            assert then == ended
        assert await storage.get_run(made.run_id) == then

    async def test_an_unknown_run_cannot_end(self, storage: Storage, unique: str):
        with pytest.raises(NotFound):
            await storage.end_run(f"run-{unique}", "cancelled")
        assert await storage.get_run(f"run-{unique}") is None

    async def test_what_is_too_big_for_a_run_is_refused(self, storage: Storage, thread: Thread):
        with pytest.raises(TooLarge):
            await storage.create_run(run_of(thread, request={"pad": "x" * 350_000}))
        assert await storage.get_run(run_of(thread).run_id) is None
        made = await storage.create_run(run_of(thread, request={"pad": "x" * 349_000}))
        big = {"pad": "x" * journals.MAX_RESULT_BYTES}
        for outcome in ({"result": big}, {"error": big}):
            with pytest.raises(TooLarge):
                await storage.end_run(made.run_id, "failed", **outcome)
        assert await storage.get_run(made.run_id) == made
        most = {"pad": "x" * (journals.MAX_RESULT_BYTES - 10)}
        ended = await storage.end_run(made.run_id, "succeeded", result=most)
        assert (ended.result, ended.request) == (most, made.request)
        assert await storage.get_run(made.run_id) == ended

    async def test_runs_of_a_thread_are_listed_newest_first_without_request_and_result(
        self, storage: Storage, thread: Thread
    ):
        made: list[DurableRun] = []
        for n in range(3):
            await asyncio.sleep(0.002)
            made.append(await storage.create_run(run_of(thread, f"run {n}#/{thread.id}")))
        failed = await storage.end_run(made[1].run_id, "failed", result=OUTCOME, error={"name": "E", "message": "m"})
        made[1] = failed
        await storage.write_entries(made[2].run_id, entries("a"), thread_id=thread.id)
        await storage.write_entries(f"j-{thread.id}", entries("a"), thread_id=thread.id)
        wanted = {"agent_id": "agent", "resource_id": thread.resource_id}
        found = await storage.list_runs(thread.id, **wanted)
        assert found == tuple(replace(run, request={}, result=None) for run in reversed(made))
        assert found[1].error == {"name": "E", "message": "m"}
        assert await storage.list_runs(thread.id, **wanted, limit=2) == found[:2]

    async def test_runs_of_other_agents_owners_and_threads_are_not_listed(
        self, storage: Storage, thread: Thread, unique: str
    ):
        mine = await storage.create_run(run_of(thread, f"1-{unique}"))
        other = await storage.create_run(run_of(thread, f"2-{unique}", agent_id="other"))
        nobodys = await storage.create_run(run_of(thread, f"3-{unique}", resource_id=None))
        pair = sub_resource(thread.resource_id, "key")
        of_pair = await storage.create_run(run_of(thread, f"4-{unique}", resource_id=pair))

        async def found(thread_id: str, agent_id: str, resource_id: str) -> list[str]:
            runs = await storage.list_runs(thread_id, agent_id=agent_id, resource_id=resource_id)
            return [run.run_id for run in runs]

        assert await found(thread.id, "agent", thread.resource_id) == [mine.run_id]
        assert await found(thread.id, "other", thread.resource_id) == [other.run_id]
        assert await found(thread.id, "agent", pair) == [of_pair.run_id]
        assert await found(thread.id, "agent", f"{thread.resource_id}-key") == []
        assert await found(f"{thread.id}-2", "agent", thread.resource_id) == []
        assert await storage.get_run(nobodys.run_id) == nobodys

    async def test_a_run_needs_no_thread_yet_but_none_that_is_being_deleted(
        self, storage: Storage, thread: Thread, unique: str
    ):
        made = await storage.create_run(run_of(replace(thread, id=f"later-{unique}")))
        assert await storage.get_run(made.run_id) == made
        await storage.delete_thread(thread.id, resource_id=None)
        with pytest.raises(ThreadGone):
            await storage.create_run(run_of(thread))
        assert await storage.get_run(run_of(thread).run_id) is None

    # Entries

    async def test_entries_are_written_once_and_the_first_stands(self, storage: Storage, unique: str):
        first = (Entry("a", FAITHFUL), Entry("b#1", None), Entry("c.d-e_F", [1, "two"]))
        assert await storage.write_entries(unique, first, thread_id=None) == first
        again = entries("a", "b#1", "new", "c.d-e_F")
        told = await storage.write_entries(unique, again, thread_id=None)
        assert told == (first[0], first[1], again[2], first[2])
        assert faithful_text(told[0].body) == faithful_text(FAITHFUL)
        assert await storage.write_entries(unique, again[::-1], thread_id=None) == told[::-1]
        found = await storage.read_entries(unique, ["c.d-e_F", "new", "a", "b#1", "a", "none"])
        assert found == {entry.name: entry.body for entry in told}
        assert faithful_text(found["a"]) == faithful_text(FAITHFUL)

    async def test_one_entry_alone_is_written_once_too(self, storage: Storage, thread: Thread, unique: str):
        for thread_id in (None, thread.id):
            name = f"of-{thread_id}"
            assert await storage.write_entries(unique, [Entry(name, 1)], thread_id=thread_id) == (Entry(name, 1),)
            assert await storage.write_entries(unique, [Entry(name, 2)], thread_id=thread_id) == (Entry(name, 1),)
            assert await storage.read_entries(unique, [name]) == {name: 1}

    async def test_of_two_entries_with_one_name_the_first_counts(self, storage: Storage, unique: str):
        told = await storage.write_entries(unique, (Entry("a", 1), Entry("b", 2), Entry("a", 3)), thread_id=None)
        assert [entry.name for entry in told] == ["a", "b", "a"]
        assert await storage.read_entries(unique, ["a", "b"]) == {"a": 1, "b": 2}

    async def test_nothing_is_read_from_other_journals(self, storage: Storage, unique: str):
        for n, journal in enumerate((f"{unique}", f"{unique}#", f"{unique}/E#", f"{unique}%23")):
            assert (await storage.write_entries(journal, [Entry("a", n)], thread_id=None))[0].body == n
            assert await storage.list_entries(journal, "") == (Entry("a", n),)
        assert await storage.read_entries(f"{unique}-none", ["a"]) == {}
        assert await storage.list_entries(f"{unique}-none", "") == ()

    async def test_no_entries_are_no_work(self, storage: Storage, unique: str):
        assert await storage.write_entries(unique, (), thread_id=None) == ()
        assert await storage.read_entries(unique, ()) == {}

    async def test_entries_are_listed_by_prefix_and_sorted(self, storage: Storage, unique: str):
        names = ["step#10", "step#02", "step#1", "Step#1", "other", "step"]
        await storage.write_entries(unique, entries(*names), thread_id=None)
        assert await storage.list_entries(unique, "step#") == entries("step#02", "step#1", "step#10")
        assert await storage.list_entries(unique, "") == entries(*sorted(names))
        assert await storage.list_entries(unique, "step#3") == ()

    async def test_a_journal_does_not_disturb_its_run(self, storage: Storage, thread: Thread):
        run = await storage.create_run(run_of(thread))
        written = await storage.write_entries(run.run_id, entries("R", "a"), thread_id=None)
        assert await storage.get_run(run.run_id) == run
        assert await storage.list_entries(run.run_id, "") == written

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "a%", "é", "a\n", "x" * 201, "\x1f"])
    async def test_a_name_that_may_not_be_is_refused(self, storage: Storage, unique: str, name: str):
        with pytest.raises(InvalidInput, match="name"):
            await storage.write_entries(unique, (*entries("a"), Entry(name, 1)), thread_id=None)
        assert await storage.read_entries(unique, ["a"]) == {}
        longest = "x" * 200
        assert await storage.write_entries(unique, entries(longest), thread_id=None) == entries(longest)

    async def test_44_entries_fit_one_write_whatever_they_weigh(self, storage: Storage, thread: Thread, unique: str):
        wanted = tuple(Entry(f"e{n:02}", {"pad": "x" * 90_000, "n": n}) for n in range(44))
        assert await storage.write_entries(unique, wanted, thread_id=thread.id) == wanted
        assert await storage.list_entries(unique, "e") == wanted
        with pytest.raises(TooLarge, match="44"):
            await storage.write_entries(unique, [Entry(f"f{n}", n) for n in range(45)], thread_id=None)
        assert await storage.list_entries(unique, "f") == ()

    async def test_bodies_of_megabytes_are_kept(self, storage: Storage, unique: str):
        big = (Entry("a", {"pad": "日" * 1_700_000}), Entry("b", "x" * 6_000_000), Entry("c", 1))
        assert await storage.write_entries(unique, big, thread_id=None) == big
        assert await storage.write_entries(unique, entries("b", "a"), thread_id=None) == (big[1], big[0])
        assert await storage.read_entries(unique, ["a", "b", "c"]) == {entry.name: entry.body for entry in big}
        assert await storage.list_entries(unique, "") == big
        with pytest.raises(TooLarge):
            await storage.write_entries(unique, [Entry("d", "x" * 25_000_000)], thread_id=None)
        assert await storage.read_entries(unique, ["d"]) == {}

    async def test_of_two_writers_one_wins_and_both_see_it(self, storage: Storage, thread: Thread, unique: str):
        for n in range(10):
            batches = [[Entry(f"{n}", who), Entry(f"{n}-{who}", who)] for who in range(4)]
            threads = (None, thread.id, None, thread.id)
            done = await asyncio.gather(
                *(storage.write_entries(unique, b, thread_id=t) for b, t in zip(batches, threads, strict=True))
            )
            winners = {told[0].body for told in done}
            assert len(winners) == 1 and winners == {(await storage.read_entries(unique, [f"{n}"]))[f"{n}"]}
            assert [told[1] for told in done] == [batch[1] for batch in batches]

    async def test_entries_are_refused_while_their_thread_is_being_deleted(
        self, storage: Storage, thread: Thread, unique: str
    ):
        await storage.write_entries(unique, entries("a"), thread_id=thread.id)
        await storage.delete_thread(thread.id, resource_id=None)
        for name in ("a", "b"):
            with pytest.raises(ThreadGone):
                await storage.write_entries(unique, entries(name, "c"), thread_id=thread.id)
        assert await storage.read_entries(unique, ["b", "c"]) == {}

    async def test_entries_are_refused_once_their_thread_is_gone(self, storage: Storage, thread: Thread, unique: str):
        for thread_id in (f"never-{unique}", thread.id):
            await gone(storage, thread)
            for names in ("a", "bc"):
                with pytest.raises(ThreadGone):
                    await storage.write_entries(unique, entries(*names), thread_id=thread_id)
        assert await storage.list_entries(unique, "") == ()

    async def test_what_is_written_for_a_run_that_is_gone_can_be_forgotten(
        self, storage: Storage, thread: Thread, unique: str
    ):
        other = await storage.create_thread(NewThread(f"o-{unique}", thread.resource_id))
        run, kept = [await storage.create_run(run_of(t)) for t in (thread, other)]
        await gone(storage, thread)
        for made in (run, kept):
            await storage.write_entries(made.run_id, entries("a", "b"), thread_id=None)
            await storage.forget_run(made.run_id)
        assert await storage.list_entries(run.run_id, "") == ()
        assert await storage.list_entries(kept.run_id, "") == entries("a", "b")
        assert await storage.get_run(kept.run_id) == kept

    async def test_journals_and_runs_go_with_their_thread(self, storage: Storage, thread: Thread, unique: str):
        other = await storage.create_thread(NewThread(f"o-{unique}", thread.resource_id))
        run, kept = [await storage.create_run(run_of(t, f"{t.id}#")) for t in (thread, other)]
        for journal, home in ((run.run_id, None), (f"1-{unique}", thread), (kept.run_id, None), (f"2-{unique}", other)):
            await storage.write_entries(journal, entries("a", "b"), thread_id=home.id if home else None)
        await storage.write_entries(f"3-{unique}", entries("a", "b"), thread_id=None)
        await gone(storage, thread)
        assert await storage.get_run(run.run_id) is None
        assert await storage.list_runs(thread.id, agent_id="agent", resource_id=thread.resource_id) == ()
        for journal in (run.run_id, f"1-{unique}"):
            assert await storage.list_entries(journal, "") == ()
        assert await storage.get_run(kept.run_id) == kept
        for journal in (kept.run_id, f"2-{unique}", f"3-{unique}"):
            assert await storage.list_entries(journal, "") == entries("a", "b")

    # Commits that are part of a run

    async def test_a_commit_within_a_running_run_is_stored_and_leaves_it(self, storage: Storage, thread: Thread):
        run = await storage.create_run(run_of(thread))
        done = await storage.commit_turn(TurnCommit(thread, (message("m"),), within=RunGuard(run.run_id)))
        assert [m.id for m in done.messages] == ["m"]
        assert await storage.get_run(run.run_id) == run

    async def test_the_last_commit_of_a_run_ends_it(self, storage: Storage, thread: Thread):
        run = await storage.create_run(run_of(thread))
        within = RunGuard(run.run_id, OUTCOME)
        await storage.commit_turn(TurnCommit(thread, (message("m"),), within=within))
        ended = await storage.get_run(run.run_id)
        assert ended == replace(run, state="succeeded", result=OUTCOME, updated_at=ended.updated_at if ended else 0)
        with pytest.raises(RunEnded):
            await storage.commit_turn(TurnCommit(thread, (message("m2"),), within=within))
        assert (await storage.list_messages(thread.id)).page.total == 1

    @pytest.mark.parametrize("result", [None, {}])
    @pytest.mark.parametrize("state", [None, *STATES[1:]])
    async def test_a_commit_within_a_run_that_is_over_stores_nothing(
        self, storage: Storage, thread: Thread, state: RunState | None, result: dict[str, Any] | None
    ):
        run = run_of(thread)
        if state:
            await storage.create_run(run)
            await storage.end_run(run.run_id, state)
        before = await storage.get_run(run.run_id)
        receipt = Receipt(f"key-{thread.id}", run.run_id, "hash", "running", deadline=2**50)
        await storage.load_turn(thread.id, last_messages=0, claim=receipt)
        commit = TurnCommit(
            thread, (message("m"),), receipt=replace(receipt, status="done"), within=RunGuard(run.run_id, result)
        )
        with pytest.raises(RunEnded):
            await storage.commit_turn(commit)
        assert (await storage.list_messages(thread.id)).page.total == 0
        assert await storage.get_receipt(receipt.key) == receipt
        assert await storage.get_run(run.run_id) == before

    async def test_a_result_that_is_too_big_is_refused_with_its_turn(self, storage: Storage, thread: Thread):
        run = await storage.create_run(run_of(thread))
        big = {"pad": "x" * journals.MAX_RESULT_BYTES}
        with pytest.raises(TooLarge):
            await storage.commit_turn(TurnCommit(thread, (message(),), within=RunGuard(run.run_id, big)))
        assert (await storage.list_messages(thread.id)).page.total == 0
        assert await storage.get_run(run.run_id) == run

    async def test_a_commit_within_a_run_is_numbered_behind_others(self, storage: Storage, thread: Thread):
        run = await storage.create_run(run_of(thread))
        await storage.commit_turn(TurnCommit(thread, (message("first"),)))
        done = await storage.commit_turn(TurnCommit(thread, (message("m"),), within=RunGuard(run.run_id, OUTCOME)))
        assert [m.order[-1] for m in done.messages] == ["2"]

    async def test_of_cancel_and_last_commit_exactly_one_wins(self, storage: Storage, thread: Thread, unique: str):
        stored = 0
        for n in range(10):
            run = await storage.create_run(run_of(thread, f"{n}-{unique}"))
            commit = TurnCommit(thread, (message(f"m{n}"),), within=RunGuard(run.run_id, {"n": n}))
            done, cancelled = await asyncio.gather(
                storage.commit_turn(commit), storage.end_run(run.run_id, "cancelled"), return_exceptions=True
            )
            ended = await storage.get_run(run.run_id)
            assert ended is not None and ended == cancelled
            won = ended.state == "succeeded"
            assert (ended.state, ended.result) == (("succeeded", {"n": n}) if won else ("cancelled", None))
            assert isinstance(done, RunEnded) != won
            stored += won
        assert (await storage.list_messages(thread.id)).page.total == stored
