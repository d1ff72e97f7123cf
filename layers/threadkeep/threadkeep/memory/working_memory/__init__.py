"""Working memory: facts about a user or a task that an agent keeps, updates itself and always sees."""

from threadkeep.memory.working_memory.invalid import Invalid

__all__ = ["Invalid"]
