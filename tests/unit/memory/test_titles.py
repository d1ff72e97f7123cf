"""Titles (TT-1 to TT-4, case H34)."""

import pytest

from threadkeep.memory.messages import content, text_part, tool_part
from threadkeep.memory.options import TitleOptions
from threadkeep.memory.titles import clean, is_due, title_request
from threadkeep.storage.port import Message


@pytest.mark.parametrize(
    ("options", "title", "roles", "due"),
    [
        (TitleOptions(), "", ["user", "assistant"], True),
        (None, "", ["user", "assistant"], False),
        (TitleOptions(), "Mine", ["user", "assistant"], False),
        (TitleOptions(), "", ["assistant"], False),
        (TitleOptions(min_messages=3), "", ["user", "assistant"], False),
        (TitleOptions(min_messages=3), "", ["user", "assistant", "user"], True),
    ],
)
def test_tt2_a_title_is_due_where_there_is_none_and_enough_was_said(options, title, roles, due):
    assert is_due(options, title, roles) is due


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("  Otters  ", "Otters"),
        ("<think>hm\nhm</think>\nOtters", "Otters"),
        ('"Otters"', '"Otters"'),
        ("<think>only</think>", ""),
        ("two\nlines", "two lines"),
        ("x" * 900, "x" * 200),
    ],
)
def test_tt4_the_title_is_what_the_model_said_without_its_thinking(answer, title):
    assert clean(answer) == title


def test_tt3_the_model_reads_instructions_and_one_transcript():
    said = Message("1", "t", "user", content([text_part("hi", 1)]), 1, "")
    called = tool_part("k", "look", {"q": "x" * 500}, {"state": "result", "result": {"a": 1}}, 1)
    answered = Message("2", "t", "assistant", content([called, text_part("hello", 1)]), 2, "")
    request = title_request("m", [said, answered], None)
    system, user = request.messages
    assert (system.role, user.role) == ("system", "user")
    assert "80 characters" in system.text
    lines = user.text.split("\n")
    assert lines[0] == "User: hi" and lines[-1] == "Assistant: hello"
    assert lines[1].startswith('Tool Call look: {"q":"xxx') and len(lines[1]) == len("Tool Call look: ") + 200
    assert lines[2] == 'Tool Result look: {"a":1}'
    thought = Message("3", "t", "assistant", {"parts": [{"type": "reasoning", "reasoning": "hm"}]}, 3, "")
    assert title_request("m", [thought], None).messages[1].text == "Reasoning: hm"
    assert title_request("m", [said], "Call it Bob.").messages[0].text == "Call it Bob."
