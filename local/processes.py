"""Processes that outlive the command which started them.

They are found by their command lines: a remembered process id is lost with the file that holds it, and after a reboot
it may be another program's.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def command_lines(proc: Path = PROC) -> dict[int, str]:
    """The command lines of all processes by process id, uncut, with blanks between the arguments."""
    if not (proc / "self/cmdline").exists():
        listed = subprocess.run(["ps", "-eww", "-o", "pid=,command="], capture_output=True, text=True).stdout
        lines = (line.strip().partition(" ") for line in listed.splitlines())
        return {int(pid): command.strip() for pid, _, command in lines}
    found: dict[int, str] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile, or is somebody else's
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    return found


def find_process(program: str, last: str) -> int:
    """The id of the process whose command has `program` in it and `last` as its last argument; 0 if there is none."""
    for pid, command in command_lines().items():
        if program in command and command.rstrip().endswith(f" {last}"):
            return pid
    return 0


def terminate(pid: int, seconds: float = 30) -> bool:
    """Ask a process to end and wait for it; after `seconds` insist. Returns whether it ended when asked."""
    deadline, asked, command = time.monotonic() + seconds, True, command_lines().get(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while command and command_lines().get(pid) == command:
            if asked and time.monotonic() > deadline:
                asked = False
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return asked
