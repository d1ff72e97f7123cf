"""Answers of a given form (LOOP-11)."""

import json

import pytest

from tests.unit.fakes import calls
from threadkeep import tool
from threadkeep.errors import InvalidInput, OutputInvalid
from threadkeep.turn.structured import StructuredOutput
from threadkeep.turn.tools import Tool

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"city": {"type": "string"}, "n": {"type": "number"}, "tags": {"items": {"type": "string"}}},
    "required": ["city", "n"],
    "additionalProperties": False,
}
PICK = Tool("pick", "pick", "Pick a colour.", {"type": "object"}, run=None)


@tool
def weather(city: str) -> int:
    """Get the weather of a city."""
    return len(city)


async def test_loop11_the_object_is_in_the_result_and_in_the_stored_metadata(house):
    text = '{"city":"Rome","n":12345678901234567890}'
    h = house(text)
    result = await h.turn("where?", structured_output=StructuredOutput(SCHEMA))
    assert result.structured and json.dumps(result.structured.value, separators=(",", ":")) == text
    assert h.model.requests[0].response_schema == SCHEMA
    _, answer = await h.stored()
    assert answer.content["content"] == text
    assert answer.content["metadata"]["structuredOutput"] == result.structured.value


async def test_loop11_works_after_tool_steps(house):
    h = house(calls(("weather", {"city": "Oslo"})), '```json\n{"city":"Oslo","n":4}\n```', tools=[weather])
    result = await h.turn("where?", structured_output=StructuredOutput(SCHEMA))
    assert result.structured and result.structured.value == {"city": "Oslo", "n": 4}
    assert [r.response_schema for r in h.model.requests] == [SCHEMA, SCHEMA]


@pytest.mark.parametrize(
    "text,lines",
    [
        ('{"city":5,"tags":["a",1]}', ['- root: "n" is a required property', "- city: ", "- tags.1: "]),
        ('{"city":"Rome","n":1,"x":1}', ["- root: Additional properties"]),
        ("Rome", ["- root: is not JSON"]),
        ("", ["- root: the answer is empty"]),
        ('{"city":"Rome","n":NaN}', ["- root: is not JSON: NaN"]),
    ],
)
async def test_loop11_an_answer_that_breaks_the_schema_fails_and_nothing_is_stored(house, text: str, lines: list[str]):
    h = house(text)
    with pytest.raises(OutputInvalid) as caught:
        await h.turn("where?", structured_output=StructuredOutput(SCHEMA))
    assert str(caught.value).startswith("STRUCTURED_OUTPUT_SCHEMA_VALIDATION_FAILED")
    assert all(f"\n{line}" in str(caught.value) for line in lines)
    assert await h.stored() == ()


async def test_loop11_an_answer_that_is_too_deep_or_takes_too_long_to_check_fails(house):
    level = {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#/$defs/T"}}}] * 2}
    schema = {"$ref": "#/$defs/T", "$defs": {"T": level}}
    for levels, reason in ((300, "128 levels"), (40, "too long to check")):
        h = house('{"a":' * levels + "1" + "}" * levels)
        with pytest.raises(OutputInvalid, match=reason):
            await h.turn("n?", structured_output=StructuredOutput(schema))


async def test_loop11_a_fallback_takes_the_place_of_a_broken_answer(house):
    h = house("Rome")
    wanted = StructuredOutput(SCHEMA, error_strategy="fallback", fallback_value={"city": "?", "n": 0})
    result = await h.turn("where?", structured_output=wanted)
    assert result.structured and result.structured.is_fallback
    _, answer = await h.stored()
    assert (answer.content["content"], answer.content["metadata"]["structuredOutput"]) == (
        "Rome",
        {"city": "?", "n": 0},
    )


async def test_loop11_with_warn_there_is_no_object_and_the_answer_is_stored(house):
    h = house("Rome")
    result = await h.turn("where?", structured_output=StructuredOutput(SCHEMA, error_strategy="warn"))
    assert result.structured and (result.structured.value, result.structured.problem[:6]) == (None, "- root")
    assert "structuredOutput" not in (await h.stored())[1].content["metadata"]


async def test_instructions_stand_behind_the_other_system_texts(house):
    h = house('{"city":"Rome","n":3}')
    await h.turn("where?", structured_output=StructuredOutput(SCHEMA, "Prefer capitals."))
    assert h.model.prompt == [("system", "Be kind."), ("system", "Prefer capitals."), ("user", "where?")]


async def test_a_run_that_ends_in_a_call_has_no_object_yet(house):
    h = house(calls(("pick", {})))
    result = await h.turn("where?", structured_output=StructuredOutput(SCHEMA), client_tools=(PICK,))
    assert (result.structured, result.finish_reason) == (None, "tool-calls")


@pytest.mark.parametrize("schema", [{"type": "strin"}, {"$ref": "http://127.0.0.1:9/x"}, {"$ref": "#/nope"}])
def test_a_schema_that_cannot_be_used_is_refused(schema: dict):
    with pytest.raises(InvalidInput) as caught:
        StructuredOutput(schema)
    assert caught.value.issues[0].field == "structuredOutput.schema"
