"""Working memory: an item beside the row of a thread or a resource, written while its version is the one read."""

from threadkeep.errors import NotFound, ThreadGone
from threadkeep.storage import working_memory as rules
from threadkeep.storage.dynamodb import items, requests
from threadkeep.storage.dynamodb.part import Part
from threadkeep.storage.dynamodb.table import Cancelled
from threadkeep.storage.port import MemoryMoved, MemoryTarget, MemoryWrite, WorkingMemory


class WorkingMemories(Part):
    async def get_working_memory(self, target: MemoryTarget) -> WorkingMemory:
        if target.scope == "resource":
            return items.memory_from(await self._table.get(items.memory_key(target)))
        row, memory, _ = await self._with_memory(target.id)
        if row is None or not items.is_ready(row):
            raise NotFound("Thread not found")
        return items.memory_from(memory, items.get_number(row, "createdAt"))

    async def put_working_memory(self, write: MemoryWrite) -> WorkingMemory:
        """The transaction says what stood in its way, so that a write that lost needs no read to go on."""
        thread = rules.guard(write)
        after = rules.written(write.read, write.text, write.writer, self._now())
        put = requests.remember(write.target, write.read, after, thread)
        try:
            await self._table.transact([put, requests.is_alive(thread)] if thread else [put])
        except Cancelled as cancelled:
            if thread and cancelled.failed(1):
                raise ThreadGone(thread.id) from cancelled
            raise MemoryMoved(items.memory_from(cancelled.old(0))) from cancelled
        return after
