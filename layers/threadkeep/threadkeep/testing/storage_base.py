"""What the suites of the storage contract share: fixtures, examples, helpers."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from threadkeep.storage.port import Message, NewMessage, NewThread, Storage, Thread, TurnCommit

# Separators of keys, escapes of separators, and what looks like either (case H03).
SEPARATORS = ["#", "/", ":", "|", "%", "%23", "%2F", "##", "@", "~", " ", "é", "日本"]
ODD_IDS = ["#{}", "{}#", "%23{}", "{}%", "T#{}", "M#{}", "@{}", "{}/..", "..{}", "{}\\", '"{}"', "{}\u2028x", "🧵{}"]

# Whatever JSON can say and a store may get wrong (case H33).
FAITHFUL: dict[str, Any] = {
    "i": 3, "f": 0.1, "neg": -2.50, "whole": 3.0, "big": 12345678901234567890, "huge": -(10**60), "e": 1e-7,
    "tiny": 5e-324, "large": 1.7976931348623157e308, "z": 0, "minus": -0.0, "b": True, "no": False, "n": None,
    "s": "", "l": [], "o": {}, "": "empty key", "name": 1, "size": 2, "a.b": 2, "$x": 3, "#y": 4, ":z": 5, "a b": 6,
    "ключ": "значение", "emoji": "👩‍👩‍👧 \U0001f9f5", "nul": "\u0000\u001f\u2028", "quote": '"\\/\n\t',
    "nested": {"l": [None, [None, [{}, [], "", 0, {"n": None}]]], "o": {"o": {"o": {"o": [1, 1.0, "1", True]}}}},
    "S": {"N": "1"}, "NULL": True, "M": {"L": []},
}  # fmt: skip


def faithful_text(value: Any) -> str:
    """JSON text that tells 3 from 3.0, 1 from true and 0.0 from -0.0, which `==` does not."""
    return json.dumps(value, sort_keys=True)


def message(message_id: str | None = None, role: str = "user", at: int = 0, **content: Any) -> NewMessage:
    body = {"format": 2, "parts": [{"type": "text", "text": "hello"}], **content}
    return NewMessage(message_id or str(uuid.uuid4()), role, body, at)


def turn(at: int = 0) -> tuple[NewMessage, NewMessage]:
    return message(role="user", at=at), message(role="assistant", at=at)


def ids_of(rows: Sequence[Message | Thread]) -> list[str]:
    return [row.id for row in rows]


async def eventually(check: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Repeat an assertion until it holds or the time is over."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            return await check()
        except AssertionError:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.05)


@pytest.mark.asyncio
class StorageBase:
    machine_examples = 100
    lag_seconds = 5.0

    @pytest.fixture
    def storage(self) -> Storage:
        raise NotImplementedError("a subclass makes the store")

    @pytest.fixture
    def unique(self) -> str:
        """A piece of text that makes this test's ids differ from all others."""
        return uuid.uuid4().hex[:12]

    @pytest_asyncio.fixture
    async def thread(self, storage: Storage, unique: str) -> Thread:
        return await storage.create_thread(NewThread(f"t-{unique}", f"r-{unique}"))

    async def fill(self, storage: Storage, thread: Thread, count: int, *, first: int = 0) -> list[Message]:
        """Store messages m000, m001, ... by turns, users and assistants in turn; all of them, as they are stored."""
        rows: list[Message] = []
        for start in range(first, first + count, 40):
            numbers = range(start, min(start + 40, first + count))
            new = tuple(message(f"m{n:03}", ("user", "assistant")[n % 2], n=n) for n in numbers)
            rows += (await storage.commit_turn(TurnCommit(thread, new))).messages
        return rows
