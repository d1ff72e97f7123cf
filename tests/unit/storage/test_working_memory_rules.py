"""Records of working memory: versions, what is remembered of the past, seeds, copies (WM-1, WM-20, M-DISC-6, TH-11)."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep.errors import TooLarge
from threadkeep.storage import working_memory
from threadkeep.storage.port import (
    MemoryRevision,
    MemorySeed,
    MemoryTarget,
    MemoryWrite,
    Thread,
    WorkingMemory,
)

NOTHING = WorkingMemory()
THREAD = Thread("t", "r", "", None, 1, 1)
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 15).map(str)), max_size=40)


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def seed(text: str) -> MemorySeed:
    return MemorySeed("thread", text, "http")


def test_wm1_a_write_is_the_next_version_and_says_who_when_and_what():
    first = working_memory.written(NOTHING, "ä", "run 1", 5)
    assert first == WorkingMemory("ä", 1, (MemoryRevision(1, 5, "run 1", digest("ä")),))
    second = working_memory.written(first, "", "http", 4)
    assert second == WorkingMemory("", 2, (MemoryRevision(2, 4, "http", digest("")), *first.past))
    assert (working_memory.view(first), working_memory.view(second), working_memory.view(NOTHING)) == ("ä", None, None)


@given(STEPS)
def test_mdisc6_versions_have_no_gaps_and_no_text_comes_back_while_it_is_remembered(steps: list[tuple[bool, str]]):
    memory, texts, seeds = NOTHING, list[str](), list[str]()
    for at, (is_seed, text) in enumerate(steps):
        before = memory
        if is_seed:
            memory = working_memory.seeded(memory, seed(text), at)
            if text in texts[-8:] or text in seeds[-8:]:
                assert memory is before
                continue
            seeds.append(text)
        else:
            memory = working_memory.written(memory, text, "run", at)
        texts.append(text)
        assert (memory.text, memory.version) == (text, len(texts))
    assert [(r.version, r.digest) for r in memory.past] == list(enumerate(map(digest, texts), 1))[:-9:-1]
    assert list(memory.seeds) == [digest(text) for text in seeds[:-9:-1]]


def test_a_record_must_fit_an_item_with_all_that_is_remembered():
    text = "é" * 174_990
    memory = working_memory.written(NOTHING, text, "r" * 20, 1)
    assert memory.text == text
    for call in (
        lambda: working_memory.written(memory, text, "r", 2),
        lambda: working_memory.written(NOTHING, text + "x", "r" * 20, 2),
        lambda: working_memory.seeded(NOTHING, seed(text + "é" * 20), 2),
    ):
        with pytest.raises(TooLarge, match="350000 bytes, received 3500"):
            call()
    assert working_memory.seeded(memory, seed(text), 2) is memory


def test_h24_lone_surrogates_are_replaced_before_the_digest_is_taken():
    memory = working_memory.seeded(NOTHING, MemorySeed("thread", "a\udc00", "w\udc00"), 1)
    assert (memory.text, memory.past[0].writer, memory.seeds) == ("a\ufffd", "w\ufffd", (digest("a\ufffd"),))
    assert working_memory.seeded(memory, seed("a\udc00"), 2) is memory


def test_th11_a_copy_begins_anew_and_knows_what_was_stale():
    source = working_memory.written(working_memory.seeded(NOTHING, seed("old"), 1), "text", "run", 2)
    copy = working_memory.copied(source, "t", 9)
    assert copy == WorkingMemory("text", 1, (MemoryRevision(1, 9, "clone of t", digest("text")),), (digest("old"),))
    assert working_memory.seeded(copy, seed("old"), 10) is copy
    assert working_memory.copied(working_memory.written(source, "", "run", 3), "t", 9) == NOTHING


def test_th11_another_owners_memory_is_overwritten_by_what_is_not_empty_and_not_the_same():
    ours, theirs = (working_memory.written(NOTHING, text, "http", 1) for text in ("ours", "theirs"))
    after = working_memory.overwritten(ours, theirs, "t", 9)
    revision = MemoryRevision(2, 9, "clone of t", digest("theirs"))
    assert after == WorkingMemory("theirs", 2, (revision, *ours.past))
    assert working_memory.overwritten(after, theirs, "t", 10) is after
    assert working_memory.overwritten(ours, NOTHING, "t", 9) is ours


def test_wm2_a_seed_is_for_the_thread_or_for_its_owner():
    assert working_memory.owner(MemorySeed("thread", "x", "http"), THREAD) == MemoryTarget("thread", "t")
    assert working_memory.owner(MemorySeed("resource", "x", "http"), THREAD) == MemoryTarget("resource", "r")


def test_a_write_to_a_thread_needs_that_thread():
    own, owners = MemoryTarget("thread", "t"), MemoryTarget("resource", "r")
    assert working_memory.guard(MemoryWrite(own, "x", NOTHING, "http", THREAD)) is THREAD
    assert working_memory.guard(MemoryWrite(owners, "x", NOTHING, "http", THREAD)) is THREAD
    assert working_memory.guard(MemoryWrite(owners, "x", NOTHING, "http")) is None
    for wrong in (
        MemoryWrite(own, "x", NOTHING, "http"),
        MemoryWrite(MemoryTarget("thread", "o"), "x", NOTHING, "h", THREAD),
    ):
        with pytest.raises(ValueError, match="needs that thread"):
            working_memory.guard(wrong)
