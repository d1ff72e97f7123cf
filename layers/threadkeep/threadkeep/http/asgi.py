"""The streaming routes as an ASGI app: behind the Lambda Web Adapter on AWS, in the front door locally (DESIGN 11).

Framing is what `@mastra/client-js` reads (spec-http 3): one JSON object in each block that begins with
`data: `, comments that begin with `:`, and `data: [DONE]` at the end. A comment is sent every 15 seconds, so
that no proxy takes a thinking model for a dead one. When the client hangs up, the run behind it ends.
"""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, MutableMapping
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qs

from threadkeep import clock, jsontext
from threadkeep.errors import TooLarge
from threadkeep.http import identity
from threadkeep.http.app import App
from threadkeep.http.chunks import Chunk
from threadkeep.http.route import Request, Route, Table
from threadkeep.http.serve import CORS, MAX_REQUEST_BYTES, Reply, failed, opened

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEARTBEAT_SECONDS = 15.0
_CONTEXT = "x-amzn-request-context"  # the gateway's request context; front doors remove it from what clients send
_STREAM = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
    *CORS.items(),
)


class StreamApp:
    """An ASGI app for the routes of one table that stream. `app` is called for each request and caches."""

    def __init__(self, table: Table, app: Callable[[], App], *, heartbeat: float = HEARTBEAT_SECONDS):
        self._table = table
        self._app = app
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = self.match(scope)
        if match is None:
            await _answer(send, Reply(404, jsontext.dumps({"error": "Not Found"})))
            return
        try:
            request = _request(scope, match[1], await _body(receive))
            gone = asyncio.create_task(_gone(receive))
            chunks = await _unless(gone, opened(match[0], request, self._app()))
        except Exception as error:  # refused before anything ran: an ordinary reply
            await _answer(send, failed(error, str(uuid.uuid4())))
            return
        if chunks is not None:
            await send({"type": "http.response.start", "status": 200, "headers": _encoded(_STREAM)})
            await self._pour(chunks, gone, send)

    def match(self, scope: Scope) -> tuple[Route[Any, Any, Any], dict[str, str]] | None:
        """The route of a request and its raw path parameters; None if it is not one of these routes."""
        if scope["type"] != "http":
            return None
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        for route, pattern in self._patterns:
            if route.method == scope["method"] and (found := pattern.fullmatch(path)):
                return route, found.groupdict()
        return None

    @cached_property
    def _patterns(self) -> list[tuple[Route[Any, Any, Any], re.Pattern[str]]]:
        return [(r, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", r.path))) for r in self._table]

    async def _pour(self, chunks: AsyncGenerator[Chunk | str], gone: asyncio.Task[None], send: Send) -> None:
        """Send chunks as they come, comments while none comes, and nothing more once the client has gone."""
        waiting = asyncio.create_task(anext(chunks, None))
        try:
            while not gone.done():
                done, _ = await asyncio.wait(
                    {gone, waiting}, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED
                )
                if waiting in done:
                    chunk = waiting.result()
                    if chunk is None:
                        await _send(send, "data: [DONE]\n\n", more=False)
                        return
                    await _send(send, _block(chunk))
                    waiting = asyncio.create_task(anext(chunks, None))
                elif not done:
                    await _send(send, ": heartbeat\n\n")
        finally:
            gone.cancel()
            waiting.cancel()
            await asyncio.wait({gone, waiting})
            await chunks.aclose()


def _block(told: Chunk | str) -> str:
    """A chunk, or a comment, as it is sent."""
    return f": {told}\n\n" if isinstance(told, str) else f"data: {jsontext.dumps(told)}\n\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless(gone: asyncio.Task[None], opening: Coroutine[Any, Any, T]) -> T | None:
    """What is opened; None if the client has gone before: a request that waits for another may wait for long."""
    task = asyncio.create_task(opening)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        if not task.done() or task.cancelled() or task.exception() is not None:
            task.cancel()
            gone.cancel()
            await asyncio.wait({gone, task})


async def _send(send: Send, text: str, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": more})


async def _answer(send: Send, reply: Reply) -> None:
    headers = (("content-type", "application/json"), *CORS.items(), *reply.headers.items())
    await send({"type": "http.response.start", "status": reply.status, "headers": _encoded(headers)})
    await _send(send, reply.body, more=False)


def _encoded(headers: tuple[tuple[str, str], ...]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def _body(receive: Receive) -> bytes:
    """The request's body. Raises `TooLarge` before it holds more than a request may have."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_REQUEST_BYTES:
            raise TooLarge("Request body too large")
    return body


def _request(scope: Scope, path: dict[str, str], body: bytes) -> Request:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    context: dict[str, Any] = json.loads(headers.get(_CONTEXT) or "{}")
    return Request(
        path=path,
        query=parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True),
        headers=headers,
        body=body,
        identity=identity.from_authorizer(context.get("authorizer")),
        arrived=int(context.get("requestTimeEpoch") or clock.now()),
    )
