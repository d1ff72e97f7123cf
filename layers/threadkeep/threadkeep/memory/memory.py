"""`Memory`: what a deployer gives an agent so that it remembers."""

from typing import Any

from threadkeep.memory.options import MemoryOptions, configured
from threadkeep.storage.port import Storage


class Memory:
    """Which parts of memory an agent uses, and how.

    Keyword arguments are the fields of `MemoryOptions`, for example
    `Memory(last_messages=20, generate_title=True)`. `storage` None means the deployment's table; it is
    looked up for each turn and never kept here, so one Memory may serve many agents (case H04).
    Raises `ConfigurationError` for an option that does not exist or breaks a rule.
    """

    def __init__(self, *, storage: Storage | None = None, **options: Any):
        self.storage = storage
        self.options: MemoryOptions = configured(options)
