"""The face of `ScriptedModel` for a server in another process."""

import json
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen


class RemoteScriptedModel:
    """`url` is the base URL that the server prints, with its `/v1`."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._root = self.url.removesuffix("/v1")

    @property
    def calls(self) -> int:
        return self._ask("GET", "/_calls")["count"]

    @property
    def requests(self) -> list[dict[str, Any]]:
        return self._ask("GET", "/_calls")["requests"]

    @property
    def hangups(self) -> int:
        return self._ask("GET", "/_calls")["hangups"]

    @property
    def held(self) -> list[str]:
        return self._ask("GET", "/_held")["held"]

    def release(self, name: str) -> None:
        self._ask("POST", f"/_release/{quote(name, safe='')}")

    def reset(self) -> None:
        self._ask("POST", "/_reset")

    def _ask(self, method: str, path: str) -> dict[str, Any]:
        with urlopen(Request(self._root + path, method=method), timeout=10) as reply:
            return json.load(reply)
