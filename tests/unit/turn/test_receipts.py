"""Receipts: one request, one turn (DESIGN 4, cases H12, H13, H21)."""

import asyncio

import pytest

from tests.unit.fakes import Gate, calls, says
from threadkeep import StructuredOutput, clock, schema_tool, tool
from threadkeep.errors import (
    AccessDenied,
    Conflict,
    KeyReused,
    ModelRejected,
    NotFound,
    StillRunning,
    StoreUnavailable,
)
from threadkeep.memory.options import MemoryOptions
from threadkeep.turn.receipts import repeatable


@tool
def weather(city: str) -> dict[str, int]:
    """Get the weather of a city."""
    if city == "Nowhere":
        raise LookupError("no such city")
    return {"degrees": len(city)}


def same(body: bytes = b"{}", **more):
    given = {"owner": "ana", "route": "generate/agent", "thread_id": "t", "arrived": clock.now()} | more
    return repeatable(body=body, **given)


def keyed(body: bytes = b"{}"):
    return same(body, key="k-1")


@pytest.mark.parametrize("how", [keyed(), same(run_id="run-1")], ids=["key", "run id"])
async def test_a_repeat_of_a_finished_request_gets_its_turn_and_no_second_one(house, how):
    h = house(
        calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Nowhere"}), text="Let me see. "),
        "4.",
        tools=[weather],
    )
    first = await h.turn("weather?", repeat=how)
    rows = await h.stored()
    again = await h.turn("weather?", repeat=how)
    assert len(h.model.requests) == 2 and await h.stored() == rows
    assert (again.text, again.finish_reason, again.run_id) == (first.text, first.finish_reason, first.run_id)
    assert again.messages == first.messages and again.usage == first.usage
    assert [[(o.call, o.result, o.error) for o in s.outcomes] for s in again.steps] == [
        [(o.call, o.result, o.error) for o in s.outcomes] for s in first.steps
    ]
    assert [s.response.text for s in again.steps] == ["Let me see. ", "4."]


async def test_a_repeat_of_a_run_that_waits_for_the_caller_shows_the_same_pending_call(house):
    h = house(calls(("pick", {"hint": "sea"})))
    pick = schema_tool(name="pick", description="Pick", parameters={"type": "object"})
    first = await h.turn("colour?", repeat=keyed(), client_tools=(pick,))
    again = await h.turn("colour?", repeat=keyed(), client_tools=(pick,))
    assert [c.id for c in again.steps[-1].pending] == [c.id for c in first.steps[-1].pending] == ["call-pick-0"]
    assert again.steps[-1].outcomes == () and again.finish_reason == "tool-calls"


@pytest.mark.parametrize(("said", "fallback"), [('{"a":1}', False), ("nonsense", True)])
async def test_a_repeat_has_the_object_too(house, said, fallback):
    h = house(said)
    wanted = StructuredOutput({"type": "object"}, error_strategy="fallback", fallback_value={"a": 0})
    first = await h.turn("go", repeat=keyed(), structured_output=wanted)
    again = await h.turn("go", repeat=keyed(), structured_output=wanted)
    assert again.structured.value == first.structured.value == {"a": 0 if fallback else 1}
    assert again.structured.is_fallback is first.structured.is_fallback is fallback


async def test_h12_without_a_key_an_equal_text_after_an_answer_is_a_new_turn(house):
    h = house()
    await h.turn("yes", repeat=same())
    await asyncio.sleep(0.003)
    await h.turn("yes", repeat=same())
    assert [text for _, text in await h.texts()] == ["yes", "ok", "yes", "ok"]


async def test_h12_it_is_new_however_often_it_comes_and_each_has_repeats_of_its_own(house):
    h = house()
    for n in range(3):
        await h.turn("yes", repeat=same())
        assert len(h.model.requests) == n + 1
        await asyncio.sleep(0.003)
    late = same(arrived=clock.now())
    gate = Gate(says("fourth"))
    h.model.answers = [gate]
    await asyncio.sleep(0.003)
    fourth = asyncio.create_task(h.turn("yes", repeat=late))
    await gate.reached.wait()
    repeat = asyncio.create_task(h.turn("yes", repeat=late))
    await asyncio.sleep(0.05)
    gate.opened.set()
    assert (await fourth).messages == (await repeat).messages
    assert len(h.model.requests) == 4 and len(await h.stored()) == 8


async def test_a_repeat_that_arrived_before_the_answer_and_began_after_it_gets_the_same_turn(house):
    h = house("once")
    early = same()
    first = await h.turn("go", repeat=early)
    again = await h.turn("go", repeat=early)
    assert again.messages == first.messages and len(h.model.requests) == 1


async def test_an_equal_request_that_arrives_meanwhile_waits_and_gets_the_same_turn(house):
    gate = Gate(says("once"))
    h = house(gate)
    first = asyncio.create_task(h.turn("go", repeat=same()))
    await gate.reached.wait()
    second = asyncio.create_task(h.turn("go", repeat=same()))
    await asyncio.sleep(0.15)
    assert not second.done()
    gate.opened.set()
    assert (await first).messages == (await second).messages
    assert len(h.model.requests) == 1 and len(await h.stored()) == 2


