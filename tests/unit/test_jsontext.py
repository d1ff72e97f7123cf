import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep import jsontext

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
VALUES = st.recursive(SCALARS, lambda v: st.one_of(st.lists(v), st.dictionaries(st.text(), v)), max_leaves=20)


def exact(value: Any) -> str:
    """Text that tells 3 from 3.0 and 1 from true, which `==` does not."""
    return json.dumps(value)


@given(VALUES)
def test_json_comes_back_as_it_went_in(value: Any):
    text = jsontext.dumps(value)
    assert exact(jsontext.loads(text)) == exact(value)
    assert jsontext.dumps(jsontext.loads(text.encode())) == text


@pytest.mark.parametrize(
    "text",
    [
        "3",
        "3.0",
        "0.1",
        "-2.5",
        "12345678901234567890",
        "1e-07",
        "0",
        "-0.0",
        "true",
        '""',
        "[]",
        "{}",
        "9" * 40,
        "5e-324",
    ],
)
def test_numbers_and_empties_keep_their_spelling(text: str):
    assert jsontext.dumps(jsontext.loads(text)) == text


@pytest.mark.parametrize(
    ("text", "value"), [("1E5", 1e5), ("1e2", 100.0), ("0.30", 0.3), ("-2.50", -2.5), ("1.000", 1.0)]
)
def test_other_spellings_of_a_double_are_that_double(text: str, value: float):
    loaded = jsontext.loads(text)
    assert type(loaded) is float
    assert loaded == value


def test_text_is_compact_and_not_escaped():
    assert jsontext.dumps({"a": [1, "é🧵"], "b": None}) == '{"a":[1,"é🧵"],"b":null}'


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        '{"a":[NaN]}',
        "1e999",
        "-1e400",
        "1e-400",
        "-1e-999",
        "1e" + "9" * 30,
        "1e-" + "9" * 30,
    ],
)
def test_what_is_no_finite_number_is_refused(text: str):
    with pytest.raises(ValueError, match="not a JSON number|out of range"):
        jsontext.loads(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_what_is_no_finite_number_is_not_written(value: Any):
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsontext.dumps(value)


@pytest.mark.parametrize(
    "text", ["0." + "1" * 40, "3.14159265358979323846", "1234567890123456789.5", "1." + "0" * 30 + "1"]
)
def test_decimals_with_more_digits_than_a_double_holds_are_refused(text: str):
    with pytest.raises(ValueError, match="more digits"):
        jsontext.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "0." + "10" * 8,
        "0.5" + "0" * 40,
        "1e22",
        "9007199254740992." + "0" * 20,
        "0e-400",
        "0e9999999",
        "-0.0",
        "0.0",
        "5e-324",
    ],
)
def test_decimals_that_a_double_holds_are_kept(text: str):
    loaded = jsontext.loads(text)
    assert type(loaded) is float
    assert Decimal(repr(loaded)) == Decimal(text)


def test_the_exact_value_of_a_double_is_kept_however_long():
    tenth = 0.1
    text = str(Decimal(tenth))
    assert (len(text), jsontext.loads(text)) == (57, tenth)


def test_a_forty_digit_integer_keeps_every_digit():
    assert jsontext.dumps(jsontext.loads("1234567890" * 4)) == "1234567890" * 4


def test_the_last_of_equal_keys_counts():
    assert jsontext.loads('{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}


@pytest.mark.parametrize(
    "text", ["", " ", "{", "{'a':1}", "[1,]", "undefined", "01", "+1", ".5", "1.", "tru", '"\n"', '{"a":1}x']
)
def test_what_is_not_json_is_refused(text: str):
    with pytest.raises(json.JSONDecodeError):
        jsontext.loads(text)


@pytest.mark.parametrize("data", [b"\xff\xfe\xfd", b'"\xc3\x28"', b'"\x80"'])
def test_bytes_that_are_not_utf8_are_refused(data: bytes):
    with pytest.raises(UnicodeDecodeError):
        jsontext.loads(data)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_text_that_is_nested_without_end_is_refused(opening: str, closing: str):
    for text in (opening * 200_000 + "1" + closing * 200_000, opening * 200_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            jsontext.loads(text)


def test_sensible_nesting_comes_back():
    text = "[" * 100 + "]" * 100
    assert jsontext.dumps(jsontext.loads(text)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\ud800", '"\ufffd"'),
        ("a\udfffb", '"a\ufffdb"'),
        ("\ude00\ud83d", '"\ufffd\ufffd"'),
        ("\ud83d\ude00", '"😀"'),  # the two halves of one character, as JavaScript counts
        ({"\ud800": 1}, '{"\ufffd":1}'),
    ],
)
def test_what_is_not_unicode_is_replaced_so_that_it_can_be_stored(value: Any, text: str):
    written = jsontext.dumps(value)
    assert written == text
    written.encode()


@given(st.text(st.characters(categories=["Cs", "L", "So"])))
def test_any_text_can_be_written_as_utf8(value: str):
    written = jsontext.dumps(value)
    assert jsontext.loads(written.encode()) == jsontext.loads(written)


@pytest.mark.parametrize("escape", ["\\ud800", "\\udc00x"])
def test_escaped_lone_surrogates_can_be_read_and_written(escape: str):
    jsontext.dumps(jsontext.loads(f'"{escape}"')).encode()


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "null"), (True, "boolean"), (3, "number"), (0.5, "number"), ("", "string"), ([], "array"), ({}, "object")],
)
def test_kinds_have_their_json_names(value: Any, kind: str):
    assert jsontext.kind(value) == kind


def test_objects_and_arrays_are_told_from_the_rest():
    assert jsontext.as_object({"a": 1}) == {"a": 1}
    assert jsontext.as_array([1, "a"]) == [1, "a"]
    for value in (None, 1, "ab", True, b"ab"):
        assert jsontext.as_object(value) is None
        assert jsontext.as_array(value) is None
    assert jsontext.as_object([]) is None
    assert jsontext.as_array({}) is None


@pytest.mark.parametrize(
    ("value", "depth"), [(1, 0), ([], 1), ({}, 1), ([1, [2]], 2), ({"a": {"b": [{}]}}, 4), ([[], [[]], 5], 3)]
)
def test_depth_counts_nested_arrays_and_objects(value, depth):
    assert jsontext.depth(value) == depth


@pytest.mark.parametrize(
    "one,other,equal",
    [
        (1, 1, True),
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, None, True),
        (None, False, False),
        ("1", 1, False),
        ([1, [True]], [1, [True]], True),
        ([1, [True]], [1, [1]], False),
        ([1], [1, 2], False),
        ({"a": {"b": 1}, "c": []}, {"c": [], "a": {"b": 1}}, True),
        ({"a": {"b": 1}}, {"a": {"b": True}}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({}, [], False),
        ([], "", False),
    ],
)
def test_same_compares_with_types_at_any_depth(one: jsontext.Json, other: jsontext.Json, equal: bool):
    assert jsontext.same(one, other) is jsontext.same(other, one) is equal


def test_h24_what_is_sent_holds_no_lone_surrogate_at_any_depth() -> None:
    given = {"a": ["\ud83d x", {"\ud800": "\ud83d\ude00", "n": 1}], "b": b"\xff", "c": None, "d": "é"}
    assert jsontext.sendable(given) == {
        "a": ["\ufffd x", {"\ufffd": "\U0001f600", "n": 1}],
        "b": b"\xff",
        "c": None,
        "d": "é",
    }
