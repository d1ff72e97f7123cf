"""What operations are handed of the house."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from threadkeep.storage.port import Storage

if TYPE_CHECKING:  # agents import model adapters and the deployer's code; only those who build an App need them
    from threadkeep.agents import Registry
    from threadkeep.http.executions import Executions
    from threadkeep.http.workers import Workers
    from threadkeep.models.registry import Models
    from threadkeep.turn.delegation.orders import Delegator


@dataclass(frozen=True, slots=True)
class App:
    """The adapters that `threadkeep.bootstrap` wired, one per process.

    Without `workers` nothing can be sent to a thread, and nobody can subscribe to one. Without a `delegator`
    sub-agents run in the process of their supervisor. Without `executions` there are no durable runs.
    """

    storage: Storage
    registry: "Registry"
    models: "Models"
    workers: "Workers | None" = None
    delegator: "Delegator | None" = None
    executions: "Executions | None" = None
