"""What Mastra Studio asks for at start (spec-http 2.1, 2.6): who calls, and what is there and what is not.

Studio has pages for features that this service does not have. Each of them is answered as a Mastra server answers
that has the feature and nothing in it: an empty list is quicker for a page than an error that it repeats.
"""

from typing import Any

from threadkeep.http import wire
from threadkeep.http.route import Call, NoBody, Route, Table
from threadkeep.jsontext import Json

NOTHING: dict[str, tuple[str, dict[str, Json] | list[Json]]] = {
    "/api/workflows": ("workflows", {}),
    "/api/processors": ("configured processors", {}),
    "/api/scores/scorers": ("scorers", {}),
    "/api/mcp/v0/servers": ("MCP servers", {"servers": [], "total_count": 0, "next": None}),
    "/api/workspaces": ("workspaces", {"workspaces": []}),
    "/api/channels/platforms": ("channels", []),
    "/api/experiments/review-summary": ("reviews of experiments", {"counts": []}),
    "/api/editor/builder/models/available": ("models to choose from", {"providers": []}),
}
NO_ROWS = {  # what they are, the key of the list, and that of the paging where it does not stand beside the list
    "/api/datasets": ("datasets", "datasets", "pagination"),
    "/api/experiments": ("experiments", "experiments", "pagination"),
    "/api/observability/feedback": ("feedback", "feedback", "pagination"),
    "/api/stored/prompt-blocks": ("prompt blocks", "promptBlocks", ""),
}


class Login(wire.Reply):
    """`enabled` tells whether there is a page to sign in on: there is none, credentials come as a header."""

    enabled: bool
    login: None


class User(wire.Reply):
    id: str


class Permissions(wire.Reply):
    patterns: list[str]


class Installed(wire.Reply):
    """The switches by which Studio shows its pages. It looks up every package on npm, so none is named."""

    packages: list[Json]
    is_dev: bool
    cms_enabled: bool
    live_kit_connection_route_enabled: bool
    observability_enabled: bool
    storage_type: str


class BuilderSettings(wire.Reply):
    """Whether agents can be made in Studio: they cannot, agents are code."""

    enabled: bool
    model_policy: dict[str, bool]


class RowsQuery(wire.Query):
    """Paging; filters are ignored, as there is nothing to filter."""

    page: wire.PageNumber = 0
    per_page: wire.PageNumber = 10


async def capabilities(call: Call[wire.Query, None]) -> Login:
    return Login(enabled=False, login=None)


async def current_user(call: Call[wire.Query, None]) -> User | None:
    """The user of a token by the resource that it stands for; null for the service key."""
    owner = call.identity.owner(None)
    return None if owner is None else User(id=owner)


async def list_permission_patterns(call: Call[wire.Query, None]) -> Permissions:
    """The permissions that there are: one, for everything. Whose a thread is decides who may use it."""
    return Permissions(patterns=["*"])


async def installed_packages(call: Call[wire.Query, None]) -> Installed:
    return Installed(
        packages=[],
        is_dev=False,
        cms_enabled=False,
        live_kit_connection_route_enabled=False,
        observability_enabled=False,
        storage_type="DynamoDB",
    )


async def builder_settings(call: Call[wire.Query, None]) -> BuilderSettings:
    return BuilderSettings(enabled=False, model_policy={"active": False})


def _nothing(path: str, what: str, answer: dict[str, Json] | list[Json]) -> Route[Any, Any, Any]:
    async def operation(call: Call[wire.Query, None]) -> Json:
        return answer

    return _get(path, f"list_{_snake(what)}", operation, type(answer), f"List {what}: there are none")


def _no_rows(path: str, what: str, key: str, paging_key: str) -> Route[Any, Any, Any]:
    async def operation(call: Call[RowsQuery, None]) -> Json:
        paging = {"total": 0, "page": call.query.page, "perPage": call.query.per_page, "hasMore": False}
        return {key: [], **({paging_key: paging} if paging_key else paging)}

    return _get(path, f"list_{_snake(what)}", operation, dict, f"List {what}: there are none", RowsQuery)


def _snake(words: str) -> str:
    return words.lower().replace(" ", "_")


def _get(
    path: str, name: str, operation: Any, reply: Any, summary: str, query: type[wire.Query] = wire.Query
) -> Route[Any, Any, Any]:
    operation.__name__ = name
    return Route(
        method="GET",
        path=path,
        function="agents",
        operation=operation,
        query=query,
        body=NoBody,
        reply=reply,
        summary=summary,
    )


ROUTES: Table = (
    Route(
        method="GET",
        path="/api/auth/capabilities",
        function="agents",
        operation=capabilities,
        query=wire.Query,
        body=NoBody,
        reply=Login,
        summary="Tell whether there is a page to sign in on",
        public=True,
    ),
    Route(
        method="GET",
        path="/api/auth/me",
        function="agents",
        operation=current_user,
        query=wire.Query,
        body=NoBody,
        reply=User | None,  # pyright: ignore[reportArgumentType]  pydantic describes unions too
        summary="Read who calls",
    ),
    Route(
        method="GET",
        path="/api/auth/permission-patterns",
        function="agents",
        operation=list_permission_patterns,
        query=wire.Query,
        body=NoBody,
        reply=Permissions,
        summary="List the permissions that there are",
    ),
    Route(
        method="GET",
        path="/api/system/packages",
        function="agents",
        operation=installed_packages,
        query=wire.Query,
        body=NoBody,
        reply=Installed,
        summary="Tell which of its pages Studio may show",
    ),
    Route(
        method="GET",
        path="/api/editor/builder/settings",
        function="agents",
        operation=builder_settings,
        query=wire.Query,
        body=NoBody,
        reply=BuilderSettings,
        summary="Tell whether agents can be made in Studio",
    ),
    *(_nothing(path, what, answer) for path, (what, answer) in NOTHING.items()),
    *(_no_rows(path, *names) for path, names in NO_ROWS.items()),
)
