"""Model servers that outlive the command which started them: started detached, remembered in a file, reused."""

import http.client
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from local.processes import command_lines, terminate
from local.stack import ROOT, free_port

STATE = ROOT / ".local"
MODEL_RECORD = STATE / "model.json"
SCRIPT_RECORD = STATE / "script.json"


class StartFailed(Exception):
    """The server did not come up; the text is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class Server:
    """A model server on 127.0.0.1: `model` is the name that it lists."""

    pid: int
    port: int
    model: str

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def find(record: Path) -> Server | None:
    """The server that an earlier run left, if it still answers with its model."""
    server = _remembered(record)
    return server if server and server.model in listed_models(server.base_url) else None


def start(record: Path, model: str, command: Callable[[int], Sequence[str]], seconds: float) -> Server:
    """Starts `command(port)` and waits until it lists `model`. Raises `StartFailed`.

    A server that an earlier run left is ended, because the record would forget it. Its port is taken again if it is
    free, so that what was deployed with it stays right.
    """
    record.parent.mkdir(parents=True, exist_ok=True)
    stop(record)
    before = _remembered(record)
    port = free_port(before.port if before else 0)
    log = record.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(port), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    server = Server(process.pid, port, model)
    record.write_text(json.dumps(asdict(server)))
    deadline = time.monotonic() + seconds
    try:
        while model not in listed_models(server.base_url):
            if process.poll() is not None:
                raise StartFailed(f"The server of {model} ended with {process.returncode}; see {log}.")
            if time.monotonic() > deadline:
                raise StartFailed(f"The server of {model} was not ready after {seconds:.0f} s; see {log}.")
            time.sleep(0.2)
    except BaseException:  # an interrupt too: nobody would find a server that does not answer yet
        process.kill()
        process.wait()
        raise
    process.returncode = 0  # it outlives this object: no warning when that goes
    return server


def stop(record: Path, seconds: float = 10) -> bool:
    """Ends the server that an earlier run left, whether it answers or not; tells whether there was one.

    It is gone when this returns: what has not ended after `seconds` is killed. Only a process whose command names
    the server's port is touched: the pid alone may belong to another by now.
    """
    server = _remembered(record)
    if server is None or str(server.port) not in command_lines().get(server.pid, "").split():
        return False
    terminate(server.pid, seconds)
    return True


def stop_all() -> None:
    """Ends every model server of this checkout."""
    for record in (MODEL_RECORD, SCRIPT_RECORD):
        stop(record)


def listed_models(base_url: str, key: str = "", seconds: float = 2.0) -> list[str]:
    """The models that an OpenAI-compatible server lists; empty when it does not answer in that shape."""
    scheme, _, rest = base_url.partition("://")
    host, _, path = rest.rstrip("/").partition("/")
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection = kind(host, timeout=seconds)
        connection.request("GET", f"/{path}/models".replace("//", "/"), headers=headers)
        reply = connection.getresponse()
        listed: Any = json.loads(reply.read(1 << 20)) if reply.status == 200 else {}
        connection.close()
        return [str(entry["id"]) for entry in listed["data"]]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return []


def _remembered(record: Path) -> Server | None:
    try:
        return Server(**json.loads(record.read_text()))
    except (OSError, ValueError, TypeError):
        return None
