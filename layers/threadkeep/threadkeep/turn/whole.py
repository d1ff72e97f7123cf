"""Work that is done to its end once it has begun."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)


async def whole(work: Awaitable[T]) -> T:
    """The result of `work`. A caller that is cancelled waits for its end: nobody may doubt whether it was done."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        _log.warning("work that nobody waited for any more failed", exc_info=failure)
    raise cancelled
