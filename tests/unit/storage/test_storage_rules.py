from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.errors import AccessDenied, Conflict, InvalidInput, TooLarge
from threadkeep.storage import rules
from threadkeep.storage.order import order_key
from threadkeep.storage.port import (
    Budget,
    Message,
    MessageFilter,
    NewMessage,
    Receipt,
    SavedMessage,
    Thread,
    ThreadChange,
)

THREAD = Thread("t", "r", "Title", {"a": 1}, created_at=1000, updated_at=2000, seq=7, last_at=1900, message_count=5)
COPY_OF_M = "c2252b66-751c-5be5-b059-f71c763e05d6"
TIMES = st.lists(st.integers(0, 5000), max_size=8)


def new(name: str = "m", at: int = 0, **content: Any) -> NewMessage:
    return NewMessage(name, "user", {"format": 2, **content}, at)


def rows(roles: str) -> list[Message]:
    """Stored rows, newest first, of roles u(ser), a(ssistant), s(ignal), x = system."""
    names = {"u": "user", "a": "assistant", "s": "signal", "x": "system"}
    made = [Message(f"{n}{r}", "t", names[r], {}, n, order_key(n, n)) for n, r in enumerate(roles)]
    return made[::-1]


# number


def test_messages_are_numbered_after_what_is_stored():
    thread, (first, second) = rules.number(THREAD, (new("a", 3000), new("b", 10)))
    assert (first.created_at, first.order) == (3000, order_key(3000, 8))
    assert (second.created_at, second.order) == (3001, order_key(3001, 9))
    assert (thread.seq, thread.last_at, thread.message_count) == (9, 3001, 7)
    assert (thread.updated_at, thread.version) == (3001, THREAD.version + 1)
    assert (thread.title, thread.metadata, thread.created_at) == ("Title", {"a": 1}, 1000)


def test_a_message_is_never_dated_at_or_before_the_last_one():
    _, (message,) = rules.number(THREAD, (new(at=1900),))
    assert message.created_at == 1901


def test_updated_at_never_falls():
    thread, _ = rules.number(THREAD, (new(at=0),))
    assert (thread.last_at, thread.updated_at) == (1901, 2000)


def test_a_turn_without_messages_only_counts_as_a_change():
    thread, messages = rules.number(THREAD, ())
    assert messages == ()
    assert (thread.seq, thread.last_at, thread.updated_at, thread.message_count) == (7, 1900, 2000, 5)
    assert thread.version == THREAD.version + 1


@given(st.lists(TIMES, max_size=5))
def test_order_rises_over_any_turns(turns: list[list[int]]):
    thread, stored = THREAD, list[Message]()
    for times in turns:
        before = thread
        thread, messages = rules.number(thread, [new(str(n), at) for n, at in enumerate(times)])
        stored += messages
        assert all(m.created_at >= at for m, at in zip(messages, times, strict=True))
        assert thread.seq - before.seq == thread.message_count - before.message_count == len(times)
    keys = [m.order for m in stored]
    assert keys == [order_key(m.created_at, THREAD.seq + n) for n, m in enumerate(stored, 1)]
    assert keys == sorted(set(keys))
    moments = [THREAD.last_at, *(m.created_at for m in stored)]
    assert moments == sorted(set(moments))
    assert moments[-1] == thread.last_at


def test_the_caller_and_the_numbered_message_have_the_same_body():
    message = NewMessage("m", "assistant", {"format": 2, "parts": [None]}, 5, "text")
    _, (stored,) = rules.number(THREAD, (message,))
    assert (stored.id, stored.thread_id, stored.role, stored.type) == ("m", "t", "assistant", "text")
    assert stored.content == message.content


# messages saved outside of turns, changes of threads


def test_ms4_messages_without_an_id_get_different_ones_and_the_last_of_one_id_counts():
    given = [SavedMessage("user", {"n": n}, i) for n, i in enumerate((None, "a", None, "", "a"))]
    found = rules.with_ids(given, 0)
    assert len(found) == 4 and all(found)
    assert found["a"].content == {"n": 4}


@pytest.mark.parametrize(("at", "fits"), [(0, True), (-1, False), (86_400_005, True), (86_400_006, False)])
def test_ms4_a_time_may_lie_a_day_ahead(at: int, fits: bool):
    given = [SavedMessage("user", {}, "a", created_at=at)]
    if fits:
        assert list(rules.with_ids(given, 5)) == ["a"]
    else:
        with pytest.raises(InvalidInput, match="createdAt"):
            rules.with_ids(given, 5)


def test_ms4_too_large_a_message_is_refused():
    with pytest.raises(TooLarge):
        rules.with_ids([SavedMessage("user", {"x": "x" * rules.MAX_CONTENT_BYTES})], 0)


