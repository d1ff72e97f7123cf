"""From a request to the JSON that answers it, the same for every front (API Gateway, ASGI)."""

from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from threadkeep import ids, jsontext
from threadkeep.errors import InvalidInput, Issue, ThreadkeepError, TooLarge
from threadkeep.http import errors, query
from threadkeep.http.app import App
from threadkeep.http.logs import logger
from threadkeep.http.route import Answer, Call, NoBody, Request, Route, Told
from threadkeep.jsontext import Json

MAX_REQUEST_BYTES = 4_718_592  # 4.5 MiB
MAX_DEPTH = 100  # of nested arrays and objects
CORS = {"access-control-allow-origin": "*", "access-control-expose-headers": "Retry-After,ETag"}

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Reply:
    """`body` is JSON text; `headers` are those that the answer itself needs, their names in lower case."""

    status: int
    body: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


async def serve(route: Route[Any, Any, Any], request: Request, app: App) -> Reply:
    """Check the request, run the operation and write its answer as JSON text. Errors are raised, for `failed`.

    An operation may also answer with the JSON itself, as dicts and lists in wire spelling.
    """
    found = await cast(Awaitable[Any], route.operation(_checked(route, request, app)))
    answer = cast(Answer[Any], found) if isinstance(found, Answer) else Answer(found)
    plain = _adapter(route.reply).dump_python(answer.body, by_alias=True, exclude_unset=True, warnings=False)
    return Reply(route.status, jsontext.dumps(plain), answer.headers)


async def opened(route: Route[Any, Any, Any], request: Request, app: App) -> AsyncGenerator[Told]:
    """The chunks of a streaming operation, once it has begun: what refuses the request is raised before."""
    told = cast(AsyncGenerator[Told], route.operation(_checked(route, request, app)))
    first = await anext(told)

    async def all_of() -> AsyncGenerator[Told]:
        async with aclosing(told):
            yield first
            async for chunk in told:
                yield chunk

    return all_of()


def failed(error: Exception, request_id: str) -> Reply:
    """The reply to an error. One that is our own fault is logged; an unforeseen one says nothing but the id."""
    foreseen = isinstance(error, ThreadkeepError)
    status, body = errors.reply(error) if foreseen else (500, {"error": "Internal error"})
    if status >= 500:
        logger().error("request failed", exc_info=error, extra={"fields": {"requestId": request_id}})
        body["requestId"] = request_id
    return Reply(status, jsontext.dumps(body), errors.headers(error))


def _checked(route: Route[Any, Any, Any], request: Request, app: App) -> Call[Any, Any]:
    return Call(
        path={name: ids.from_path(name, raw) for name, raw in request.path.items()},
        query=parsed(route.query, _query(route, request), "query parameters"),
        body=None if route.body is NoBody else parsed(route.body, _json(request, route.content_types), "request body"),
        raw=request.body,
        headers=request.headers,
        identity=request.identity,
        arrived=request.arrived,
        app=app,
    )


def _query(route: Route[Any, Any, Any], request: Request) -> Json:
    return query.parsed(query.nested(request.query), route.query.json_fields)


def _json(request: Request, content_types: tuple[str, ...]) -> Json:
    """The body as JSON. Raises `TooLarge`, or `InvalidInput` naming `body` for what is not JSON."""
    if len(request.body) > MAX_REQUEST_BYTES:
        raise TooLarge("Request body too large")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in content_types:
        wanted = " or ".join(content_types)
        raise InvalidInput(Issue("body", f"content-type must be {wanted}, received {media_type or 'none'}"))
    try:
        body = jsontext.loads(request.body)
    except ValueError as error:  # broken UTF-8 is one too
        raise InvalidInput(Issue("body", f"is not JSON: {error}")) from error
    if (depth := jsontext.depth(body)) > MAX_DEPTH:
        raise InvalidInput(Issue("body", f"must be nested at most {MAX_DEPTH} deep, received {depth}"))
    return body


def parsed(model: type[M], given: Json, where: str) -> M:
    """Input as its model has it. Raises `InvalidInput` naming each field that breaks a rule."""
    try:
        return _adapter(model).validate_python(given, by_alias=True, by_name=False)
    except ValidationError as error:
        raise errors.invalid(error, given, where) from error


@cache
def _adapter(model: type[M]) -> TypeAdapter[M]:
    return TypeAdapter(model)
