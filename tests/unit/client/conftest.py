import io
from collections.abc import Callable, Iterator

import pytest

from tests.unit.client.door import KEY, Door
from threadkeep_client import Client
from threadkeep_client.cli import main

Run = Callable[..., tuple[int, str, str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="package")
def running_door() -> Iterator[Door]:
    with Door() as door:
        yield door


@pytest.fixture
def door(running_door: Door) -> Door:
    """The server, with a house of its own for each test."""
    running_door.reset()
    return running_door


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    with Client(door.url, KEY) as client:
        yield client


@pytest.fixture
def run(door: Door, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with the door's address and key in the environment. Returns exit code, stdout, stderr."""
    monkeypatch.setattr("threadkeep.http.logs._Stdout.emit", lambda self, record: None)  # the server shares our stdout
    monkeypatch.setattr("random.uniform", lambda low, high: low)  # the shortest pauses before a repeat
    monkeypatch.setenv("THREADKEEP_URL", door.url)
    monkeypatch.setenv("THREADKEEP_API_KEY", KEY)

    def call(*arguments: str, typed: str = "", terminal: bool = False) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", Terminal(typed) if terminal else io.StringIO(typed))
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call
