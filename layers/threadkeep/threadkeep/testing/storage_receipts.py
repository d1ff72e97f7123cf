"""Receipts: one request, one turn, however often it is sent (DESIGN 4, cases H12 and H21)."""

import asyncio
from dataclasses import replace

import pytest

from threadkeep import clock
from threadkeep.errors import Conflict, ThreadGone
from threadkeep.storage.port import Receipt, Storage, Thread, TurnCommit
from threadkeep.testing.storage_base import FAITHFUL, StorageBase, faithful_text, message, turn


def running(key: str, run: str, *, within: int = 60_000) -> Receipt:
    return Receipt(key, run, "hash", "running", clock.now() + within)


def done(receipt: Receipt, **reply: object) -> Receipt:
    return replace(receipt, status="done", reply=reply)


@pytest.mark.asyncio
class ReceiptsContract(StorageBase):
    async def test_h21_a_claim_is_written_with_the_load_and_shown_to_the_next(self, storage: Storage, thread: Thread):
        first = running(f"key-{thread.id}", "one")
        state = await storage.load_turn(thread.id, last_messages=1, claim=first)
        assert (state.thread, state.claimed) == (thread, None)
        assert await storage.get_receipt(first.key) == first
        state = await storage.load_turn(thread.id, last_messages=1, claim=running(first.key, "two"))
        assert (state.thread, state.claimed) == (thread, first)
        assert await storage.get_receipt(first.key) == first

    async def test_h21_the_same_claim_again_is_ones_own(self, storage: Storage, thread: Thread):
        claim = running(f"key-{thread.id}", "one")
        for _ in range(2):
            assert (await storage.load_turn(thread.id, last_messages=0, claim=claim)).claimed is None

    async def test_h21_of_racing_claims_one_wins(self, storage: Storage, thread: Thread):
        claims = [running(f"key-{thread.id}", f"run-{n}") for n in range(8)]
        states = await asyncio.gather(*(storage.load_turn(thread.id, last_messages=1, claim=c) for c in claims))
        winner = await storage.get_receipt(f"key-{thread.id}")
        assert winner is not None
        for claim, state in zip(claims, states, strict=True):
            assert state.claimed == (None if claim == winner else winner)

    async def test_h21_a_claim_past_its_deadline_is_taken_over(self, storage: Storage, thread: Thread):
        dead = running(f"key-{thread.id}", "dead", within=-1)
        await storage.load_turn(thread.id, last_messages=1, claim=dead)
        heir = running(dead.key, "heir")
        assert (await storage.load_turn(thread.id, last_messages=1, claim=heir)).claimed is None
        assert await storage.get_receipt(dead.key) == heir
        with pytest.raises(Conflict):
            await storage.commit_turn(TurnCommit(thread, turn(), receipt=done(dead)))
        assert (await storage.list_messages(thread.id)).page.total == 0
        stored = await storage.commit_turn(TurnCommit(thread, turn(), receipt=done(heir, run="heir")))
        assert stored.thread.message_count == 2
        assert await storage.get_receipt(dead.key) == done(heir, run="heir")

    async def test_a_done_receipt_holds_until_its_deadline_too(self, storage: Storage, thread: Thread):
        claim = running(f"key-{thread.id}", "one")
        await storage.load_turn(thread.id, last_messages=1, claim=claim)
        finished = done(claim, faithful=FAITHFUL)
        await storage.commit_turn(TurnCommit(thread, turn(), receipt=finished))
        seen = (await storage.load_turn(thread.id, last_messages=1, claim=running(claim.key, "two"))).claimed
        assert seen == finished
        assert faithful_text(seen.reply["faithful"]) == faithful_text(FAITHFUL)

    async def test_a_done_receipt_past_its_deadline_is_read_and_taken_over(self, storage: Storage, thread: Thread):
        claim = running(f"key-{thread.id}", "one")
        await storage.load_turn(thread.id, last_messages=1, claim=claim)
        finished = replace(done(claim), deadline=0)
        await storage.commit_turn(TurnCommit(thread, turn(), receipt=finished))
        assert await storage.get_receipt(claim.key) == finished
        heir = running(claim.key, "two")
        assert (await storage.load_turn(thread.id, last_messages=1, claim=heir)).claimed is None
        assert await storage.get_receipt(claim.key) == heir

    async def test_a_turn_whose_receipt_is_done_or_gone_is_refused(self, storage: Storage, thread: Thread):
        claim = running(f"key-{thread.id}", "one")
        with pytest.raises(Conflict):
            await storage.commit_turn(TurnCommit(thread, turn(), receipt=done(claim)))
        await storage.load_turn(thread.id, last_messages=1, claim=claim)
        await storage.commit_turn(TurnCommit(thread, turn(), receipt=done(claim, a=1)))
        with pytest.raises(Conflict):
            await storage.commit_turn(TurnCommit(thread, turn(), receipt=done(claim, a=2)))
        assert (await storage.list_messages(thread.id)).page.total == 2
        assert await storage.get_receipt(claim.key) == done(claim, a=1)

    async def test_a_refused_turn_leaves_its_receipt_running(self, storage: Storage, thread: Thread):
        claim = running(f"key-{thread.id}", "one")
        await storage.load_turn(thread.id, last_messages=1, claim=claim)
        await storage.commit_turn(TurnCommit(thread, (message("m"),)))
        with pytest.raises(Conflict):
            await storage.commit_turn(TurnCommit(thread, (message("m"),), receipt=done(claim)))
        assert await storage.get_receipt(claim.key) == claim
        await storage.delete_thread(thread.id, resource_id=None)
        with pytest.raises(ThreadGone):
            await storage.commit_turn(TurnCommit(thread, turn(), receipt=done(claim)))
        assert await storage.get_receipt(claim.key) == claim

    async def test_a_claim_on_an_unknown_thread_is_written_too(self, storage: Storage, unique: str):
        claim = running(f"key-{unique}", "one")
        state = await storage.load_turn(f"none-{unique}", last_messages=1, claim=claim)
        assert (state.thread, state.claimed) == (None, None)
        assert await storage.get_receipt(claim.key) == claim

    async def test_dropping_frees_only_ones_own_running_receipt(self, storage: Storage, thread: Thread):
        claim = running(f"key-{thread.id}", "one")
        await storage.load_turn(thread.id, last_messages=1, claim=claim)
        await storage.drop_receipt(replace(claim, run_id="two"))
        assert await storage.get_receipt(claim.key) == claim
        await storage.drop_receipt(claim)
        assert await storage.get_receipt(claim.key) is None
        await storage.drop_receipt(claim)
        await storage.load_turn(thread.id, last_messages=1, claim=claim)
        await storage.commit_turn(TurnCommit(thread, turn(), receipt=done(claim)))
        await storage.drop_receipt(claim)
        assert await storage.get_receipt(claim.key) == done(claim)

    async def test_receipts_are_told_apart_by_the_whole_key(self, storage: Storage, thread: Thread):
        keys = [f"{thread.id}{tail}" for tail in ("", "#", "/", "%23", "x" * 3000, "x" * 3001, "é\u2028")]
        for key in keys:
            assert (await storage.load_turn(thread.id, last_messages=0, claim=running(key, key))).claimed is None
        for key in keys:
            stored = await storage.get_receipt(key)
            assert stored is not None
            assert (stored.key, stored.run_id) == (key, key)
