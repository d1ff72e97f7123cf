"""Counting tokens (OM-20 to OM-22) and what a prompt takes of a limit (PR-12)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.memory import tokens
from threadkeep.memory.messages import content, file_part, step_start, text_part, tool_part
from threadkeep.models.port import FilePart, PromptMessage, TextPart, ToolCall, ToolResult


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("hello world", 2),
        ("internationalization", 4),
        ("Hello, world!", 4),
        ("12,345.67", 5),
        ("...", 1),
        ("日本語テスト", 6),
        ("straßenbahn", 4),
        ("user@example.com", 6),
        ("a" * 30, 5),
        (" \n\t ", 0),
        ("12345678901234567890", 1),
        ("-----", 3),
        ("déjà-vus", 4),
        ("źdźbło", 2),
        ("한국어!", 4),
    ],
)
def test_om20_check_values(text: str, expected: int):
    assert tokens.count(text) == expected


@given(st.text(max_size=60), st.text(max_size=60))
def test_om20_white_space_separates(one: str, two: str):
    assert tokens.count(f"{one} {two}") == tokens.count(one) + tokens.count(two)


@given(st.text(max_size=80), st.integers(0, 40))
def test_a_cut_text_is_the_longest_beginning_within_the_budget(text: str, budget: int):
    cut = tokens.cut(text, budget)
    assert text.startswith(cut) and tokens.count(cut) <= budget
    assert cut == text or tokens.count(text) > budget
    assert tokens.cut(text, tokens.count(text)) == text


def said(text: str) -> dict:
    return content([text_part(text, 1)])


def used(**outcome) -> dict:
    return content([tool_part("k", "look", {"q": 1}, outcome, 1)])


def test_om21_om22_check_values():
    assert tokens.message("user", said("hello world")) == 7
    assert tokens.conversation([("user", said("hello world"))]) == 31
    eighteen = " ".join(["word"] * 18)
    assert (tokens.message("user", said(eighteen)), tokens.conversation([("user", said(eighteen))])) == (23, 47)
    assert tokens.conversation([]) == 0


def test_om21_a_flat_text_counts_where_there_are_no_parts():
    assert tokens.message("user", {"format": 2, "content": "hello world"}) == 7


def test_om21_a_tool_part_costs_its_call_and_its_result():
    call = tokens.count("look") + tokens.count('{"q":1}') - 12
    role = tokens.count("assistant")
    assert tokens.message("assistant", used(state="call")) == round(role + call + 3.8)
    text = tokens.count("a long result")
    assert tokens.message("assistant", used(state="result", result="a long result")) == round(role + call + text + 7.6)
    data = tokens.count('{\n  "a": [\n    1\n  ]\n}') - 12
    assert tokens.message("assistant", used(state="result", result={"a": [1]})) == round(role + call + data + 7.6)
    failed = tokens.count("no net here")
    assert tokens.message("assistant", used(state="output-error", errorText="no net here")) == round(
        role + call + failed + 7.6
    )
    denied = used(state="output-denied", approval={"reason": "no net here"})
    assert tokens.message("assistant", denied) == round(role + call + failed + 7.6)


def test_om21_what_no_model_reads_as_text_costs_nothing():
    hidden = [{"type": "reasoning", "reasoning": "x " * 99}, {"type": "data-note", "data": "x " * 99}]
    assert tokens.message("user", content(hidden)) == tokens.message("user", content([]))
    secret = {"encryptedContent": "x" * 257, "list": [{"encryptedContent": "x" * 400}], "n": 1}
    short = {"encryptedContent": "[redacted]", "list": [{"encryptedContent": "[redacted]"}], "n": 1}
    assert tokens.message("a", used(state="result", result=secret)) == tokens.message(
        "a", used(state="result", result=short)
    )


def test_om21_a_model_facing_output_stands_for_the_result():
    part = tool_part("k", "look", "", {"state": "result", "result": "word " * 50}, 1)
    part["providerMetadata"] = {"mastra": {"modelOutput": "short"}}
    plain = tool_part("k", "look", "", {"state": "result", "result": "short"}, 1)
    assert tokens.message("assistant", content([part])) == tokens.message("assistant", content([plain]))


def test_om21_other_parts_cost_their_json():
    start = step_start("openai/gpt", 1)
    cost = tokens.message("assistant", content([start])) - tokens.message("assistant", content([]))
    assert cost == tokens.count('{"type":"step-start","createdAt":1,"model":"openai/gpt"}')


def test_om23_a_file_costs_its_estimate_or_that_of_an_image_of_unknown_size():
    image = file_part("x" * 9000, "image/png", 1)
    empty = tokens.message("user", content([]))
    assert tokens.message("user", content([image])) == empty + 765
    known = image | {"providerMetadata": {"mastra": {"tokenEstimate": {"source": "client", "tokens": 85}}}}
    assert tokens.message("user", content([known])) == empty + 85


def test_pr12_a_prompt_message_costs_its_tokens_and_3_8():
    assert tokens.prompt_message(PromptMessage("user", (TextPart("hello world"),))) == pytest.approx(1 + 2 + 3.8)
    assert tokens.prompt_message(PromptMessage("user", (FilePart("x" * 999, "image/png"),))) == pytest.approx(769.8)
    calls = PromptMessage("assistant", (ToolCall("k", "look", {}), ToolCall("l", "look", {"q": "word " * 20})))
    assert tokens.prompt_message(calls) == pytest.approx(2 + 1 + 1 + (1 + 1 + 1 + 1 + 20 + 1 + 1 - 12) + 3.8, abs=3)
    results = PromptMessage("tool", (ToolResult("k", "look", "hello world"), ToolResult("l", "look", "hi")))
    assert tokens.prompt_message(results) == pytest.approx(1 + 2 + 1 + 7.6)
    assert tokens.prompt([results]) == pytest.approx(24 + 11.6)
