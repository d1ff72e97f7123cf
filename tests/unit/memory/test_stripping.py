"""What is never stored of working memory (MS-5)."""

import time

import pytest

from threadkeep.memory.messages import content
from threadkeep.memory.working_memory.stripping import stripped


def texts(*given: str) -> dict:
    return content([{"type": "text", "text": text} for text in given])


def call(name: str) -> dict:
    return {"type": "tool-invocation", "toolInvocation": {"state": "result", "toolCallId": "c", "toolName": name}}


STEP = {"type": "step-start"}
SPAN = "<working_memory>x</working_memory>"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("plain ", "plain "),
        (f"a {SPAN} b", "a  b"),
        (f"{SPAN}\na{SPAN}{SPAN}\n", "a"),
        ("<working_memory>open", "<working_memory>open"),
        ("closed</working_memory> ", "closed</working_memory> "),
        (f"</working_memory><working_memory>a{SPAN}", "</working_memory>"),
        (f"{SPAN} then <working_memory>open", "then <working_memory>open"),
    ],
)
def test_ms5_whole_spans_go_and_only_what_was_cut_is_trimmed(before, after):
    assert stripped(texts(before)) == texts(after)


def test_ms5_calls_of_the_tool_go_and_others_stay():
    given = content([call("updateWorkingMemory"), call("setWorkingMemory"), call("UpdateWorkingMemory")])
    assert stripped(given) == content([call("setWorkingMemory"), call("UpdateWorkingMemory")])


@pytest.mark.parametrize(
    "given",
    [texts(SPAN), texts(SPAN, f" {SPAN} "), content([call("updateWorkingMemory")]),
     content([STEP, call("updateWorkingMemory"), STEP]), {"format": 2, "parts": [], "content": SPAN}],
)  # fmt: skip
def test_ms5_a_message_of_which_nothing_is_left_is_not_stored(given):
    assert stripped(given) is None


@pytest.mark.parametrize(
    "given", [{}, {"parts": None}, {"parts": ["?", None, {"type": "text", "text": 7}], "content": 3}, content([STEP])]
)
def test_h33_what_holds_none_of_it_is_the_same_object(given):
    assert stripped(given) is given


def test_ms5_metadata_and_step_starts_stay():
    given = content([call("updateWorkingMemory"), STEP, {"type": "text", "text": "done"}], {"modelId": "m"})
    assert stripped(given) == content([STEP, {"type": "text", "text": "done"}], {"modelId": "m"})


def test_ms5_the_flat_copy_follows_its_part():
    assert stripped(texts("first", SPAN)) == {"format": 2, "parts": [{"type": "text", "text": "first"}]}


def test_ms5_stripping_takes_time_that_grows_with_the_text_alone():
    began = time.perf_counter()
    stripped(texts("</working_memory>" + "<working_memory>" * 200_000))
    stripped(texts(SPAN * 100_000))
    assert time.perf_counter() - began < 2
