"""Time as the store keeps it: whole milliseconds since 1970, in UTC."""

import time
from datetime import UTC, datetime

Millis = int


def now() -> Millis:
    return time.time_ns() // 1_000_000


def iso(at: Millis) -> str:
    """`2026-11-29T17:44:33.768Z`"""
    moment = datetime.fromtimestamp(at // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at % 1000:03d}Z"
