"""The model loop and tools (LOOP-1 to LOOP-8, MS-3)."""

import asyncio

import pytest

from tests.unit.fakes import calls, says
from tests.unit.turn.conftest import user
from threadkeep import Memory, ToolContext, tool
from threadkeep.errors import ModelUnavailable
from threadkeep.models.port import ModelResponse, ToolCall, Usage


@tool
def weather(city: str) -> dict[str, int]:
    """Get the weather of a city."""
    return {"degrees": len(city)}


@tool
async def broken(city: str) -> None:
    """Fail."""
    raise RuntimeError(f"no station in {city}")


@tool
def who(context: ToolContext) -> list[str | None]:
    """Tell who calls."""
    return [context.agent_id, context.thread_id, context.resource_id]


def tool_parts(message) -> list[dict]:
    return [p["toolInvocation"] for p in message.content["parts"] if p["type"] == "tool-invocation"]


async def test_loop6_ms2_ms3_one_assistant_message_holds_all_steps_in_order(house):
    h = house(calls(("weather", {"city": "Oslo"}), text="Let me look."), "4 degrees.", tools=[weather])
    result = await h.turn("weather in Oslo?")
    assert result.text == "Let me look.4 degrees."  # LOOP-3
    assert (result.usage.input_tokens, result.usage.output_tokens) == (20, 10)  # LOOP-4
    question, answer = await h.stored()
    assert [p["type"] for p in answer.content["parts"]] == ["text", "tool-invocation", "step-start", "text"]
    assert tool_parts(answer) == [
        {
            "toolCallId": "call-weather-0",
            "toolName": "weather",
            "args": {"city": "Oslo"},
            "state": "result",
            "result": {"degrees": 4},
        }
    ]
    assert answer.content["content"] == "4 degrees."
    assert answer.content["metadata"] == {"modelId": "fake-1", "provider": "fake"}
    assert all(part["createdAt"] > 0 for message in (question, answer) for part in message.content["parts"])


async def test_the_model_sees_the_result_of_its_call_and_so_does_the_next_turn(house):
    h = house(calls(("weather", {"city": "Oslo"})), "4 degrees.", "still 4", tools=[weather])
    await h.turn("weather in Oslo?")
    expected = [("assistant", "[call weather]"), ("tool", '[ToolResult {"degrees":4}]')]
    assert h.model.prompt[-2:] == expected
    await h.turn("and now?")
    assert h.model.prompt[2:] == [*expected, ("assistant", "4 degrees."), ("user", "and now?")]


async def test_loop1_zero_steps_means_the_agents_own_limit(house):
    h = house(
        calls(("weather", {"city": "a"})), calls(("weather", {"city": "b"})), "done", tools=[weather], max_steps=2
    )
    await h.turn("go", max_steps=0)
    assert len(h.model.requests) == 2


async def test_loop3_loop4_texts_are_joined_and_usage_is_summed(house):
    h = house(calls(("weather", {"city": "Oslo"}), text="one "), "two", tools=[weather])
    result = await h.turn("go")
    assert result.text == "one two"
    assert (result.usage.input_tokens, result.usage.output_tokens) == (20, 10)


async def test_loop7_ms13_a_model_failure_raises_and_stores_nothing(house):
    h = house(calls(("weather", {"city": "Oslo"}), text="partial"), ModelUnavailable("down"), tools=[weather])
    with pytest.raises(ModelUnavailable):
        await h.turn("go")
    assert await h.stored() == ()


async def test_h13_repeating_a_turn_that_failed_does_not_double_its_question(house):
    h = house("ok", ModelUnavailable("down"), "there you are")
    await h.turn("first")
    with pytest.raises(ModelUnavailable):
        await h.turn(user("second", "id-2"))
    assert [text for _, text in await h.texts()] == ["first", "ok"]
    await h.turn(user("second", "id-2"))
    assert [text for _, text in await h.texts()] == ["first", "ok", "second", "there you are"]


async def test_loop9_context_is_sent_between_history_and_input_and_never_stored(house):
    h = house()
    await h.turn("first")
    await h.turn("second", context=(user("it rains"),))
    assert [text for _, text in h.model.prompt] == ["Be kind.", "first", "ok", "it rains", "second"]
    await h.turn("third")
    assert "it rains" not in [text for _, text in h.model.prompt]


async def test_loop14_a_window_that_an_answer_opens_gets_a_user_message_before_it(house):
    h = house(memory=Memory(last_messages=1))
    await h.turn("first")
    await h.turn("second")
    assert h.model.prompt[1:] == [("user", "."), ("assistant", "ok"), ("user", "second")]
    assert ("user", ".") not in await h.texts()


