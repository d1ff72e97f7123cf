"""The stored form of messages (MS-1)."""

from threadkeep.memory.messages import MAX_FLAT, content, text_of, text_part


def test_ms1_the_flat_copy_is_the_last_text():
    stored = content([text_part("one", 1), text_part("two", 1)], {"modelId": "m"})
    assert (stored["content"], stored["metadata"]) == ("two", {"modelId": "m"})
    assert text_of(stored) == "one\ntwo"


def test_ms1_a_long_text_is_kept_once_in_its_part():
    short, long = "x" * MAX_FLAT, "x" * (MAX_FLAT + 1)
    assert content([text_part(short, 1)])["content"] == short
    stored = content([text_part(long, 1)])
    assert "content" not in stored and text_of(stored) == long
