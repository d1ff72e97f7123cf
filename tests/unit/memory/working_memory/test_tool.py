"""The tool as the model sees it (WM-8, WM-9, VN-1, SS-1)."""

from typing import Any

from pydantic import BaseModel

from threadkeep import Memory, schemas
from threadkeep.memory.working_memory.schema import UNKNOWN
from threadkeep.memory.working_memory.tool import tool_form


def form(**options: Any):
    return tool_form(Memory(working_memory={"enabled": True, **options}).options.working_memory)


class Node(BaseModel):
    name: str
    children: list["Node"] = []


class Tree(BaseModel):
    root: Node | None = None


def test_wm9_a_template_wants_the_whole_text_as_a_string():
    found = form()
    assert (found.name, found.id) == ("updateWorkingMemory", "update-working-memory")
    assert found.parameters["properties"].keys() == {"memory"}
    assert found.parameters["properties"]["memory"]["type"] == "string"
    assert found.parameters["required"] == ["memory"]
    assert all(
        word in found.description for word in ("takes the place", "leave out is lost", "string", "never as an object")
    )


def test_wm9_a_schema_is_that_of_memory_and_updates_merge():
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    found = form(schema=schema)
    assert found.parameters == {"type": "object", "properties": {"memory": schema}, "required": ["memory"]}
    assert all(word in found.description for word in ("merged", "only the fields", "null", "list"))


def test_wm9_references_find_the_same_from_where_the_schema_stands_now():
    found = form(schema=Tree)
    assert UNKNOWN not in str(found.parameters)
    assert schemas.unusable(found.parameters) is None
    good = {"memory": {"root": {"name": "a", "children": [{"name": "b"}]}}}
    bad = {"memory": {"root": {"name": "a", "children": [{"name": 5}]}}}
    assert schemas.problems(found.parameters, good) == {}
    assert list(schemas.problems(found.parameters, bad)) == ["memory.root.children.0.name"]


def test_wm9_references_to_the_root_and_its_properties_are_moved():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/person",
        "type": "object",
        "properties": {"name": {"type": "string"}, "nick": {"$ref": "#/properties/name"}, "parent": {"$ref": "#"}},
        "definitions": {"self": {"$ref": "#"}},
    }
    found = form(schema=schema).parameters
    assert list(schemas.problems(found, {"memory": {"parent": {"nick": 5}}})) == ["memory.parent.nick"]
    assert schemas.problems(found, {"memory": {"parent": {"nick": "x"}}}) == {}
    assert found["definitions"] == {"self": {"$ref": "#/properties/memory"}}


def test_vn1_the_arguments_are_all_optional_and_there_are_three_reasons():
    found = form(version="vnext").parameters
    assert found["properties"].keys() == {"newMemory", "searchString", "updateReason"}
    assert "required" not in found
    reason = found["properties"]["updateReason"]
    assert reason["enum"] == ["append-new-memory", "clarify-existing-memory", "replace-irrelevant-memory"]
    assert reason["default"] == "append-new-memory"


def test_ss1_with_state_signals_only_name_and_description_differ():
    for options in ({"template": "# T"}, {"schema": Tree}):
        plain, signals = form(**options), form(**options, useStateSignals=True)
        assert (signals.name, signals.id) == ("setWorkingMemory", plain.id)
        assert signals.parameters == plain.parameters
        assert signals.description.startswith(plain.description)
        assert "<working-memory>" in signals.description
        assert "<working-memory>" not in plain.description