async def test_loop2_the_step_limit_ends_the_run_with_its_results_stored(house):
    endless = [calls(("weather", {"city": "x" * n})) for n in range(1, 9)]
    for n, answer in enumerate(endless):
        call = answer.tool_calls[0]
        endless[n] = ModelResponse("", (ToolCall(f"c{n}", call.name, call.args),), "tool-calls", Usage(), "fake-1")
    h = house(*endless, tools=[weather])
    result = await h.turn("go")
    assert len(h.model.requests) == 5  # LOOP-1
    assert result.finish_reason == "tool-calls"
    assert [c["result"] for c in tool_parts((await h.stored())[1])] == [{"degrees": n} for n in range(1, 6)]
    await h.turn("again", max_steps=1)
    assert len(h.model.requests) == 6


async def test_loop8_a_failing_tool_is_told_to_the_model_and_the_run_goes_on(house):
    h = house(calls(("broken", {"city": "Oslo"})), "sorry", tools=[broken])
    result = await h.turn("go")
    assert h.model.prompt[-1] == ("tool", "[ToolResult RuntimeError: no station in Oslo]")
    assert result.text == "sorry"
    stored = tool_parts((await h.stored())[1])[0]
    assert (stored["state"], stored["errorText"]) == ("output-error", "RuntimeError: no station in Oslo")


async def test_loop8_a_tool_within_which_something_is_cancelled_is_one_that_fails(house):
    @tool
    async def careless(city: str) -> str:
        """Waits for what somebody cancels."""
        work = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(work.cancel)
        await work
        return city

    h = house(calls(("careless", {"city": "Oslo"})), says("I cannot."), tools=[careless])
    result = await h.turn("weather?")
    assert [o.error for o in result.steps[0].outcomes] == ["The tool was cancelled"]
    assert result.text == "I cannot."


async def test_loop8_an_invented_tool_is_answered_with_the_list_of_tools(house):
    h = house(calls(("teleport", {})), "fine", tools=[weather, who])
    await h.turn("go")
    assert "no tool teleport. Available tools: weather, who" in h.model.prompt[-1][1]


async def test_wm10_bad_arguments_become_a_validation_result(house):
    h = house(calls(("weather", {"city": 5})), "fine", tools=[weather])
    result = await h.turn("go")
    outcome = result.steps[0].outcomes[0].result
    assert outcome["error"] is True
    assert outcome["message"].startswith("Tool input validation failed for weather:\n- city: ")
    assert '{"city":5}' in outcome["message"]
    assert list(outcome["validationErrors"]["fields"]) == ["city"]


async def test_arguments_that_are_no_object_become_a_validation_result(house):
    bad = ModelResponse("", (ToolCall("c", "weather", {}, invalid="{oops"),), "tool-calls", Usage(), "fake-1")
    h = house(bad, "fine", tools=[weather])
    result = await h.turn("go")
    assert "{oops" in result.steps[0].outcomes[0].result["message"]


async def test_loop12_calls_of_one_step_run_together_and_keep_their_order(house):
    both = asyncio.Event()
    started: list[str] = []

    @tool
    async def meet(name: str) -> str:
        """Wait for the other."""
        started.append(name)
        if len(started) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 5)
        return name

    h = house(calls(("meet", {"name": "a"}), ("meet", {"name": "b"})), "done", tools=[meet])
    result = await h.turn("go")
    assert [o.result for o in result.steps[0].outcomes] == ["a", "b"]


async def test_loop12_at_most_ten_calls_run_at_once(house):
    running, most = 0, 0

    @tool
    async def work(n: int) -> int:
        """Work for a moment."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return n

    h = house(calls(*(("work", {"n": n}) for n in range(12))), "done", tools=[work])
    result = await h.turn("go")
    assert [o.result for o in result.steps[0].outcomes] == list(range(12))
    assert most == 10


async def test_a_tool_learns_who_calls_it(house):
    h = house(calls(("who", {})), "done", tools=[who])
    result = await h.turn("go", resource="ana")
    assert result.steps[0].outcomes[0].result == ["agent", "t", "ana"]


async def test_active_tools_are_the_only_ones_offered(house):
    h = house(says("ok"), tools=[weather, who])
    await h.turn("go", active_tools=frozenset({"who"}))
    assert [t.name for t in h.model.requests[0].tools] == ["who"]


async def test_an_answer_without_text_and_calls_stores_the_question_alone(house):
    h = house(says(""))
    await h.turn("hello?")
    assert [m.role for m in await h.stored()] == ["user"]
    await h.turn("anyone?")
    assert [t for _, t in h.model.prompt] == ["Be kind.", "hello?", "anyone?"]
