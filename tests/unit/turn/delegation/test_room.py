"""What of sub-agents' results goes into the supervisor's answer (DEL-3)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from threadkeep import jsontext
from threadkeep.turn.delegation import room
from threadkeep.turn.delegation.room import Room


@settings(deadline=None, max_examples=30)  # texts of megabytes
@given(st.lists(st.tuples(st.sampled_from(['"', "a", "ü", "\n", "\x01", "🙂"]), st.integers(0, 2_000_000)), max_size=6))
def test_del3_whatever_sub_agents_say_there_is_room_for_the_answer(said):
    left = Room()
    kept = [left.text(letter * count) for letter, count in said]
    assert len(jsontext.dumps(kept).encode()) <= room.ANSWER + 100 * len(said)
    for text, (letter, count) in zip(kept, said, strict=True):
        assert text.startswith(letter * min(count, 1)) or left.left == 0
        assert text == letter * count or f"of {count} characters]" in text


def test_del3_a_result_that_fits_is_not_touched():
    left = Room()
    assert left.text("x" * 999_998) == "x" * 999_998
    assert left.results([{"toolName": "t", "result": "r" * 100}]) == [{"toolName": "t", "result": "r" * 100}]