async def test_another_request_on_the_thread_waits_for_nothing(house):
    gate = Gate(says("slow"))
    h = house(gate, "quick")
    first = asyncio.create_task(h.turn("go", repeat=same(b"1")))
    await gate.reached.wait()
    assert (await h.turn("other", repeat=same(b"2"))).text == "quick"
    gate.opened.set()
    await first


async def test_h21_with_a_key_a_repeat_meanwhile_is_told_when_to_come_back(house):
    gate = Gate(says("once"))
    h = house(gate)
    first = asyncio.create_task(h.turn("go", repeat=keyed(), deadline=20))
    await gate.reached.wait()
    with pytest.raises(StillRunning) as caught:
        await h.turn("go", repeat=keyed())
    assert 15 <= caught.value.retry_after <= 26
    gate.opened.set()
    await first
    assert (await h.turn("go", repeat=keyed())).text == "once"
    assert len(h.model.requests) == 1


async def test_a_key_that_comes_with_another_body_is_refused(house):
    h = house()
    await h.turn("go", repeat=keyed(b"1"))
    with pytest.raises(KeyReused):
        await h.turn("stay", repeat=keyed(b"2"))
    assert len(h.model.requests) == 1


async def test_a_failed_run_gives_its_receipt_back(house):
    h = house(ModelRejected("no"), "yes")
    with pytest.raises(ModelRejected):
        await h.turn("go", repeat=keyed())
    assert (await h.turn("go", repeat=keyed())).text == "yes"
    assert len(await h.stored()) == 2


async def test_one_who_waits_for_a_run_that_fails_runs_itself(house):
    async def fail():
        reached.set()
        await opened.wait()
        raise ModelRejected("no")

    reached, opened = asyncio.Event(), asyncio.Event()
    h = house(fail, "yes")
    first = asyncio.create_task(h.turn("go", repeat=same()))
    await reached.wait()
    second = asyncio.create_task(h.turn("go", repeat=same()))
    await asyncio.sleep(0.05)
    opened.set()
    with pytest.raises(ModelRejected):
        await first
    assert (await second).text == "yes"
    assert [text for _, text in await h.texts()] == ["go", "yes"]


async def test_h21_a_dead_run_is_taken_over_after_its_deadline_and_its_late_commit_fails(house, monkeypatch):
    gate = Gate(says("late"))
    h = house(gate, "in time")
    dead = asyncio.create_task(h.turn("go", repeat=keyed()))
    await gate.reached.wait()
    with pytest.raises(StillRunning):
        await h.turn("go", repeat=keyed())
    key = keyed().key
    held = await h.storage.get_receipt(key)
    later = held.deadline + 1
    monkeypatch.setattr(h.storage, "clock", lambda: later)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert (await h.turn("go", repeat=keyed())).text == "in time"
    gate.opened.set()
    with pytest.raises(Conflict):
        await dead
    assert [text for _, text in await h.texts()] == ["go", "in time"]


async def test_one_who_waits_for_a_dead_run_ends_at_its_own_deadline(house):
    gate = Gate(says("never"))
    h = house(gate)
    dead = asyncio.create_task(h.turn("go", repeat=same()))
    await gate.reached.wait()
    with pytest.raises(StillRunning):
        await h.turn("go", repeat=same(), deadline=0.5)
    assert (await h.storage.get_receipt(same().key)).status == "running"
    dead.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dead
    assert await h.storage.get_receipt(same().key) is None


async def test_read_only_and_memoryless_runs_leave_no_receipt(house):
    h = house()
    await h.turn("go", repeat=keyed(), options=MemoryOptions(read_only=True))
    await h.turn("go", repeat=keyed(), thread=None)
    assert await h.storage.get_receipt(keyed().key) is None
    assert len(h.model.requests) == 2


async def test_h01_a_refused_caller_leaves_no_receipt(house):
    h = house()
    await h.turn("mine", resource="bo")
    with pytest.raises(AccessDenied):
        await h.turn("go", repeat=keyed())
    assert await h.storage.get_receipt(keyed().key) is None


async def test_a_repeat_after_the_thread_was_deleted_revives_nothing(house):
    h = house()
    await h.turn("go", repeat=keyed())
    await h.storage.delete_thread("t", resource_id="ana")
    await h.storage.purge_thread("t")
    with pytest.raises(NotFound):
        await h.turn("go", repeat=keyed())
    assert await h.storage.get_thread("t") is None and len(h.model.requests) == 1


async def test_a_store_that_cannot_take_the_receipt_back_does_not_hide_the_failure(house, monkeypatch):
    h = house(ModelRejected("no"))

    async def busy(receipt):
        raise StoreUnavailable("busy")

    monkeypatch.setattr(h.storage, "drop_receipt", busy)
    with pytest.raises(ModelRejected):
        await h.turn("go", repeat=keyed())


def test_keys_tell_owner_route_thread_and_run_apart():
    base = same()
    others = [
        same(owner="bo"),
        same(route="generate/other"),
        same(thread_id="u"),
        same(b"{ }"),
        same(run_id="r"),
        same(key="r"),
    ]
    assert len({r.key for r in [base, *others]}) == 7
    assert keyed(b"1").key == keyed(b"2").key
    assert same(b"1", run_id="r").key != same(b"2", run_id="r").key
    assert same().key == base.key
