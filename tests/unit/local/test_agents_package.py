"""What `make up` says of an agents' package with a fault in it, where the API does not answer."""

from pathlib import Path

import pytest

from local.stack import Stack


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("")
    return Stack(tmp_path / "home", agents=tmp_path / "mine")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1", "must have a list named `agents`"),
        ("from threadkeep import Agent\nagents = [Agent(id='a b')]", "Agent id 'a b': may only contain letters"),
        ("from agents.nowhere import agents", "No module named 'agents.nowhere'"),
        ("agents = [", "SyntaxError"),
    ],
)
def test_a_fault_in_the_agents_is_named(stack: Stack, code: str, said: str) -> None:
    assert stack.agents
    (stack.agents / "__init__.py").write_text(code)
    wrong = stack.wrong_with_agents()
    assert said in wrong.splitlines()[-1]
    assert [path.name for path in stack.agents.iterdir()] == ["__init__.py"]


def test_nothing_is_said_of_agents_without_a_fault(stack: Stack) -> None:
    assert stack.agents
    (stack.agents / "one.py").write_text("from threadkeep import Agent\n\none = Agent(id='one')\n")
    (stack.agents / "__init__.py").write_text("from agents.one import one\n\nagents = [one]\n")
    assert stack.wrong_with_agents() == ""
