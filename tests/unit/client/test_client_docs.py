"""The examples of the client's pages run, against the real operations."""

import re
import shlex

import pytest

from local.stack import ROOT
from tests.unit.client.door import KEY, Door
from tests.unit.client.test_client_stream import BYTES, pieces
from threadkeep_client import Client, Retries, calls, errors, retries
from threadkeep_client.cli import main

PAGES = ["clients/python/README.md", "docs/python-client.md"]
GUIDE = (ROOT / "docs/python-client.md").read_text()
BLOCKS = [
    pytest.param(code, id=f"{page}:{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S), 1)
]
COMMANDS = re.findall(r"^\$ threadkeep (.+)$", GUIDE, re.MULTILINE)


def here(text: str, door: Door) -> str:
    return text.replace("http://127.0.0.1:4111", door.url).replace("the-service-key", KEY)


@pytest.mark.parametrize("code", BLOCKS)
def test_examples_run(code: str, door: Door, capsys: pytest.CaptureFixture[str]) -> None:
    door.streams["assistant"] = pieces(BYTES)
    assert "http://127.0.0.1:4111" in code
    exec(compile(here(code, door), "example", "exec"), {"__name__": "example"})
    assert bool(capsys.readouterr().out) == ("print" in code)


def test_commands_run_in_the_order_of_the_guide(
    door: Door, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("threadkeep.http.logs._Stdout.emit", lambda self, record: None)
    monkeypatch.setenv("THREADKEEP_URL", door.url)
    monkeypatch.setenv("THREADKEEP_API_KEY", KEY)
    monkeypatch.setattr("builtins.input", lambda prompt="": (_ for _ in ()).throw(EOFError))
    assert len(COMMANDS) >= 7
    for command in COMMANDS:
        assert main(shlex.split(command)) == 0, (command, capsys.readouterr())


def test_every_call_and_every_exception_is_in_the_guide() -> None:
    rows = re.search(r"## Calls\n(.*?)\n## ", GUIDE, re.DOTALL)
    assert rows is not None
    named = set(re.findall(r"`(\w+)\(", rows[1]))
    described = {name for name, f in vars(calls).items() if getattr(f, "__module__", "") == calls.__name__}
    assert named == {name for name in described if not name.startswith("_") and callable(getattr(Client, name, None))}
    kinds = {k.__name__ for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.ThreadkeepError)}
    table = re.search(r"## Errors\n(.*?)```", GUIDE, re.DOTALL)
    assert table is not None and kinds <= set(re.findall(r"`(\w+)`", table[1]))


def test_the_numbers_of_the_guide_are_those_of_the_code() -> None:
    usual = Retries()
    assert usual == retries.USUAL
    assert f"at most {usual.attempts - 1} times" in GUIDE
    assert f"from 0 to {usual.first_pause:g} s" in GUIDE and f"up to {usual.longest_pause:g} s" in GUIDE
    assert f"at most {usual.longest_wait:g} s" in GUIDE
