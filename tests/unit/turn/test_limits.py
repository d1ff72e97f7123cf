"""TokenLimiter, ToolCallFilter and the memory's token budget (PR-12 to PR-14, CFG-4, cases H06, H08, H27)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.turn.conftest import House, user
from threadkeep import Agent, Memory, MessageList, Processor, RunMessage, TokenLimiter, ToolCallFilter, tool
from threadkeep.errors import ConfigurationError
from threadkeep.memory import tokens
from threadkeep.memory.messages import content, text_part, tool_part
from threadkeep.memory.options import MemoryOptions, merged
from threadkeep.models.port import ModelResponse, PromptMessage, TextPart, ToolCall, ToolResult, Usage
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import NewMessage, NewThread, TurnCommit

WORDS = "word " * 50  # 50 tokens


@tool
def fetch(what: str) -> str:
    """Fetch."""
    return what * 60


def called(id: str, name: str = "look", result: Any = "seen") -> dict:
    return tool_part(id, name, {"q": id}, {"state": "result", "result": result}, 1)


def said(text: str) -> dict:
    return text_part(text, 1)


async def remember(h: House, *rows: tuple[str, list[dict]]) -> None:
    """Put stored messages into thread t."""
    thread = await h.storage.create_thread(NewThread("t", "ana"))
    for n, (role, parts) in enumerate(rows):
        message = NewMessage(f"m{n}", role, content(parts), n)
        thread = (await h.storage.commit_turn(TurnCommit(thread, (message,)))).thread


H06 = [
    ("user", [said("u1")]),
    ("assistant", [called("k1"), said("a2")]),
    ("user", [said("u2")]),
    ("assistant", [called("k2"), called("k3", "spy"), said("a4")]),
]


def check_legal(prompt: tuple[PromptMessage, ...]) -> None:
    """Each result follows its call at once, no call lacks one, and the user speaks first (case H06)."""
    waiting: list[str] = []
    first = next(m for m in prompt if m.role != "system")
    assert first.role == "user"
    for message in prompt:
        results = [p.call_id for p in message.parts if isinstance(p, ToolResult)]
        assert results == waiting and (message.role == "tool") == bool(results) and message.parts
        waiting = [p.id for p in message.parts if isinstance(p, ToolCall)]
    assert not waiting


def texts(h: House) -> list[str]:
    return [t for r, t in h.model.prompt if r != "system"]


# TokenLimiter, input


async def test_pr12_older_history_pays_first_and_the_store_keeps_all(house):
    h = house(input_processors=[TokenLimiter(105)])
    await remember(h, *(("user", [said(f"{n} {WORDS[:50]}")]) for n in range(6)))
    await h.turn("now")
    assert texts(h) == [f"{n} {WORDS[:50]}" for n in (2, 3, 4, 5)] + ["now"]
    assert tokens.prompt(h.model.requests[-1].messages) <= 105
    assert len(await h.stored()) == 8


@pytest.mark.parametrize(("mode", "kept"), [("best-fit", ["tiny", "small"]), ("contiguous", ["small"])])
async def test_pr12_best_fit_skips_and_contiguous_stops_at_what_does_not_fit(house, mode, kept):
    h = house(input_processors=[TokenLimiter(70, trim_mode=mode)])
    await remember(h, ("user", [said("tiny")]), ("user", [said(WORDS)]), ("user", [said("small")]))
    await h.turn("now")
    assert texts(h) == [*kept, "now"]


@pytest.mark.parametrize("trim_mode", ["best-fit", "contiguous"])
@pytest.mark.parametrize("limit", range(40, 170, 3))
async def test_h06_a_limit_never_splits_a_call_from_its_result(house, trim_mode, limit):
    h = house(memory=Memory(last_messages=limit % 10), input_processors=[TokenLimiter(limit, trim_mode=trim_mode)])
    await remember(h, *H06)
    await h.turn("now")
    check_legal(h.model.requests[-1].messages)
    assert tokens.prompt(h.model.requests[-1].messages) <= limit


async def test_h08_this_runs_own_calls_stay(house):
    h = house(calls(("fetch", {"what": "page "})), "done", tools=[fetch], input_processors=[TokenLimiter(160)])
    await remember(h, *(("user", [said(f"{n} {WORDS[:50]}")]) for n in range(6)))
    result = await h.turn("now")
    assert (result.text, len(h.model.requests)) == ("done", 2)
    assert texts(h)[-2:] == ["[call fetch]", f"[ToolResult {'page ' * 60}]"]
    assert len(h.model.requests[0].messages) > len(h.model.requests[1].messages) - 2
    assert [r for r, _ in await h.texts()][-2:] == ["user", "assistant"]
    assert "page page" in str((await h.stored())[-1].content)


async def test_h08_a_question_over_the_limit_stops_the_run_and_names_the_limit(house):
    h = house(input_processors=[TokenLimiter(40)])
    result = await h.turn(WORDS)
    assert result.tripwire is not None and not result.tripwire.retry
    assert "limit of 40" in result.tripwire.reason and result.tripwire.processor_id == "token-limiter"
    left = 40 - tokens.prompt_message(PromptMessage("system", (TextPart("Be kind."),)))
    assert result.tripwire.metadata == {
        "systemTokens": round(40 - left),
        "limit": 40,
        "remainingBudget": round(left - 24),
        "messageCount": 1,
    }
    assert h.model.requests == [] and await h.stored() == ()


async def test_pr12_system_texts_over_the_limit_stop_the_run(house):
    h = house(instructions=WORDS, input_processors=[TokenLimiter(50)])
    result = await h.turn("hi")
    assert result.tripwire is not None and result.tripwire.metadata == {"systemTokens": 55, "limit": 50}
    assert "system messages alone" in result.tripwire.reason and h.model.requests == []


async def test_pr12_no_message_stops_the_run(house):
    class Clear(Processor):
        id = "clear"

        def process_llm_request(self, prompt, call):
            return [item for item in prompt if item.source in ("system", "memory")]

    h = house(input_processors=[Clear(), TokenLimiter(60)])
    await remember(h, ("user", [said(WORDS)]))
    result = await h.turn("hi")
    assert result.tripwire is not None and "no message to send" in result.tripwire.reason
    assert h.model.requests == []


async def test_h08_a_run_whose_own_calls_outgrow_the_limit_stops(house):
    h = house(calls(("fetch", {"what": "page "})), "done", tools=[fetch], input_processors=[TokenLimiter(70)])
    result = await h.turn("go")
    assert result.tripwire is not None and "own messages need" in result.tripwire.reason
    assert len(h.model.requests) == 1 and await h.stored() == ()


@pytest.mark.parametrize("bad", [0, -5])
def test_pr12_a_limit_below_one_is_a_configuration_error(bad):
    with pytest.raises(ConfigurationError, match="limit"):
        TokenLimiter(bad)


# TokenLimiter, output


async def test_pr12_an_answer_over_the_limit_is_cut_in_what_is_stored_and_returned(house):
    h = house(calls(("fetch", {"what": "x"}), text="one two "), "three four", tools=[fetch])
    h.agent = replace(h.agent, output_processors=[TokenLimiter(3)])
    result = await h.turn("go")
    assert result.text == "one two three "
    stored = (await h.stored())[-1].content
    assert [p["type"] for p in stored["parts"]] == ["text", "tool-invocation", "step-start", "text"]
    assert stored["content"] == "three "


async def test_pr12_each_part_may_have_a_limit_of_its_own(house):
    h = house(calls(("fetch", {"what": "x"}), text="one two three"), "four five six", tools=[fetch])
    h.agent = replace(h.agent, output_processors=[TokenLimiter(2, count_mode="part")])
    assert (await h.turn("go")).text == "one two four five "


async def test_pr12_an_answer_cut_to_nothing_stores_no_message(house):
    h = house("internationalization", output_processors=[TokenLimiter(1)])
    result = await h.turn("go")
    assert result.text == "" and [r for r, _ in await h.texts()] == ["user"]


async def test_pr12_abort_stops_the_run(house):
    h = house("one two three", output_processors=[TokenLimiter(2, strategy="abort")])
    result = await h.turn("go")
    assert result.tripwire is not None and "limit of 2" in result.tripwire.reason
    assert result.text == "" and await h.stored() == ()
    h.agent = replace(h.agent, output_processors=[TokenLimiter(3, strategy="abort")])
    h.model.answers = ["one two three"]
    assert (await h.turn("go")).text == "one two three"


# ToolCallFilter


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, ["u1", "a2", "u2", "a4", "now"]),
        ({"exclude": []}, ["u1", "[k1]", "=k1", "a2", "u2", "[k2][k3]", "=k2=k3", "a4", "now"]),
        ({"exclude": ["spy"]}, ["u1", "[k1]", "=k1", "a2", "u2", "[k2]", "=k2", "a4", "now"]),
        ({"exclude": ["nothing"]}, ["u1", "[k1]", "=k1", "a2", "u2", "[k2][k3]", "=k2=k3", "a4", "now"]),
        ({"filter_after_tool_steps": 1}, ["u1", "a2", "u2", "[k2][k3]", "=k2=k3", "a4", "now"]),
        ({"filter_after_tool_steps": 9}, ["u1", "[k1]", "=k1", "a2", "u2", "[k2][k3]", "=k2=k3", "a4", "now"]),
        ({"filter_after_tool_steps": 0}, ["u1", "a2", "u2", "a4", "now"]),
        ({"filter_after_tool_steps": 1, "exclude": ["spy"]}, None),
    ],
)
async def test_pr13_calls_go_with_their_results_and_texts_stay(house, settings, left):
    h = house(input_processors=[ToolCallFilter(**settings)])
    await remember(h, *H06)
    await h.turn("now")
    shown = ["".join(_part(p) for p in m.parts) for m in h.model.requests[-1].messages if m.role != "system"]
    assert shown == (left or ["u1", "[k1]", "=k1", "a2", "u2", "[k2][k3]", "=k2=k3", "a4", "now"])
    check_legal(h.model.requests[-1].messages)


def _part(part: Any) -> str:
    match part:
        case ToolCall(id):
            return f"[{id}]"
        case ToolResult(id):
            return f"={id}"
        case _:
            return part.text


async def test_pr13_this_runs_calls_stay_unless_steps_are_counted(house):
    h = house(calls(("fetch", {"what": "x"})), "done", tools=[fetch], input_processors=[ToolCallFilter()])
    await h.turn("go")
    assert texts(h)[1] == "[call fetch]"
    h.model.answers = [calls(("fetch", {"what": "x"})), says("done")]
    h.agent = replace(h.agent, input_processors=[ToolCallFilter(filter_after_tool_steps=0)])
    await h.turn("go")
    assert "[call fetch]" not in texts(h)


def test_pr13_a_negative_number_of_steps_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="filter_after_tool_steps"):
        ToolCallFilter(filter_after_tool_steps=-1)


@pytest.mark.parametrize("order", [1, -1])
async def test_h27_limits_are_measured_after_filters(house, order):
    processors = [TokenLimiter(120), ToolCallFilter()][::order]
    h = house(memory=Memory(last_messages=50), input_processors=processors)
    await remember(h, *(("assistant", [called(f"k{n}", result=WORDS * 9), said(f"t{n}")]) for n in range(8)))
    await h.turn("now")
    assert texts(h) == [".", *(f"t{n}" for n in range(8)), "now"]


# messageHistory


def budgeted(limit: float, remove: float | None = None, **options: Any) -> Memory:
    return Memory(message_history={"max_tokens": limit, "at_max_remove_tokens": remove}, **options)


async def numbers(h: House, count: int) -> None:
    await remember(h, *(("user", [said(f"m{n} {WORDS[:25]}")]) for n in range(count)))  # each takes 10.8


def shown(h: House) -> list[str]:
    return [t.split()[0] for t in texts(h)]


async def test_pr14_history_within_the_budget_is_shown_whole(house):
    h = house(memory=budgeted(300))
    await numbers(h, 20)
    result = await h.turn("now")
    assert shown(h) == [f"m{n}" for n in range(20)] + ["now"]  # CFG-4: the ten messages of the default do not hold
    assert len(result.remembered) == 20
    assert result.thread is not None and result.thread.metadata is None


async def test_pr14_over_the_budget_the_oldest_go_until_there_is_room_again(house):
    h = house(memory=budgeted(150, 50))
    await numbers(h, 20)
    result = await h.turn("now")
    prompt = tokens.prompt(h.model.requests[-1].messages)
    assert 100 - 10.8 < prompt <= 100
    assert shown(h) == [f"m{n}" for n in range(15, 20)] + ["now"]
    assert [m.content["content"].split()[0] for m in result.remembered] == [f"m{n}" for n in range(15, 20)]
    gone = (await h.stored())[14]
    assert result.thread is not None and result.thread.metadata == {
        "memoryTokenLimiter": {
            "createdAt": gone.created_at,
            "messageIds": [gone.id],
            "maxTokens": 150,
            "atMaxRemoveTokens": 50,
        }
    }
    assert (await h.storage.get_thread("t")) == result.thread


async def test_pr14_what_left_does_not_come_back_and_the_beginning_stays_for_some_turns(house):
    h = house(memory=budgeted(150, 50))
    await numbers(h, 20)
    firsts = []
    for n in range(12):
        result = await h.turn(f"q{n}")
        firsts.append((shown(h)[0], result.thread.metadata["memoryTokenLimiter"]["createdAt"]))
        assert tokens.prompt(h.model.requests[-1].messages) <= 150
    assert firsts[0] == firsts[1] == firsts[2]
    assert [at for _, at in firsts] == sorted(at for _, at in firsts)
    assert 1 < len({at for _, at in firsts}) < 6


async def test_pr14_other_limits_draw_the_boundary_anew(house):
    h = house(memory=budgeted(150, 50))
    await numbers(h, 20)
    await h.turn("now")
    result = await h.turn("more", options=budgeted(400).options)
    assert shown(h)[0] == "m0" and len(result.remembered) == 22
    assert (await h.storage.get_thread("t")).metadata["memoryTokenLimiter"]["maxTokens"] == 150


@pytest.mark.parametrize(
    "kept",
    [None, 7, {"createdAt": "x"}, {"createdAt": 15, "messageIds": "m", "maxTokens": 300, "atMaxRemoveTokens": 75}],
)
async def test_pr14_a_boundary_that_makes_no_sense_is_none(house, kept):
    h = house(memory=budgeted(300))
    thread = await h.storage.create_thread(NewThread("t", "ana", metadata={"memoryTokenLimiter": kept}))
    await h.storage.commit_turn(TurnCommit(thread, (NewMessage("m", "user", content([said("old")]), 0),)))
    await h.turn("now")
    assert texts(h) == ["old", "now"]


async def test_pr14_a_read_only_run_keeps_no_boundary(house):
    h = house(memory=budgeted(150, 50))
    await numbers(h, 20)
    before = await h.storage.get_thread("t")
    await h.turn("now", options=budgeted(150, 50, read_only=True).options)
    assert shown(h)[0] == "m15" and await h.storage.get_thread("t") == before


async def test_pr14_system_context_input_and_this_runs_calls_are_never_removed(house):
    h = house(calls(("fetch", {"what": "page "})), "done", tools=[fetch], memory=budgeted(60))
    await numbers(h, 5)
    await h.turn(WORDS, context=(user("page 17"),))
    assert texts(h) == ["page 17", WORDS, "[call fetch]", f"[ToolResult {'page ' * 60}]"]


async def test_pr14_a_growing_run_lets_more_history_go(house):
    h = house(calls(("fetch", {"what": "page "})), "done", tools=[fetch], memory=budgeted(200, 20))
    await numbers(h, 10)
    result = await h.turn("now")
    first, second = (len(r.messages) for r in h.model.requests)
    assert second < first + 2
    kept = [m.content["content"].split()[0] for m in result.remembered]
    assert kept == shown(h)[: len(kept)]


async def test_pr14_calls_go_with_their_message(house):
    h = house(memory=budgeted(80, 20))
    await remember(h, *H06)
    await h.turn("now")
    check_legal(h.model.requests[-1].messages)
    assert tokens.prompt(h.model.requests[-1].messages) <= 80


async def test_pr14_the_budget_counts_what_is_left_after_filters(house):
    h = house(memory=budgeted(200), input_processors=[ToolCallFilter()])
    await remember(h, *(("assistant", [called(f"k{n}", result=WORDS * 9), said(f"t{n}")]) for n in range(8)))
    result = await h.turn("now")
    assert shown(h) == [".", *(f"t{n}" for n in range(8)), "now"]
    assert result.thread is not None and result.thread.metadata is None


async def test_pr14_messages_that_are_not_the_threads_go_without_moving_its_boundary(house):
    class Recall(Processor):
        id = "recall"

        def process_input(self, messages: MessageList, call: Any) -> MessageList:
            return messages.plus(RunMessage.saying(WORDS, source="memory"))

    h = house(memory=budgeted(80), input_processors=[Recall()])
    await h.turn("one")
    await h.turn("two")
    assert texts(h) == ["one", "ok", "two"]
    assert (await h.storage.get_thread("t")).metadata is None


async def test_cfg4_both_limits_hold_together(house):
    h = house(memory=budgeted(300, last_messages=2))
    await numbers(h, 20)
    await h.turn("now")
    assert shown(h) == ["m18", "m19", "now"]


async def test_cfg4_max_tokens_zero_loads_nothing_and_still_stores(house):
    h = house(memory=budgeted(0))
    await h.turn("one")
    await h.turn("two")
    assert texts(h) == ["two"] and len(await h.stored()) == 4


async def test_cfg4_a_call_may_set_the_budget(house):
    h = house()
    await numbers(h, 20)
    options = merged(h.agent.memory.options, {"messageHistory": {"maxTokens": 100}})  # type: ignore[union-attr]
    await h.turn("now", options=options)
    assert shown(h)[0] == "m17"


class CountingStorage(InMemoryStorage):
    """Knows how many rounds of reads and which history a turn took."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[int] = []

    async def load_turn(self, thread_id: str, **wanted: Any) -> Any:
        state = await super().load_turn(thread_id, **wanted)
        self.loaded.append(len(state.history))
        return state


