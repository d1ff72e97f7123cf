"""Who is calling, and for whom the caller may act (spec-http, "Owner rules")."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from threadkeep import ids
from threadkeep.errors import AccessDenied, Unauthenticated

LEEWAY_SECONDS = 5  # between the clocks of the issuer and of this house

Kind = Literal["service", "user", "anonymous"]


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller: a trusted server with the service key, a user with a token, or nobody (public routes).

    `resource` is the user's own, None for the others. `expires` is in seconds since 1970.
    """

    kind: Kind
    resource: str | None = None
    expires: int | None = None

    def owner(self, requested: str | None) -> str | None:
        """The resource to act for: a user's own, whatever was requested; a service may act for any, or all (None).

        Raises `Unauthenticated` for nobody.
        """
        if self.kind == "anonymous":
            raise Unauthenticated
        return self.resource if self.kind == "user" else requested


ANONYMOUS = Identity("anonymous")


def from_authorizer(context: Mapping[str, Any] | None) -> Identity:
    """The identity that `http.authorizer` put into the request, checked again: gateways cache its answer.

    Raises `Unauthenticated` if there is none or it has expired, `AccessDenied` if the token's subject
    cannot be a resource id.
    """
    match dict(context or {}):
        case {"kind": "service"}:
            return Identity("service")
        case {"kind": "user", "resource": str(resource), "expires": expires}:
            return _user(resource, int(expires))
        case _:
            raise Unauthenticated


def _user(resource: str, expires: int) -> Identity:
    if time.time() >= expires + LEEWAY_SECONDS:
        raise Unauthenticated
    if broken := ids.http_problem(resource):
        raise AccessDenied(f"Access denied: the token's subject cannot be a resourceId, it {broken}")
    return Identity("user", resource, expires)
