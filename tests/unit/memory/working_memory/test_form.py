"""The template or schema that a working memory follows, and its empty object (WM-3, WM-4, WM-24)."""

import json

import pytest
from pydantic import BaseModel

from threadkeep import Memory
from threadkeep.memory.working_memory.form import DEFAULT_TEMPLATE, empty_value, form_of
from threadkeep.memory.working_memory.schema import UNKNOWN


def form(**options):
    return form_of(Memory(working_memory={"enabled": True, **options}).options.working_memory)


def test_wm3_the_default_template_has_a_heading_and_nine_empty_labels():
    heading, *labels = DEFAULT_TEMPLATE.split("\n")
    assert heading == "# User Information"
    names = "First Name, Last Name, Location, Occupation, Interests, Goals, Events, Facts, Projects"
    assert labels == [f"- **{name}**:" for name in names.split(", ")]


@pytest.mark.parametrize("blank", [None, "", " \n\t"])
def test_wm3_a_blank_template_is_the_default_one(blank):
    assert form(template=blank).content == DEFAULT_TEMPLATE


def test_wm3_a_template_is_trimmed():
    assert form(template="\n# Mine\n- a:\n\n").content == "# Mine\n- a:"


def test_wm4_the_form_of_a_template_is_markdown():
    found = form(template="# T")
    assert (found.format, found.content, found.schema) == ("markdown", "# T", None)


class Inner(BaseModel):
    style: str = ""


class Outer(BaseModel):
    name: str
    inner: Inner | None = None


def test_wm4_the_form_of_a_schema_is_json_and_its_content_the_schema_as_text():
    found = form(schema=Outer)
    assert found.format == "json"
    assert json.loads(found.content) == found.schema
    assert UNKNOWN not in found.content
    assert found.schema == Outer.model_json_schema()


@pytest.mark.parametrize(
    ("field", "empty"),
    [
        ({"type": "string"}, ""),
        ({"type": "string", "default": "x"}, "x"),
        ({"type": "array"}, []),
        ({"type": "array", "default": [1]}, [1]),
        ({"type": "number"}, 0),
        ({"type": "integer"}, 0),
        ({"type": "boolean"}, False),
        ({"type": "boolean", "default": True}, True),
        ({"type": "object"}, {}),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": ""}),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"a": "d"}}, {"a": "d"}),
        ({"type": "null"}, None),
        ({"type": ["string", "null"]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, ""),
        ({}, None),
        ({"$ref": "#/$defs/D"}, {"b": 0}),
        ({"$ref": "#/$defs/missing"}, None),
        (True, None),
    ],
)
def test_wm24_the_empty_value_of_a_property(field, empty):
    schema = {
        "type": "object",
        "properties": {"f": field},
        "$defs": {"D": {"type": "object", "properties": {"b": {"type": "integer"}}}},
    }
    assert empty_value(schema) == {"f": empty}
    assert json.dumps(empty_value(schema)) == json.dumps({"f": empty})  # false is not 0


@pytest.mark.parametrize("root", [{"type": "array"}, {"type": "string"}, {}, {"type": ["object", "null"]}])
def test_wm24_a_root_that_is_no_object_has_none(root):
    assert empty_value(root) is None


def test_wm24_a_schema_that_refers_to_itself_ends_with_null():
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "parent": {"$ref": "#"}}}
    assert empty_value(schema) == {"name": "", "parent": {"name": "", "parent": None}}


def test_wm24_a_small_schema_of_a_huge_object_stays_small():
    levels = {
        f"L{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/L{n + 1}"} for k in "abcdefgh"}}
        for n in range(25)
    }
    schema = {"$ref": "#/$defs/L0", "$defs": levels | {"L25": {"type": "string"}}}
    assert len(json.dumps(empty_value(schema))) < 20_000
