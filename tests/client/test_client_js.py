"""The unmodified npm client drives the deployed application. Each check of a `*.test.mjs` is a test here.

By hand, against any deployment that hosts the agents of `tests/fixtures/agents` on the scripted model:
`BASE_URL=... API_KEY=... MODEL_URL=... ADA_TOKEN=... EVE_TOKEN=... node --test "tests/client/*.test.mjs"`.

A file whose first line is `// needs: <method> <path>` is run once that route is documented.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from local import node
from local.stack import ROOT, Stack
from tests.oidc import Issuer
from tests.scripted.server import ScriptedModel

HERE = Path(__file__).parent
SECONDS = 120  # for all checks of one file
_CHECK = re.compile(r'^test\("(.+?)", ', re.MULTILINE)
_NEEDS = re.compile(r"\A// needs: (\S+) (\S+)\n")

Outcomes = dict[str, str | None]  # why a check failed, by its name; None if it did not


def missing(text: str) -> str | None:
    """The route that a file of checks needs and that is not there yet, None if nothing is missing."""
    needs = _NEEDS.match(text)
    paths = json.loads((ROOT / "docs/openapi.json").read_text())["paths"]
    return f"{needs[1]} {needs[2]}" if needs and needs[1].lower() not in paths.get(needs[2], {}) else None


def checks() -> Iterator[object]:
    for file in sorted(HERE.glob("*.test.mjs")):
        text = file.read_text()
        route = missing(text)
        marks = [pytest.mark.skip(reason=f"needs {route}")] if route else []
        group = file.name.removesuffix(".test.mjs")
        for name in _CHECK.findall(text):
            yield pytest.param(file.name, name, id=f"{group}: {name}", marks=marks)


def reported(junit: str) -> Outcomes:
    """What became of each check, by Node's JUnit report. A skipped check has not passed."""
    cases = ElementTree.fromstring(junit).iter("testcase")
    return {case.get("name", ""): None if len(case) == 0 else f"{case[0].tag}: {case[0].text or ''}" for case in cases}


@pytest.fixture(scope="module")
def outcomes(agents_stack: Stack, issuer: Issuer, scripted: ScriptedModel) -> Callable[[str], Outcomes]:
    """Runs a file of checks, once, and tells what became of each."""
    node.install(HERE)
    variables = {
        "BASE_URL": agents_stack.base_url,
        "API_KEY": agents_stack.service_key(),
        "MODEL_URL": scripted.url.removesuffix("/v1"),
        "ADA_TOKEN": issuer.token("user-ada", expires_in=3600),
        "EVE_TOKEN": issuer.token("user-eve", expires_in=3600),
    }

    @cache
    def run(file: str) -> Outcomes:
        command = [str(node.NODE), "--test", "--test-reporter=junit", "--test-timeout=30000", file]
        done = subprocess.run(command, cwd=HERE, env=node.environment(variables), capture_output=True, text=True,
                              timeout=SECONDS)  # fmt: skip
        assert done.stdout.startswith("<?xml"), done.stdout + done.stderr
        return reported(done.stdout)

    return run


@pytest.mark.parametrize(("file", "name"), list(checks()))
def test_client_js(outcomes: Callable[[str], Outcomes], file: str, name: str) -> None:
    found = outcomes(file)
    assert name in found, f"{file} did not run it; it reported {found}"
    if failure := found[name]:
        pytest.fail(failure, pytrace=False)


def test_every_check_has_a_name_of_its_own_and_there_are_enough() -> None:
    for file in HERE.glob("*.test.mjs"):
        names = _CHECK.findall(file.read_text())
        assert len(names) == len(set(names)) == len(re.findall(r"^test\(", file.read_text(), re.MULTILINE)) > 0
    assert len(list(checks())) >= 60


def test_failed_and_skipped_checks_are_told_from_passed_ones() -> None:
    junit = """<testsuites>
        <testcase name="good"/>
        <testcase name="bad"><failure message="m">why</failure></testcase>
        <testcase name="left out"><skipped message="true"/></testcase>
    </testsuites>"""
    assert reported(junit) == {"good": None, "bad": "failure: why", "left out": "skipped: "}
