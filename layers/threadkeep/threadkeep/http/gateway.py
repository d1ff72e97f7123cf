"""API Gateway's REST proxy event in, its response out."""

import asyncio
import base64
import json
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any

from threadkeep import clock
from threadkeep.errors import InvalidInput, Issue, NotFound, TooLarge
from threadkeep.http import identity
from threadkeep.http.app import App
from threadkeep.http.route import Request, Route, Table
from threadkeep.http.serve import CORS, MAX_REQUEST_BYTES, Reply, failed, serve
from threadkeep.http.size import MAX_REPLY_BYTES

Event = dict[str, Any]
Handler = Callable[[Event, object], dict[str, Any]]

_HEADERS = {"content-type": "application/json", **CORS}


def handler(table: Table, app: Callable[[], App]) -> Handler:
    """A Lambda handler for the routes of one function.

    The gateway has matched the route already, so an event is dispatched by its method and resource.
    Routes that stream are not for a handler (see `http.asgi`). `app` is called on each invocation and is
    expected to cache. Invocations of one process share one event loop, so that clients keep their connections.
    """
    routes = {(route.method, route.path): route for route in table if not route.streams}

    def handle(event: Event, context: object) -> dict[str, Any]:
        return _runner().run(_answer(routes.get((event["httpMethod"], event["resource"])), event, app))

    return handle


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


async def _answer(route: Route[Any, Any, Any] | None, event: Event, app: Callable[[], App]) -> dict[str, Any]:
    try:
        if route is None:
            raise NotFound("Not Found")
        return _response(_bounded(await serve(route, _request(route, event), app()), route))
    except Exception as error:
        return _response(failed(error, _request_id(event)))


def _request(route: Route[Any, Any, Any], event: Event) -> Request:
    single: dict[str, str] = event.get("queryStringParameters") or {}
    headers: dict[str, str] = event.get("headers") or {}
    return Request(
        path=event.get("pathParameters") or {},
        query=event.get("multiValueQueryStringParameters") or {name: [value] for name, value in single.items()},
        headers={name.lower(): value for name, value in headers.items()},
        body=_body(event),
        identity=identity.ANONYMOUS if route.public else identity.from_authorizer(_context(event).get("authorizer")),
        arrived=int(_context(event).get("requestTimeEpoch") or clock.now()),
    )


def _context(event: Event) -> dict[str, Any]:
    return event.get("requestContext") or {}


def _body(event: Event) -> bytes:
    text: str = event.get("body") or ""
    if not event.get("isBase64Encoded"):
        return text.encode("utf-8", "surrogatepass")
    if len(text) > MAX_REQUEST_BYTES * 4 // 3 + 4:
        raise TooLarge("Request body too large")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidInput(Issue("body", "is not base64")) from error


def _request_id(event: Event) -> str:
    return str(_context(event).get("requestId") or uuid.uuid4())


def _bounded(reply: Reply, route: Route[Any, Any, Any]) -> Reply:
    """The reply, or `TooLarge`. What counts is the body's size as a string inside Lambda's own JSON."""
    body = reply.body
    if len(body) * 8 > MAX_REPLY_BYTES and len(json.dumps(body, ensure_ascii=False).encode()) > MAX_REPLY_BYTES:
        paged = "per_page" in getattr(route.query, "model_fields", {})
        advice = "ask for fewer rows with perPage" if paged else "it cannot be sent in one piece"
        raise TooLarge(f"Reply too large: {advice}")
    return reply


def _response(reply: Reply) -> dict[str, Any]:
    headers = {**_HEADERS, **reply.headers}
    return {"statusCode": reply.status, "headers": headers, "body": reply.body, "isBase64Encoded": False}
