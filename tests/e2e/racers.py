"""Requests from several processes at once.

`race` starts one process for each plan, waits until all are ready and lets go of them together. A
process of its own is what `python -m tests.e2e.racers` is; the plan comes on its standard input.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from local.stack import ROOT


@dataclass(frozen=True, slots=True)
class Answer:
    """`began` and `ended` are in seconds of a clock that all processes of the machine share."""

    status: int
    body: Any
    began: float
    ended: float


def race(client: httpx.Client, plans: Sequence[Sequence[tuple[str, Any]]]) -> list[list[Answer]]:
    """Send each plan's requests (path, JSON body) in a process of its own, one after another.

    A path may have the method before it, as in `PATCH /api`; without one it is POST. Address and credential
    are those of `client`. The answers are in the order of the plans.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.racers"],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in plans
    ]
    try:
        for process, plan in zip(started, plans, strict=True):
            where = {"url": str(client.base_url), "headers": dict(client.headers)}
            _tell(process, where | {"requests": list(plan)})
        for process in started:
            _told(process)
        for process in started:
            _tell(process, "go")
        return [[Answer(*answer) for answer in _told(process)] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _tell(process: "subprocess.Popen[str]", message: Any) -> None:
    assert process.stdin
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def _told(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout
    line = process.stdout.readline()
    assert line, "a racing process has failed"
    return json.loads(line)


def main() -> None:
    plan = json.loads(sys.stdin.readline())
    with httpx.Client(base_url=plan["url"], headers=plan["headers"], timeout=120, trust_env=False) as client:

        def send(request: tuple[str, Any]) -> tuple[int, Any, float, float]:
            where, body = request
            method, _, path = where.rpartition(" ")
            began = time.monotonic()
            answer = client.request(method or "POST", path, json=body)
            return answer.status_code, answer.json(), began, time.monotonic()

        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        print(json.dumps([send(request) for request in plan["requests"]]), flush=True)


if __name__ == "__main__":
    main()