@pytest.mark.parametrize(("now", "at"), [(0, 2001), (2000, 2001), (2001, 2001), (2002, 2002)])
def test_th8_a_change_raises_the_time_of_the_last_one(now: int, at: int):
    after = rules.changed(THREAD, ThreadChange("New"), now)
    assert (after.updated_at, after.version, after.created_at) == (at, THREAD.version + 1, 1000)
    assert rules.without(THREAD, 2, now) == replace(THREAD, message_count=3, updated_at=at, version=THREAD.version + 1)


def test_a_copys_ids_are_the_same_in_every_process():
    assert rules.copy_id(THREAD, "m") == COPY_OF_M
    others = [(replace(THREAD, id="u"), "m"), (replace(THREAD, created_at=1001), "m"), (THREAD, "n")]
    assert len({COPY_OF_M, *(rules.copy_id(*other) for other in others)}) == 4


def test_a_resource_that_is_named_must_own_the_thread():
    assert rules.check_owner(THREAD, None) is rules.check_owner(THREAD, "r") is THREAD
    with pytest.raises(AccessDenied):
        rules.check_owner(THREAD, "other")


@pytest.mark.parametrize(("deadline", "free"), [(4, True), (5, False), (6, False)])
def test_h21_a_receipt_is_held_until_its_deadline_is_over(deadline: int, free: bool):
    claim = Receipt("k", "mine", "h", "running", 100)
    held = replace(claim, run_id="other", deadline=deadline)
    assert rules.may_take(held, claim, 5) is free
    assert rules.may_take(None, claim, 5) and rules.may_take(claim, claim, 999)


# same_thread


def test_a_thread_is_told_from_another_of_its_id():
    assert rules.same_thread(THREAD, replace(THREAD, seq=99, title="Other", updated_at=9999, version=9))
    assert not rules.same_thread(THREAD, replace(THREAD, created_at=1001))
    assert not rules.same_thread(THREAD, replace(THREAD, resource_id="other"))
    assert not rules.same_thread(THREAD, replace(THREAD, id="other"))


# limits


def test_bodies_are_returned_as_the_text_to_store():
    assert rules.turn_bodies((new(text="é"), new("n"))) == ('{"format":2,"text":"é"}', '{"format":2}')
    assert rules.turn_bodies(()) == ()


@pytest.mark.parametrize("letter", ["x", "é", "日", "🧵"])
def test_a_body_is_measured_in_bytes(letter: str):
    fits = (rules.MAX_BODY_BYTES - 2) // len(letter.encode())
    assert rules.body_text(letter * fits) == f'"{letter * fits}"'
    with pytest.raises(TooLarge, match="350000 bytes, received 35000"):
        rules.body_text(letter * (fits + 1))


def test_a_turn_is_measured_as_a_whole():
    empty = len('{"format":2,"pad":""}')
    fits = [new(str(n), pad="x" * (rules.MAX_CONTENT_BYTES - empty)) for n in range(4)]
    assert sum(map(len, rules.turn_bodies(fits))) == rules.MAX_TURN_BYTES
    with pytest.raises(TooLarge, match="20000000 bytes of messages"):
        rules.turn_bodies([*fits, new("more")])
    with pytest.raises(TooLarge, match="5000000 bytes, received 5000001"):
        rules.turn_bodies([new(pad="x" * (rules.MAX_CONTENT_BYTES - empty + 1))])


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([], set()),
        ([350_000] * 10, set()),
        ([350_001, 1], {0}),
        ([1, 350_000, 9_000_000], {2}),
        ([300_000] * 11 + [310_000], {11}),
        ([300_000] * 5 + [340_000] * 7, {5, 6}),
        ([100_000] * 44, set(range(9))),
    ],
)
def test_bodies_that_do_not_fit_go_elsewhere_the_biggest_first(sizes: list[int], chosen: set[int]):
    assert rules.outsourced(sizes) == chosen
    left = [size for n, size in enumerate(sizes) if n not in chosen]
    assert sum(left) <= rules.MAX_TRANSACTION_BYTES and max(left, default=0) <= rules.MAX_BODY_BYTES


def test_a_turn_has_at_most_forty_four_messages():
    many = [new(str(n)) for n in range(45)]
    assert len(rules.turn_bodies(many[:44])) == 44
    with pytest.raises(TooLarge, match="44 messages, received 45"):
        rules.turn_bodies(many)


def test_the_messages_of_a_turn_differ_in_id():
    with pytest.raises(Conflict):
        rules.turn_bodies((new("a"), new("b"), new("a")))


def test_what_json_cannot_say_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        rules.turn_bodies((new(x=float("nan")),))


# history


@pytest.mark.parametrize(
    ("roles", "last", "expected"),
    [
        ("uaua", 2, "2u 3a"),
        ("uaua", 0, ""),
        ("uaua", 9, "0u 1a 2u 3a"),
        ("", 3, ""),
        ("uassssssu", 3, "0u 1a 2s 3s 4s 5s 6s 7s 8u"),
        ("uaxxu", 3, "0u 1a 4u"),
        ("susa", 1, "3a"),
        ("susa", 2, "1u 2s 3a"),
        ("xxs", 2, "2s"),
    ],
)
def test_the_window_counts_conversation_messages_only(roles: str, last: int, expected: str):
    assert [m.id for m in rules.history_window(rows(roles), last)] == expected.split()


