"""`threadkeep chat`."""

import getpass
import json
import sys
import uuid
from collections.abc import Iterator
from typing import Any

from threadkeep_client.calls import TurnOptions
from threadkeep_client.cli import show
from threadkeep_client.cli.session import CommandFailed, Session
from threadkeep_client.errors import ApiError, NotFound, ThreadkeepError, Unauthenticated
from threadkeep_client.stream import Chunk

_NO_ROUTE = (404, 405, 501)


def chat(session: Session) -> None:
    """Talk to an agent; what is said stays in the thread"""
    conversation = Conversation(session)
    if session.options.message is not None:
        return conversation.say(session.options.message)
    people = sys.stdin.isatty()
    if people:
        print(f"Thread {conversation.thread} of {conversation.resource}. Ctrl-D ends.", file=sys.stderr)
    for line in _lines(people):
        try:
            conversation.say(line)
        except (NotFound, Unauthenticated):
            raise
        except (ThreadkeepError, CommandFailed) as error:
            if not people:
                raise
            print(f"threadkeep: {show.clean(str(error))}", file=sys.stderr)


class Conversation:
    """One thread of one owner with one agent. Streams until the server turns out to have no such route."""

    def __init__(self, session: Session):
        options = session.options
        self.thread: str = options.thread or f"chat-{uuid.uuid4().hex[:12]}"
        self.resource: str = options.resource or getpass.getuser()
        self._session = session
        self._streams = not session.json

    def say(self, message: str) -> None:
        """Send a message and print the answer. Raises `ThreadkeepError`, `CommandFailed`."""
        if self._streams:
            try:
                return self._stream(message)
            except ApiError as error:
                if error.status not in _NO_ROUTE:
                    raise
                self._streams = False
        self._generate(message)

    def _stream(self, message: str) -> None:
        problem, finished = "", False
        with self._session.client.stream(self._session.options.agent, message, **self._memory()) as chunks:
            for chunk in chunks:
                show.text(chunk.text, end="")
                problem = problem or chunk.problem
                finished = finished or chunk.type in ("finish", "abort", "tripwire", "tool-call-approval")
                if told := _told(chunk):
                    print(show.clean(told), file=sys.stderr)
        print()
        if problem or not finished:
            raise CommandFailed(problem or "The answer broke off")

    def _generate(self, message: str) -> None:
        done = self._session.client.generate(self._session.options.agent, message, **self._memory())
        if self._session.json:
            return show.as_json(done)
        show.text(done.text)
        if done.tripwire:
            raise CommandFailed(str(done.tripwire.get("reason") or "Stopped by a processor"))

    def _memory(self) -> Any:
        read_only: TurnOptions = {"memory_options": {"readOnly": True}} if self._session.options.read_only else {}
        return {"thread": self.thread, "resource": self.resource, **read_only}


def _told(chunk: Chunk, above: str = "") -> str:
    """What the agent and those below it do, in one line: calls, and data that tools tell. Empty for all others."""
    tool = chunk.payload.get("toolName")
    if chunk.output is not None:
        return _told(chunk.output, f"{above}{tool} > ")
    more = chunk.model_extra or {}
    if chunk.type.startswith("data-") and not more.get("transient"):
        return f"[{above}{chunk.type} {json.dumps(more.get('data'), ensure_ascii=False)}]"
    return f"[{above}{tool}]" if chunk.type == "tool-call" else ""


def _lines(people: bool) -> Iterator[str]:
    """What is typed or piped in, line by line, without empty lines."""
    while True:
        try:
            line = input("> " if people else "").strip()
        except EOFError:
            if people:
                print(file=sys.stderr)
            return
        if line:
            yield line
