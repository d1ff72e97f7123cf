"""What an operation is handed, and how one is entered in the route table."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from threadkeep.clock import Millis
from threadkeep.errors import NotFound
from threadkeep.http.app import App
from threadkeep.http.identity import Identity
from threadkeep.jsontext import Json

if TYPE_CHECKING:  # agents are the deployer's code; many functions need none
    from threadkeep.agents import Agent

Q = TypeVar("Q")
B = TypeVar("B")
R = TypeVar("R")

NoBody = type(None)
JSON = "application/json"
Told = dict[str, Json] | str  # what a streaming operation yields: a chunk, or the text of a comment
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request as a front delivers it, nothing checked yet.

    `path` holds the raw path parameters, `query` every value of each parameter (decoded), `headers`
    have lower-case names, `identity` was established by the authorizer, `arrived` is when it came.
    """

    path: Mapping[str, str]
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    identity: Identity
    arrived: Millis


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, B]):
    """A checked request: `path` ids are legal, `query` and `body` are what the route's models made of the input.

    `raw` is the body's text, for request hashes.
    """

    path: Mapping[str, str]
    query: Q
    body: B
    raw: bytes
    headers: Mapping[str, str]
    identity: Identity
    arrived: Millis
    app: App

    def agent(self) -> "Agent":
        """The agent that the path names. Raises `NotFound`."""
        agent_id = self.path["agentId"]
        agent = self.app.registry.get(agent_id)
        if agent is None:
            raise NotFound(f"Agent with id {agent_id} not found")
        return agent


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """What an operation returns where response headers go with the body; their names are in lower case."""

    body: R
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Route(Generic[Q, B, R]):
    """One line of the route table: feeds the gateway, the ASGI app, the template check and openapi.json.

    `path` is as API Gateway's `resource`, `function` the folder under `functions/` that serves it.
    `query`, `body` and `reply` are pydantic models (or types that pydantic can describe); what the
    operation returns is written by `reply`'s aliases. `status` is that of success, `errors` are those it adds to the
    usual 400, 401 and 500. `content_types` are those that a body may have. With `streams` the operation yields
    chunks, JSON objects, and comments, as an async generator; `reply` is then `str`, the text of the event stream.
    """

    method: Method
    path: str
    function: str
    operation: Callable[[Call[Q, B]], Awaitable[R | Answer[R]] | AsyncGenerator[dict[str, Json]] | AsyncGenerator[Told]]
    query: type[Q]
    body: type[B]  # `NoBody` where a body is neither needed nor read
    reply: type[R]
    summary: str
    public: bool = False
    errors: tuple[int, ...] = ()
    content_types: tuple[str, ...] = (JSON,)
    streams: bool = False
    status: int = 200

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.operation.__name__


Table = tuple[Route[Any, Any, Any], ...]
