"""Every error that Threadkeep raises on purpose, and the HTTP status that each becomes.

The tree::

    ThreadkeepError                 500
    ├── ConfigurationError          500   the deployment or an agent is set up wrongly
    ├── InvalidInput                400   names each field and the rule it broke
    ├── Unauthenticated             401   no credential, or one that is wrong or expired
    ├── AccessDenied                403   the thread belongs to another resource
    ├── NotFound                    404
    ├── Conflict                    409   the state of the store does not allow it
    │   ├── ThreadGone              409   deleted, or being deleted, while the call ran
    │   ├── DeadlineExceeded        409   a buffered run took too long; nothing was stored
    │   ├── RunEnded                409   the durable run of a commit was cancelled or is over
    │   └── StillRunning            409   the same request is being answered; carries Retry-After
    ├── VersionMismatch             409   another version is stored than the writer knew; carries it
    │   └── PreconditionFailed      412   the same, where the request named the version in If-Match
    ├── TooLarge                    413
    ├── KeyReused                   422   an Idempotency-Key came with another request before
    ├── ModelRejected               424   the model refuses the request; repeating cannot help
    ├── ProcessorFailed             424   a processor of the agent failed
    ├── OutputInvalid               424   the answer breaks the schema that it had to follow
    ├── ToolFailed                  424   a tool that was called directly raised an error
    ├── ModelUnavailable            503   the model is down, busy or too slow; repeating may help
    └── StoreUnavailable            503   the store is busy or unreachable; repeating may help

Clients repeat every 5xx, so what repeating cannot mend is always a 4xx.
"""

from dataclasses import dataclass
from typing import ClassVar


class ThreadkeepError(Exception):
    """Base of all of them. `str(error)` is safe to show to the caller."""

    status: ClassVar[int] = 500


class ConfigurationError(ThreadkeepError):
    pass


@dataclass(frozen=True, slots=True)
class Issue:
    """One broken rule. `field` is a dotted path, `root` for the whole, `body` for unparsable JSON."""

    field: str
    message: str


class InvalidInput(ThreadkeepError):
    """Input that breaks a rule. `where` is `request body`, `query parameters` or `path parameters`."""

    status = 400

    def __init__(self, *issues: Issue, where: str = "request body", summary: str | None = None):
        self.issues = issues
        self.where = where
        self.summary = summary or f"Invalid {where}"
        super().__init__(self.summary + "".join(f"; {i.field}: {i.message}" for i in issues))


class Unauthenticated(ThreadkeepError):
    status = 401

    def __init__(self, message: str = "Invalid or expired token"):
        super().__init__(message)


class AccessDenied(ThreadkeepError):
    """The message is constant, so that nothing about the other owner leaks."""

    status = 403

    def __init__(self, message: str = "Access denied: thread belongs to a different resource"):
        super().__init__(message)


class NotFound(ThreadkeepError):
    status = 404


class Conflict(ThreadkeepError):
    status = 409


class ThreadGone(Conflict):
    def __init__(self, thread_id: str):
        super().__init__(f"Thread {thread_id} was deleted or is being deleted")


class DeadlineExceeded(Conflict):
    pass


class RunEnded(Conflict):
    def __init__(self) -> None:
        super().__init__("The run was cancelled or is over")


class StillRunning(Conflict):
    """`retry_after` is in seconds."""

    def __init__(self, retry_after: int):
        self.retry_after = retry_after
        super().__init__("The same request is still being answered; repeat it later")


class VersionMismatch(ThreadkeepError):
    """`version` is the one that is stored."""

    status = 409

    def __init__(self, version: int, message: str = ""):
        self.version = version
        super().__init__(message or f"Another version is stored: {version}")


class PreconditionFailed(VersionMismatch):
    status = 412


class TooLarge(ThreadkeepError):
    status = 413


class KeyReused(ThreadkeepError):
    status = 422

    def __init__(self) -> None:
        super().__init__("Idempotency-Key was used with another request before")


class ModelRejected(ThreadkeepError):
    status = 424


class ProcessorFailed(ThreadkeepError):
    """The message names the processor, not what it raised: that is in the log (PR-8)."""

    status = 424


class OutputInvalid(ThreadkeepError):
    """`problem` has one line per mistake: `- path: reason` (LOOP-11)."""

    status = 424

    def __init__(self, problem: str):
        super().__init__(f"STRUCTURED_OUTPUT_SCHEMA_VALIDATION_FAILED: the answer breaks the schema\n{problem}")


class ToolFailed(ThreadkeepError):
    status = 424


class ModelUnavailable(ThreadkeepError):
    status = 503


class StoreUnavailable(ThreadkeepError):
    status = 503
