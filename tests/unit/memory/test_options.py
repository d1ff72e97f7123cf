"""The options of a Memory and of a call (CFG-2, CFG-3, CFG-7)."""

import pytest

from threadkeep import Memory
from threadkeep.errors import ConfigurationError, InvalidInput
from threadkeep.memory import options
from threadkeep.memory.options import HistoryBudget, MemoryOptions, TitleOptions, merged


def test_cfg2_defaults():
    options = Memory().options
    assert (options.last_messages, options.generate_title, options.read_only) == (10, None, False)


@pytest.mark.parametrize(("given", "kept"), [(False, 0), (0, 0), (7, 7)])
def test_cfg3_false_and_zero_both_load_nothing(given, kept):
    assert Memory(last_messages=given).options.last_messages == kept


@pytest.mark.parametrize("bad", [-1, 1.5, True, "5", None, 1001])
def test_cfg3_anything_else_is_a_configuration_error(bad):
    with pytest.raises(ConfigurationError, match="last"):
        Memory(last_messages=bad)


def test_cfg1_an_option_that_does_not_exist_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="no option last_mesages"):
        Memory(last_mesages=3)


def test_cfg1_all_options_may_be_absent_and_the_store_is_the_deployments():
    memory = Memory()
    assert (memory.storage, memory.options) == (None, MemoryOptions())


@pytest.mark.parametrize("removed", [{"processors": []}, {"threads": {"generateTitle": True}}])
def test_cfg5_options_that_were_removed_or_moved_are_refused(removed):
    with pytest.raises(ConfigurationError, match=f"no option {next(iter(removed))}"):
        Memory(**removed)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"working_memory": {"enabled": True, "use": "tool-call"}}, "working_memory.use"),
        ({"working_memory": {"enabled": True, "scop": "thread"}}, "working_memory.scop"),
        ({"generate_title": {"prompt": "x"}}, "generate_title.prompt"),
        ({"message_history": {"max_tokens": 5, "tokens": 5}}, "message_history.tokens"),
    ],
)
def test_cfg5_options_inside_options_that_do_not_exist_are_refused(given, name):
    with pytest.raises(ConfigurationError, match=f"no option {name}$"):
        Memory(**given)


def test_cfg7_both_spellings_of_options_inside_options_are_read():
    for spelling in (
        {"max_bytes": 5, "schema": {"type": "object"}},
        {"maxBytes": 5, "json_schema": {"type": "object"}},
    ):
        working = Memory(working_memory=spelling).options.working_memory
        assert (working.max_bytes, working.json_schema) == (5, {"type": "object"})


def test_cfg7_a_call_merges_over_the_memory():
    base = Memory(last_messages=7, generate_title={"instructions": "short"}).options
    assert merged(base, None) == base
    assert merged(base, {}) == base
    assert merged(base, {"readOnly": True}) == base.model_copy(update={"read_only": True})
    assert merged(base, {"lastMessages": False}).last_messages == 0
    titled = merged(base, {"generateTitle": {"minMessages": 3}}).generate_title
    assert titled == TitleOptions(instructions="short", min_messages=3)
    assert merged(base, {"generateTitle": False}).generate_title is None
    assert merged(MemoryOptions(), {"generateTitle": True}).generate_title == TitleOptions()
    assert base.last_messages == 7


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"lastMessages": -1}, "memory.options.lastMessages"),
        ({"lastMessages": "5"}, "memory.options.lastMessages"),
        ({"readOnly": "yes"}, "memory.options.readOnly"),
        ({"generateTitle": {"minMessages": 0}}, "memory.options.generateTitle.minMessages"),
        ({"generateTitle": {"model": "m" * 513}}, "memory.options.generateTitle.model"),
        ({"generateTitle": {"instructions": "x" * 20_001}}, "memory.options.generateTitle.instructions"),
        ({"generateTitle": {"instructions": 5}}, "memory.options.generateTitle.instructions"),
        ([], "memory.options"),
    ],
)
def test_a_bad_option_of_a_call_is_named(call, field):
    with pytest.raises(InvalidInput) as caught:
        merged(MemoryOptions(), call)
    assert [issue.field for issue in caught.value.issues] == [field]


@pytest.mark.parametrize(
    ("given", "window"),
    [
        ({}, 10),
        ({"last_messages": 0}, 0),
        ({"message_history": {"max_tokens": 9}}, options.MAX_LAST_MESSAGES),
        ({"message_history": {"max_tokens": 9}, "last_messages": 10}, 10),
        ({"message_history": {"max_tokens": 0}}, 0),
        ({"message_history": {"max_tokens": 0}, "last_messages": 10}, 0),
        ({"message_history": None, "last_messages": 3}, 3),
    ],
)
def test_cfg4_a_budget_lifts_the_default_count_and_keeps_one_that_was_given(given, window):
    assert Memory(**given).options.window == window
    assert merged(Memory(**given).options, {"readOnly": True}).window == window


def test_cfg4_a_quarter_goes_unless_told_otherwise():
    assert HistoryBudget(max_tokens=100).target == 75
    assert HistoryBudget(max_tokens=100, at_max_remove_tokens=0).target == 100
    assert HistoryBudget(max_tokens=100, at_max_remove_tokens=100).target == 0


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"maxTokens": -1}, "messageHistory.maxTokens"),
        ({"maxTokens": float("inf")}, "messageHistory.maxTokens"),
        ({"maxTokens": "9"}, "messageHistory.maxTokens"),
        ({"maxTokens": True}, "messageHistory.maxTokens"),
        ({}, "messageHistory.maxTokens"),
        ({"maxTokens": 9, "atMaxRemoveTokens": 10}, "messageHistory"),
        ({"maxTokens": 9, "atMaxRemoveTokens": -1}, "messageHistory.atMaxRemoveTokens"),
        ("9", "messageHistory"),
    ],
)
def test_cfg4_a_bad_budget_is_named(bad, field):
    with pytest.raises(InvalidInput) as caught:
        merged(MemoryOptions(), {"messageHistory": bad})
    assert [issue.field for issue in caught.value.issues] == [f"memory.options.{field}"]
    with pytest.raises(ConfigurationError, match="Memory: message_history"):
        Memory(message_history=bad)


@pytest.mark.parametrize("name", ["filterIncompleteToolCalls", "retainFullInput"])
def test_cfg2_switches_are_booleans(name):
    with pytest.raises(InvalidInput):
        merged(MemoryOptions(), {name: "no"})
    assert merged(MemoryOptions(), {name: True}) == MemoryOptions.model_validate({name: True})
