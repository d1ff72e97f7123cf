"""The options of a Memory and of a call (CFG-2, CFG-3, CFG-7)."""

import pytest

from threadkeep import Memory
from threadkeep.errors import ConfigurationError, InvalidInput
from threadkeep.memory.options import MemoryOptions, TitleOptions, merged


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


def test_an_option_that_does_not_exist_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="no option last_mesages"):
        Memory(last_mesages=3)


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
        ([], "memory.options"),
    ],
)
def test_a_bad_option_of_a_call_is_named(call, field):
    with pytest.raises(InvalidInput) as caught:
        merged(MemoryOptions(), call)
    assert [issue.field for issue in caught.value.issues] == [field]
