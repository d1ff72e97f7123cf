"""What each function loads before it can serve its first request: import time is cold-start time."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from local.stack import ROOT

HEAVY = {"openai", "boto3", "jwt", "cryptography", "numpy", "httpx", "uvicorn", "starlette", "aws_lambda_powertools"}


@dataclass(frozen=True)
class Budget:
    """The most modules beyond those of a bare interpreter (a fifth above what was measured), and the heavy ones."""

    modules: int
    heavy: frozenset[str] = frozenset()


BUDGETS = {
    "agents": Budget(360),
    "after_turn": Budget(460, frozenset({"aws_lambda_powertools"})),
    "authorizer": Budget(100),
    "delegate": Budget(400),
    "generate": Budget(370),
    "outbox": Budget(350),
    "stream": Budget(400),
    "supervise": Budget(420),
    "sweep": Budget(350),
    "threads": Budget(360),
    "work": Budget(400),
    "working_memory": Budget(360),
}


def loaded(code: str, function: str = "authorizer") -> set[str]:
    """The modules that a fresh interpreter holds after `code`."""
    path = os.pathsep.join(str(ROOT / part) for part in (f"functions/{function}", "layers/threadkeep", "layers/agents"))
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def bare() -> set[str]:
    return loaded("pass")


def test_every_function_has_a_budget() -> None:
    assert {path.parent.name for path in ROOT.glob("functions/*/app.py")} == set(BUDGETS)


@pytest.mark.parametrize("function", BUDGETS)
def test_a_cold_start_stays_within_its_budget(bare: set[str], function: str) -> None:
    modules = loaded("import app", function) - bare
    assert {name for name in modules if name in HEAVY} == BUDGETS[function].heavy
    assert "app" in modules
    assert len(modules) <= BUDGETS[function].modules, sorted(modules)


def test_a_heavy_module_is_noticed(bare: set[str]) -> None:
    """Without this a slip in the tests' own listing would go unseen."""
    modules = loaded("import app, boto3") - bare
    assert {"app", "boto3"} <= modules
    assert len(modules) > BUDGETS["authorizer"].modules
