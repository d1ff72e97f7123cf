"""Query strings as data (H31)."""

from typing import Any

import pytest

from threadkeep.errors import InvalidInput
from threadkeep.http.query import moment, nested, parsed


@pytest.mark.parametrize(
    "query,tree",
    [
        ({"a": ["1"]}, {"a": "1"}),
        ({"a": ["1", "2"]}, {"a": "2"}),
        ({"a": []}, {}),
        ({"a[b]": ["1"], "a[c]": ["2"]}, {"a": {"b": "1", "c": "2"}}),
        ({"a[b][c][d][e]": ["1"]}, {"a": {"b": {"c": {"d": {"e": "1"}}}}}),
        ({"a[b][c][d][e][f]": ["1"]}, {"a[b][c][d][e][f]": "1"}),
        ({"a[]": ["1", "2"]}, {"a": ["1", "2"]}),
        ({"a[b][]": ["1"]}, {"a": {"b": ["1"]}}),
        ({"a[1]": ["y"], "a[0]": ["x"]}, {"a": ["x", "y"]}),
        ({"a[0][id]": ["m"], "a[0][n]": ["1"]}, {"a": [{"id": "m", "n": "1"}]}),
        ({"a[0]": ["x"], "a[2]": ["z"]}, {"a": {"0": "x", "2": "z"}}),
        ({"a": ["1"], "a[b]": ["2"]}, {"a": {"b": "2"}}),
        ({"a[b]": ["2"], "a": ["1"]}, {"a": "1"}),
        ({"[a]": ["1"], "a[b": ["2"], "a]b": ["3"]}, {"[a]": "1", "a[b": "2", "a]b": "3"}),
    ],
)
def test_h31_brackets_become_a_tree(query: Any, tree: Any) -> None:
    assert nested(query) == tree


def test_h31_only_json_parameters_are_parsed() -> None:
    tree = {"filter": ' {"a":[1]}', "include": '["x"]', "orderBy": "createdAt", "title": '{"a":1}'}
    fields = {"filter", "include", "orderBy"}
    assert parsed(tree, fields) == tree | {"filter": {"a": [1]}, "include": ["x"]}


@pytest.mark.parametrize("text", ["{", '{"a":NaN}', "[1", '{"a":1e999}', "[" * 100_000])
def test_text_that_is_no_json_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parsed({"filter": text}, {"filter"})
    assert [issue.field for issue in refused.value.issues] == ["filter"]
    assert refused.value.where == "query parameters"


@pytest.mark.parametrize(
    "given,at",
    [
        ("1970-01-01T00:00:00.000Z", 0),
        ("1970-01-01", 0),
        ("1970-01-01T00:00", 0),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-01T02:00:00+0200", 0),
        ("2026-11-29T17:44:37.897Z", 1_795_974_277_897),
        ("2026-11-29T17:44:37.8979999Z", 1_795_974_277_897),
        ("1969-12-31T23:59:59.999Z", -1),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        (1_795_974_277_897, 1_795_974_277_897),
        (1_795_974_277_897.0, 1_795_974_277_897),
        ("1795974277897", 1_795_974_277_897),
        (0, 0),
    ],
)
def test_moments(given: Any, at: int) -> None:
    assert moment(given) == at


@pytest.mark.parametrize(
    "given",
    [
        "yesterday", "", "2026-13-01", "2026-02-30", "2026-W01-1", "20260101", "2026-11-29T25:00", "2026-11-29T17",
        "10000-01-01", 253_402_300_800_000, -62_135_596_800_001, 10**400, 0.5, True, None, [], {}, "1" * 16,
        "2026-11-29T17:44:37Z\n", "٢٠٢٦-11-29",
    ],
)  # fmt: skip
def test_what_is_no_moment_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="expected a date"):
        moment(given)
