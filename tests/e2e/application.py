"""The deployed application as a test drives it: turns over HTTP, and a look at what the table holds."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from local.stack import Stack
from tests.oidc import Issuer

T = TypeVar("T")
Row = dict[str, Any]

THREADS = "/api/memory/threads"


def eventually(check: Callable[[], T], seconds: float = 30) -> T:
    """The first truthy value of `check`. Fails after `seconds` without one."""
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, f"not so after {seconds:g} s; the last value was {value!r}"
        time.sleep(0.1)
    return value


def new_id(kind: str = "thread") -> str:
    return f"{kind}-{uuid.uuid4().hex[:12]}"


@dataclass
class Application:
    """`http` carries the service key. Methods that take no status answer with the response as it is."""

    stack: Stack
    http: httpx.Client
    agent: str = "assistant"

    def say(self, text: str, thread: str, owner: str, *, status: int = 200, **body: Any) -> Any:
        """One turn. Returns the reply's JSON; fails unless the status is as expected."""
        options = body.pop("options", None)
        memory = {"thread": thread, "resource": owner} | ({"options": options} if options else {})
        answer = self.http.post(f"/api/agents/{self.agent}/generate", json={"messages": text, "memory": memory} | body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def create(self, thread: str, owner: str, **body: Any) -> httpx.Response:
        return self.http.post(f"{THREADS}?agentId={self.agent}", json={"threadId": thread, "resourceId": owner} | body)

    def thread(self, thread: str) -> Any:
        """The thread's JSON, None if it reads as missing."""
        answer = self.http.get(f"{THREADS}/{thread}")
        assert answer.status_code in (200, 404), answer.text
        return answer.json() if answer.status_code == 200 else None

    def texts(self, thread: str) -> list[tuple[str, str]]:
        """Role and text of every message of a thread."""
        answer = self.http.get(f"{THREADS}/{thread}/messages?perPage=false")
        assert answer.status_code == 200, answer.text
        return [(m["role"], m["content"].get("content", "")) for m in answer.json()["messages"]]

    def threads_of(self, owner: str) -> list[str]:
        answer = self.http.get(THREADS, params={"resourceId": owner, "perPage": "false"})
        assert answer.status_code == 200, answer.text
        listed = answer.json()
        assert listed["total"] == len(listed["threads"])
        return [thread["id"] for thread in listed["threads"]]

    def delete(self, thread: str, owner: str) -> httpx.Response:
        return self.http.delete(f"{THREADS}/{thread}", params={"resourceId": owner, "agentId": self.agent})

    # --- what the table holds ---

    def rows(self) -> dict[tuple[str, str], Row]:
        """Every row of the table by its key."""
        pages = self.stack.client("dynamodb").get_paginator("scan")
        found = pages.paginate(TableName=self.stack.outputs["TableName"], ConsistentRead=True)
        return {(row["pk"]["S"], row["sk"]["S"]): row for page in found for row in page["Items"]}

    def rows_of(self, thread: str) -> list[tuple[str, str]]:
        """The keys of everything that the table holds of a thread, by its id, which is unlike any other."""
        return [key for key in self.rows() if thread in "".join(key)]

    def quiet(self) -> dict[tuple[str, str], Row]:
        """The rows once nothing is due any more: no job waits, no deleted thread is left to be purged."""

        def due() -> list[tuple[str, str]]:
            deleting = {"S": "deleting"}
            return [key for key, row in self.rows().items() if key[1].startswith("J#") or row.get("state") == deleting]

        eventually(lambda: not due())
        return self.rows()


def as_user(house: Stack, issuer: Issuer, resource: str) -> httpx.Client:
    """An HTTP client of a deployed stack that carries a user's token."""
    credential = {"Authorization": f"Bearer {issuer.token(resource)}"}
    return httpx.Client(base_url=house.base_url, headers=credential, timeout=60, trust_env=False)


def workers(application: Application, function: str) -> list[int]:
    """The processes that run a deployed function now."""
    emulator = application.stack.pid("emulator")
    listed = subprocess.run(["ps", "-ww", "-e", "-o", "pid=,ppid=,command="], capture_output=True, text=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [int(pid) for pid, parent, command in rows if int(parent) == emulator and f"-{function}-" in command]


def kill(application: Application, function: str) -> None:
    """Kill a deployed function where it stands."""
    running = workers(application, function)
    assert running, f"{function} does not run"
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not set(running) & set(workers(application, function)))
