"""What every command is handed, and how commands fail."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from threadkeep_client.client import Client

OK, FAILED, USAGE, UNREACHABLE, CHANGED, INTERRUPTED = 0, 1, 2, 3, 4, 130


class CommandFailed(Exception):
    """The command cannot do what was asked; the text is one plain sentence. `code` is the exit code."""

    def __init__(self, message: str, code: int = FAILED):
        self.code = code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Session:
    client: Client
    options: argparse.Namespace

    @property
    def json(self) -> bool:
        return self.options.json


Command = Callable[[Session], None]
