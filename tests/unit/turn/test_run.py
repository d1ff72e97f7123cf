"""The turn: what it loads, whom it lets in, what it stores and when (DESIGN 4)."""

import asyncio
from dataclasses import replace

import pytest

from tests.unit.fakes import Gate, calls, says
from tests.unit.turn.conftest import assistant, system, user
from threadkeep import Memory, tool
from threadkeep.errors import (
    AccessDenied,
    ConfigurationError,
    DeadlineExceeded,
    InvalidInput,
    ModelRejected,
    ThreadGone,
    TooLarge,
)
from threadkeep.memory.options import MemoryOptions
from threadkeep.storage.port import NewThread, SavedMessage
from threadkeep.turn.request import Conversation


@tool
def weather(city: str) -> dict[str, int]:
    """Get the weather of a city."""
    return {"degrees": len(city)}


async def test_a_turn_stores_the_question_and_the_answer_and_the_next_turn_sees_both(house):
    h = house("I will.", "Otters.")
    await h.turn("Remember: my favourite animals are otters.")
    await h.turn("Which animals?")
    assert h.model.prompt == [
        ("system", "Be kind."),
        ("user", "Remember: my favourite animals are otters."),
        ("assistant", "I will."),
        ("user", "Which animals?"),
    ]
    assert [text for _, text in await h.texts()] == [
        "Remember: my favourite animals are otters.",
        "I will.",
        "Which animals?",
        "Otters.",
    ]
    assert len({m.id for m in await h.stored()}) == 4


async def test_ms10_history_is_the_newest_messages_in_ascending_order(house):
    h = house(memory=Memory(last_messages=3))
    for n in range(3):
        await h.turn(f"q{n}")
    await h.turn("last")
    assert [text for _, text in h.model.prompt] == ["Be kind.", ".", "ok", "q2", "ok", "last"]


async def test_ctx2_the_order_of_a_whole_prompt(house):
    h = house(memory=Memory(last_messages=3))
    for n in (1, 2):
        await h.turn(f"q{n}")
    context = (user("context user"), assistant("context assistant"))
    await h.turn("input 1", "input 2", context=context)
    spoken = [text for role, text in h.model.prompt if role != "system"]
    assert spoken == [".", "ok", "q2", "ok", "context user", "context assistant", "input 1", "input 2"]


async def test_ctx6_an_answer_that_is_only_an_error_vanishes(house):
    h = house()
    await h.turn("first")
    broken = {"format": 2, "parts": [{"type": "error", "error": {"name": "Error", "message": "boom"}}]}
    await h.storage.save_messages("t", [SavedMessage("assistant", broken)], resource_id="ana")
    await h.turn("second")
    assert [text for _, text in h.model.prompt] == ["Be kind.", "first", "ok", "second"]


async def test_ctx7_the_result_tells_what_was_said_and_what_was_remembered(house):
    h = house()
    first = await h.turn("first")
    second = await h.turn("second", context=(user("not remembered"),))
    assert (first.remembered, [m.role for m in first.messages]) == ((), ["user", "assistant"])
    assert second.remembered == first.messages
    assert second.messages == (await h.stored())[2:]


async def test_call3_agents_on_one_store_share_a_thread(house):
    h = house("from one", "from two")
    await h.turn("first")
    h.agent = replace(h.agent, id="other", instructions="Be brief.")
    await h.turn("second")
    assert h.model.prompt == [("system", "Be brief."), ("user", "first"), ("assistant", "from one"), ("user", "second")]


@pytest.mark.parametrize("options", [MemoryOptions(), MemoryOptions(last_messages=0)])
async def test_th16_the_thread_is_there_before_the_model_is_asked(house, options):
    gate = Gate(says("ok"))
    h = house(gate)
    running = asyncio.create_task(
        h.turn("hello", conversation=Conversation("t", "ana", "Title", {"k": 1}), options=options)
    )
    await gate.reached.wait()
    thread = await h.storage.get_thread("t")
    assert thread is not None and (thread.title, thread.metadata, thread.message_count) == ("Title", {"k": 1}, 0)
    gate.opened.set()
    await running


async def test_th16_a_turn_on_a_thread_that_exists_keeps_its_title_and_metadata(house):
    h = house()
    made = await h.storage.create_thread(NewThread("t", "ana", "Mine", {"k": 1}))
    await h.turn("hello", conversation=Conversation("t", "ana", "Other", {"k": 2, "more": True}))
    stored = await h.storage.get_thread("t")
    assert (stored.title, stored.metadata, stored.created_at) == ("Mine", {"k": 1}, made.created_at)


