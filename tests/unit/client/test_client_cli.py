"""The command line through its main function: what it prints, on which stream, and with which exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local.stack import ROOT
from tests.unit.client.conftest import Run
from tests.unit.client.door import KEY, Door
from tests.unit.client.test_client_stream import BYTES, RUN, chunk, event, pieces
from threadkeep.storage.runs import Entry
from threadkeep_client.cli import main, where
from threadkeep_client.cli.where import NoServer, Server


def test_agents_are_a_table(run: Run) -> None:
    code, out, err = run("agents")
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == ["ID", "NAME", "MODEL", "REMEMBERS"]
    assert rows[0].split() == ["assistant", "Assistant", "fake/m", "yes"]
    assert rows[1].index("fake/m") == rows[0].index("fake/m") == head.index("MODEL")
    assert "?" in rows[2]  # it cannot be shown in full


def test_threads_are_listed_page_by_page(run: Run, door: Door) -> None:
    door.house.add_thread("t1", "ada", title="First\nline")
    door.house.add_thread("t2", "eve")
    code, out, err = run("threads", "list", "--resource", "ada")
    assert code == 0 and len(out.splitlines()) == 2 and err == ""
    cells = out.splitlines()[1].split()
    assert (cells[0], cells[1], cells[-2:]) == ("t1", "ada", ["First", "line"])
    code, out, err = run("threads", "list", "--per-page", "1")
    assert len(out.splitlines()) == 2 and err == "2 threads in all; --page 1 shows more\n"


def test_a_thread_is_shown_with_its_messages(run: Run, door: Door) -> None:
    door.house.add_thread("t1", "ada", messages=3, title="T")
    code, out, err = run("threads", "show", "t1", "--per-page", "2")
    assert code == 0
    assert out.splitlines()[:3] == ["Thread    t1", "Owner     ada", "Title     T"]
    assert "Messages  3" in out and "message 0" not in out
    assert out.index("message 1") < out.index("message 2")
    assert err == "\nThere are older messages; --page 1 shows them\n"


def test_json_is_for_machines(run: Run, door: Door) -> None:
    door.house.add_thread("t1", "ada", messages=1, metadata={"a": None})
    shown = json.loads(run("threads", "show", "t1", "--json")[1])
    assert (shown["thread"]["resourceId"], shown["thread"]["metadata"], shown["total"]) == ("ada", {"a": None}, 1)
    listed = json.loads(run("--json", "threads", "list")[1])
    assert listed["threads"][0]["id"] == "t1" and listed["hasMore"] is False
    assert json.loads(run("agents", "--json")[1])["assistant"]["supportsMemory"] is True
    copied = json.loads(run("threads", "clone", "t1", "--json")[1])
    assert copied["thread"]["metadata"]["clone"]["sourceThreadId"] == "t1"
    said = json.loads(run("chat", "assistant", "-m", "Hi", "--json", "--resource", "ada")[1])
    assert said["text"] == "Hello" and said["finishReason"] == "stop"
    assert json.loads(run("threads", "delete", "t1", "--yes", "--json")[1]) == {"result": "Thread deleted"}


def test_a_thread_is_copied(run: Run, door: Door) -> None:
    door.house.add_thread("t1", "ada", messages=3)
    code, out, _ = run("threads", "clone", "t1", "--new-id", "t2", "--title", "Two", "--limit", "1")
    assert (code, out) == (0, "Copied 1 message of t1 to t2\n")
    assert run("threads", "clone", "t1", "--new-id", "t2")[0] == 1


def test_a_thread_is_deleted_only_on_confirmation(run: Run, door: Door) -> None:
    door.house.add_thread("t1", "ada")
    assert run("threads", "delete", "t1") == (2, "", "threadkeep: Nobody is here to confirm; --yes does without\n")
    code, out, err = run("threads", "delete", "t1", typed="n\n", terminal=True)
    assert (code, err) == (1, "threadkeep: Nothing was deleted\n") and door.house.threads() == ["t1"]
    code, out, err = run("threads", "delete", "t1", typed="y\n", terminal=True)
    assert code == 0 and "Deleted t1" in out and door.house.threads() == []


def test_a_chat_reads_lines_and_remembers(run: Run, door: Door) -> None:
    code, out, err = run("chat", "assistant", "--thread", "t1", "--resource", "ada", typed="Hi\n\n  How are you?\n")
    assert (code, out, err) == (0, "Hello\nHello\n", "")
    assert door.house.model.calls == 2
    assert [path for _, path, _, _ in door.seen] == [
        "/api/agents/assistant/stream",  # there is no such route: from now on the chat does without
        "/api/agents/assistant/generate",
        "/api/agents/assistant/generate",
    ]
    bodies = [json.loads(body) for _, path, _, body in door.seen if path.endswith("generate")]
    assert [b["messages"] for b in bodies] == ["Hi", "How are you?"]
    assert all(b["memory"] == {"thread": "t1", "resource": "ada"} for b in bodies)


def test_a_chat_streams_where_the_server_can(run: Run, door: Door) -> None:
    door.streams["assistant"] = pieces(BYTES)
    code, out, err = run("chat", "assistant", "--resource", "ada", "-m", "Hi")
    assert (code, out, err) == (0, "Grüß dich\u2028\x85du\n", "")
    assert len(door.seen) == 1 and json.loads(door.seen[0][3])["memory"]["thread"].startswith("chat-")


def test_a_chat_tells_beside_the_answer_what_the_agents_below_do(run: Run, door: Door) -> None:
    def below(inner: dict[str, Any], key: str = "finder") -> dict[str, Any]:
        return chunk("tool-output", toolCallId="c", toolName=f"agent-{key}", output=inner)

    given = [
        chunk("tool-call", toolCallId="c", toolName="agent-finder"),
        below(chunk("text-delta", text="not the answer")),
        below(chunk("tool-call", toolCallId="d", toolName="agent-leaf")),
        below(below(chunk("tool-call", toolCallId="e", toolName="look"), "leaf")),
        {"type": "data-progress", "runId": "r", "data": {"done": 1, "of": "\x1b[2J"}},
        {"type": "data-thread-title", "runId": "r", "data": {"title": "x"}, "transient": True},
        below(chunk("error", error={"message": "a sub-agent failed"})),
        below(chunk("finish", stepResult={"reason": "error"})),
        *RUN,
    ]
    door.streams["assistant"] = pieces(*map(event, given))
    code, out, err = run("chat", "assistant", "--resource", "ada", "-m", "Hi")
    assert (code, out) == (0, "Grüß dich\u2028\x85du\n")
    assert err.splitlines() == [
        "[agent-finder]", "[agent-finder > agent-leaf]", "[agent-finder > agent-leaf > look]",
        '[data-progress {"done": 1, "of": "\\u001b[2J"}]',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([*RUN[:2], chunk("error", error={"message": "model is down"}), RUN[3]], "model is down"),
        ([*RUN[:2], chunk("tripwire", reason="rude words")], "rude words"),
        (RUN[:2], "The answer broke off"),
    ],
)
def test_a_run_that_fails_in_the_middle_is_an_error(run: Run, door: Door, given: Any, said: str) -> None:
    door.streams["assistant"] = pieces(*map(event, given))
    code, out, err = run("chat", "assistant", "-m", "Hi", "--resource", "ada")
    assert (code, out, err) == (1, "Grüß \n", f"threadkeep: {said}\n")


def test_a_chat_that_only_reads_says_so_to_the_server(run: Run, door: Door) -> None:
    assert run("chat", "assistant", "--thread", "t1", "--resource", "ada", "--read-only", "-m", "Hi")[0] == 0
    assert json.loads(door.seen[-1][3])["memory"]["options"] == {"readOnly": True}
    assert door.house.threads() == []


def test_an_interactive_chat_survives_an_error(run: Run, door: Door) -> None:
    door.house.add_thread("t1", "eve")
    code, out, err = run("chat", "assistant", "--thread", "t1", "--resource", "ada", typed="Hi\nHo\n", terminal=True)
    assert code == 0 and err.count("threadkeep: Access denied") == 2
    assert err.startswith("Thread t1 of ada. Ctrl-D ends.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("threads", "show", "nope"), 1, "Thread not found (404)"),
        (("chat", "nope", "-m", "Hi", "--resource", "ada"), 1, "Agent with id nope not found (404)"),
        (("threads", "show", "a b"), 1, "Invalid path parameters; threadId: may only contain"),
        (("threads", "show", ".."), 2, "An id must not be empty, . or .."),
        (("agents", "--key", "wrong"), 1, "Invalid or expired token; give another key"),
        (("agents", "--url", "http://127.0.0.1:9"), 3, "No connection could be made"),
        (("agents", "--url", "localhost"), 2, "The base URL must begin with"),
    ],
)
def test_an_error_is_one_line_on_stderr(run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert err.startswith(f"threadkeep: {said}") and err.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("threads",), ("nonsense",), ("chat",), ("threads", "list", "--page", "x")])
def test_wrong_usage_is_2(run: Run, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize("arguments", [(), ("chat",), ("threads",), ("threads", "list"), ("agents",)])
def test_every_command_has_help(run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--help"])
    assert caught.value.code == 0 and len(capsys.readouterr().out.splitlines()) > 5


def test_texts_cannot_steer_a_terminal(run: Run, door: Door) -> None:
    door.house.add_thread("t1", "ada", title="a\x1b[2Jb\x07")
    assert "\x1b" not in run("threads", "list")[1] and "a[2Jb" in run("threads", "show", "t1")[1]


def test_the_server_is_that_of_options_else_environment_else_local_stack(tmp_path: Path) -> None:
    deep = tmp_path / "a/b"
    deep.mkdir(parents=True)
    named = {"THREADKEEP_URL": "http://env", "THREADKEEP_API_KEY": "env-key"}
    with pytest.raises(NoServer, match="set --url or THREADKEEP_URL"):
        where.find(None, "k", {}, deep)
    (tmp_path / ".local").mkdir()
    (tmp_path / ".local/env").write_text("# stack\nBASE_URL=http://127.0.0.1:4111\nAPI_KEY='a b'\n")
    assert where.find("http://option", "option-key", named, deep) == Server("http://option", "option-key")
    assert where.find(None, None, named, deep) == Server("http://env", "env-key")
    assert where.find(None, None, {}, deep) == Server("http://127.0.0.1:4111", "a b")
    assert where.find(None, "mine", {}, deep) == Server("http://127.0.0.1:4111", "mine")
    assert where.find("http://elsewhere", None, {}, deep) == Server("http://elsewhere", None)


def test_a_terminal_without_unicode_shows_question_marks(door: Door) -> None:
    door.house.add_thread("t1", "ada", title="Grüße …")
    command = [sys.executable, "-m", "threadkeep_client", "threads", "list", "--url", door.url]
    environment = {
        "PYTHONPATH": str(ROOT / "clients/python"), "PYTHONIOENCODING": "ascii", "THREADKEEP_API_KEY": KEY
    }  # fmt: skip
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.rstrip().endswith("Gr??e ?")


def test_durable_runs_are_begun_listed_shown_and_cancelled(run: Run, door: Door) -> None:
    code, out, err = run("runs", "start", "assistant", "--thread", "t1", "--resource", "ada", "-m", "Hi")
    run_id = out.strip()
    assert (code, err, door.house.executions.started) == (0, "", [run_id])
    code, out, _ = run("runs", "list", "assistant", "--thread", "t1", "--resource", "ada")
    assert code == 0
    assert re.fullmatch(rf"{run_id}  running  \d{{4}}-\d\d-\d\d \d\d:\d\d", out.splitlines()[1].strip())
    assert json.loads(run("runs", "list", "assistant", "--thread", "t1", "--resource", "ada", "--json")[1])["runs"]
    code, out, _ = run("runs", "show", "assistant", run_id)
    assert code == 0 and out.splitlines()[:3] == [f"Run       {run_id}", "State     running", "Steps     0"]
    code, out, _ = run("runs", "cancel", "assistant", run_id)
    assert (code, out) == (0, f"{run_id} is cancelled\n")
    assert json.loads(run("runs", "show", "assistant", run_id, "--json")[1])["state"] == "cancelled"
    code, _, err = run("runs", "show", "assistant", "unknown")
    assert code == 1 and "unknown" in err


def test_a_run_that_failed_fails_the_command_that_waits_for_it(run: Run, door: Door) -> None:
    async def fail(run_id: str) -> None:
        await door.house.store.end_run(run_id, "failed", error={"name": "ModelRejected", "message": "bad key"})

    door.house.executions.start = fail  # type: ignore[method-assign]
    code, out, err = run("runs", "start", "assistant", "-m", "Hi", "--wait")
    assert (code, err) == (1, "threadkeep: ModelRejected: bad key\n")
    assert "State     failed" in out


def test_what_a_run_came_to_is_shown(run: Run, door: Door) -> None:
    async def succeed(run_id: str) -> None:
        told = {"key": "clerk", "toolCallId": "c", "state": "succeeded", "text": "found"}
        result = {"text": "the end", "finishReason": "stop", "usage": {}, "messageIds": []}
        entries = [Entry("shown.0001.0000.b", told), Entry("end.x", {"steps": [], "result": result})]
        await door.house.store.write_entries(run_id, entries, thread_id=None)
        await door.house.store.end_run(run_id, "succeeded", result={"end": "end.x"})

    door.house.executions.start = succeed  # type: ignore[method-assign]
    code, out, _ = run("runs", "start", "assistant", "-m", "Hi", "--wait")
    assert code == 0
    assert out.splitlines()[3:] == ["  clerk  succeeded  found", "", "the end"]
