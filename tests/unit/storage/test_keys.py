"""The keys of stored rows. They cannot change after the first customer: each is written out here once."""

from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from threadkeep.ids import nobodys_resource, problem, sub_resource
from threadkeep.storage.dynamodb import keys
from threadkeep.storage.order import order_key

ODD = "a/b#c%"
ENCODED = "a%2Fb%23c%25"
ORDER = "001795984393767-0000000012"
IDS = st.one_of(st.text("ab%#/-23F", min_size=1), st.text(min_size=1)).filter(lambda i: problem(i) is None)
PAIRS = st.builds(sub_resource, IDS, IDS)
RESOURCES = st.one_of(IDS, PAIRS, st.builds(sub_resource, PAIRS, IDS), st.builds(nobodys_resource, IDS, IDS))
PLACES = st.tuples(st.integers(0, 10**15 - 1), st.integers(0, 10**10 - 1))


def test_every_key_is_as_it_has_always_been():
    assert keys.SELF == "@"
    assert keys.MEMORY == "W"
    assert keys.thread(ODD) == f"T#{ENCODED}"
    assert keys.resource(ODD) == f"R#{ENCODED}"
    assert keys.message(ORDER, ODD) == f"M#{ORDER}#{ENCODED}"
    assert keys.message_key(ODD) == f"K#{ENCODED}"
    assert keys.job(ODD) == f"J#{ENCODED}"
    assert keys.clone(ODD) == f"C#{ENCODED}"
    assert keys.directory(1_795_984_393_767, ODD) == f"T#001795984393767#{ENCODED}"
    assert keys.moment(1_795_984_393_767, ODD) == f"001795984393767#{ENCODED}"
    assert keys.live(ODD, ODD) == f"L#{ENCODED}/{ENCODED}"
    assert keys.run(ODD) == f"N#{ENCODED}"
    assert keys.queued(1_795_984_393_767) == "Q#001795984393767"
    assert keys.output(1_795_984_393_767, 7) == "C#001795984393767#00000007"
    assert (keys.LIVE, keys.ACCEPTED, keys.RECORD) == ("H", "Q", "R")
    assert keys.entry("step#1") == "E#step#1"
    assert keys.journal(1_795_984_393_767, ODD) == f"N#001795984393767#{ENCODED}"
    assert keys.sub(ODD) == f"S#{ENCODED}"
    assert keys.resource(sub_resource(ODD, ODD)) == f"R#{ENCODED}/{ENCODED}"
    assert keys.resource(sub_resource(sub_resource("a", "b"), "c")) == "R#a/b/c"
    assert keys.receipt("a key") == "I#" + sha256(b"a key").hexdigest()


def test_prefixes_find_what_they_name():
    assert keys.message(ORDER, "m").startswith(keys.MESSAGE)
    assert keys.job("run").startswith(keys.JOB)
    assert keys.clone("t").startswith(keys.CLONE)
    assert keys.directory(0, "t").startswith(keys.DIRECTORY)
    assert keys.journal(0, "j").startswith(keys.JOURNAL)
    assert keys.sub("t").startswith(keys.SUB)
    assert keys.entry("e").startswith(keys.ENTRY)
    of_threads = (keys.SELF, keys.MESSAGE, keys.JOB, keys.CLONE, keys.JOURNAL, keys.SUB, keys.MEMORY)
    of_resources = (keys.SELF, keys.APPROVAL, keys.DIRECTORY, keys.SUB, keys.MEMORY)
    of_runs = (keys.SELF, keys.ACCEPTED, keys.RECORD, keys.ENTRY)
    for kinds in (of_threads, of_resources, of_runs):
        assert len({kind[0] for kind in kinds}) == len(kinds)
        assert min(kinds) == keys.SELF


def test_pointers_of_runs_sort_behind_those_of_journals_without_one():
    assert keys.journal(0, "~") < keys.journal(1, "") <= keys.journal(1, "a") < keys.journal(2, "") < f"{keys.JOURNAL}~"


@given(RESOURCES, RESOURCES)
@example("a/b", sub_resource("a", "b"))
@example("a%2Fb", sub_resource("a", "b"))
@example("a", sub_resource("a", "a"))
@example(sub_resource("a/b", "c"), sub_resource("a", "b/c"))
@example(sub_resource(sub_resource("a", "b"), "c"), sub_resource("a", "b/c"))
@example("agent", nobodys_resource("agent", "run"))
def test_h17_no_two_resources_have_one_key(one: str, other: str):
    assert (keys.resource(one) == keys.resource(other)) == (one == other)


@given(IDS, IDS, IDS)
def test_h17_no_id_that_anybody_may_choose_is_a_pair(chosen: str, owner: str, key: str):
    pair, alone = sub_resource(owner, key), nobodys_resource(owner, key)
    assert len({keys.resource(chosen), keys.resource(pair), keys.resource(alone)}) == 3
    assert not keys.resource(pair).startswith(f"{keys.resource(chosen)}#")


@given(st.text(min_size=1))
def test_ids_are_read_back_from_keys(identifier: str):
    assert keys.thread_of(keys.thread(identifier)) == identifier
    assert keys.message_id_of(keys.message_key(identifier)) == identifier


@given(PLACES, PLACES, st.text(min_size=1))
def test_ranges_of_messages_hold_what_lies_in_them(place: tuple[int, int], edge: tuple[int, int], identifier: str):
    row = keys.message(order_key(*place), identifier).encode()
    assert (keys.messages_from(order_key(*edge)).encode() <= row) == (edge <= place)
    assert (row <= keys.messages_to(order_key(*edge)).encode()) == (place <= edge)
    assert row < keys.messages_end().encode()
    assert keys.messages_to(order_key(*edge)) < keys.messages_end()


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1))
def test_threads_sort_by_time(one: int, other: int):
    assert (keys.moment(one, "t") < keys.moment(other, "t")) == (one < other)


@pytest.mark.parametrize(
    ("thread", "shard"),
    [("a", "THREADS#3"), ("b", "THREADS#1"), ("thread-1", "THREADS#1"), ("日本", "THREADS#4"), ("a/b", "THREADS#4")],
)
def test_a_threads_shard_never_moves(thread: str, shard: str):
    assert keys.shard(thread) == shard


def test_threads_spread_over_eight_shards():
    assert {keys.shard(f"thread-{n}") for n in range(200)} == {keys.shard_name(n) for n in range(8)}
    assert keys.SHARDS == 8
