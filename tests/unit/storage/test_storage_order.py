import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from threadkeep.storage.order import MAX_MILLIS, MAX_SEQ, bounds, order_key, place

MILLIS = st.integers(0, MAX_MILLIS)
SEQS = st.integers(0, MAX_SEQ)
PLACES = st.tuples(MILLIS, SEQS)


def test_a_key_is_fifteen_digits_of_time_and_ten_of_sequence():
    assert order_key(1_795_984_393_767, 12) == "001795984393767-0000000012"


def test_a_thread_may_have_ten_billion_messages_until_the_year_33658():
    assert (MAX_MILLIS, MAX_SEQ) == (999_999_999_999_999, 9_999_999_999)
    assert order_key(MAX_MILLIS, MAX_SEQ) == "999999999999999-9999999999"


@given(PLACES, PLACES)
@example((9, 99), (10, 1))
@example((10, 9), (10, 10))
@example((0, MAX_SEQ), (1, 0))
def test_keys_sort_as_time_then_sequence(left: tuple[int, int], right: tuple[int, int]):
    assert (order_key(*left) < order_key(*right)) == (left < right)
    assert (order_key(*left).encode() == order_key(*right).encode()) == (left == right)


@given(PLACES)
def test_a_key_tells_its_place(where: tuple[int, int]):
    assert place(order_key(*where)) == where


@pytest.mark.parametrize(("at", "seq"), [(-1, 0), (0, -1), (MAX_MILLIS + 1, 0), (0, MAX_SEQ + 1)])
def test_numbers_that_do_not_fit_are_refused_rather_than_sorted_wrongly(at: int, seq: int):
    with pytest.raises(ValueError, match="no order key"):
        order_key(at, seq)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-1",
        "001795984393767-000000001",
        "001795984393767-0000000012\n",
        "001795984393767_0000000012",
        "\u0660" * 15 + "-" + "\u0660" * 10,
    ],
)
def test_other_text_is_no_key(text: str):
    with pytest.raises(ValueError, match="not an order key"):
        place(text)


@given(MILLIS, MILLIS, PLACES)
def test_bounds_hold_exactly_the_times_between_them(since: int, until: int, where: tuple[int, int]):
    low, high = bounds(since, until)
    assert (low <= order_key(*where) <= high) == (since <= where[0] <= until)


@given(PLACES)
def test_open_bounds_hold_everything(where: tuple[int, int]):
    low, high = bounds()
    assert low <= order_key(*where) <= high
