"""The faults that `make mutants` makes."""

import pytest

from tests.mutation.groups import GROUPS
from tests.mutation.mutants import mutants

SOURCE = '''
"""Says."""
LIMIT: int = 3
CONDITION = "owner = :o AND state = :s"

def first(rows: list[int], end: int = LIMIT) -> list[int]:
    """Says."""
    if end < 1:
        raise ValueError("says no")
    return rows[:end]
'''


def test_each_mutant_differs_in_one_thing_that_runs():
    assert [(m.line, m.what) for m in mutants(SOURCE, "x.py")] == [
        (3, "3 -> 4"),
        (3, "3 -> 2"),
        (4, "'owner = :o AND state = :s' -> 'state = :s'"),
        (4, "'owner = :o AND state = :s' -> 'owner = :o'"),
        (8, "if end < 1:     raise ValueError('says no') -> if not end < 1:     raise ValueError('says no')"),
        (8, "end < 1 -> end <= 1"),
        (8, "1 -> 2"),
        (8, "1 -> 0"),
        (9, "raise ValueError('says no') -> pass"),
        (10, "return rows[:end] -> return None"),
    ]


def test_a_mutant_is_code_and_only_the_named_functions_are_changed():
    found = [m for m in mutants(SOURCE, "x.py", frozenset({"first"})) if m.what == "end < 1 -> end <= 1"]
    scope: dict[str, object] = {}
    exec(found[0].code, scope)
    with pytest.raises(ValueError, match="says no"):
        scope["first"]([1], 1)  # type: ignore[operator]
    assert all(m.line > 6 for m in mutants(SOURCE, "x.py", frozenset({"first"})))


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(LookupError, match="nothing is named second"):
        list(mutants(SOURCE, "x.py", frozenset({"first", "second"})))


def test_every_part_names_code_that_exists():
    from tests.mutation.__main__ import PACKAGE

    for part in (part for group in GROUPS for part in group.parts):
        assert any(True for _ in mutants((PACKAGE / part.file).read_text(), part.file, part.functions)), part