async def test_cfg4_what_is_read_does_not_grow_with_the_thread(house):
    h = house(memory=budgeted(150, 50))
    h.storage = CountingStorage()
    await numbers(h, 20)
    for n in range(40):
        await h.turn(f"q{n}")
    assert len(h.storage.loaded) == 40 and max(h.storage.loaded) <= 25


# every setting at once

_lines = st.text("ab .", min_size=1, max_size=60)
_rows = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.builds(lambda t: [said("u" + t)], _lines)),
        st.tuples(st.just("assistant"), st.builds(lambda t: [said("a" + t)], _lines)),
        st.tuples(st.just("tools"), st.integers(1, 3)),
        st.tuples(st.just("system"), st.builds(lambda t: [said(t)], _lines)),
        st.tuples(st.just("signal"), st.builds(lambda t: [said(t)], _lines)),
    ),
    max_size=8,
)
_processors = st.lists(
    st.one_of(
        st.builds(TokenLimiter, st.integers(1, 400), trim_mode=st.sampled_from(["best-fit", "contiguous"])),
        st.builds(
            ToolCallFilter,
            exclude=st.sampled_from([None, [], ["look"], ["fetch"]]),
            filter_after_tool_steps=st.sampled_from([None, 0, 1, 2, 5]),
        ),
    ),
    max_size=2,
    unique_by=lambda p: p.id,
)
_options = st.builds(
    MemoryOptions,
    last_messages=st.integers(0, 9),
    message_history=st.sampled_from([None, {"max_tokens": 30}, {"max_tokens": 90}, {"max_tokens": 9000}]),
    filter_incomplete_tool_calls=st.booleans(),
)


