"""Once a day: takes up clean-ups of deleted threads that failed, removes bodies to which nothing points any more."""

import asyncio
import logging
from typing import Any

from threadkeep.bootstrap import storage

_log = logging.getLogger(__name__)


def handler(event: dict[str, Any], context: object) -> dict[str, int]:
    return asyncio.run(_sweep())


async def _sweep() -> dict[str, int]:
    done = {"resumed": await storage().resume_deletes(), "removed": await storage().sweep_bodies()}
    if any(done.values()):
        _log.warning("resumed %(resumed)d clean-ups, removed %(removed)d unused bodies", done)
    return done
