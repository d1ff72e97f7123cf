"""The version that appends to a Markdown memory and replaces passages (VN-1 to VN-5)."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from threadkeep import Memory
from threadkeep.memory.working_memory import Invalid
from threadkeep.memory.working_memory.form import DEFAULT_TEMPLATE
from threadkeep.memory.working_memory.updates import by_tool
from threadkeep.memory.working_memory.vnext import CLARIFY, REPLACE

KNOWN = "- Name: Sam\n- City: Bonn\n- Was in Bonn: yes"


def call(stored, scope="thread", template=None, **args):
    options = Memory(working_memory={"enabled": True, "version": "vnext", "scope": scope, "template": template})
    done = by_tool(options.options.working_memory, stored, args)
    assert set(done.result) == {"success", "reason"}
    assert done.result["success"] is (done.text is not None)
    return done.text, done.result["reason"]


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"newMemory": 5}, "newMemory"),
        ({"newMemory": "x", "searchString": {}}, "searchString"),
        ({"newMemory": "x", "updateReason": "because"}, "updateReason"),
        ({"newMemory": "x", "updateReason": 1}, "updateReason"),
    ],
)
def test_vn1_arguments_of_another_kind_are_refused(args, path):
    with pytest.raises(Invalid) as caught:
        call(KNOWN, **args)
    assert list(caught.value.problems) == [path]


def test_vn1_all_arguments_are_optional_and_memory_is_none_of_them():
    assert call(KNOWN)[0] is None
    assert call("", memory="- x")[0] is None
    assert call(KNOWN, newMemory="- x", searchString=None, updateReason=None)[0] == KNOWN + "\n- x"


def test_vn2_appending_does_not_look_for_a_passage():
    text, reason = call(KNOWN, newMemory="- City: Rome", searchString="- City: Bonn")
    assert text == KNOWN + "\n- City: Rome"
    assert reason == "appended"


def test_vn2_another_reason_needs_a_passage():
    for reason in (CLARIFY, REPLACE):
        for search in ({}, {"searchString": ""}, {"searchString": None}):
            text, told = call(KNOWN, newMemory="x", updateReason=reason, **search)
            assert text is None
            assert "searchString" in told


@pytest.mark.parametrize("search", ["- City: Bonn", "absent", ""])
def test_vn2_what_is_known_of_a_resource_is_not_replaced_as_irrelevant(search):
    text, _ = call(KNOWN, scope="resource", newMemory="x", searchString=search, updateReason=REPLACE)
    assert text is None
    assert call(KNOWN, newMemory="x", searchString="- City: Bonn", updateReason=REPLACE)[0] is not None


@pytest.mark.parametrize("bare", [DEFAULT_TEMPLATE, DEFAULT_TEMPLATE.replace("\n", "\n\n")])
def test_vn3_the_bare_template_does_not_start_a_memory(bare):
    assert call("", newMemory=bare)[0] is None


def test_vn3_white_space_does_not_start_a_memory():
    assert call("", newMemory=" \n")[0] is None


def test_vn3_the_first_text_starts_a_memory():
    assert call("", newMemory="- Name: Sam") == ("- Name: Sam", "started new memory")
    text, _ = call("", newMemory="- Name: Sam", searchString="x", updateReason=CLARIFY)
    assert text == "- Name: Sam"


def test_vn4_the_first_occurrence_is_replaced():
    text, _ = call(KNOWN, newMemory="Rome", searchString="Bonn", updateReason=CLARIFY)
    assert text == "- Name: Sam\n- City: Rome\n- Was in Bonn: yes"
    assert call(KNOWN, searchString="- City: Bonn\n", updateReason=CLARIFY)[0] == "- Name: Sam\n- Was in Bonn: yes"


@pytest.mark.parametrize("new", ["- Name: Sam", "Sam", "", " \n", DEFAULT_TEMPLATE, DEFAULT_TEMPLATE + "\n"])
def test_vn4_what_is_there_already_is_a_duplicate(new):
    assert call(KNOWN, newMemory=new)[0] is None


def test_vn4_what_is_new_goes_on_a_new_line():
    assert call(KNOWN, newMemory="- Age: 30") == (KNOWN + "\n- Age: 30", "appended")
    text, reason = call(KNOWN, newMemory="- Age: 30", searchString="- Age:", updateReason=CLARIFY)
    assert text == KNOWN + "\n- Age: 30"
    assert "not found" in reason


def test_vn5_copies_of_the_bare_template_go():
    assert call(DEFAULT_TEMPLATE, newMemory="- Name: Sam")[0] == "- Name: Sam"
    both = f"- a\n{DEFAULT_TEMPLATE}\n- b\n{DEFAULT_TEMPLATE}"
    assert call(both, newMemory="- c")[0] == "- a\n- b\n- c"
    assert call("- a\n- City: Bonn", template="City", newMemory="- b")[0] == "- a\n- City: Bonn\n- b"


@pytest.mark.parametrize("pattern", ["$&", "$1", "\\1", "\\g<0>", "$`", "$'", "$$"])
def test_vn5_new_text_is_taken_literally(pattern):
    text, _ = call(KNOWN, newMemory=pattern, searchString="Sam", updateReason=CLARIFY)
    assert text == KNOWN.replace("Sam", pattern)


lines = st.lists(st.text(alphabet="ab-# ", max_size=4), max_size=6).map("\n".join)


@given(lines, lines, st.text(alphabet="ab-", max_size=3), st.sampled_from(["append-new-memory", CLARIFY, REPLACE]))
def test_vn4_vn5_no_text_is_lost_that_was_not_to_be_replaced(stored, new, search, reason):
    template = "# T\n- a:\n- b:"
    assume(template not in stored)
    text, _ = call(stored, template=template, newMemory=new, searchString=search, updateReason=reason)
    if text is None or text == stored:
        return
    before, found, after = stored.partition(search) if search and reason != "append-new-memory" else (stored, "", "")
    kept = text.replace(template, "")
    assert kept.startswith(before)
    assert kept.endswith(after) if found else kept == (f"{stored}\n{new}" if stored else new)
