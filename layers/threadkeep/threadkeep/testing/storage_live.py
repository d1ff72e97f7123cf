"""Live output: one run of a thread after the other, told in order to whoever reads along (DESIGN 7)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from threadkeep.errors import Conflict, TooLarge
from threadkeep.storage.live import ROW_CHARACTERS, Channel, Claim, Held, NewRun, Output, Place
from threadkeep.storage.port import NewThread, Storage
from threadkeep.testing.storage_base import FAITHFUL, ODD_IDS, StorageBase, faithful_text

LEASE = 60_000


def run(
    channel: Channel, name: str, request: dict[str, Any] | None = None, *, request_hash: str = "", joins: bool = False
) -> NewRun:
    run_id = f"{channel.thread_id}-{name}"
    return NewRun(channel, run_id, "agent", request_hash or name, request or {}, joins)


def chunk(number: int) -> dict[str, Any]:
    return {"type": "text-delta", "payload": {"text": str(number)}}


async def claimed(storage: Storage, channel: Channel, worker: str = "one", lease: int = LEASE) -> Claim:
    claim = await storage.claim_run(channel, worker, lease)
    assert isinstance(claim, Claim)
    return claim


async def told(storage: Storage, channel: Channel, after: Place) -> list[dict[str, Any]]:
    """Everything behind a place, as a subscriber gets it."""
    found: list[dict[str, Any]] = []
    while outputs := await storage.read_output(channel, after):
        assert all(o.place > after for o in outputs)
        found += [c for o in outputs for c in o.chunks]
        after = outputs[-1].place
    return found


class LiveContract(StorageBase):
    @pytest.fixture
    def channel(self, unique: str) -> Channel:
        return Channel(f"r-{unique}", f"t-{unique}")

    async def test_a_run_is_queued_claimed_told_and_finished(self, storage: Storage, channel: Channel):
        before = await storage.live_state(channel)
        accepted = await storage.queue_run(run(channel, "a", FAITHFUL))
        assert (accepted.run_id, accepted.request_hash, accepted.needs_worker) == (f"{channel.thread_id}-a", "a", True)
        claim = await claimed(storage, channel)
        assert (claim.run_id, claim.agent_id, claim.attempt, claim.rows) == (accepted.run_id, "agent", 1, 0)
        assert claim.at == accepted.at
        assert faithful_text(claim.request) == faithful_text(FAITHFUL)
        claim = await storage.append_output(claim, [chunk(1), FAITHFUL])
        claim = await storage.append_output(claim, [chunk(2)])
        assert claim.rows == 2
        await storage.finish_run(claim, [chunk(3)])
        found = await told(storage, channel, before.start)
        assert faithful_text(found) == faithful_text([chunk(1), FAITHFUL, chunk(2), chunk(3)])
        assert await storage.claim_run(channel, "one", LEASE) is None
        assert not (await storage.live_state(channel)).is_live

    async def test_only_the_last_output_of_a_run_says_so(self, storage: Storage, channel: Channel):
        await storage.queue_run(run(channel, "a"))
        claim = await storage.append_output(await claimed(storage, channel), [chunk(1)])
        await storage.finish_run(claim, [chunk(2)])
        found = await storage.read_output(channel, Place(claim.ticket, 0))
        assert found == (Output(Place(claim.ticket, 1), (chunk(1),)), Output(Place(claim.ticket, 2), (chunk(2),), True))

    async def test_runs_of_a_thread_come_one_after_another(self, storage: Storage, channel: Channel):
        start = (await storage.live_state(channel)).start
        needs = [(await storage.queue_run(run(channel, name))).needs_worker for name in "abc"]
        assert needs == [True, True, True]
        for name in "abc":
            claim = await claimed(storage, channel)
            assert claim.run_id == f"{channel.thread_id}-{name}"
            assert not (await storage.queue_run(run(channel, name))).needs_worker
            await storage.finish_run(claim, [{"type": name}])
        assert [c["type"] for c in await told(storage, channel, start)] == ["a", "b", "c"]

    async def test_a_message_that_comes_while_a_run_ends_is_not_forgotten(self, storage: Storage, channel: Channel):
        for n in range(8):
            await storage.queue_run(run(channel, f"first-{n}"))
            claim = await claimed(storage, channel)
            await asyncio.gather(storage.finish_run(claim, [chunk(n)]), storage.queue_run(run(channel, f"second-{n}")))
            following = await claimed(storage, channel)
            assert following.run_id == f"{channel.thread_id}-second-{n}"
            await storage.finish_run(following, [chunk(n)])

    async def test_messages_that_meet_all_get_a_place(self, storage: Storage, channel: Channel):
        names = [f"n{n}" for n in range(8)]
        await asyncio.gather(*(storage.queue_run(run(channel, name)) for name in names))
        seen: list[str] = []
        while isinstance(claim := await storage.claim_run(channel, "one", LEASE), Claim):
            seen.append(claim.run_id.removeprefix(f"{channel.thread_id}-"))
            await storage.finish_run(claim, [chunk(0)])
        assert sorted(seen) == names

    async def test_a_known_run_is_not_queued_again(self, storage: Storage, channel: Channel):
        first = await storage.queue_run(run(channel, "a"))
        again = await storage.queue_run(run(channel, "a", {"x": 1}, request_hash="other"))
        assert (again.run_id, again.request_hash, again.at) == (first.run_id, "a", first.at)
        claim = await claimed(storage, channel)
        await storage.finish_run(claim, [chunk(1)])
        later = await storage.queue_run(run(channel, "a"))
        assert (later.at, later.needs_worker) == (first.at, False)
        assert await storage.claim_run(channel, "one", LEASE) is None

    async def test_an_equal_request_joins_while_it_is_the_last_that_waits(self, storage: Storage, channel: Channel):
        first = await storage.queue_run(run(channel, "a", request_hash="same", joins=True))
        again = await storage.queue_run(run(channel, "b", request_hash="same", joins=True))
        assert again.run_id == first.run_id
        other = await storage.queue_run(run(channel, "c", request_hash="other", joins=True))
        third = await storage.queue_run(run(channel, "d", request_hash="same", joins=True))
        named = await storage.queue_run(run(channel, "e", request_hash="same"))
        assert len({first.run_id, other.run_id, third.run_id, named.run_id}) == 4

    async def test_one_worker_holds_a_run_until_its_lease_ends(self, storage: Storage, channel: Channel):
        await storage.queue_run(run(channel, "a"))
        first = await claimed(storage, channel, "one", lease=300)
        held = await storage.claim_run(channel, "two", LEASE)
        assert isinstance(held, Held) and held.worker == "one"
        again = await claimed(storage, channel, "one", lease=300)
        assert (again.attempt, again.ticket) == (1, first.ticket)
        await storage.renew_run(again, 600)
        renewed = await storage.claim_run(channel, "two", LEASE)
        assert isinstance(renewed, Held) and renewed.until > held.until
        assert not (await storage.queue_run(run(channel, "b"))).needs_worker
        await asyncio.sleep(0.7)
        assert (await storage.queue_run(run(channel, "c"))).needs_worker
        assert (await claimed(storage, channel, "two")).attempt == 2

    async def test_a_worker_that_lost_its_run_tells_nothing_more(self, storage: Storage, channel: Channel):
        await storage.queue_run(run(channel, "a"))
        lost = await storage.append_output(await claimed(storage, channel, "one", lease=1), [chunk(1)])
        await asyncio.sleep(0.05)
        heir = await claimed(storage, channel, "two")
        assert heir.rows == 1
        for attempt in (
            storage.append_output(lost, [chunk(7)]),
            storage.renew_run(lost, LEASE),
            storage.finish_run(lost, [chunk(8)]),
        ):
            with pytest.raises(Conflict):
                await attempt
        assert await storage.is_stopped(lost)
        assert not await storage.is_stopped(heir)
        heir = await storage.append_output(heir, [chunk(2)])
        await storage.finish_run(heir, [chunk(3)])
        assert await told(storage, channel, Place(heir.ticket, 0)) == [chunk(1), chunk(2), chunk(3)]

    async def test_a_reader_goes_on_at_any_place(self, storage: Storage, channel: Channel):
        await storage.queue_run(run(channel, "a"))
        claim = await claimed(storage, channel)
        for n in range(45):
            claim = await storage.append_output(claim, [chunk(n)])
        everything = [chunk(n) for n in range(45)]
        start = (await storage.live_state(channel)).start
        assert await told(storage, channel, start) == everything
        for row in (0, 1, 19, 20, 21, 44, 45):
            assert await told(storage, channel, Place(claim.ticket, row)) == everything[row:]
        await storage.finish_run(claim, [chunk(45)])
        assert await told(storage, channel, (await storage.live_state(channel)).start) == []

    async def test_output_of_any_size_is_told_whole(self, storage: Storage, channel: Channel):
        await storage.queue_run(run(channel, "a"))
        claim = await claimed(storage, channel)
        big = {"text": "🧵" * (ROW_CHARACTERS * 3), "more": "x" * 2_000_000}
        claim = await storage.append_output(claim, [chunk(1), big])
        await storage.finish_run(claim, [{"text": "é" * ROW_CHARACTERS}])
        outputs: list[Output] = []
        while found := await storage.read_output(channel, outputs[-1].place if outputs else Place(claim.ticket, 0)):
            outputs += found
        assert [list(o.chunks) for o in outputs] == [[chunk(1), big], [{"text": "é" * ROW_CHARACTERS}]]
        assert [o.last for o in outputs] == [False, True]

    async def test_a_request_that_fits_no_row_is_refused(self, storage: Storage, channel: Channel):
        with pytest.raises(TooLarge):
            await storage.queue_run(run(channel, "a", {"text": "x" * 360_000}))
        assert await storage.claim_run(channel, "one", LEASE) is None

    async def test_stopping_asks_the_live_run_alone(self, storage: Storage, channel: Channel):
        assert not await storage.stop_run(channel)
        await storage.queue_run(run(channel, "a"))
        await storage.queue_run(run(channel, "b"))
        claim = await claimed(storage, channel)
        assert not await storage.stop_run(channel, f"{channel.thread_id}-b")
        assert not await storage.is_stopped(claim)
        assert await storage.stop_run(channel, claim.run_id)
        assert await storage.is_stopped(claim)
        await storage.append_output(claim, [chunk(1)])
        assert await storage.is_stopped(claim)
        await storage.finish_run(replace(claim, rows=1), [chunk(2)])
        assert not await storage.is_stopped(await claimed(storage, channel))

    async def test_a_run_may_be_stopped_before_a_worker_has_it(self, storage: Storage, channel: Channel):
        await storage.queue_run(run(channel, "a"))
        assert await storage.stop_run(channel)
        assert await storage.is_stopped(await claimed(storage, channel))

    async def test_channels_do_not_see_each_other(self, storage: Storage, unique: str):
        """Neither two threads of an owner nor two owners of a thread's name, whatever their ids hold."""
        odd = [form.format(unique) for form in ODD_IDS]
        channels = [Channel(f"r-{unique}", name) for name in odd] + [Channel(name, f"r-{unique}") for name in odd]
        channels += [Channel(f"{unique}/a", "b"), Channel(unique, "a/b"), Channel(f"{unique}#a", "b")]
        for n, channel in enumerate(channels):
            await storage.queue_run(NewRun(channel, f"{unique}-{n}", "agent", "h", {}))
            await storage.finish_run(await claimed(storage, channel), [chunk(n)])
        for n, channel in enumerate(channels):
            assert await told(storage, channel, Place(0, 0)) == [chunk(n)]

    async def test_a_deleted_thread_leaves_no_output(self, storage: Storage, channel: Channel):
        await storage.create_thread(NewThread(channel.thread_id, channel.resource_id))
        await storage.queue_run(run(channel, "a"))
        claim = await storage.append_output(await claimed(storage, channel), [chunk(1)])
        await storage.queue_run(run(channel, "b"))
        await storage.delete_thread(channel.thread_id, resource_id=None)
        assert await storage.purge_thread(channel.thread_id)
        assert await told(storage, channel, Place(0, 0)) == []
        assert await storage.claim_run(channel, "two", LEASE) is None
        with pytest.raises(Conflict):
            await storage.append_output(claim, [chunk(2)])
