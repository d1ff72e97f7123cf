"""Watching a run: its events as they come, and its end if the watcher leaves (DESIGN 7)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from threadkeep.turn.events import Event, Sink


async def watched(run: Callable[[Sink], Awaitable[object]]) -> AsyncGenerator[Event]:
    """The events of `run`, which is handed the sink to tell them to; then its error, if it ends in one.

    Events wait for the watcher, never the run. Closing the generator ends the run: its model call stops, and
    what was seen of its answer is stored before this returns.
    """
    queue = asyncio.Queue[Event | None]()

    async def running() -> None:
        try:
            await run(queue.put)
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(running())
    try:
        while (event := await queue.get()) is not None:
            yield event
        await task
    finally:
        if not task.done():
            task.cancel()
        await asyncio.wait([task])
