"""Every rule of memory, turns and delegation is a test, or a row of docs/compatibility.md that says why not.

A test is named after its rule: `test_th7_...`, `test_mrc4_...`, `test_drc2_...`, `test_h21_...`, several at once
where it tests several; the docstring may name further ones. A row of a table may be the id of a parameter: `m5`.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "tests", ROOT / "layers/threadkeep/threadkeep/testing")
CASES = (4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 17, 18, 19, 20, 21, 22, 27, 28, 29, 30, 31, 32, 33, 34)

LAST = {
    "TH": 18, "MS": 17, "M-RC": 10, "CTX": 7, "PR": 14, "LOOP": 14, "CALL": 3, "TT": 7, "CFG": 9, "RX": 3, "D-RC": 6,
    "WM": 28, "VN": 7, "SS": 7, "SIG": 9, "MUT": 7, "DEL": 28, "SHR": 6, "SUB": 3,
}  # fmt: skip
ROWS = {"M": 24, "W": 14}  # of the tables of working memory
RULES = (
    *(f"{group}-{n}" for group, last in LAST.items() for n in range(1, last + 1)),
    "TH-11a",
    *(f"{table}{n}" for table, last in ROWS.items() for n in range(1, last + 1)),
    *(f"M-DISC-{n}" for n in (1, 2, 4, 6, 7, 10, 11, 12, 14)),
    *(f"D-DISC-{n}" for n in (16, 17, 18, 19, 20)),
    *(f"H{n:02}" for n in CASES),
)
# These are tests, whatever the page says of them.
TESTED = {"WM", "VN", "SS", "CALL", "SHR", "SUB"}
DECIDED = {
    rule
    for rule in RULES
    if "DISC" in rule or rule == "TH-16" or rule.split("-")[0] in TESTED or (rule[0] in "HMW" and rule[1:].isdigit())
}

_IN_NAME = re.compile(
    r"(?<![a-z0-9])(m_?rc|d_?rc|m_?disc|d_?disc|th|ms|ctx|pr|loop|call|tt|cfg|rx|wm|vn|ss|sig|mut|del|shr|sub|h|w|m)_?(\d+a?)(?![a-z0-9])"
)
_IN_TEXT = re.compile(
    r"\b(?:M-RC|D-RC|M-DISC|D-DISC|TH|MS|CTX|PR|LOOP|CALL|TT|CFG|RX|WM|VN|SS|SIG|MUT|DEL|SHR|SUB)-\d+a?\b|\b(?:H\d\d|[MW]\d{1,2})\b"
)


def _rule(group: str, number: str) -> str:
    group = group.replace("_", "").upper()
    group = re.sub(r"^([MD])(RC|DISC)$", r"\1-\2", group)
    if group in ROWS:
        return group + number
    return f"H{number:>02}" if group == "H" else f"{group}-{number}"


@cache
def _tests() -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    paths = sorted(p for folder in FOLDERS for p in folder.rglob("*.py"))
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return tuple(function for function in functions if function.name.startswith("test_"))


def _ids(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The ids that its parameters are given as plain texts, up to the first hyphen."""
    for node in (node for decorator in test.decorator_list for node in ast.walk(decorator)):
        if isinstance(node, ast.keyword) and node.arg == "id":
            first = node.value.values[0] if isinstance(node.value, ast.JoinedStr) else node.value
            if isinstance(first, ast.Constant):
                yield str(first.value).partition("-")[0]


@cache
def in_tests() -> frozenset[str]:
    names = [name for test in _tests() for name in (test.name, *_ids(test))]
    named = {_rule(*found) for name in names for found in _IN_NAME.findall(name)}
    return frozenset(named | {rule for test in _tests() for rule in _IN_TEXT.findall(ast.get_docstring(test) or "")})


@cache
def in_the_page() -> frozenset[str]:
    rows = [line for line in (ROOT / "docs/compatibility.md").read_text().splitlines() if line.startswith("|")]
    return frozenset(rule for row in rows for rule in _IN_TEXT.findall(row))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_a_test_or_a_row(rule: str) -> None:
    assert rule in (in_tests() if rule in DECIDED else in_tests() | in_the_page())


def test_no_row_and_no_test_names_a_rule_that_does_not_exist() -> None:
    numbered = re.compile(r"(.+)-|([MW])(?=\d)")
    known = {r for r in in_tests() | in_the_page() if (m := numbered.match(r)) and (m[1] or m[2]) in LAST | ROWS}
    assert known <= set(RULES)
