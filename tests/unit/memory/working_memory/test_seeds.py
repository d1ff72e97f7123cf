"""Working memory that comes with a thread's metadata (WM-20)."""

import pytest

from threadkeep import Memory
from threadkeep.memory.working_memory import Invalid
from threadkeep.memory.working_memory.seeds import divided
from threadkeep.storage.port import MemorySeed

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}


def seed(metadata, **options):
    return divided(Memory(working_memory={"enabled": True} | options).options.working_memory, metadata, "http")


@pytest.mark.parametrize("scope", ["resource", "thread"])
def test_wm20_a_text_is_a_seed_for_the_memory_of_the_scope(scope):
    rest, found = seed({"workingMemory": "# Sam", "k": 1}, scope=scope)
    assert (rest, found) == ({"k": 1}, MemorySeed(scope, "# Sam", "http"))


@pytest.mark.parametrize("metadata", [None, {}, {"k": 1}])
def test_wm20_metadata_without_the_key_stays(metadata):
    assert seed(metadata) == (metadata, None)


@pytest.mark.parametrize("value", ["", None])
def test_wm20_an_empty_text_and_null_say_nothing(value):
    given = {"workingMemory": value, "k": 1}
    assert seed(given) == ({"k": 1}, None)
    assert given == {"workingMemory": value, "k": 1}
    assert seed({"workingMemory": value}, schema=SCHEMA) == ({}, None)


def test_wm20_disabled_the_key_is_metadata_like_any_other():
    for value in ("# Sam", 5, {"a": 1}, None):
        assert seed({"workingMemory": value}, enabled=False) == ({"workingMemory": value}, None)


def test_wm20_with_a_schema_an_object_is_stored_as_compact_json():
    assert seed({"workingMemory": {"age": 3}}, schema=SCHEMA)[1] == MemorySeed("resource", '{"age":3}', "http")
    assert seed({"workingMemory": '{ "age": 3 }'}, schema=SCHEMA)[1] == MemorySeed("resource", '{ "age": 3 }', "http")


@pytest.mark.parametrize(
    ("value", "options", "path"),
    [
        (5, {}, "root"),
        (True, {}, "root"),
        ([], {}, "root"),
        ({"a": 1}, {}, "root"),
        ("x" * 11, {"maxBytes": 10}, "root"),
        ([], {"schema": SCHEMA}, "root"),
        ("# text", {"schema": SCHEMA}, "root"),
        ({"age": "x"}, {"schema": SCHEMA}, "age"),
        ('{"age":"x"}', {"schema": SCHEMA}, "age"),
        ({"age": 10**10}, {"schema": SCHEMA, "maxBytes": 10}, "root"),
    ],
)
def test_wm20_h27_what_must_not_be_stored_is_refused(value, options, path):
    with pytest.raises(Invalid) as caught:
        seed({"workingMemory": value}, **options)
    assert list(caught.value.problems) == [path]


def test_h27_the_words_are_those_of_every_other_way_in():
    with pytest.raises(Invalid, match="working memory may have at most 10 bytes, this text has 11"):
        seed({"workingMemory": "x" * 11}, maxBytes=10)
