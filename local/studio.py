"""Mastra Studio at `/studio` of a front door: the official pages from npm, their placeholders filled (spec-http 5).

Studio is no part of this project: `fetch` gets it on the user's behalf, by hash. It asks the address that it comes
from, so a front door must also pass its requests on. Studio keeps no credential over a reload; the door adds one to
requests that a page of its own sends, and to no others.
"""

import asyncio
import base64
import hashlib
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import URL, Headers
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from local import node
from local.stack import ROOT

VERSION = "1.31.0"
INTEGRITY = "sha512-cEGsDuZGsHmhX/+R9JiTFiUhYIAe2BMdnUMGKOqvkUEZeThsV6pY+xUawuxI0Lg5fuzQ3fKMFJpduDpTz+KSyQ=="
HOME = ROOT / ".local/studio" / VERSION
BASE_PATH = "/studio"

_INSIDE = "package/dist/studio/"
_PLACEHOLDER = re.compile(r"%%(MASTRA_\w+)%%")
_VALUES = {
    "MASTRA_STUDIO_BASE_PATH": BASE_PATH,
    "MASTRA_AUTO_DETECT_URL": "true",
    "MASTRA_API_PREFIX": "/api",
    "MASTRA_AGENT_SIGNALS": "true",  # Studio falls back to plain streams where the API has no subscriptions
    "MASTRA_TELEMETRY_DISABLED": "true",
    "MASTRA_HIDE_CLOUD_CTA": "true",
}
_NO_PAGES = re.compile(r"assets/|refresh-events$")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_UNFRAMED = {"content-security-policy": "frame-ancestors 'none'", "cache-control": "no-store"}

Say = Callable[[str], None]


class StudioError(Exception):
    """Studio cannot be had. The text says why."""


def fetch(say: Say, home: Path = HOME, integrity: str = INTEGRITY) -> None:
    """Get Studio's files into `home` unless they are there. No script of the package runs.

    Raises `StudioError` where the archive is not the one with this hash, `NodeError` where npm cannot get it.
    """
    if home.exists():
        return
    say(f"Fetching Mastra Studio {VERSION} from npm")
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        archive = node.pack(f"mastra@{VERSION}", Path(scratch))
        if _integrity(archive) != integrity:
            raise StudioError(f"mastra {VERSION} from npm is not the archive that was tested: {_integrity(archive)}")
        unpack(archive, Path(scratch) / "unpacked")
        shutil.move(Path(scratch) / "unpacked" / _INSIDE, home)


def _integrity(archive: Path) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()


def unpack(archive: Path, folder: Path) -> None:
    """Studio's files out of the package, at their paths in it."""
    with tarfile.open(archive) as package:
        members = [member for member in package.getmembers() if member.name.startswith(_INSIDE)]
        package.extractall(folder, members, filter="data")


def filled(page: str) -> str:
    """A page with its placeholders filled; those that nothing is known of become empty."""
    return _PLACEHOLDER.sub(lambda found: _VALUES.get(found[1], ""), page)


def pages(home: Path) -> Starlette:
    """Studio's files. Every path that is none of them is one of the paths within its page."""

    async def page(request: Request) -> Response:
        path = request.path_params.get("path", "")
        file = (home / path).resolve()
        if file.is_relative_to(home) and file.is_file() and file.name != "index.html":
            return FileResponse(file)
        if _NO_PAGES.match(path):
            return JSONResponse({"error": "Not Found"}, 404)
        return HTMLResponse(filled((home / "index.html").read_text()), headers=_UNFRAMED)

    return Starlette(routes=[Route(BASE_PATH, page), Route(BASE_PATH + "/{path:path}", page)])


def with_studio(door: ASGIApp, credential: Callable[[], str], home: Path = HOME) -> ASGIApp:
    """`door` with Studio before it, once Studio was fetched. `credential` is a bearer's; an empty one is not sent."""
    studio, fetched = pages(home), home.exists

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not fetched():
            await door(scope, receive, send)
        elif re.match(rf"{BASE_PATH}(/|$)", scope["path"]):
            await studio(scope, receive, send)
        elif scope["path"] == "/":  # Studio asks here whether there is anybody
            await RedirectResponse(BASE_PATH)(scope, receive, send)
        else:
            own = sent_by_our_page(Headers(scope=scope))
            token = await asyncio.to_thread(credential) if own else ""
            added = [(b"authorization", f"Bearer {token}".encode())] if token else []
            await door(dict(scope) | {"headers": [*scope["headers"], *added]}, receive, send)

    return served


def sent_by_our_page(headers: Headers) -> bool:
    """Whether a page that came from this very door sends a request that has no credential yet.

    Browsers let no page set `Sec-Fetch-Site`. A foreign name for this address could make a foreign page look
    like ours, so the name must be this machine's own.
    """
    host = URL(f"http://{headers.get('host', '')}").hostname
    return headers.get("sec-fetch-site") == "same-origin" and host in _LOOPBACK and "authorization" not in headers