def made(rows: list[tuple[str, Any]]) -> list[tuple[str, list[dict]]]:
    """Rows with calls of unique ids; every third call has no result."""
    result, number = [], 0
    for role, body in rows:
        if role != "tools":
            result.append((role, body))
            continue
        parts = []
        for _ in range(body):
            number += 1
            parts.append(
                called(f"k{number}") if number % 3 else tool_part(f"k{number}", "look", {}, {"state": "call"}, 1)
            )
        result.append(("assistant", parts + [said(f"after {number}")] * (number % 2)))
    return result


@settings(max_examples=200, deadline=None)
@given(_rows, _processors, _options, st.integers(0, 2))
async def test_h06_h08_any_settings_make_a_legal_prompt_or_a_clear_stop(
    rows: list[Any], processors: list[Processor], options: MemoryOptions, steps: int
):
    answers = [
        ModelResponse("", (ToolCall(f"now{n}", "fetch", {"what": "x "}),), "tool-calls", Usage(), "fake")
        for n in range(steps)
    ]
    agent = Agent(id="agent", instructions="Be kind.", model="fake/one", memory=Memory(), tools=[fetch])
    h = House(FakeModel(*answers, "done"), InMemoryStorage(), replace(agent, input_processors=processors))
    await remember(h, *made(rows))
    result = await h.turn("what now", options=options)
    limits = [p.limit for p in processors if isinstance(p, TokenLimiter)]
    counting = any(isinstance(p, ToolCallFilter) and p.filter_after_tool_steps is not None for p in processors)
    for n, request in enumerate(h.model.requests):
        check_legal(request.messages)
        assert all(tokens.prompt(request.messages) <= limit for limit in limits)
        assert any(m.role == "user" and m.text == "what now" for m in request.messages)
        known = {p.id for m in request.messages for p in m.parts if isinstance(p, ToolCall)}
        assert counting or {f"now{k}" for k in range(n)} <= known
    stored = [m.role for m in await h.stored()][len(rows) :]
    if result.tripwire is None:
        assert result.text == "done" and stored == ["user", "assistant"]
    else:
        assert limits and str(limits[0]) in result.tripwire.reason and stored == []
