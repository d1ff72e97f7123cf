"""What a model may see of stored messages (cases H06, H07, H19; CTX-5, CTX-6)."""

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.memory.history import opened_by_user, prompt_messages
from threadkeep.memory.messages import content, step_start, text_part, tool_part
from threadkeep.models.port import PromptMessage, TextPart, ToolCall, ToolResult
from threadkeep.storage.port import Message


def row(role: str, *parts: dict, number: int = 0) -> Message:
    return Message(f"m{number}", "t", role, content(list(parts)), number, f"{number:015d}-{number:010d}")


def said(text: str) -> dict:
    return text_part(text, 1)


def done(call_id: str, result: object = "r") -> dict:
    return tool_part(call_id, "look", {"q": 1}, {"state": "result", "result": result}, 1)


def pending(call_id: str) -> dict:
    return tool_part(call_id, "look", {"q": 1}, {"state": "call"}, 1)


def shape(prompt: tuple[PromptMessage, ...]) -> list[tuple]:
    names = {
        TextPart: lambda p: p.text,
        ToolCall: lambda p: f"call {p.id}",
        ToolResult: lambda p: f"result {p.call_id}",
    }
    return [(m.role, *(names[type(p)](p) for p in m.parts)) for m in prompt]


def test_steps_of_one_answer_become_calls_and_results_in_turn():
    answer = row("assistant", said("hm"), done("k1"), done("k2"), step_start("m", 1), done("k3"), said("so"))
    assert shape(prompt_messages([row("user", said("hi")), answer])) == [
        ("user", "hi"),
        ("assistant", "hm", "call k1", "call k2"),
        ("tool", "result k1", "result k2"),
        ("assistant", "call k3"),
        ("tool", "result k3"),
        ("assistant", "so"),
    ]


def test_h07_an_unanswered_call_is_left_out_and_its_neighbours_stay_together():
    answer = row("assistant", said("hm"), done("k1"), pending("k2"), done("k3"))
    assert shape(prompt_messages([answer])) == [
        ("assistant", "hm", "call k1", "call k3"),
        ("tool", "result k1", "result k3"),
    ]


def test_ctx6_an_answer_of_unanswered_calls_alone_vanishes():
    assert prompt_messages([row("assistant", pending("k1"))]) == ()


def test_h07_the_same_call_twice_is_seen_once():
    rows = [row("assistant", done("k1", "first")), row("assistant", done("k1", "again"), said("x"))]
    assert shape(prompt_messages(rows)) == [("assistant", "call k1"), ("tool", "result k1"), ("assistant", "x")]


def test_failed_and_declined_calls_tell_the_model_why():
    failed = tool_part("k1", "look", {}, {"state": "output-error", "errorText": "no net"}, 1)
    denied = tool_part("k2", "look", {}, {"state": "output-denied", "approval": {"reason": "not now"}}, 1)
    results = prompt_messages([row("assistant", failed, denied)])[1].parts
    assert [(p.text, p.is_error) for p in results if isinstance(p, ToolResult)] == [("no net", True), ("not now", True)]


def test_h19_system_rows_are_not_replayed():
    assert shape(prompt_messages([row("system", said("obey")), row("user", said("hi"))])) == [("user", "hi")]


def test_results_are_json_unless_they_are_text():
    results = [p for m in prompt_messages([row("assistant", done("a", {"x": 1}), done("b", "t"))]) for p in m.parts]
    assert [p.text for p in results if isinstance(p, ToolResult)] == ['{"x":1}', "t"]


def test_ctx5_a_conversation_that_an_assistant_opens_gets_a_user_message_first():
    system = PromptMessage("system", (TextPart("s"),))
    answer = PromptMessage("assistant", (TextPart("a"),))
    question = PromptMessage("user", (TextPart("q"),))
    assert shape(opened_by_user((system, answer))) == [("system", "s"), ("user", "."), ("assistant", "a")]
    assert opened_by_user((system, question)) == (system, question)
    assert opened_by_user((system,)) == (system,)


_parts = st.one_of(
    st.builds(said, st.text(max_size=3)),
    st.builds(done, st.sampled_from(["k1", "k2", "k3"])),
    st.builds(pending, st.sampled_from(["k1", "k2", "k3"])),
    st.just(step_start("m", 1)),
    st.just({"type": "tool-invocation"}),
    st.just({"type": "reasoning", "reasoning": "hm"}),
)
_rows = st.lists(st.builds(row, st.sampled_from(["user", "assistant", "system", "signal"]), _parts, _parts, _parts))


@given(_rows, st.integers(0, 5))
def test_h06_any_window_of_any_history_is_a_legal_prompt(rows: list[Message], cut: int):
    prompt = opened_by_user(prompt_messages(rows[cut:]))
    open_calls: list[str] = []
    ever: set[str] = set()
    for n, message in enumerate(prompt):
        calls = [p.id for p in message.parts if isinstance(p, ToolCall)]
        results = [p.call_id for p in message.parts if isinstance(p, ToolResult)]
        assert message.parts and (message.role == "assistant" or not calls)
        assert results == open_calls and (message.role == "tool") == bool(results)
        assert not ever & set(calls)
        ever |= set(calls)
        open_calls = calls
        assert n > 0 or message.role == "user"
    assert not open_calls
