"""The options of working memory (WM-1, CFG-5, CFG-7, CFG-8, M-DISC-12)."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, RootModel

from threadkeep import Memory
from threadkeep.errors import ConfigurationError, InvalidInput
from threadkeep.memory.options import MemoryOptions, merged
from threadkeep.memory.working_memory.options import WorkingMemoryOptions

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
OTHER = {"type": "object", "properties": {"age": {"type": "integer"}}}


def working(given: Any, call: Any = None) -> WorkingMemoryOptions:
    options = Memory(working_memory=given).options
    return merged(options, {"workingMemory": call} if call is not None else {}).working_memory


def test_wm1_cfg2_defaults():
    options = Memory().options.working_memory
    assert options == WorkingMemoryOptions()
    assert (options.enabled, options.scope, options.template, options.json_schema) == (False, "resource", None, None)
    assert (options.version, options.use_state_signals, options.agent_managed) == ("stable", False, True)
    assert options.max_bytes == 32_768


def test_wm1_a_switch_stands_for_the_options():
    assert working(True) == WorkingMemoryOptions(enabled=True)
    assert working(False) == working(None) == WorkingMemoryOptions()


def test_wm1_options_without_enabled_are_not_enabled():
    assert not working({"template": "# Mine"}).enabled


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"enabled": "yes"}, "enabled"),
        ({"scope": "user"}, "scope"),
        ({"template": 5}, "template"),
        ({"template": "x" * 32_769}, "template"),
        ({"template": "é" * 16_385}, "template"),
        ({"schema": "x"}, "schema"),
        ({"schema": []}, "schema"),
        ({"version": "next"}, "version"),
        ({"useStateSignals": 1}, "useStateSignals"),
        ({"agentManaged": None}, "agentManaged"),
        ({"maxBytes": 0}, "maxBytes"),
        ({"maxBytes": 262_145}, "maxBytes"),
        ({"maxBytes": True}, "maxBytes"),
    ],
)
def test_wm1_a_bad_option_is_named(bad, field):
    with pytest.raises(InvalidInput) as caught:
        merged(MemoryOptions(), {"workingMemory": bad})
    assert [issue.field for issue in caught.value.issues] == [f"memory.options.workingMemory.{field}"]
    with pytest.raises(ConfigurationError, match=f"working_memory.{field}"):
        Memory(working_memory=bad)


@pytest.mark.parametrize(("bad", "kind"), [(5, "number"), ("x", "string"), ([], "array")])
def test_wm1_what_are_no_options_at_all_is_refused(bad, kind):
    reason = f"expected true, false or an object, received {kind}"
    with pytest.raises(ConfigurationError, match=f"working_memory: {reason}"):
        Memory(working_memory=bad)
    with pytest.raises(InvalidInput, match=rf"memory\.options\.workingMemory: {reason}"):
        merged(MemoryOptions(), {"workingMemory": bad})


@pytest.mark.parametrize(
    "both",
    [
        pytest.param({"template": "# T", "schema": SCHEMA}, id="mdisc12"),
        pytest.param({"version": "vnext", "schema": SCHEMA}, id="vnext-schema"),
        pytest.param({"version": "vnext", "useStateSignals": True}, id="cfg5"),
    ],
)
def test_mdisc12_cfg5_what_does_not_go_together_is_refused(both):
    with pytest.raises(ConfigurationError, match="working_memory"):
        Memory(working_memory={"enabled": True, **both})
    with pytest.raises(InvalidInput) as caught:
        merged(MemoryOptions(), {"workingMemory": both})
    assert [issue.field for issue in caught.value.issues] == ["memory.options.workingMemory"]


@pytest.mark.parametrize(
    ("base", "call", "expected"),
    [
        ({"enabled": True, "template": "T", "scope": "thread"}, {"enabled": False}, (False, "T", "thread")),
        ({"enabled": True, "template": "T", "scope": "thread"}, {"scope": "resource"}, (True, "T", "resource")),
        ({"enabled": True, "template": "T", "scope": "thread"}, {}, (True, "T", "thread")),
        ({"enabled": True, "template": "T", "scope": "thread"}, None, (True, "T", "thread")),
        ({"enabled": True, "template": "T", "scope": "thread"}, False, (False, "T", "thread")),
        ({"template": "T"}, True, (True, "T", "resource")),
        ({"template": "T"}, {"enabled": True, "template": "U"}, (True, "U", "resource")),
        ({"enabled": True, "template": "T"}, {"template": None}, (True, None, "resource")),
    ],
)
def test_cfg7_cfg8_a_call_switches_working_memory_or_gives_it_another_template(base, call, expected):
    found = working(base, call)
    assert (found.enabled, found.template, found.scope) == expected


def test_cfg7_null_in_a_call_switches_off_and_absent_leaves_alone():
    options = Memory(working_memory=True).options
    assert not merged(options, {"workingMemory": None}).working_memory.enabled
    assert merged(options, {"lastMessages": 1}).working_memory.enabled


def test_cfg7_a_schema_of_a_call_replaces_the_other_as_a_whole():
    assert working({"enabled": True, "schema": SCHEMA}, {"schema": OTHER}).json_schema == OTHER


def test_cfg8_a_call_that_gives_a_template_puts_the_schema_out_and_the_other_way_round():
    found = working({"enabled": True, "schema": SCHEMA}, {"template": "# T"})
    assert (found.template, found.json_schema) == ("# T", None)
    found = working({"enabled": True, "template": "# T"}, {"schema": SCHEMA})
    assert (found.template, found.json_schema) == (None, SCHEMA)


def test_h14_call3_a_call_cannot_lift_read_only():
    assert merged(Memory(read_only=True).options, {"readOnly": False}).read_only
    assert merged(Memory().options, {"readOnly": True}).read_only


def test_h27_a_call_may_lower_the_limit_of_working_memory_and_not_raise_it():
    assert working({"max_bytes": 100}, {"maxBytes": 50}).max_bytes == 50
    assert working({"max_bytes": 100}, {"maxBytes": 100}).max_bytes == 100
    with pytest.raises(InvalidInput) as caught:
        working({"max_bytes": 100}, {"maxBytes": 101})
    assert [issue.field for issue in caught.value.issues] == ["memory.options.workingMemory.maxBytes"]


class Preferences(BaseModel):
    style: str | None = None


class Kept(BaseModel):
    model_config = ConfigDict(extra="allow")


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Profile(BaseModel):
    name: str | None = None
    preferences: Preferences | None = None
    kept: Kept | None = None
    closed: Closed | None = None


def test_wm4_a_pydantic_model_becomes_json_schema_and_survives_a_call():
    options = Memory(working_memory={"enabled": True, "schema": Profile}).options
    schema = options.working_memory.json_schema
    assert schema is not None
    assert schema["type"] == "object"
    assert set(schema["properties"]) == {"name", "preferences", "kept", "closed"}
    assert merged(options, {"lastMessages": 1}).working_memory == options.working_memory
    shown = options.model_dump(by_alias=True, exclude_unset=True)
    assert shown == {"workingMemory": {"enabled": True, "schema": schema}}


def test_wm4_the_schema_is_a_copy():
    mine = {"type": "object", "properties": {"a": {"type": "string"}}}
    options = working({"schema": mine})
    mine["properties"]["a"]["type"] = "number"
    assert options.json_schema == {"type": "object", "properties": {"a": {"type": "string"}}}


class Texts(RootModel[list[str]]):
    pass


class Function(BaseModel):
    run: Callable[[], int]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        pytest.param({"type": "array"}, "root", id="array"),
        pytest.param({"type": ["object", "null"]}, "root", id="type-list"),
        pytest.param({}, "root", id="anything"),
        pytest.param({"anyOf": [SCHEMA, OTHER]}, "root", id="union"),
        pytest.param(Texts, "root", id="model-of-a-list"),
        pytest.param(Function, "Function has no JSON Schema", id="model-of-a-function"),
        pytest.param({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "itself", id="circle"),
        pytest.param(int, "the class int", id="class"),
        pytest.param({"type": "object", "properties": {"a": {"type": "nonsense"}}}, "cannot be used", id="type"),
        pytest.param({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "cannot be used", id="dangling"),
        pytest.param({"type": "object", "description": "x" * 100_000}, "100000 bytes", id="size"),
        pytest.param({"type": "object", "default": {1, 2}}, "not JSON", id="not-json"),
        pytest.param({"type": "object", "default": float("nan")}, "JSON", id="nan"),
    ],
)
def test_wm4_a_schema_that_cannot_be_used_is_refused(schema, reason):
    with pytest.raises(ConfigurationError, match=reason):
        Memory(working_memory={"schema": schema})


@pytest.mark.parametrize(
    "ref", ["http://127.0.0.1:9/s.json", "https://example.com/s", "file:///etc/passwd", "other.json"]
)
def test_wm4_a_reference_never_leaves_its_schema(ref):
    for schema in ({"$ref": ref}, {"type": "object", "properties": {"a": {"$ref": ref}}}):
        with pytest.raises(InvalidInput, match=r"memory\.options\.workingMemory\.schema"):
            merged(MemoryOptions(), {"workingMemory": {"schema": schema}})


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_wm4_a_schema_has_at_most_32_levels():
    assert working({"schema": nested(15)}).json_schema == nested(15)  # two levels each, and the innermost
    with pytest.raises(ConfigurationError, match="32 levels"):
        Memory(working_memory={"schema": nested(16)})
    with pytest.raises(ConfigurationError, match="32 levels"):
        Memory(working_memory={"schema": nested(2000)})
