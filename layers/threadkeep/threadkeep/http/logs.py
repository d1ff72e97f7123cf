"""One JSON object per log line, from the standard library (Powertools' Logger would add 60 ms to each cold start)."""

import json
import logging
from functools import cache

from threadkeep import clock


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname, "timestamp": clock.iso(int(record.created * 1000))}
        line["message"] = record.getMessage()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Stdout(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


@cache
def logger() -> logging.Logger:
    """The library's logger, set to write JSON lines. Give fields as `extra={"fields": {...}}`, never a credential."""
    log = logging.getLogger("threadkeep")
    handler = _Stdout()
    handler.setFormatter(_JsonLines())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # the Lambda runtime's own handler would print each line again
    return log
