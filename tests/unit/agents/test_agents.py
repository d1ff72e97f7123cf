"""The deployer's face: Agent, tool, Registry."""

import os
import subprocess
import sys
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

import threadkeep
from threadkeep import Agent, Memory, RequestContext, ToolContext, tool
from threadkeep.agents import Registry
from threadkeep.errors import ConfigurationError
from threadkeep.turn.tools import ToolInputInvalid

CALLER = ToolContext("a", "run", "call", "t", "ana", RequestContext())


class Weather(BaseModel):
    degrees: float
    sky: Literal["clear", "grey"]


@tool(id="get-weather", name="getWeather")
async def get_weather(city: Annotated[str, Field(min_length=1)], days: int = 1) -> Weather:
    """Get the weather for a city.

    Up to five days.
    """
    return Weather(degrees=days / 2, sky="clear")


def test_a_tool_is_described_by_its_function():
    assert (get_weather.name, get_weather.id) == ("getWeather", "get-weather")
    assert get_weather.description == "Get the weather for a city.\n\nUp to five days."
    assert get_weather.parameters["required"] == ["city"]
    assert get_weather.parameters["properties"]["days"]["default"] == 1
    assert get_weather.output_schema is not None and set(get_weather.output_schema["properties"]) == {"degrees", "sky"}


async def test_a_tool_returns_json():
    assert await get_weather.run({"city": "Oslo", "days": 3, "extra": 1}, CALLER) == {"degrees": 1.5, "sky": "clear"}


async def test_bad_arguments_name_their_fields():
    with pytest.raises(ToolInputInvalid) as caught:
        await get_weather.run({"city": "", "days": "many"}, CALLER)
    assert set(caught.value.problems) == {"city", "days"}


async def test_a_plain_function_gets_the_caller_where_it_asks_for_it():
    @tool
    def whoami(context: ToolContext, loud: bool = False) -> str:
        """Tell."""
        return f"{context.resource_id}{'!' if loud else ''}"

    assert set(whoami.parameters["properties"]) == {"loud"}
    assert await whoami.run({"loud": True}, CALLER) == "ana!"


def test_a_tool_needs_type_hints():
    with pytest.raises(ConfigurationError, match="parameter city needs a type hint"):

        @tool
        def forecast(city): ...


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "x" * 300, "."])
def test_an_agent_id_must_fit_in_a_url(bad):
    with pytest.raises(ConfigurationError, match="Agent id"):
        Agent(id=bad)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match="two tools of one name"):
        Agent(id="a", tools=[get_weather, get_weather])


async def test_drc4_settings_may_depend_on_the_request():
    async def instructions(context: RequestContext) -> str:
        return f"Speak {context['language']}."

    agent = Agent(
        id="a",
        instructions=instructions,
        model=lambda context: f"fake/{context['tier']}",
        memory=lambda context: Memory(last_messages=3),
        tools=lambda context: [get_weather],
    )
    resolved = await agent.resolve(RequestContext({"language": "French", "tier": "big"}))
    assert (resolved.instructions, resolved.model) == ("Speak French.", "fake/big")
    assert resolved.memory is not None and resolved.memory.options.last_messages == 3
    assert list(resolved.tools) == ["getWeather"]


async def test_drc4_a_memory_function_that_returns_nothing_is_an_error():
    with pytest.raises(ConfigurationError, match="returned no Memory"):
        await Agent(id="a", memory=lambda context: None).resolve(RequestContext())  # type: ignore[arg-type,return-value]


def test_two_agents_of_one_id_are_refused():
    with pytest.raises(ConfigurationError, match="id a"):
        Registry([Agent(id="a"), Agent(id="a")])


def test_del1_a_registry_finds_sub_agents_at_any_depth_and_lists_only_what_the_deployer_lists():
    leaf = Agent(id="leaf")
    middle, boss = Agent(id="middle", agents={"l": leaf}), Agent(id="boss", agents={"m": Agent(id="m2"), "l": leaf})
    found = Registry([boss, middle])
    assert [a.id for a in found.listed()] == ["boss", "middle"]
    assert found.get("leaf") is leaf
    assert found.get("m2") is boss.agents["m"]  # type: ignore[index]
    assert found.get("m") is found.get("l") is None


def test_a_registry_of_agents_that_delegate_to_each_other_ends():
    team: dict[str, Agent] = {}
    one = Agent(id="one", agents=team)
    team["two"] = Agent(id="two", agents={"one": one})
    found = Registry([Agent(id="boss", agents={"one": one})])
    assert (found.get("two"), found.get("one")) == (team["two"], one)


@pytest.mark.parametrize("listed", [True, False])
def test_two_different_sub_agents_of_one_id_are_refused(listed: bool):
    boss = Agent(id="boss", agents={"a": Agent(id="twin")})
    other = (
        Agent(id="twin")
        if listed
        else Agent(id="other", agents={"deep": Agent(id="d", agents={"t": Agent(id="twin")})})
    )
    with pytest.raises(ConfigurationError, match="id twin"):
        Registry([boss, other])


def test_sub_agents_of_a_function_are_found_only_through_their_supervisor():
    assert Registry([Agent(id="boss", agents=lambda context: {"sub": Agent(id="sub")})]).get("sub") is None


def test_a_registry_loads_the_list_of_a_module():
    assert [a.id for a in Registry.load("agents").listed()][:1] == ["assistant"]
    with pytest.raises(ConfigurationError, match="list named `agents`"):
        Registry.load("json")


def test_drc2_clients_cannot_set_reserved_keys():
    context = RequestContext.from_client({"a": 1, "mastra__resourceId": "x", "organizationId": "y"})
    assert dict(context) == {"a": 1}
    copy = context.copy()
    copy["b"] = 2
    assert dict(context) == {"a": 1}


def test_the_public_names_are_these():
    assert sorted(threadkeep.__all__) == [
        "Agent",
        "DelegatedMemory",
        "Delegation",
        "DelegationCall",
        "DelegationCompletion",
        "DelegationOutcome",
        "DelegationResult",
        "DelegationStart",
        "Iteration",
        "IterationVerdict",
        "Limits",
        "Memory",
        "MessageHistory",
        "MessageList",
        "ModelSettings",
        "Processor",
        "ProcessorCall",
        "PromptItem",
        "RequestContext",
        "RunMessage",
        "Signal",
        "Speaker",
        "SpeakerTurns",
        "StateSignal",
        "StateWindow",
        "Step",
        "StructuredOutput",
        "SystemText",
        "TokenLimiter",
        "Tool",
        "ToolCallFilter",
        "ToolContext",
        "TurnResult",
        "WorkingMemory",
        "as_user_turn",
        "read_user_turn",
        "schema_tool",
        "tool",
    ]
    assert all(getattr(threadkeep, name) for name in threadkeep.__all__)
    with pytest.raises(AttributeError):
        _ = threadkeep.nothing


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, threadkeep; print([m for m in ('pydantic', 'boto3', 'openai') if m in sys.modules])"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[]"
