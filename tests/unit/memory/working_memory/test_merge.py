"""The merge of structured working memory: the table M1 to M24 and what holds of all merges (WM-16)."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.memory.working_memory.merge import merged

scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)
objects = st.dictionaries(st.text(max_size=2), values, max_size=4)

plain = st.integers() | st.text(max_size=3) | st.lists(scalars, max_size=2)
leaves = st.fixed_dictionaries({}, optional={"a": plain, "b": plain})
same_shape = st.recursive(
    leaves,
    lambda inner: st.fixed_dictionaries({}, optional={"a": plain, "b": plain, "x": inner, "y": inner}),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("existing", "update", "result"),
    [
        pytest.param(None, {"a": 1}, {"a": 1}, id="m1"),
        pytest.param({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, id="m2"),
        pytest.param({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}, id="m3"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="m4"),
        pytest.param({"a": {"x": 1, "y": 2}}, {"a": {"x": None}}, {"a": {"y": 2}}, id="m5"),
        pytest.param({}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}, id="m6"),
        pytest.param({"a": 1}, {"b": None}, {"a": 1}, id="m7"),
        pytest.param({"l": [1, 2, 3]}, {"l": [9]}, {"l": [9]}, id="m8"),
        pytest.param({"l": [1, 2]}, {"l": []}, {"l": []}, id="m9"),
        pytest.param({"l": [{"i": 1}]}, {"l": [{"i": None}]}, {"l": [{"i": None}]}, id="m10"),
        pytest.param({"a": {"x": 1}}, {"a": "s"}, {"a": "s"}, id="m11"),
        pytest.param({"a": "s"}, {"a": {"x": 1}}, {"a": {"x": 1}}, id="m12"),
        pytest.param({"a": [1]}, {"a": {"x": 1}}, {"a": {"x": 1}}, id="m13"),
        pytest.param({"a": {"x": 1}}, {"a": [1]}, {"a": [1]}, id="m14"),
        pytest.param({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}, id="m15"),
        pytest.param({}, {"a": {}}, {"a": {}}, id="m16"),
        *(pytest.param({"a": 1}, u, {"a": 1}, id=f"m17-{u!r}") for u in ({}, None, "str", 42, True, [])),
        pytest.param({"a": 1}, [1, 2], {"0": 1, "1": 2, "a": 1}, id="m18"),
        pytest.param([1, 2], {"b": 1}, {"b": 1}, id="m19"),
        pytest.param("abc", {"b": 1}, {"b": 1}, id="m20"),
        pytest.param("abc", {}, {}, id="m20-empty"),
        pytest.param({"a": {"x": 1}}, {"a": None, "b": {"c": None, "d": 1}}, {"b": {"d": 1}}, id="m21"),
        pytest.param({"a": 0}, {"a": ""}, {"a": ""}, id="m22"),
        pytest.param({"a": {}}, {"a": {"b": None}}, {"a": {}}, id="m23"),
        pytest.param(None, None, {}, id="m24"),
    ],
)
def test_wm16_merges(existing, update, result):
    """The rows M1 to M24; M17 is one for each update that is no object, or empty."""
    assert merged(existing, update) == result


@given(values, values)
def test_wm16_neither_side_is_changed_and_the_result_is_another_object(existing, update):
    before = copy.deepcopy((existing, update))
    result = merged(existing, update)
    result["new"] = 1
    assert (existing, update) == before


def nulls(value) -> bool:
    """Whether an object, outside of lists, has a null."""
    return isinstance(value, dict) and any(v is None or nulls(v) for v in value.values())


@given(objects, st.lists(objects, max_size=4))
def test_wm16_no_null_is_ever_stored_in_an_object(first, updates):
    stored = merged({}, first)
    for update in updates:
        stored = merged(stored, update)
    assert not nulls(stored)


@given(objects, objects)
def test_wm16_repeating_an_update_changes_nothing(existing, update):
    once = merged(existing, update)
    assert merged(once, update) == once


@given(same_shape, same_shape, same_shape)
def test_wm16_where_objects_meet_objects_it_does_not_matter_which_two_merge_first(a, b, c):
    assert merged(merged(a, b), c) == merged(a, merged(b, c))


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(), min_size=1, max_size=1), max_size=6))
def test_h09_updates_of_different_fields_give_the_same_in_any_order(updates):
    distinct = {key: {"under": {key: value}} for update in updates for key, value in update.items()}
    forth, back = {}, {}
    for update in distinct.values():
        forth = merged(forth, update)
    for update in reversed(distinct.values()):
        back = merged(back, update)
    assert forth == back
    assert set(forth.get("under", {})) == set(distinct)
