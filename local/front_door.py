"""The one address of the local stack: an ASGI app that hands requests to the deployed REST API.

On AWS clients talk to API Gateway itself. The emulator's gateway cannot stream, so the streaming routes are
served here, by the app that serves them on AWS, behind the same authorizer; the rest is passed on.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from local.studio import with_studio
from threadkeep import bootstrap
from threadkeep.config import settings
from threadkeep.errors import Unauthenticated
from threadkeep.http import authorizer
from threadkeep.http.asgi import StreamApp
from threadkeep.http.routes import ROUTES

CORS = {"access-control-allow-origin": "*"}
SILENT = "The local stack does not answer; start it with make up"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "host", "content-length", "accept-encoding",
}  # fmt: skip


def passed_on(name: str) -> bool:
    """Whether a header crosses the door. `x-amzn-*` carries the caller's identity on AWS: no caller may send it."""
    return name not in HOP_BY_HOP and not name.startswith("x-amzn-")


def create_app(api_url: Callable[[], str], silent: str = SILENT, *, trust_env: bool = False) -> Starlette:
    """The front door to the API whose base URL `api_url` gives; it is asked again for each request.

    `silent` is what callers are told where the API does not answer. With `trust_env` it may be beyond a proxy.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with httpx.AsyncClient(timeout=120, trust_env=trust_env) as app.state.client:
            yield

    async def proxy(request: Request) -> Response:
        raw_path = request.scope.get("raw_path") or request.url.path.encode()
        target = httpx.URL(api_url())
        query = b"?" + request.scope["query_string"] if request.scope["query_string"] else b""
        target = target.copy_with(raw_path=target.raw_path.rstrip(b"/") + raw_path + query)
        headers = [(name, value) for name, value in request.headers.items() if passed_on(name)]
        client: httpx.AsyncClient = request.app.state.client
        try:
            passed = httpx.Request(request.method, target, headers=headers, content=await request.body())
            answer = await client.send(passed, stream=True)
            response = await delivered(answer)
        except httpx.HTTPError:
            return JSONResponse({"error": silent}, 503)
        for name, value in answer.headers.multi_items():
            if passed_on(name) and name not in ("date", "server", "content-encoding"):
                response.headers.append(name, value)
        return response

    async def refused(_: Request, error: Exception) -> Response:
        """What no route takes, such as a path with a line break in it, is refused in JSON too."""
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    routes = [Route("/{path:path}", proxy, methods=METHODS)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refused})


async def delivered(answer: httpx.Response) -> Response:
    """The body of an answer: events as they come, all else in one piece."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        await answer.aread()
        return Response(answer.content, answer.status_code)

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            async for piece in answer.aiter_bytes():
                yield piece
        finally:
            await answer.aclose()

    return StreamingResponse(pieces(), answer.status_code)


def with_streams(proxy: ASGIApp, streams: StreamApp) -> ASGIApp:
    """`streams` for the routes that are its own, `proxy` for all others."""

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        if streams.match(scope) is None:
            await proxy(scope, receive, send)
            return
        try:
            context = await asyncio.to_thread(authorized, Headers(scope=scope).get("authorization", ""))
        except Unauthenticated as error:
            await JSONResponse({"error": str(error)}, error.status, CORS)(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if passed_on(name.decode("latin-1"))]
        headers.append((b"x-amzn-request-context", json.dumps({"authorizer": context}).encode()))
        await streams(dict(scope) | {"headers": headers}, receive, send)

    return door


def authorized(credential: str) -> dict[str, str]:
    """What the deployed authorizer would tell of a caller. Raises `Unauthenticated`."""
    event = {"headers": {"authorization": credential}, "methodArn": "local/stage/POST/"}
    try:
        return authorizer.authorize(event)["context"]
    except Exception as error:  # API Gateway's way of being told "no"
        if str(error) != "Unauthorized":
            raise
        raise Unauthenticated from None


def main() -> None:
    """Arguments: the port, and the folder of the stack's state, which holds its record (see `local.stack`)."""
    port, home = sys.argv[1:]
    record = Path(home) / "stack.json"
    proxy = create_app(lambda: json.loads(record.read_text())["api_url"])
    door = with_streams(proxy, StreamApp(tuple(route for route in ROUTES if route.streams), bootstrap.app))
    app = with_studio(door, lambda: authorizer.service_key(settings().service_key_secret))
    uvicorn.run(app, host="127.0.0.1", port=int(port), access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