async def test_h10_no_turn_reads_a_thread_that_is_being_deleted(house):
    h = house()
    await h.turn("first")
    await h.storage.delete_thread("t", resource_id="ana")
    with pytest.raises(ThreadGone):
        await h.turn("second", options=MemoryOptions(read_only=True))
    assert len(h.model.requests) == 1


async def test_ms17_the_store_is_asked_for_the_ids_that_the_caller_gave(house, monkeypatch):
    h, asked = house(), list[tuple[str, ...]]()
    load = h.storage.load_turn

    async def seen(*given, **named):
        asked.append(tuple(named["message_ids"]))
        return await load(*given, **named)

    monkeypatch.setattr(h.storage, "load_turn", seen)
    await h.turn(user("one", "id-1"), user("two"))
    assert asked == [("id-1",)]


async def test_h22_ms12_last_messages_false_loads_nothing_and_still_saves(house):
    h = house(memory=Memory(last_messages=False))
    await h.turn("hello")
    await h.turn("again")
    assert h.model.prompt == [("system", "Be kind."), ("user", "again")]
    assert len(await h.stored()) == 4


async def test_h01_th12_mdisc11_a_turn_on_a_foreign_thread_reaches_no_model(house):
    h = house()
    await h.turn("first", resource="u-ana")
    with pytest.raises(AccessDenied):
        await h.turn("second", resource="u-bo")
    assert len(h.model.requests) == 1
    assert [text for _, text in await h.texts()] == ["first", "ok"]
    thread = await h.storage.get_thread("t")
    assert thread is not None and thread.resource_id == "u-ana"
    assert (await h.storage.list_threads("u-bo")).total == 0


async def test_h10_a_delete_during_a_paused_turn_is_final(house):
    gate = Gate(says("late"))
    h = house("ok", gate)
    await h.turn("first")
    running = asyncio.create_task(h.turn("second"))
    await gate.reached.wait()
    assert await h.storage.delete_thread("t", resource_id="ana")
    gate.opened.set()
    with pytest.raises(ThreadGone):
        await running
    assert await h.storage.get_thread("t") is None
    with pytest.raises(ThreadGone):
        await h.turn("third")
    assert len(h.model.requests) == 2


async def test_a_failing_model_leaves_the_thread_as_it_was(house):
    h = house("ok", ModelRejected("no such model"))
    await h.turn("first")
    before = await h.storage.get_thread("t")
    with pytest.raises(ModelRejected, match="no such model"):
        await h.turn("second")
    assert await h.storage.get_thread("t") == before
    assert [text for _, text in await h.texts()] == ["first", "ok"]


async def test_a_model_that_fails_after_a_tool_leaves_the_thread_as_it_was(house):
    h = house("ok", calls(("weather", {"city": "Oslo"})), ModelRejected("gone"), tools=[weather])
    await h.turn("first")
    before = await h.storage.get_thread("t")
    with pytest.raises(ModelRejected):
        await h.turn("weather?")
    assert await h.storage.get_thread("t") == before


async def test_a_turn_past_its_deadline_stores_nothing_and_says_what_to_use(house):
    h = house("ok", Gate(says("too late")))
    await h.turn("first")
    with pytest.raises(DeadlineExceeded, match=r"0\.05 s.*stream or runs"):
        await h.turn("second", deadline=0.05)
    assert [text for _, text in await h.texts()] == ["first", "ok"]


async def test_h20_two_turns_at_once_are_both_stored_each_in_one_piece(house):
    one, two = Gate(says("answer one")), Gate(says("answer two"))
    h = house("ok", one, two)
    await h.turn("zero")
    first = asyncio.create_task(h.turn("one"))
    await one.reached.wait()
    second = asyncio.create_task(h.turn("two"))
    await two.reached.wait()
    two.opened.set()
    await second
    one.opened.set()
    await first
    assert [text for _, text in await h.texts()] == ["zero", "ok", "two", "answer two", "one", "answer one"]
    assert len(h.model.requests) == 3


async def test_h12_what_a_client_sends_again_is_not_stored_again(house):
    h = house("a1", "a2", "a3")
    await h.turn("u1")
    answer = (await h.stored())[1].id
    await h.turn(user("u1"), assistant("a1", answer), user("u2"))
    await h.turn(user("u1"), assistant("a1"), user("u2"), assistant("a2"), user("u3"))
    assert [text for _, text in await h.texts()] == ["u1", "a1", "u2", "a2", "u3", "a3"]


async def test_h12_two_equal_texts_in_two_turns_are_both_kept(house):
    h = house()
    await h.turn("yes")
    await h.turn("yes")
    assert [text for _, text in await h.texts()] == ["yes", "ok", "yes", "ok"]


