"""What a stack knows of its processes and of itself."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local.processes import command_lines, find_process, terminate
from local.stack import Stack, StackError, free_port

WAITS = "import signal, sys\n{}\nprint(flush=True)\nsys.stdin.read()\n"


@contextmanager
def emulator(root: Path, last: str, first: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process whose command line looks like an emulator's."""
    script = root / "local/emulator.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(WAITS.format(first))
    command = [sys.executable, script, last]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("proc", ["/proc", "/nothing"])
def test_a_process_is_found_however_long_its_command_is(tmp_path: Path, proc: str) -> None:
    """`ps`, which is asked where there is no `/proc`, cuts lines at 80 columns where it may."""
    with emulator(tmp_path / ("d" * 120), "/a home") as process:
        command = command_lines(Path(proc))[process.pid].strip()
        assert command.endswith("local/emulator.py /a home")


def test_only_the_process_of_the_same_home_is_found_and_ended(tmp_path: Path) -> None:
    home = str(tmp_path / "dev")
    with emulator(tmp_path, f"{home}2") as other, emulator(tmp_path, home) as ours:
        assert find_process("local/emulator.py", home) == ours.pid
        assert terminate(ours.pid) is True
        assert find_process("local/emulator.py", home) == 0
        assert other.poll() is None


def test_a_process_that_does_not_end_when_asked_is_killed_and_that_is_told(tmp_path: Path) -> None:
    with emulator(tmp_path, "home", "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        assert terminate(process.pid, seconds=0.2) is False
        assert process.pid not in command_lines()


def test_a_process_that_is_gone_needs_no_end() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert terminate(process.pid) is True


@pytest.mark.parametrize("content", ["", "{", '{"emulator_port": 45', "[]", "\udcff"])
def test_a_record_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "stack.json").write_bytes(content.encode(errors="surrogateescape"))
    stack = Stack(tmp_path)
    assert stack.record == {}
    assert not stack.running()
    stack.remember(emulator_port=1)
    assert stack.record == {"emulator_port": 1}


def test_the_record_holds_no_key(tmp_path: Path) -> None:
    stack = Stack(tmp_path, environment={"OPENAI_API_KEY": "sk-secret"})
    stack.remember(environment=stack.environment_digest(), auth=False)
    assert "sk-secret" not in stack.record_path.read_text()
    assert stack.as_wanted()
    assert not Stack(tmp_path, environment={"OPENAI_API_KEY": "sk-other"}).as_wanted()


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"Port {port} is taken; choose another one with PORT="):
            Stack(tmp_path).check_port(port)
    Stack(tmp_path).check_port(free_port())


def test_wheels_for_another_python_go(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    stack.root = tmp_path
    (tmp_path / "layers/threadkeep").mkdir(parents=True)
    (tmp_path / "layers/threadkeep/requirements.txt").write_text("a")
    for name in ("old", stack.wheelhouse().name):
        (tmp_path / ".local/wheels" / name).mkdir(parents=True)
    kept = stack.wheelhouse()
    assert list(kept.parent.iterdir()) == [kept]
