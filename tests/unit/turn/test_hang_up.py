"""H13: a watcher who leaves at any moment leaves a whole turn or none, no receipt that holds repeats up, no task."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.turn.test_approvals import Disk, decided
from tests.unit.turn.test_stream import Talker, kinds, watch, weather
from threadkeep import Memory
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.turn.receipts import repeatable

SLOW = {"load_turn", "create_thread", "commit_turn", "update_thread"}
MOMENTS = 110  # turns of the event loop; more than the longest run takes


class Threads(InMemoryStorage):
    """Goes on with what was begun though nobody waits any more, as the threads do in which boto3 runs."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in SLOW:
            return found

        async def slowly(*given: Any, **more: Any) -> Any:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done = await found(*given, **more)
            await asyncio.sleep(0)
            return done

        return lambda *given, **more: asyncio.shield(asyncio.ensure_future(slowly(*given, **more)))


@pytest.mark.parametrize(
    ("model", "memory"),
    [
        (lambda: Talker("Hel", "lo"), Memory()),
        (lambda: FakeModel(calls(("weather", {"city": "Oslo"})), says("rain")), Memory()),
        (lambda: FakeModel(says("Hello"), says("A greeting")), Memory(generate_title={"emit_event": True})),
    ],
    ids=["text", "tool", "title"],
)
async def test_h13_hanging_up_at_any_moment_loses_nothing_that_was_seen(house, model: Any, memory: Memory) -> None:
    ends = set[bool]()
    for moment in range(MOMENTS):
        h = house(memory=memory, tools=[weather])
        h.storage, h.model = Threads(), model()
        repeat = repeatable(owner="ana", route="stream", thread_id="t", body=b"{}", arrived=0)
        run, seen = await watch(h, "hi", repeat=repeat), list[Any]()

        async def read(run: Any = run, seen: list[Any] = seen) -> None:
            async with aclosing(run):
                async for event in run:
                    seen.append(event)

        reading = asyncio.create_task(read())
        for _ in range(moment):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert asyncio.all_tasks() == {asyncio.current_task()}, f"a task is left at moment {moment}"
        receipt = await h.storage.get_receipt(repeat.key)
        stored = await h.texts() if await h.storage.get_thread("t") else []
        assert receipt is None or receipt.status == "done", f"the receipt is held at moment {moment}"
        assert [role for role, _ in stored] == (["user", "assistant"] if receipt else []), f"at moment {moment}"
        assert stored or not {"TextDelta", "CallFinished"} & set(kinds(seen)), f"lost at moment {moment}"
        ends.add(reading.cancelled())
    assert ends == {True, False}, "some runs are cut, some come to their end"


async def test_h13_a_decision_that_is_cut_at_any_moment_runs_the_tool_once_and_is_taken_up_by_a_repeat(house) -> None:
    ends = set[bool]()
    for moment in range(MOMENTS):
        disk = Disk()
        h = house(calls(("erase", {"path": "/x"})), "It is gone.", "It is gone.", tools=[disk.tool])
        h.storage = Threads()
        run_id = (await h.turn("erase it")).run_id
        deciding = asyncio.create_task(decided(h, run_id))
        for _ in range(moment):
            await asyncio.sleep(0)
        deciding.cancel()
        await asyncio.wait([deciding])
        assert asyncio.all_tasks() == {asyncio.current_task()}, f"a task is left at moment {moment}"
        async with asyncio.timeout(0.5):
            await decided(h, run_id)
        assert disk.erased == ["/x"], f"at moment {moment}"
        assert [role for role, _ in await h.texts()] == ["user", "assistant", "assistant"], f"at moment {moment}"
        ends.add(deciding.cancelled())
    assert ends == {True, False}, "some decisions are cut, some come to their end"


async def test_h13_who_hangs_up_while_the_turn_is_stored_finds_it_stored(house, monkeypatch) -> None:
    h, begun, go = house(), asyncio.Event(), asyncio.Event()
    h.model, commit = Talker("Hello"), h.storage.commit_turn

    async def slowly(turn: Any) -> Any:
        begun.set()
        await go.wait()
        return await commit(turn)

    monkeypatch.setattr(h.storage, "commit_turn", slowly)
    repeat = repeatable(owner="ana", route="stream", thread_id="t", body=b"{}", arrived=0)
    run = await watch(h, "hi", repeat=repeat)
    reading = asyncio.create_task(_all(run))
    await begun.wait()
    reading.cancel()
    await asyncio.sleep(0)
    assert not reading.done(), "whoever leaves waits until the turn is stored"
    go.set()
    await asyncio.wait([reading])
    assert await h.texts() == [("user", "hi"), ("assistant", "Hello")]
    receipt = await h.storage.get_receipt(repeat.key)
    assert receipt is not None
    assert receipt.status == "done"


async def _all(run: Any) -> None:
    async for _ in run:
        pass
