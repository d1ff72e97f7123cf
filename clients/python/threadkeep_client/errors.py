"""Every exception of the client.

The tree::

    ThreadkeepError
    ├── ConnectionFailed            no answer, or one that broke off; `sent` tells whether the request may have arrived
    │   └── TimedOut
    ├── UnreadableReply             an answer that is not what the API promises: a proxy's page, for instance
    └── ApiError                    the server said no: `status`, `body`, `issues`, `retry_after`, `request_id`
        ├── InvalidRequest    400   `issues` name each field and the rule that it broke
        ├── Unauthenticated   401
        ├── AccessDenied      403
        ├── NotFound          404
        ├── Conflict          409
        │   └── StillRunning  409   the same request is still being answered
        ├── VersionMismatch   409, 412   somebody else changed it; `version` is the one that is stored now
        ├── TooLarge          413
        ├── KeyReused         422   the Idempotency-Key came with another request before
        ├── RunFailed         424   model, tool or processor refused; sending it again cannot help
        ├── Throttled         429
        └── ServerError       5xx
            └── Unavailable   502, 503, 504   sending it again may help
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx


class ThreadkeepError(Exception):
    """Base of all of them."""


class ConnectionFailed(ThreadkeepError):
    """`sent` is false where no connection was made, so that the request cannot have arrived."""

    def __init__(self, message: str, *, sent: bool):
        self.sent = sent
        super().__init__(message)


class TimedOut(ConnectionFailed):
    pass


class UnreadableReply(ThreadkeepError):
    pass


@dataclass(frozen=True, slots=True)
class Issue:
    """One broken rule. `field` is a dotted path, `root` for the whole, `body` for what is not JSON."""

    field: str
    message: str


class ApiError(ThreadkeepError):
    """An answer with another status than 2xx. `body` is its JSON, or its text where it is none.

    `retry_after` are the seconds of the header, None without one.
    """

    def __init__(self, status: int, body: Any, retry_after: float | None = None):
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.issues = _issues(body)
        self.request_id: str | None = _field(body, "requestId", str)
        super().__init__(_message(status, body) + "".join(f"; {i.field}: {i.message}" for i in self.issues))


class InvalidRequest(ApiError):
    pass


class Unauthenticated(ApiError):
    pass


class AccessDenied(ApiError):
    pass


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    pass


class StillRunning(Conflict):
    pass


class VersionMismatch(ApiError):
    """`version` is the one that is stored, None where the server did not say."""

    @property
    def version(self) -> int | None:
        return _field(self.body, "version", int)


class TooLarge(ApiError):
    pass


class KeyReused(ApiError):
    pass


class RunFailed(ApiError):
    pass


class Throttled(ApiError):
    pass


class ServerError(ApiError):
    pass


class Unavailable(ServerError):
    pass


_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: AccessDenied,
    404: NotFound,
    409: Conflict,
    412: VersionMismatch,
    413: TooLarge,
    422: KeyReused,
    424: RunFailed,
    429: Throttled,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def refusal(response: httpx.Response) -> ApiError:
    """The exception for an answer with another status than 2xx. Its body must have been read."""
    body, retry_after = _body(response), _seconds(response.headers.get("retry-after"))
    kind = _BY_STATUS.get(response.status_code, ServerError if response.status_code >= 500 else ApiError)
    if kind is Conflict and _field(body, "version", int) is not None:
        kind = VersionMismatch
    elif kind is Conflict and retry_after is not None:
        kind = StillRunning
    return kind(response.status_code, body, retry_after)


@contextmanager
def translated() -> Generator[None]:
    """Raise what the HTTP library raises as exceptions of this module."""
    try:
        yield
    except httpx.DecodingError as error:
        raise UnreadableReply(f"The answer cannot be decoded: {error}") from error
    except (httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise TimedOut("No connection could be made in time", sent=False) from error
    except httpx.ConnectError as error:
        raise ConnectionFailed(f"No connection could be made: {_reason(error)}", sent=False) from error
    except httpx.TimeoutException as error:
        raise TimedOut("No answer came in time", sent=True) from error
    except httpx.TransportError as error:
        raise ConnectionFailed(f"The connection broke: {_reason(error)}", sent=True) from error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text


def _message(status: int, body: Any) -> str:
    said: str | None = _field(body, "error", str) or _field(body, "message", str)
    return said if said is not None else f"The server answered {status}"


def _issues(body: Any) -> tuple[Issue, ...]:
    rows: list[Any] = _field(body, "issues", list) or []
    return tuple(
        Issue(_field(row, "field", str) or "root", _field(row, "message", str) or "breaks a rule") for row in rows
    )


def _field(body: Any, name: str, kind: type[Any]) -> Any:
    """The body's field, None unless it is there and of this kind."""
    value = body.get(name) if isinstance(body, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return value if isinstance(value, kind) else None  # pyright: ignore[reportUnknownVariableType]


def _seconds(header: str | None) -> float | None:
    """The other form of the header, a date, is not used by the server."""
    return float(header) if header is not None and header.isascii() and header.isdigit() else None
