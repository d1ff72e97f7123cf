"""Once a day: removes bodies from the bucket to which nothing points any more."""

import asyncio
import logging
from typing import Any

from threadkeep.bootstrap import storage

_log = logging.getLogger(__name__)


def handler(event: dict[str, Any], context: object) -> dict[str, int]:
    removed = asyncio.run(storage().sweep_bodies())
    _log.warning("removed %d unused bodies", removed) if removed else None
    return {"removed": removed}
