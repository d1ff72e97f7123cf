"""Detached model servers: started once, found again, stopped, and no other process touched."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from local.models.process import Server, StartFailed, find, listed_models, start, stop
from local.processes import command_lines
from local.stack import free_port

SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        data = json.dumps({"data": [{"id": sys.argv[2]}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "model.json"
    yield path
    stop(path)


def command(port: int) -> list[str]:
    return [sys.executable, "-c", SERVER, str(port), "m"]


def test_a_server_is_started_found_again_and_stopped(record: Path):
    server = start(record, "m", command, 20)
    assert listed_models(server.base_url) == ["m"]
    assert find(record) == server
    assert stop(record) is True
    assert find(record) is None and listed_models(server.base_url) == []
    assert stop(record) is False


def test_a_restart_takes_the_same_port(record: Path):
    first = start(record, "m", command, 20)
    stop(record)
    assert start(record, "m", command, 20).port == first.port


def is_gone(server: Server) -> bool:
    """Whether no process of that id has that server's command: one that ended and was not waited for has none."""
    return str(server.port) not in command_lines().get(server.pid, "").split()


def test_a_server_that_does_not_end_when_asked_is_killed(record: Path):
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SERVER}"
    server = start(record, "m", lambda port: [sys.executable, "-c", deaf, str(port), "m"], 20)
    assert stop(record, seconds=0.2) is True
    assert is_gone(server)


def test_a_server_that_does_not_answer_any_more_is_ended_too(record: Path):
    server = start(record, "m", command, 20)
    os.kill(server.pid, signal.SIGSTOP)
    assert stop(record, seconds=0.2) is True
    assert is_gone(server)


def test_a_new_server_leaves_no_old_one_behind(record: Path):
    old = start(record, "m", command, 20)
    new = start(record, "m", command, 20)
    assert (is_gone(old), find(record)) == (True, new)


def test_a_server_that_ends_at_once_is_named_with_its_log(record: Path):
    with pytest.raises(StartFailed, match=r"ended with 3.*model\.log"):
        start(record, "m", lambda port: [sys.executable, "-c", "raise SystemExit(3)"], 20)


def test_a_server_that_never_lists_its_model_is_given_up(record: Path):
    with pytest.raises(StartFailed, match="not ready"):
        start(record, "other", command, 0.5)


def test_a_process_that_is_not_that_server_is_left_alone(record: Path):
    record.write_text(json.dumps(asdict(Server(os.getpid(), free_port(), "m"))))
    assert find(record) is None
    assert stop(record) is False  # and this process is still here


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_broken_record_is_no_server(record: Path, content: str):
    record.write_text(content)
    assert find(record) is None


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:9/v1", "nonsense", "http://", "http://127.0.0.1:port/v1"])
def test_what_does_not_answer_lists_nothing(base_url: str):
    assert listed_models(base_url) == []
