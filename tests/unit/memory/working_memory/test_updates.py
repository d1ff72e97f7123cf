"""What updates make of a stored memory: by the tool, as a whole, as a patch (WM-6, WM-9 to WM-12, WM-16 to WM-19)."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from threadkeep import Memory
from threadkeep.memory.working_memory import Invalid
from threadkeep.memory.working_memory.form import DEFAULT_TEMPLATE
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.updates import ToolUpdate, by_tool, patched, replaced, stored_object

TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "age": {"type": "number"},
        "tags": {"type": "array", "items": TEXT},
        "prefs": {"type": "object", "properties": {"style": TEXT, "goal": TEXT}},
    },
}
SAM = {"name": "Sam", "tags": ["a"], "prefs": {"style": "Formal"}}
SAM_TEXT = '{"name":"Sam","tags":["a"],"prefs":{"style":"Formal"}}'


class Prefs(BaseModel):
    style: str | None = None
    goal: str | None = None


class Profile(BaseModel):
    """The model of `SCHEMA`: as pydantic has it, null is allowed and unknown properties are ignored."""

    name: str | None = None
    age: float | None = None
    tags: list[str] | None = None
    prefs: Prefs | None = None


def options(schema: Any = None, **more: Any) -> WorkingMemoryOptions:
    return Memory(working_memory={"enabled": True, "schema": schema, **more}).options.working_memory


def updated(schema: Any, args: Any, stored: str = SAM_TEXT) -> dict[str, Any]:
    """What is stored after a call of the tool that succeeds."""
    done = by_tool(options(schema), stored, args)
    assert done.result["success"] is True
    return json.loads(stored if done.text is None else done.text)


def refused(schema: Any, args: Any, stored: str = SAM_TEXT) -> dict[str, str]:
    with pytest.raises(Invalid) as caught:
        by_tool(options(schema), stored, args)
    return caught.value.problems


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in SAM.items() if k != key}


@pytest.mark.parametrize("schema", [SCHEMA, Profile], ids=["json-schema", "pydantic"])
@pytest.mark.parametrize(
    ("args", "stored"),
    [
        pytest.param({"memory": {"age": 30}}, SAM | {"age": 30}, id="w1"),
        pytest.param(
            {"memory": {"prefs": {"goal": "MVP"}}}, SAM | {"prefs": {"style": "Formal", "goal": "MVP"}}, id="w2"
        ),
        pytest.param({"memory": {"tags": ["c"]}}, SAM | {"tags": ["c"]}, id="w3"),
        pytest.param({"memory": {"name": None}}, without("name"), id="w4-name"),
        pytest.param({"memory": {"tags": None}}, without("tags"), id="w4-tags"),
        pytest.param({"memory": {"prefs": {"style": None}}}, SAM | {"prefs": {}}, id="w4-style"),
        pytest.param({"memory": {"prefs": None}}, without("prefs"), id="w4-prefs"),
        pytest.param({"memory": {}}, SAM, id="w5-empty"),
        pytest.param({"memory": None}, SAM, id="w5-null"),
        pytest.param({}, SAM, id="w5-nothing"),
        pytest.param(None, SAM, id="w5-no-arguments"),
        pytest.param({"age": 44}, SAM | {"age": 44}, id="w6"),
    ],
)
def test_wm18_mdisc1_the_tool_merges(schema, args, stored):
    """The rows W1 to W6, with null deleting as documented (M-DISC-1)."""
    assert updated(schema, args) == stored


def test_w5_nothing_to_do_says_so_and_writes_nothing():
    for args in ({"memory": {}}, {"memory": None}, {}, None):
        done = by_tool(options(SCHEMA), SAM_TEXT, args)
        assert done.text is None
        assert done.result["success"] is True
        assert done.result["message"]


def test_w7_an_unknown_property_is_left_out_by_a_model_and_stored_by_a_json_schema():
    assert updated(Profile, {"memory": {"unknown": 1}}) == SAM
    assert updated(Profile, {"memory": {"unknown": 1, "age": 2, "prefs": {"other": 1}}}) == SAM | {"age": 2}
    assert updated(SCHEMA, {"memory": {"unknown": 1}}) == SAM | {"unknown": 1}


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str | None = None


class Shut(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str | None = None


@dataclass
class Place:
    city: str | None = None


class Event(TypedDict):
    day: str


class Team(BaseModel):
    place: Place | None = None
    events: list[Event] = []
    open: Open | None = None
    shut: Shut | None = None
    members: list[Profile] = []
    by_name: dict[str, Profile] = {}


def test_w7_each_model_inside_decides_about_what_it_does_not_know():
    assert updated(Team, {"memory": {"open": {"x": 1}}}, "") == {"open": {"x": 1}}
    assert refused(Team, {"memory": {"shut": {"x": 1}}}, "") == {"shut.x": "is not in the schema"}
    assert updated(Team, {"memory": {"members": [{"name": "A", "x": 1}]}}, "") == {"members": [{"name": "A"}]}
    assert updated(Team, {"memory": {"place": {"city": "Bonn", "x": 1}}}, "") == {"place": {"city": "Bonn"}}
    assert updated(Team, {"memory": {"events": [{"day": "May", "x": 1}]}}, "") == {"events": [{"day": "May"}]}
    assert updated(Team, {"memory": {"by_name": {"a": {"age": 3, "x": 1}}}}, "") == {"by_name": {"a": {"age": 3}}}


def test_w7_what_a_model_does_not_know_any_more_can_still_be_deleted():
    assert updated(Profile, {"memory": {"old": None}}, '{"old":1,"age":2}') == {"age": 2}


@pytest.mark.parametrize("text", ['{"age":31}', "{bad", "null"])
def test_w8_wm19_a_string_is_not_parsed(text):
    assert refused(SCHEMA, {"memory": text}) == {
        "root": "memory: expected an object of fields to change, received string"
    }


@pytest.mark.parametrize("memory", [42, [1, 2], True])
def test_w9_what_is_no_object_is_refused_at_the_root(memory):
    assert list(refused(SCHEMA, {"memory": memory})) == ["root"]


def test_w9_a_bare_string_is_refused_at_the_root():
    assert refused(SCHEMA, "str") == {"root": "expected a JSON object, received string"}


@pytest.mark.parametrize("schema", [SCHEMA, Profile], ids=["json-schema", "pydantic"])
def test_w10_a_wrong_type_is_refused_where_it_is(schema):
    assert refused(schema, {"memory": {"age": "thirty"}}) == {"age": '"thirty" is not of type "number"'}
    assert set(refused(schema, {"memory": {"prefs": {"style": 5}, "tags": ["a", 1]}})) == {"prefs.style", "tags.1"}


REQUIRED = {"type": "object", "properties": {"name": TEXT, "age": {"type": "number"}}, "required": ["name", "age"]}


def test_w11_what_is_required_and_not_stored_must_come():
    assert refused(REQUIRED, {"memory": {"name": "B"}}, "") == {"age": "is required"}
    assert updated(REQUIRED, {"memory": {"name": "B", "age": 1}}, "") == {"name": "B", "age": 1}


def test_w11_what_is_required_and_stored_need_not_come_again():
    assert updated(REQUIRED, {"memory": {"name": "B"}}, '{"name":"A","age":3}') == {"name": "B", "age": 3}


@pytest.mark.parametrize("kind", [TEXT, {"anyOf": [TEXT, {"type": "null"}]}], ids=["plain", "nullable"])
def test_w12_mdisc1_null_deletes_what_is_required_too(kind):
    schema = {"type": "object", "properties": {"req": kind, "other": TEXT}, "required": ["req"]}
    assert updated(schema, {"memory": {"req": None}}, '{"req":"x","other":"y"}') == {"other": "y"}


def test_w13_nulls_inside_lists_go_where_the_item_does_not_require_them():
    item = {"type": "object", "properties": {"x": {"type": ["string", "null"]}}}
    schema = {"type": "object", "properties": {"arr": {"type": "array", "items": item}}}
    args = {"memory": {"arr": [{"x": None}, {"x": "v"}]}}
    assert updated(schema, args, "") == {"arr": [{}, {"x": "v"}]}
    needed = schema | {"properties": {"arr": {"type": "array", "items": item | {"required": ["x"]}}}}
    assert updated(needed, args, "") == {"arr": [{"x": None}, {"x": "v"}]}
    either = {"anyOf": [{"$ref": "#/$defs/X"}, {"type": "object", "required": ["y"]}]}
    union = {
        "type": "object",
        "properties": {"arr": {"type": "array", "items": either}},
        "$defs": {"X": item | {"required": ["x"]}},
    }
    assert updated(union, args, "") == {"arr": [{"x": None}, {"x": "v"}]}


def test_w13_an_item_is_found_through_a_reference_into_a_list():
    schema = {
        "type": "object",
        "properties": {"l": {"type": "array", "items": {"$ref": "#/$defs/all/oneOf/1"}}},
        "$defs": {"all": {"oneOf": [{}, {"required": ["x"]}]}},
    }
    assert updated(schema, {"memory": {"l": [{"x": None, "y": None}]}}, "") == {"l": [{"x": None}]}


def test_w13_m10_nulls_that_are_items_of_a_list_stay():
    schema = {"type": "object", "properties": {"l": {"type": "array"}}}
    assert updated(schema, {"memory": {"l": [1, None, [None]]}}, "") == {"l": [1, None, [None]]}


@pytest.mark.parametrize("stored", ["# text", "[1,2]", "5", "null", "", "{bad", "NaN"])
def test_w14_a_stored_text_that_is_no_object_counts_as_absent(stored):
    done = by_tool(options(SCHEMA), stored, {"memory": {"age": 1}})
    assert done == ToolUpdate('{"age":1}', {"success": True})


@pytest.mark.parametrize("levels", [32, 200, 900, 5000])
def test_w14_a_stored_text_that_is_too_deep_counts_as_absent(levels):
    """Another agent may have stored it as text."""
    stored = '{"a":' * (levels + 1) + "1" + "}" * (levels + 1)
    assert by_tool(options(SCHEMA), stored, {"memory": {"age": 1}}).text == '{"age":1}'
    assert patched(options(SCHEMA), stored, {"age": 1}) == '{"age":1}'


def test_wm17_numbers_keep_their_spelling_and_the_text_is_compact():
    text = '{ "age": 3, "n": 12345678901234567890, "f": 0.1 }'
    assert by_tool(options(SCHEMA), text, {"memory": {"name": "é"}}).text == (
        '{"age":3,"n":12345678901234567890,"f":0.1,"name":"é"}'
    )


def test_wm17_an_update_that_changes_nothing_leaves_the_very_text():
    text = '{ "age": 3 }'
    assert by_tool(options(SCHEMA), text, {"memory": {"age": 3, "name": None}}).text == text
    assert patched(options(SCHEMA), text, {"age": 3}) == text


def test_wm17_true_is_not_one():
    schema = {"type": "object", "properties": {}}
    assert by_tool(options(schema), '{"a":1}', {"memory": {"a": True}}).text == '{"a":true}'


OLD = '{"name":7,"prefs":{"style":"Formal","goal":5}}'  # breaks SCHEMA in two places


def test_wm17_what_the_update_does_not_touch_is_not_its_fault():
    assert updated(SCHEMA, {"memory": {"age": 1}}, OLD) == json.loads(OLD) | {"age": 1}
    assert updated(SCHEMA, {"memory": {"prefs": {"style": "x"}}}, OLD)["prefs"] == {"style": "x", "goal": 5}
    assert list(refused(SCHEMA, {"memory": {"name": 8}}, OLD)) == ["name"]
    assert updated(SCHEMA, {"memory": {"name": None, "prefs": {"goal": None}}}, OLD) == {"prefs": {"style": "Formal"}}


def test_wm17_what_is_required_of_an_object_that_is_not_touched_is_not_its_fault():
    inner = {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a"]}
    schema = {"type": "object", "properties": {"x": inner, "y": inner}}
    assert updated(schema, {"memory": {"y": {"a": "1"}}}, '{"x":{}}') == {"x": {}, "y": {"a": "1"}}
    assert refused(schema, {"memory": {"x": {"b": "1"}}}, '{"x":{}}') == {"x.a": "is required"}
    assert updated(schema, {"memory": {"x": {"a": None}}}, '{"x":{"a":"1"}}') == {"x": {}}


def test_wm17_unknown_properties_that_were_there_before_are_not_its_fault():
    shut = SCHEMA | {"additionalProperties": False}
    assert updated(shut, {"memory": {"age": 1}}, '{"old":1}') == {"old": 1, "age": 1}
    assert updated(shut, {"memory": {"old": None}}, '{"old":1}') == {}
    assert refused(shut, {"memory": {"old": 2}}, '{"old":1}') == {"old": "is not in the schema"}
    assert list(refused(shut, {"memory": {"new": 2}}, "")) == ["new"]
    assert "new" in refused(shut, {"memory": {"new": 2}}, '{"old":1}')
    evaluated = SCHEMA | {"unevaluatedProperties": False}
    assert updated(evaluated, {"memory": {"age": 1}}, '{"old":1}') == {"old": 1, "age": 1}
    assert "new" in refused(evaluated, {"memory": {"new": 2}}, '{"old":1}')
    named = SCHEMA | {"propertyNames": {"maxLength": 5}}
    assert updated(named, {"memory": {"age": 1}}, '{"too long":1}') == {"too long": 1, "age": 1}
    assert list(refused(named, {"memory": {"longer": 1}}, '{"too long":1}')) == ["longer"]


def test_wm17_a_rule_about_the_whole_object_refuses_only_what_the_update_broke():
    schema = SCHEMA | {"maxProperties": 2}
    assert list(refused(schema, {"memory": {"age": 1, "b": 2}}, '{"name":"A"}')) == ["root"]
    assert updated(schema, {"memory": {"age": 2}}, '{"name":"A","age":1,"b":1}') == {"name": "A", "age": 2, "b": 1}
    linked = SCHEMA | {"dependentRequired": {"age": ["name"]}}
    assert refused(linked, {"memory": {"age": 1}}, "") == {"name": "is required"}
    assert updated(linked, {"memory": {"name": None}}, '{"name":"A","age":1}') == {"age": 1}


def test_wm17_a_rule_about_another_field_refuses_the_update_that_broke_it():
    """`kind` decides what `amount` may be; the update of one is judged with the other that is stored."""
    then = {"properties": {"amount": {"type": "number"}}}
    when = {"properties": {"kind": {"const": "sum"}}, "required": ["kind"]}
    schema = {"type": "object", "properties": {"kind": TEXT, "other": TEXT}, "if": when, "then": then}
    assert list(refused(schema, {"memory": {"kind": "sum"}}, '{"amount":"much"}')) == ["amount"]
    broken = '{"amount":"much","kind":"sum"}'
    assert by_tool(options(schema), broken, {"memory": {"other": "x"}}).text == broken[:-1] + ',"other":"x"}'


def test_wm17_a_new_object_is_judged_as_a_whole():
    inner = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}
    schema = {"type": "object", "properties": {"x": inner}}
    for stored in ("", '{"x":5}', '{"x":[1]}'):
        assert refused(schema, {"memory": {"x": {"b": 1}}}, stored) == {"x.a": "is required"}


def test_wm17_alternatives_are_told_apart():
    either = {"anyOf": [TEXT, {"type": "integer"}, {"type": "null"}]}
    schema = {"type": "object", "properties": {"x": either}}
    told = refused(schema, {"memory": {"x": True}}, "")
    assert told == {"x": 'true is not of type "string" or true is not of type "integer"'}


def test_wm17_deep_updates_are_refused_and_not_followed():
    deep: Any = 1
    for _ in range(3000):
        deep = {"a": deep}
    assert refused(SCHEMA, {"memory": deep}) == {"root": "may have at most 32 levels"}
    with pytest.raises(Invalid, match="32 levels"):
        patched(options(SCHEMA), "", deep)
    with pytest.raises(Invalid, match="32 levels"):
        replaced(options(SCHEMA), "", '{"a":' * 40 + "1" + "}" * 40)


def test_wm10_wm11_a_text_takes_the_place_of_the_whole():
    assert by_tool(options(), "# Old", {"memory": "# New", "other": 1}) == ToolUpdate("# New", {"success": True})
    assert by_tool(options(), "# Old", {"memory": ""}) == ToolUpdate("", {"success": True})


@pytest.mark.parametrize(
    ("args", "received"),
    [
        ({"memory": {}}, "object"), ({"memory": 5}, "number"), ({"memory": None}, "null"), ({"memory": []}, "array"),
        ({}, "nothing"), (None, "nothing"), ({"text": "x"}, "nothing"),
    ],
)  # fmt: skip
def test_wm9_wm11_anything_but_a_string_is_refused(args, received):
    with pytest.raises(Invalid) as caught:
        by_tool(options(), "# Old", args)
    assert caught.value.problems == {"memory": f"expected a string with the whole text, received {received}"}


@pytest.mark.parametrize("text", [DEFAULT_TEMPLATE, f"\n{DEFAULT_TEMPLATE}\n", DEFAULT_TEMPLATE.replace("\n", "  \n ")])
def test_wm12_the_bare_template_does_not_take_the_place_of_what_is_known(text):
    done = by_tool(options(), "# Known\n- Name: Sam", {"memory": text})
    assert done.text is None
    assert done.result["success"] is False
    assert "template" in done.result["message"]


@pytest.mark.parametrize("stored", ["", " \n", DEFAULT_TEMPLATE, DEFAULT_TEMPLATE + "\n"])
def test_wm12_the_bare_template_may_be_stored_where_nothing_is_lost(stored):
    assert by_tool(options(), stored, {"memory": DEFAULT_TEMPLATE}).text == DEFAULT_TEMPLATE


def test_wm12_the_template_is_the_one_of_the_options():
    own = options(template="# Mine\n- a:")
    assert by_tool(own, "known", {"memory": "# Mine - a:"}).text is None
    assert by_tool(own, "known", {"memory": DEFAULT_TEMPLATE}).text == DEFAULT_TEMPLATE


def test_wm6_a_whole_text_replaces_without_merging_and_stays_as_it_is():
    assert replaced(options(), "# Old", " any\ntext ") == " any\ntext "
    assert replaced(options(), "# Old", DEFAULT_TEMPLATE) == DEFAULT_TEMPLATE
    assert replaced(options(SCHEMA), SAM_TEXT, '{ "age": 1 }\n') == '{ "age": 1 }\n'


@pytest.mark.parametrize(
    ("text", "path"),
    [("# text", "root"), ("[1]", "root"), ("null", "root"), ('{"age":"x"}', "age"), ('{"age":1', "root")],
)
def test_wm6_with_a_schema_a_whole_text_is_an_object_that_it_accepts(text, path):
    with pytest.raises(Invalid) as caught:
        replaced(options(SCHEMA), SAM_TEXT, text)
    assert list(caught.value.problems) == [path]


def test_wm6_a_whole_text_has_all_that_is_required():
    with pytest.raises(Invalid) as caught:
        replaced(options(REQUIRED), '{"name":"A","age":3}', '{"name":"B"}')
    assert caught.value.problems == {"age": "is required"}


@pytest.mark.parametrize(("value", "kind"), [(None, "null"), ({"a": 1}, "object"), (7, "number"), (b"x", "bytes")])
def test_wm6_what_is_no_text_is_refused(value, kind):
    for schema in (None, SCHEMA):
        with pytest.raises(Invalid) as caught:
            replaced(options(schema), "", value)
        assert caught.value.problems == {"root": f"expected a string, received {kind}"}


def test_wm6_an_empty_text_empties_the_memory():
    assert replaced(options(), "x", "") == ""
    assert replaced(options(REQUIRED), "{}", "") == replaced(options(REQUIRED), "{}", " \n") == ""


def test_wm16_a_patch_is_a_json_merge_patch():
    assert json.loads(patched(options(SCHEMA), SAM_TEXT, {"prefs": {"style": None, "goal": "g"}, "tags": []})) == {
        "name": "Sam",
        "tags": [],
        "prefs": {"goal": "g"},
    }
    assert patched(options(SCHEMA), SAM_TEXT, {}) == SAM_TEXT
    assert patched(options(SCHEMA), "# text", {"l": [{"i": None}]}) == '{"l":[{"i":null}]}'
    assert patched(options(Profile), "", {"unknown": 1, "age": 1}) == '{"age":1}'


def test_wm16_a_patch_is_judged_as_the_tool_is():
    with pytest.raises(Invalid) as caught:
        patched(options(SCHEMA), SAM_TEXT, {"age": "x"})
    assert list(caught.value.problems) == ["age"]
    for bad in ([], "x", None, 5):
        with pytest.raises(Invalid, match="expected a JSON object"):
            patched(options(SCHEMA), SAM_TEXT, bad)


def test_wm16_text_cannot_be_patched():
    with pytest.raises(Invalid, match="memory of this agent is text; replace it as a whole"):
        patched(options(), "# Text", {"a": 1})


def over(call) -> str:
    with pytest.raises(Invalid) as caught:
        call()
    assert list(caught.value.problems) == ["root"]
    return caught.value.problems["root"]


def test_h27_the_limit_holds_on_each_way_in_and_counts_bytes():
    text, fields = options(max_bytes=10), options({"type": "object"}, max_bytes=10)
    said = "working memory may have at most 10 bytes, this text has 12"
    assert over(lambda: by_tool(text, "", {"memory": "é" * 6})) == said
    assert over(lambda: replaced(text, "", "é" * 6)) == said
    assert over(lambda: by_tool(options(version="vnext", max_bytes=10), "", {"newMemory": "é" * 6})) == said
    assert over(lambda: by_tool(fields, "", {"memory": {"a": "éé"}})) == said
    assert over(lambda: patched(fields, "", {"a": "éé"})) == said
    assert over(lambda: replaced(fields, "", '{"a":"éé"}')) == said
    assert replaced(text, "", "é" * 5) == "é" * 5
    assert over(lambda: by_tool(fields, '{"a":1}', {"memory": {"bcd": 2}})).endswith("has 15")


def test_h24_two_keys_never_become_one():
    stored = json.dumps({"\ufffd": "old"}, ensure_ascii=False)
    for text in (
        by_tool(options(SCHEMA), stored, {"memory": {"\udc00": "new"}}).text,
        patched(options(SCHEMA), stored, {"\udc00": "new"}),
    ):
        assert text == json.dumps({"\ufffd": "new"}, ensure_ascii=False, separators=(",", ":"))


@given(st.text() | st.text(alphabet="\ud800\udc00a"))
def test_h24_every_text_can_be_stored_as_utf8(text):
    whole, by_text = replaced(options(), "", text), by_tool(options(), "", {"memory": text}).text or ""
    by_field = by_tool(options(SCHEMA), "", {"memory": {"name": text}}).text or ""
    assert whole == by_text == json.loads(by_field)["name"]
    assert all(stored.encode().decode() == stored for stored in (whole, by_field))


@given(st.text())
def test_w14_no_stored_text_makes_an_update_fail(stored):
    assert isinstance(stored_object(stored), dict)
