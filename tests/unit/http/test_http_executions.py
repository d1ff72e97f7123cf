"""How executions of durable runs are named."""

import hashlib
import re

import pytest

from threadkeep.http.executions import execution_name


@pytest.mark.parametrize("run_id", ["run-1", "0f8c2b9e-4a55-4a0e-9d31-0c1a7a3f9d11", "a" * 80, "A" * 64])
def test_a_run_id_that_may_be_a_name_is_one(run_id: str) -> None:
    assert execution_name(run_id) == run_id


@pytest.mark.parametrize("run_id", ["a" * 81, "user@example.com", "ä", "run/1", "f" * 64])
def test_any_other_is_hashed(run_id: str) -> None:
    assert execution_name(run_id) == hashlib.sha256(run_id.encode()).hexdigest()


def test_nobody_takes_the_name_of_anothers_execution() -> None:
    """The hash of an id may be somebody's id, too: he could keep the other's run from being driven, or end it."""
    theirs = execution_name("their@run")
    assert execution_name(theirs) != theirs
    assert re.fullmatch(r"[0-9a-f]{64}", execution_name(theirs))
