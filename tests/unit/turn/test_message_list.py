"""The messages of a run, their order and their sources (CTX-1 to CTX-6, PR-2, MS-17)."""

from dataclasses import replace

from threadkeep import MessageList, RunMessage, SystemText
from threadkeep.memory.messages import content, text_part, tool_part
from threadkeep.turn.message_list import Source, messages_of


def message(id: str, source: Source = "input", text: str = "", role: str = "user", order: str = "") -> RunMessage:
    return RunMessage(id, role, content([text_part(text or id, 1)]), 1, source, order=order)


def ids(messages: MessageList) -> list[str]:
    return [m.id for m in messages.messages]


def test_ctx2_history_context_input_and_response_stand_in_this_order():
    one = MessageList().plus(message("r", "response"), message("i1"), message("c", "context"))
    two = one.plus(message("h2", "memory", order="2"), message("i2"), message("h1", "memory", order="1"))
    assert ids(two) == ["h1", "h2", "c", "i1", "i2", "r"]
    assert ids(one) == ["c", "i1", "r"]  # a list never changes


def test_ctx4_of_two_messages_with_one_id_the_stored_one_stays_in_its_place():
    sent = MessageList().plus(message("a", text="sent"), message("b"))
    both = sent.plus(message("a", "memory", "stored"))
    assert [(m.id, m.source, m.text) for m in both.messages] == [("a", "memory", "stored"), ("b", "input", "b")]


def test_ctx1_system_texts_stand_by_bucket_and_are_said_once_in_each():
    texts = MessageList().plus_system(
        SystemText("wm", "memory"), SystemText("call", "call"), SystemText("a"), SystemText(" "), SystemText("a")
    )
    again = texts.plus_system(SystemText("b"), SystemText("a", "call"))
    assert [(t.bucket, t.text) for t in again.system] == [
        ("agent", "a"),
        ("agent", "b"),
        ("call", "call"),
        ("call", "a"),
        ("memory", "wm"),
    ]


def test_pr2_a_returned_list_removes_replaces_and_keeps_origin():
    before = MessageList().plus(message("h", "memory"), message("c", "context"), message("i"), message("gone"))
    after = before.edited(
        [
            message("i", "memory", "edited"),
            replace(message("h"), source="response"),
            message("c"),
            message("new", "memory"),
            message("s", text="obey", role="system"),
        ]
    )
    assert [(m.id, m.source, m.text) for m in after.messages] == [
        ("h", "memory", "h"),
        ("c", "context", "c"),
        ("i", "input", "edited"),
        ("new", "input", "new"),
    ]
    assert after.system == (SystemText("obey"),)


def test_pr2_a_text_is_changed_everywhere_and_nothing_else_is():
    parts = [
        text_part("a1", 1),
        tool_part("k1", "t", {"n": 1}, {"state": "result", "result": "r1"}, 1),
        {"type": "text"},
        text_part("b2", 1),
    ]
    changed = RunMessage("m1", "assistant", content(parts[:2]) | {"parts": [*parts, 7], "content": "b2"}, 1, "input")
    masked = changed.with_text(lambda text: text.upper())
    assert masked.content["parts"] == [parts[0] | {"text": "A1"}, *parts[1:3], parts[3] | {"text": "B2"}, 7]
    assert masked.content["content"] == "B2"
    assert masked.text == "A1\nB2"
    assert RunMessage("m", "user", {"format": 2}, 1, "input").with_text(str.upper).content == {"format": 2}


def test_ctx6_an_unanswered_call_vanishes_or_is_shown_as_pending():
    calls = [tool_part("k", "look", {}, {"state": "call"}, 1)]
    messages = MessageList().plus(message("q"), RunMessage("a", "assistant", content(calls), 1, "memory"))
    assert [m.role for m in messages_of(messages.prompt())] == ["user"]
    shown = messages_of(messages.prompt(keep_pending=True))
    assert [m.role for m in shown] == ["user", "assistant", "tool", "user"]
    assert shown[2].parts[0].text == '{"status":"pending"}'  # type: ignore[union-attr]


def test_every_prompt_message_tells_what_it_was_made_of():
    answer = RunMessage(
        "a", "assistant", content([tool_part("k", "t", {}, {"state": "result", "result": 1}, 1)]), 1, "memory"
    )
    items = MessageList((SystemText("s"),)).plus(answer, message("q")).prompt()
    assert [(i.message.role, i.source, i.id) for i in items] == [
        ("system", "system", None),
        ("assistant", "memory", "a"),
        ("tool", "memory", "a"),
        ("user", "input", "q"),
    ]
