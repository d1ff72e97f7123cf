"""What counts as a fact, and how a tool call comes about without the model writing one."""

import json
from typing import Any

import pytest

from local.models.decide import Call, Tool, asks_what_is_known, choose_call, facts, only_tells

WEATHER = Tool(
    "getWeather",
    "Current weather of a city. Never guesses.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
COOK = Tool(
    "agent-cook",
    "Finds recipes.",
    {"type": "object", "properties": {"prompt": {"type": "string"}, "maxSteps": {"type": "number"}}},
)
MEMORY = Tool("updateWorkingMemory", "", {"type": "object", "properties": {"memory": {"type": "string"}}})


class Model:
    """A model that gives the next of its answers, and keeps what it was asked."""

    def __init__(self, *answers: Any):
        self._answers = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
        self.asked: list[dict[str, Any]] = []

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        return {"choices": [{"message": {"content": self._answers.pop(0)}}]}


def schema(body: dict[str, Any]) -> Any:
    return body["response_format"]["json_schema"]["schema"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("My name is Bo.", ["My name is Bo."]),
        ("My car broke down in St. Gallen. It was 7.40.", ["My car broke down in St. Gallen. It was 7.40."]),
        ("I am Bo. What is your name? I live in Bonn", ["I am Bo.", "I live in Bonn"]),
        ("I am Bo. Tell me a joke.", ["I am Bo."]),
        ("Remember that the code is 4711.", ["Remember that the code is 4711."]),
        ("Ich wohne in Bonn.", ["Ich wohne in Bonn."]),
        ("私は猫が好きです。元気ですか？", ["私は猫が好きです。"]),
        ("What is my dog called?", []),
        ("Tell me about my dog", []),
        ("It rains in Oslo.", []),
        ("Thanks!", []),
        ("", []),
        ("...", []),
    ],
)
def test_facts_are_what_somebody_tells_about_himself_word_for_word(text: str, found: list[str]):
    assert facts(text) == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello! I am Ada and my dog is called Comet.", True),
        ("I need the weather in Oslo.", False),
        ("I am in Oslo. Will it rain?", False),
        ("我有两只猫。", False),
        ("Hi there!", False),
    ],
)
def test_a_text_only_tells_if_it_asks_and_wishes_for_nothing(text: str, expected: bool):
    assert only_tells(text) is expected


def test_the_model_chooses_among_names_and_fills_in_the_arguments():
    model = Model({"action": "getWeather"}, {"city": "Oslo"})
    call = choose_call("Will it rain in Oslo?", "", [], [WEATHER, COOK], "auto", model)
    assert call == Call("getWeather", {"city": "Oslo"})
    assert schema(model.asked[0])["properties"]["action"]["enum"] == ["reply", "getWeather", "agent-cook"]
    assert schema(model.asked[1]) == WEATHER.parameters
    assert all("tools" not in body and body["temperature"] == 0 for body in model.asked)


def test_an_agent_gets_the_words_of_the_user_unchanged():
    assert choose_call("How do I cook rice?", "", [], [COOK], "auto", Model({"action": "agent-cook"})) == Call(
        "agent-cook", {"prompt": "How do I cook rice?"}
    )


def test_reply_is_no_call():
    assert choose_call("Hi there!", "", [], [WEATHER], "auto", Model({"action": "reply"})) is None


def test_a_fact_is_kept_word_for_word_below_what_was_known_without_asking_the_model():
    call = choose_call("My dog is Comet.", "- I am Ada.", [], [MEMORY, WEATHER], "auto", Model())
    assert call == Call("updateWorkingMemory", {"memory": "- I am Ada.\n- My dog is Comet."})


def test_a_fact_without_a_memory_tool_needs_no_decision():
    assert choose_call("My dog is Comet.", "", [], [WEATHER], "auto", Model()) is None


def test_a_question_about_oneself_is_not_kept():
    assert choose_call("What is my dog called?", "", [], [MEMORY], "auto", Model()) is None


@pytest.mark.parametrize(("states", "kept"), [(True, True), (False, False)])
def test_the_model_judges_scripts_that_the_rule_does_not_know(states: bool, kept: bool):
    call = choose_call("我有两只猫。", "", [], [MEMORY], "auto", Model({"states_fact": states}))
    assert (call is not None) is kept


def test_required_leaves_no_reply_to_choose():
    model = Model({"action": "agent-cook"})
    assert choose_call("My dog is Comet.", "", [], [WEATHER, COOK], "required", model)
    assert schema(model.asked[0])["properties"]["action"]["enum"] == ["getWeather", "agent-cook"]


def test_a_named_tool_is_called_without_a_choice():
    assert choose_call("Hi", "", [], [WEATHER, COOK], "agent-cook", Model()) == Call("agent-cook", {"prompt": "Hi"})


def test_a_tool_without_arguments_needs_none():
    assert choose_call("Go", "", [], [Tool("go", "", {})], "required", Model()) == Call("go", {})


def test_an_answer_that_was_cut_off_is_no_call():
    assert (
        choose_call("Rain in Oslo?", "", [], [WEATHER], "auto", Model({"action": "getWeather"}, '{"city": "Os')) is None
    )


def test_a_memory_with_a_schema_is_filled_in_by_the_model():
    parameters = {"type": "object", "properties": {"memory": {"type": "object"}}, "required": ["memory"]}
    model = Model({"memory": {"dog": "Comet"}})
    call = choose_call("My dog is Comet.", '{"name": "Ada"}', [], [Tool(MEMORY.name, "", parameters)], "auto", model)
    assert call == Call("updateWorkingMemory", {"memory": {"dog": "Comet"}})
    assert '{"name": "Ada"}' in model.asked[0]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("When does my train leave?", True),
        ("When does the train leave?", True),
        ("Will it rain in Lyon?", False),
        ("What is my name?", False),
        ("What time is it where I am?", False),
    ],
)
def test_a_question_about_oneself_with_a_known_word_needs_no_tool(text: str, known: bool):
    told = ["My train to Lyon leaves on Friday, that is the time when I am off."]
    assert asks_what_is_known(text, told) is known
    model = Model() if known else Model({"action": "reply"})
    assert choose_call(text, "", told, [WEATHER], "auto", model) is None
