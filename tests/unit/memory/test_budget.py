"""The boundary of a budgeted history (PR-14)."""

from hypothesis import given
from hypothesis import strategies as st

from threadkeep.memory import budget
from threadkeep.memory.budget import Boundary
from threadkeep.memory.options import HistoryBudget

LIMITS = HistoryBudget(max_tokens=100)


def test_pr14_a_boundary_moves_forward_and_knows_those_of_its_own_time():
    first = budget.moved(None, 5, "a")
    both = budget.moved(first, 5, "b")
    assert both == Boundary(5, ("a", "b"))
    assert (both.holds(4, "x"), both.holds(5, "b"), both.holds(5, "c"), both.holds(6, "d")) == (
        True,
        True,
        False,
        False,
    )
    assert budget.moved(both, 6, "c") == Boundary(6, ("c",))


@given(
    st.integers(0, 10**15), st.lists(st.text(max_size=5), max_size=3), st.integers(0, 10**6), st.none() | st.just(0.5)
)
def test_pr14_a_thread_keeps_the_boundary_for_these_limits_only(at, ids, most, removed):
    limits = HistoryBudget(max_tokens=most, at_max_remove_tokens=None if removed is None else most * removed)
    kept = budget.as_metadata(Boundary(at, tuple(ids)), limits)
    assert budget.stored_boundary(kept | {"else": 1}, limits) == Boundary(at, tuple(ids))
    assert budget.stored_boundary(kept, HistoryBudget(max_tokens=most + 1)) is None
    assert budget.stored_boundary(None, limits) is None
