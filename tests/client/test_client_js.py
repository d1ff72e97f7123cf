"""The unmodified npm client drives the deployed application. Each check of a `*.test.mjs` is a test here.

By hand, against any deployment that hosts the agents of `tests/fixtures/agents` on the scripted model:
`BASE_URL=... API_KEY=... MODEL_URL=... ADA_TOKEN=... EVE_TOKEN=... node --test "tests/client/*.test.mjs"`.

A file whose first line is `// needs: <method> <path>` is run once that route is documented.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from local import node
from local.stack import ROOT, Stack
from tests.oidc import Issuer
from tests.scripted.server import ScriptedModel

HERE = Path(__file__).parent
SECONDS = 300  # for all checks
AT_ONCE = 3  # files
_CHECK = re.compile(r'^test\("(.+?)", ', re.MULTILINE)
_NEEDS = re.compile(r"\A// needs: (\S+) (\S+)\n")

Outcomes = dict[tuple[str, str], str | None]  # why a check failed, by its file and name; None if it did not


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
    outcomes: Outcomes = {}
    for case in ElementTree.fromstring(junit).iter("testcase"):
        why = [f"{trouble.tag}: {trouble.text or ''}" for trouble in case]
        outcomes[Path(case.get("file", "")).name, case.get("name", "")] = "\n".join(why) or None
    return outcomes


def wanted(request: pytest.FixtureRequest) -> list[str]:
    """The files whose checks this session has selected."""
    mine = [item for item in request.session.items if item.path == request.path and not item.get_closest_marker("skip")]
    return sorted({item.callspec.params["file"] for item in mine if hasattr(item, "callspec")})


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, agents_stack: Stack, issuer: Issuer, scripted: ScriptedModel) -> Outcomes:
    """What became of the checks of all files that are wanted; they run once."""
    node.install(HERE)
    variables = {
        "BASE_URL": agents_stack.base_url,
        "API_KEY": agents_stack.service_key(),
        "MODEL_URL": scripted.url.removesuffix("/v1"),
        "ADA_TOKEN": issuer.token("user-ada", expires_in=3600),
        "EVE_TOKEN": issuer.token("user-eve", expires_in=3600),
    }
    options = ["--test", "--test-reporter=junit", "--test-timeout=30000", f"--test-concurrency={AT_ONCE}"]
    done = subprocess.run([str(node.NODE), *options, *wanted(request)], cwd=HERE, env=node.environment(variables),
                          capture_output=True, text=True, timeout=SECONDS)  # fmt: skip
    assert done.stdout.startswith("<?xml"), done.stdout + done.stderr
    return reported(done.stdout)


@pytest.mark.parametrize(("file", "name"), list(checks()))
def test_client_js(outcomes: Outcomes, file: str, name: str) -> None:
    assert (file, name) in outcomes, f"it did not run; what ran: {list(outcomes)}"
    if failure := outcomes[file, name]:
        pytest.fail(failure, pytrace=False)


def test_every_check_has_a_name_of_its_own_and_there_are_enough() -> None:
    for file in HERE.glob("*.test.mjs"):
        names = _CHECK.findall(file.read_text())
        assert len(names) == len(set(names)) == len(re.findall(r"^test\(", file.read_text(), re.MULTILINE)) > 0
    assert len(list(checks())) >= 60


def test_failed_and_skipped_checks_are_told_from_passed_ones() -> None:
    junit = """<testsuites>
        <testcase name="good" file="/a/x.test.mjs"/>
        <testcase name="good" file="/a/y.test.mjs"><failure message="m">why</failure></testcase>
        <testcase name="left out" file="/a/x.test.mjs"><skipped message="true"/></testcase>
    </testsuites>"""
    x, y = "x.test.mjs", "y.test.mjs"
    assert reported(junit) == {(x, "good"): None, (y, "good"): "failure: why", (x, "left out"): "skipped: "}
