"""A server on 127.0.0.1 for the Python client: the real operations of a house, and streams as the API frames them."""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.unit.http.house import SERVICE, House, user
from threadkeep.http import stream
from threadkeep.http.asgi import StreamApp
from threadkeep.http.route import Route as Entry
from threadkeep.http.routes import ROUTES

KEY = "the-service-key"
Pieces = Callable[[], AsyncGenerator[bytes]]


class Door:
    """`url` leads to `house`. `seen` keeps method, raw path, headers and body of each request.

    `streams` has the bytes of an agent's stream. Without any the server has no such route, unless `real_streams`:
    then that of the house. `hung_up` is set once a client has left one of `streams` before its end.
    """

    def __init__(self) -> None:
        self.house = House()
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.streams: dict[str, Pieces] = {}
        self.real_streams = False
        self.hung_up = threading.Event()
        self._alone = threading.Lock()
        app = Starlette(routes=[Route("/{path:path}", self._serve, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])])
        asgi = self._streaming(app)
        quiet: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_level": "critical"}
        config = uvicorn.Config(asgi, host="127.0.0.1", port=0, timeout_graceful_shutdown=1, **quiet)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> "Door":
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()  # a thread that stays would keep the whole run from ending

    def reset(self) -> None:
        self.__dict__.update(house=House(), seen=[], streams={}, real_streams=False, hung_up=threading.Event())

    def _streaming(self, app: Starlette) -> Any:
        streams = StreamApp(stream.ROUTES, lambda: self.house.app)

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            if not self.real_streams or streams.match(scope) is None:
                return await app(scope, receive, send)
            context = (b"x-amzn-request-context", json.dumps({"authorizer": SERVICE}).encode())
            await streams({**scope, "headers": [*scope["headers"], context]}, receive, send)

        return serve

    async def _serve(self, request: Request) -> Response:
        raw_path, body = request.scope["raw_path"].decode(), await request.body()
        self.seen.append((request.method, raw_path, dict(request.headers), body))
        for agent, pieces in self.streams.items():
            if raw_path == f"/api/agents/{agent}/stream":
                return StreamingResponse(self._watched(pieces()), media_type="text/event-stream")
        found = None if raw_path.endswith("/stream") else _match(request.method, raw_path)
        if found is None:
            return JSONResponse({"error": "Not Found"}, 404)
        entry, path = found
        caller = _caller(request.headers.get("authorization", ""))
        if caller is None and not entry.public:
            return JSONResponse({"error": "Invalid or expired token"}, 401)
        event = {
            "httpMethod": request.method,
            "resource": entry.path,
            "pathParameters": path,
            "multiValueQueryStringParameters": parse_qs(request.scope["query_string"].decode(), keep_blank_values=True),
            "headers": dict(request.headers),
            "body": body.decode() or None,
            "requestContext": {"authorizer": caller},
        }
        answer = await asyncio.to_thread(self._answer, event)
        return Response(answer["body"], answer["statusCode"], answer["headers"])

    def _answer(self, event: dict[str, Any]) -> dict[str, Any]:
        with self._alone:  # one event loop serves all requests of the handler
            return self.house.handler(event, None)

    async def _watched(self, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        ended, hung_up = False, self.hung_up
        try:
            async for piece in pieces:
                yield piece
            ended = True
        finally:
            if not ended:
                hung_up.set()


def _match(method: str, raw_path: str) -> tuple[Entry[Any, Any, Any], dict[str, str]] | None:
    for entry in sorted(ROUTES, key=lambda route: route.path.count("{")):
        found = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", entry.path), raw_path)
        if found and entry.method == method:
            return entry, found.groupdict()
    return None


def _caller(authorization: str) -> dict[str, str] | None:
    token = authorization.removeprefix("Bearer ")
    if token == KEY:
        return SERVICE
    return user(token.removeprefix("user-")) if token.startswith("user-") else None
