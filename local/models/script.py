"""The stand-in when there is no model: the scripted server of the tests, which says what the user message dictates."""

import sys

from local.models.fetch import Say
from local.models.process import SCRIPT_RECORD, Server, find, start

_LISTED = "model"  # the name that the scripted server lists; it answers to any
_START_SECONDS = 30


def ensure(say: Say) -> Server:
    """A running scripted server. Raises `StartFailed`."""
    running = find(SCRIPT_RECORD)
    if running:
        return running
    say("starting the scripted model")
    serve = [sys.executable, "-m", "tests.scripted", "--port"]
    return start(SCRIPT_RECORD, _LISTED, lambda port: [*serve, str(port)], _START_SECONDS)