async def test_ms16_an_empty_thread_takes_the_whole_transcript(house):
    h = house("a2")
    await h.turn(user("u1"), assistant("a1"), user("u2"))
    assert [text for _, text in await h.texts()] == ["u1", "a1", "u2", "a2"]


async def test_ms17_a_message_with_a_stored_id_is_not_new(house):
    h = house()
    await h.turn(user("u1", "id-1"))
    with pytest.raises(InvalidInput, match="no message that the thread does not have"):
        await h.turn(user("u1", "id-1"))
    await h.turn(user("u1", "id-1"), user("u2", "id-2"))
    assert [text for _, text in await h.texts()] == ["u1", "ok", "u2", "ok"]
    assert len(h.model.requests) == 2


async def test_h19_system_messages_are_seen_once_and_never_stored(house):
    h = house()
    await h.turn(system("be terse"), user("hi"))
    assert ("system", "be terse") in h.model.prompt
    await h.turn("again")
    assert ("system", "be terse") not in h.model.prompt
    assert [role for role, _ in await h.texts()] == ["user", "assistant"] * 2


async def test_ctx1_system_texts_stand_first_in_order_without_repetition(house):
    h = house()
    await h.turn(
        system("from input"),
        user("hi"),
        context=(system("from context"), user("page 17")),
        system="call time",
    )
    assert h.model.prompt == [
        ("system", "Be kind."),
        ("system", "from context"),
        ("system", "from input"),
        ("system", "call time"),
        ("user", "page 17"),
        ("user", "hi"),
    ]
    await h.turn(system("Be kind."), user("x"), instructions="Be brief.")
    assert [t for r, t in h.model.prompt if r == "system"] == ["Be brief.", "Be kind."]


async def test_ctx4_ms11_context_follows_history_and_is_never_stored(house):
    h = house()
    await h.turn("u1")
    await h.turn("u2", context=(user("PAGE=cart-17"),))
    assert [t for _, t in h.model.prompt] == ["Be kind.", "u1", "ok", "PAGE=cart-17", "u2"]
    assert "PAGE=cart-17" not in str(await h.stored())
    await h.turn("u3")
    assert "PAGE=cart-17" not in str(h.model.prompt)


async def test_h14_call2_ms12_read_only_reads_and_writes_nothing(house):
    h = house()
    await h.turn("first")
    before = await h.storage.get_thread("t")
    result = await h.turn("second", options=MemoryOptions(read_only=True))
    assert ("user", "first") in h.model.prompt
    assert await h.storage.get_thread("t") == before
    assert len(await h.stored()) == 2
    assert result.text == "ok"


async def test_h14_call2_read_only_on_a_missing_thread_answers_and_creates_none(house):
    h = house()
    await h.turn("hello", thread="nowhere", options=MemoryOptions(read_only=True))
    assert await h.storage.get_thread("nowhere") is None


async def test_th18_an_agent_without_memory_runs_and_stores_nothing(house):
    h = house()
    h.agent = replace(h.agent, memory=None)
    result = await h.turn("hello")
    assert result.text == "ok" and result.thread is None
    assert await h.storage.get_thread("t") is None


async def test_a_run_without_thread_uses_no_memory(house):
    h = house()
    result = await h.turn("hello", thread=None)
    assert result.thread is None and [m.role for m in result.messages] == ["user", "assistant"]
    assert (await h.storage.list_threads(None)).total == 0


async def test_too_many_new_messages_are_refused_before_the_model_is_called(house):
    h = house()
    with pytest.raises(TooLarge):
        await h.turn(*(user(str(n)) for n in range(60)))
    assert h.model.requests == []


async def test_too_large_a_message_is_refused_before_the_model_is_called(house):
    h = house()
    with pytest.raises(TooLarge):
        await h.turn("x" * 5_000_000)
    assert h.model.requests == []
    assert await h.storage.get_thread("t") is None


async def test_an_agent_without_model_says_what_is_missing(house, monkeypatch):
    h = house(model="")
    with pytest.raises(ConfigurationError, match="default model"):
        await h.turn("hello")


async def test_the_owner_of_a_thread_created_meanwhile_decides(house, monkeypatch):
    h = house()
    await h.storage.create_thread(NewThread("t", "bo"))
    missing = replace(await h.storage.load_turn("other", last_messages=1))

    async def too_early(*_: object, **__: object):
        return missing

    monkeypatch.setattr(h.storage, "load_turn", too_early)
    with pytest.raises(AccessDenied):
        await h.turn("hello", resource="ana")
    assert h.model.requests == []
