"""`Agent.generate`: a turn in the process of the caller, and tools of plain JSON Schemas."""

import asyncio
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, Gate, calls, says
from threadkeep import Agent, Memory, StructuredOutput, Tool, ToolContext, schema_tool
from threadkeep.errors import (
    AccessDenied,
    ConfigurationError,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    ModelUnavailable,
    NotFound,
)
from threadkeep.storage.memory import InMemoryStorage

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
MEMORY = {"thread": "t", "resource": "ana"}


def weather(args: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return {"city": args["city"], "for": context.resource_id, "tenant": context.request_context.get("tenant")}


WEATHER = schema_tool("getWeather", CITY, weather, id="get-weather", description="Get the weather for a city")


def agent(*answers: Any, **settings: Any) -> Agent:
    return Agent(id="agent", **{"model": FakeModel(*answers), "memory": Memory(), "tools": [WEATHER]} | settings)


async def texts(storage: InMemoryStorage, thread: str = "t") -> list[str]:
    page = (await storage.list_messages(thread, per_page=None)).page
    return [m.content.get("content", "") for m in page.items]


async def test_call1_thread_and_resource_choose_the_memory():
    storage, made = InMemoryStorage(), agent("I will.", "Otters.")
    thread = {"id": "t", "title": "Animals", "metadata": {"n": 1}}
    await made.generate("Remember otters.", thread=thread, resource="ana", storage=storage)
    result = await made.generate([{"role": "user", "content": "Which?"}], **MEMORY, storage=storage)
    assert result.text == "Otters."
    assert await texts(storage) == ["Remember otters.", "I will.", "Which?", "Otters."]
    stored = await storage.get_thread("t")
    assert stored and (stored.title, stored.metadata, stored.resource_id) == ("Animals", {"n": 1}, "ana")
    with pytest.raises(AccessDenied):
        await made.generate("mine?", thread="t", resource="bo", storage=storage)


@pytest.mark.parametrize("options", [{"last_messages": 0}, {"lastMessages": False}])
async def test_call1_options_change_the_memory_for_one_call_in_either_spelling(options: dict[str, Any]):
    storage, made = InMemoryStorage(), agent()
    await made.generate("one", **MEMORY, storage=storage)
    result = await made.generate("two", **MEMORY, storage=storage, options=options)
    assert result.remembered == ()
    assert len((await made.generate("three", **MEMORY, storage=storage)).remembered) == 4


@pytest.mark.parametrize(
    "given,field",
    [({"thread": "t"}, "resource"), ({"resource": "ana"}, "thread"), ({"thread": {}, "resource": "a"}, "thread")],
)
async def test_loop5_th17_one_of_thread_and_resource_is_not_enough(given: dict[str, Any], field: str):
    made = agent()
    with pytest.raises(InvalidInput) as caught:
        await made.generate("hi", **given)
    assert caught.value.issues[0].field == field
    assert "must be given together" in caught.value.issues[0].message
    assert made.model.requests == []  # type: ignore[union-attr]


async def test_loop5_without_both_the_run_works_without_memory():
    result = await agent().generate("hi")
    assert (result.thread, result.text) == (None, "ok")


async def test_cfg6_without_a_store_agents_share_one_in_memory():
    await agent("Noted.").generate("I am Ana.", thread="shared", resource="ana")
    result = await agent("Ana.").generate("Who am I?", thread="shared", resource="ana")
    assert [m.content["content"] for m in result.remembered] == ["I am Ana.", "Noted."]


async def test_cfg6_the_memorys_own_store_comes_first_for_titles_too():
    own = InMemoryStorage()
    made = agent("Hello", "A greeting", memory=Memory(storage=own, generate_title=True))
    await made.generate("hi", **MEMORY, storage=InMemoryStorage())
    stored = await own.get_thread("t")
    assert stored and stored.title == "A greeting"
    assert [m.role for m in made.model.requests[1].messages] == ["system", "user"]  # type: ignore[union-attr]


async def test_loop10_hooks_are_told_of_each_step_and_once_of_the_end():
    told: list[Any] = []

    async def step(done: Any) -> None:
        told.append((done.response.text, len(done.outcomes), done.response.finish_reason))

    made = agent(calls(("getWeather", {"city": "Oslo"}), text="Looking."), "Cold.")
    result = await made.generate("weather?", on_step_finish=step, on_finish=told.append)
    assert told == [("Looking.", 1, "tool-calls"), ("Cold.", 0, "stop"), result]


async def test_call1_tt5_a_title_is_told_once_when_it_is_made():
    told: list[str] = []
    storage, made = InMemoryStorage(), agent("Hello", "A greeting", "again", memory=Memory(generate_title=True))
    for text in ("hi", "there"):
        await made.generate(text, **MEMORY, storage=storage, on_title_generated=told.append)
    assert told == ["A greeting"]


async def test_a_title_whose_model_is_down_does_not_fail_the_turn():
    storage, told = InMemoryStorage(), list[str]()
    made = agent("Hello", ModelUnavailable("down"), memory=Memory(generate_title=True))
    result = await made.generate("hi", **MEMORY, storage=storage, on_title_generated=told.append)
    assert (result.text, told) == ("Hello", [])
    assert await storage.get_job("t", result.run_id)


async def test_settings_of_a_call():
    made = agent("ok", instructions="Be kind.")
    await made.generate(
        "hi", instructions="Be brief.", system="Be exact.", context="It rains.", active_tools=[], tool_choice="none"
    )
    model: Any = made.model
    assert model.prompt == [
        ("system", "Be brief."), ("system", "Be exact."), ("user", "It rains."), ("user", "hi"),
    ]  # fmt: skip
    assert (model.requests[0].tools, model.requests[0].tool_choice) == ((), "none")


async def test_a_deadline_ends_the_run():
    with pytest.raises(DeadlineExceeded):
        await agent(Gate(says("late"))).generate("hi", deadline=0.01)


async def test_structured_output_and_client_tools():
    result = await agent('{"n":3}').generate("n?", structured_output=StructuredOutput({"required": ["n"]}))
    assert result.structured and result.structured.value == {"n": 3}
    pick = schema_tool("pick", {"type": "object"})
    result = await agent(calls(("pick", {"hint": "sea"}))).generate("colour?", client_tools=[pick])
    assert [call.args for call in result.steps[-1].pending] == [{"hint": "sea"}]


@pytest.mark.parametrize("messages", ["", [], [5], [{"role": "robot", "content": "x"}]])
async def test_bad_messages_are_named(messages: Any):
    with pytest.raises(InvalidInput, match="messages"):
        await agent().generate(messages)


# --- tools of plain JSON Schemas -----------------------------------------------------------------------------------


async def test_a_schema_tool_gets_valid_arguments_and_the_caller():
    made = agent(calls(("getWeather", {"city": "Oslo"})), "Cold.")
    result = await made.generate("weather?", **MEMORY, storage=InMemoryStorage(), request_context={"tenant": "acme"})
    assert result.steps[0].outcomes[0].result == {"city": "Oslo", "for": "ana", "tenant": "acme"}


async def test_wm10_arguments_that_break_the_schema_are_told_to_the_model():
    made = agent(calls(("getWeather", {"city": 5})), "Sorry.")
    outcome = (await made.generate("weather?")).steps[0].outcomes[0].result
    assert outcome["error"] is True
    assert list(outcome["validationErrors"]["fields"]) == ["city"]


async def test_an_async_schema_tool():
    async def later(args: dict[str, Any], context: ToolContext) -> int:
        await asyncio.sleep(0)
        return len(args)

    made = agent(calls(("later", {"a": 1})), "ok", tools=[schema_tool("later", {"type": "object"}, later)])
    assert (await made.generate("go")).steps[0].outcomes[0].result == 1


def test_a_schema_tool_without_a_function_is_the_callers():
    made = schema_tool("pick", CITY)
    assert isinstance(made, Tool) and (made.run, made.id, made.parameters) == (None, "pick", CITY)


def test_a_schema_that_cannot_be_used_is_refused():
    with pytest.raises(ConfigurationError, match="Tool pick"):
        schema_tool("pick", {"type": "strin"})


async def test_a_run_can_be_watched_without_http():
    storage, titles = InMemoryStorage(), []
    made = agent(calls(("getWeather", {"city": "Oslo"})), "Cold.", "A title", memory=Memory(generate_title=True))
    seen = [e async for e in made.stream("hi", **MEMORY, storage=storage, on_title_generated=titles.append)]
    kinds = [type(event).__name__ for event in seen]
    assert (kinds[0], kinds[-1]) == ("RunStarted", "RunFinished")
    assert {"CallMade", "CallFinished", "TextDelta"} <= set(kinds)
    assert seen[-1].result.text == "Cold."
    assert titles == ["A title"]
    assert (await storage.get_thread("t")).message_count == 2


async def test_th17_a_watched_run_is_refused_like_any_other():
    with pytest.raises(InvalidInput):
        [e async for e in agent("x").stream("hi", thread="t")]


async def test_an_option_that_does_not_exist_is_named():
    with pytest.raises(TypeError, match="tread"):
        await agent("x").generate("hi", tread="t")


# --- approvals -----------------------------------------------------------------------------------------------------


async def test_ms14_a_run_that_waits_is_resumed_with_its_options_and_hooks():
    careful = schema_tool("getWeather", CITY, weather, require_approval=True)
    made, storage, told = agent(calls(("getWeather", {"city": "Oslo"})), "rain", tools=[careful]), InMemoryStorage(), []
    asked = await made.generate(
        "weather?", **MEMORY, storage=storage, options={"last_messages": 1}, request_context={"tenant": "blue"}
    )
    assert asked.finish_reason == "suspended" and asked.suspended is not None
    assert asked.suspended.request["memory"] == {"lastMessages": 1}
    (call,) = asked.suspended.waiting
    done = await made.resume(
        asked.run_id, call.id, approved=True, storage=storage, on_step_finish=told.append, on_finish=told.append
    )
    assert done.resumed is not None
    assert done.resumed.outcomes[0].result == {"city": "Oslo", "for": "ana", "tenant": "blue"}
    assert told == [*done.steps, done]
    with pytest.raises(Conflict):
        await made.resume(asked.run_id, call.id, approved=False, storage=storage)
    with pytest.raises(NotFound):
        await made.resume("no-such-run", call.id, approved=True, storage=storage)


async def test_a_memory_with_a_store_of_its_own_keeps_its_suspended_runs_there():
    careful = schema_tool("getWeather", CITY, weather, require_approval=True)
    own = InMemoryStorage()
    made = agent(calls(("getWeather", {"city": "Oslo"})), "rain", tools=[careful], memory=Memory(storage=own))
    asked = await made.generate("weather?", **MEMORY)
    assert await own.get_suspended_run(asked.run_id) is not None
    assert (await made.resume(asked.run_id, "call-getWeather-0", approved=True)).text == "rain"
