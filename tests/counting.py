"""Counts what a boto3 client sends: requests, bytes of the answers, and how many round trips follow one another."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, its repeats counted apart. Times are in seconds, `size` in bytes of the answer."""

    operation: str
    began: float
    ended: float
    size: int


@dataclass
class Counter:
    """Register it on a client, and `requests` holds what the client sent since the last `clear`.

    Each request takes at least `latency` seconds, as over a real network: requests that the code
    sends together overlap then for certain, however busy the machine is.
    """

    latency: float = 0.05
    requests: list[Request] = field(default_factory=list[Request])

    def __post_init__(self) -> None:
        self._sending = threading.local()

    def register(self, client: Any) -> None:
        events, service = client.meta.events, client.meta.service_model.service_name
        events.register(f"before-send.{service}", self._before)
        events.register(f"response-received.{service}", self._after)

    def clear(self) -> None:
        self.requests.clear()

    @property
    def operations(self) -> list[str]:
        return sorted(request.operation for request in self.requests)

    @property
    def bytes_read(self) -> int:
        return sum(request.size for request in self.requests)

    @property
    def round_trips(self) -> int:
        return depth(self.requests)

    def _before(self, request: Any, **_: Any) -> None:
        target = request.headers["X-Amz-Target"]
        name = target.decode() if isinstance(target, bytes) else str(target)
        self._sending.now = (name.partition(".")[2], time.monotonic())
        time.sleep(self.latency)

    def _after(self, response_dict: dict[str, Any] | None, **_: Any) -> None:
        operation, began = self._sending.now
        size = len(response_dict["body"]) if response_dict else 0
        self.requests.append(Request(operation, began, time.monotonic(), size))


def depth(requests: Sequence[Request]) -> int:
    """The most requests of which each began after the one before it had ended."""
    found, free_from = 0, float("-inf")
    for request in sorted(requests, key=lambda request: request.ended):
        if request.began >= free_from:
            found, free_from = found + 1, request.ended
    return found