@given(st.text("uasx", max_size=30), st.integers(0, 12))
def test_the_window_is_the_shortest_that_holds_the_newest_messages(roles: str, last: int):
    newest_first = rows(roles)
    window = rules.history_window(newest_first, last)
    spoken = [m for m in newest_first[::-1] if rules.is_conversation(m)]
    assert [m for m in window if rules.is_conversation(m)] == spoken[max(len(spoken) - last, 0) :]
    assert not any(m.role == "system" for m in window)
    assert [m.order for m in window] == sorted(m.order for m in window)
    if len(spoken) >= last > 0:
        assert window[0] == spoken[-last]


@given(st.text("uasx", max_size=30), st.integers(0, 12))
def test_reading_may_stop_once_the_window_is_full(roles: str, last: int):
    newest_first, window = rows(roles), rules.Window(last)
    for row in newest_first:
        if window.full:
            break
        window.add(row)
    assert window.ascending == rules.history_window(newest_first, last)


@given(st.text("uasx", max_size=30), st.integers(0, 12), st.integers(0, 60))
def test_cfg4_a_budgeted_window_ends_with_the_first_message_that_does_not_fit(roles: str, last: int, limit: int):
    newest_first, budget = rows(roles), Budget(limit, lambda m: 5)
    window = rules.history_window(newest_first, last, budget)
    uncut = rules.history_window(newest_first, last)
    assert window == uncut[max(len(uncut) - limit // 5 - 1, 0) :]


def test_cfg4_metadata_of_a_turn_is_merged_key_by_key():
    after, _ = rules.number(THREAD, (new(),), {"b": {"c": 1}})
    assert after.metadata == {"a": 1, "b": {"c": 1}}
    assert rules.number(replace(THREAD, metadata=None), (), {"b": 1})[0].metadata == {"b": 1}


# pages


@given(st.integers(0, 30), st.integers(1, 10))
def test_the_pages_together_are_the_whole(total: int, per_page: int):
    everything, seen, page = list(range(total)), list[int](), 0
    while True:
        answer = rules.page_of(rules.cut(everything, page, per_page), total=total, page=page, per_page=per_page)
        seen += answer.items
        if not answer.has_more:
            break
        assert len(answer.items) == per_page
        page += 1
    assert seen == everything


@pytest.mark.parametrize(
    ("total", "page", "per_page", "has_more"),
    [
        (0, 0, 0, False),
        (1, 0, 0, True),
        (5, 3, 0, True),
        (5, 0, None, False),
        (5, 0, 5, False),
        (6, 0, 5, True),
        (6, 9, 5, False),
    ],
)
def test_more_is_promised_only_where_more_is(total: int, page: int, per_page: int | None, has_more: bool):
    cut = rules.cut(list(range(total)), page, per_page)
    answer = rules.page_of(cut, total=total, page=page, per_page=per_page)
    assert (answer.total, answer.page, answer.per_page, answer.has_more) == (total, page, per_page, has_more)
    assert answer.items == tuple(cut)


# filters


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, (0, 10**15 - 1)),
        (0, 0, (0, 0)),
        (-5, -5, (0, -1)),
        (None, -1, (0, -1)),
        (7, 9, (7, 9)),
        (10**18, 10**18, (10**15 - 1, 10**15 - 1)),
    ],
)
def test_mrc5_a_range_of_times_is_cut_to_what_an_order_can_hold(since, until, expected):
    assert rules.time_range(MessageFilter(since=since, until=until)) == expected


def test_a_filter_may_look_at_ten_thousand_messages():
    rules.check_walk(10_000)
    with pytest.raises(InvalidInput, match="filter: .*more than 10000 messages"):
        rules.check_walk(10_001)
    with pytest.raises(InvalidInput, match="resourceId"):
        rules.check_walk(10_001, "resourceId")


@pytest.mark.parametrize(
    ("match", "leaves_out"),
    [
        (MessageFilter(), False),
        (MessageFilter(metadata={}), False),
        (MessageFilter(since=0), True),
        (MessageFilter(until=0), True),
        (MessageFilter(roles=frozenset()), True),
        (MessageFilter(metadata={"a": None}), True),
    ],
)
def test_an_empty_filter_leaves_nothing_out(match: MessageFilter, leaves_out: bool):
    assert rules.is_filter(match) is leaves_out


def test_rows_are_parted_into_what_fits_one_transaction():
    assert [len(part) for part in rules.chunks(range(100))] == [44, 44, 12]
    assert rules.chunks([]) == [] and rules.chunks([1, 2, 3], 2) == [[1, 2], [3]]
