"""The documentation shows what the benchmark measured."""

import json

from bench.working_memory import RESULTS, WRITERS, Result, table_of
from local.stack import ROOT


def test_the_documented_table_is_the_measured_one() -> None:
    measured = json.loads(RESULTS.read_text())
    ours, naive = ([Result(**row) for row in measured[name]] for name in ("threadkeep", "naive"))
    assert table_of(ours, naive) in (ROOT / "docs/benchmarks.md").read_text()


def test_the_measured_run_lost_nothing_and_the_naive_one_did() -> None:
    measured = json.loads(RESULTS.read_text())
    assert [row["writers"] for row in measured["threadkeep"]] == list(WRITERS)
    assert {row["lost"] for row in measured["threadkeep"]} == {0}
    assert all(row["lost"] > 0 for row in measured["naive"] if row["writers"] > 1)
