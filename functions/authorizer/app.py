"""Lambda authorizer: who is calling."""

from typing import Any

from threadkeep.http.authorizer import authorize


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    return authorize(event)
