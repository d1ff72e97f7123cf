"""Where the server is and which key opens it: options, else the environment, else a local stack's `.local/env`."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOCAL = Path(".local/env")


class NoServer(Exception):
    """Nothing names a server."""


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    key: str | None


def find(url: str | None, key: str | None, environment: Mapping[str, str], folder: Path) -> Server:
    """The server to talk to. Raises `NoServer`.

    The key of a local stack goes to that stack only, never to an address that was named another way.
    """
    key = key or environment.get("THREADKEEP_API_KEY") or None
    if named := url or environment.get("THREADKEEP_URL"):
        return Server(named, key)
    for place in (folder, *folder.parents):
        if (place / LOCAL).is_file():
            local = _variables((place / LOCAL).read_text())
            if "BASE_URL" in local:
                return Server(local["BASE_URL"], key or local.get("API_KEY"))
    raise NoServer(f"No server: set --url or THREADKEEP_URL, or start one with `make up`, which writes {LOCAL}")


def _variables(text: str) -> dict[str, str]:
    """The assignments in a file that a shell could read."""
    pairs = (word.partition("=") for word in shlex.split(text, comments=True))
    return {name: value for name, is_set, value in pairs if is_set}
