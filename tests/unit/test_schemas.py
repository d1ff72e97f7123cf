"""Schemas of callers: which can be used, and that no value takes long to check."""

import time

import pytest

from threadkeep import jsontext, schemas, schemawork


def doubling(levels, keyword="anyOf", ref="#/$defs/L{}"):
    """A schema of a few lines that looks at one value in 2^levels ways."""
    inner = {f"L{n}": {keyword: [{"$ref": ref.format(n + 1)}] * 2} for n in range(levels)}
    return {
        "type": "object",
        "properties": {"a": {"$ref": ref.format(0)}},
        "$defs": inner | {f"L{levels}": {"type": "integer"}},
    }


def recursive(keyword):
    """A schema that looks at each level of a value twice as often as at the one above."""
    level = {keyword: [{"type": "object", "properties": {"a": {"$ref": "#/$defs/T"}}}] * 2}
    return {"$ref": "#/$defs/T", "$defs": {"T": level}}


def nested(levels, inmost):
    value = inmost
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
@pytest.mark.parametrize("levels", [12, 18, 60])
def test_a_schema_with_too_many_ways_to_look_at_one_value_cannot_be_used(keyword, levels):
    began = time.process_time()
    reason = schemas.unusable(doubling(levels, keyword))
    assert reason is not None
    assert "in more than 2000 ways" in reason or "more than 64 schemas" in reason
    assert time.process_time() - began < 1


def test_conditions_are_ways_to_look_at_a_value_too():
    inner = {f"L{n}": {k: {"$ref": f"#/$defs/L{n + 1}"} for k in ("if", "then", "else", "not")} for n in range(9)}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/L0"}}, "$defs": inner | {"L9": {"const": 1}}}
    assert "ways" in str(schemas.unusable(schema))


def test_schemas_inside_each_other_have_an_end():
    inner = {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}, {"type": "null"}]} for n in range(900)}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/L0"}}, "$defs": inner | {"L900": {}}}
    assert "64 schemas" in str(schemas.unusable(schema))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#b", "$defs": {"b": {"$anchor": "b"}}}, "must be # or begin with #/"),
        ({"$ref": "http://x/b", "$defs": {"b": {"$id": "http://x/b"}}}, "must be # or begin with #/"),
        ({"properties": {"a": {"$id": "http://x/b", "type": "string"}}}, r"only its root may have an \$id"),
        ({"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}}, r"must be|\$dynamicRef is not supported"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"id": "http://x/b"}}},
            r"only its root may have an \$id",
        ),
    ],
)
def test_references_that_are_not_followed_are_refused(schema, reason):
    with pytest.raises(schemawork.Endless, match=reason):
        schemawork.check({"type": "object"} | schema)
    assert schemas.unusable({"type": "object"} | schema) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"$id": {"type": "string"}, "$ref": {"type": "string"}, "id": {"const": "x"}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {"$id": "http://x/s", "type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": True}},
        {"anyOf": [{"$ref": f"#/$defs/T{n}"} for n in range(300)], "$defs": {f"T{n}": {} for n in range(300)}},
    ],
)
def test_schemas_of_everyday_can_be_used(schema):
    assert schemas.unusable(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "allOf": [{"$ref": "#"}]},
        {
            "properties": {"x": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}},
        },
    ],
)
def test_a_schema_that_refers_to_itself_for_the_same_value_cannot_be_used(schema):
    assert schemas.unusable(schema) == "it refers to itself for the same value"


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
@pytest.mark.parametrize("levels", [17, 32])
def test_a_value_that_takes_too_long_is_refused_in_time(keyword, levels):
    began = time.process_time()
    (found,) = schemas.broken(recursive(keyword), nested(levels, 5))
    assert (found.keyword, found.path) == (schemas.UNTOLD, ())
    assert time.process_time() - began < 3


def test_references_into_a_long_list_take_no_long():
    count = 5_000
    fields = {f"f{n}": {"$ref": f"#/list/{n}"} for n in range(count)}
    began = time.process_time()
    assert schemas.unusable({"type": "object", "properties": fields, "list": [{"type": "string"}] * count}) is None
    assert time.process_time() - began < 1


@pytest.mark.parametrize("ref", ["#/list/2", "#/list/-1", "#/list/x", "#/list/\u0662", "#/nothing", 5])
def test_references_that_lead_nowhere(ref):
    assert schemawork.referred(ref, {"list": [1, 2]}) is None


def test_a_tree_of_alternatives_is_checked_level_by_level():
    assert schemas.problems(recursive("anyOf"), nested(8, {})) == {}
    assert list(schemas.problems(recursive("allOf"), nested(3, 5))) == ["a.a.a"]


def test_a_long_list_of_alternatives_takes_as_long_as_it_is():
    schema = {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}}
    assert schemas.problems(schema, [1] * 60_000) == {}
    untold = {"root": "breaks the schema, and is too large to tell where"}
    assert schemas.problems(schema, [1] * 60_000 + ["x"]) == untold


def test_of_many_problems_fifty_are_told():
    told = schemas.problems({"type": "array", "items": {"type": "string"}}, [1] * 200)
    assert len(told) == 51
    assert told["root"] == "and 150 more"
    assert told["49"] == '1 is not of type "string"'


def test_a_deep_value_is_refused_and_not_followed():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert schemas.problems(schema, nested(128, 5)).keys() == {"a"}
    assert schemas.problems(schema, nested(129, 5)) == {"root": "may have at most 128 levels"}
    assert schemas.problems(schema, nested(600, 5)) == {"root": "may have at most 128 levels"}


def test_h24_lone_surrogates_in_keys_do_no_harm():
    value = jsontext.loads(r'{"\udc00":"x","a":"\ud800"}')
    assert schemas.problems({"type": "object", "additionalProperties": {"type": "string"}}, value) == {}


def test_a_regular_expression_gives_up_soon():
    began = time.process_time()
    schema = {"type": "array", "items": {"pattern": r"(a*)*\1b"}}
    assert schemas.problems(schema, ["a" * 30] * 900)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("schema", "value", "steps"),
    [
        ({"type": "string"}, "x", 1),
        ({"properties": {"a": True, "b": True}}, {"a": 1, "c": 2}, 2),
        ({"anyOf": [True, {"not": False}]}, 1, 4),
        ({"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {}}}, [1, 2], 5),
        ({"prefixItems": [True], "contains": {}}, [1, 2], 4),
        ({"patternProperties": {"^a": True}, "propertyNames": True, "additionalProperties": {}}, {"a": 1}, 4),
        ({"dependentSchemas": {"a": True}}, {}, 2),
    ],
)
def test_steps_are_counted_along_the_value(schema, value, steps):
    assert schemawork.steps(schema, value) == steps
