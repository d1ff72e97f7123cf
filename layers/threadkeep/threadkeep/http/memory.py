"""Every route below /api/memory, and those that clients of agent networks reach by a second name."""

from dataclasses import replace

from threadkeep.http import clone, messages, saving, status, threads
from threadkeep.http.route import Table

_PREFIX = "/api/memory/"
_NETWORK_PREFIX = "/api/memory/network/"
_NETWORK = frozenset(
    ("status", "threads", "threads/{threadId}", "threads/{threadId}/messages", "save-messages", "messages/delete")
)

_OWN: Table = (*status.ROUTES, *threads.ROUTES, *clone.ROUTES, *messages.ROUTES, *saving.ROUTES)


def _aliases(table: Table) -> Table:
    """The routes that have a second name, under it, with the same operations."""
    paths = [(route, route.path.removeprefix(_PREFIX)) for route in table]
    return tuple(replace(route, path=_NETWORK_PREFIX + path) for route, path in paths if path in _NETWORK)


ROUTES: Table = (*_OWN, *_aliases(_OWN))
