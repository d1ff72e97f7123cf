"""Whether the house answers."""

from threadkeep.http import wire
from threadkeep.http.route import Call, NoBody, Route


class Health(wire.Reply):
    success: bool


async def health(call: Call[wire.Query, None]) -> Health:
    """Answers without touching the store."""
    return Health(success=True)


ROUTES = (
    Route(
        method="GET",
        path="/health",
        function="agents",
        operation=health,
        query=wire.Query,
        body=NoBody,
        reply=Health,
        summary="Health check",
        public=True,
    ),
)
