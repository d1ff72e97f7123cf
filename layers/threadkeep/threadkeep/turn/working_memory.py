"""The working memory of one run: what it shows, and the tool by which the model changes it (WM-8 to WM-15).

The model's write happens at once, in one conditional request; the next step already sees it. It is not part
of the turn's transaction: a run that fails afterwards stores no message, but what the model was told is
written stays written.
"""

import asyncio
from dataclasses import dataclass

from threadkeep.jsontext import Json
from threadkeep.memory.working_memory import writing
from threadkeep.memory.working_memory.invalid import Invalid
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.tool import tool_form
from threadkeep.memory.working_memory.updates import ToolUpdate, by_tool
from threadkeep.storage.port import MemoryTarget, Storage, Thread, TurnState, WorkingMemory
from threadkeep.turn.tools import Tool, ToolContext, ToolInputInvalid


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Whose working memory a run uses, and how; `is_writable` tells whether the model gets the tool."""

    target: MemoryTarget
    options: WorkingMemoryOptions
    is_writable: bool


class RunMemory:
    """A working memory while a run uses it. `current` is what the run has read or written last."""

    def __init__(self, plan: MemoryPlan, storage: Storage, run_id: str):
        self.current = WorkingMemory()
        self.target = plan.target
        self.options = plan.options
        self.tool = self._tool() if plan.is_writable else None
        self._storage = storage
        self._writer = f"run {run_id}"
        self._thread: Thread | None = None
        self._is_read = False
        self._lock = asyncio.Lock()

    def begin(self, state: TurnState, *, is_read: bool) -> None:
        """Take what the run starts from, its thread as the owner of all writes (WM-14).

        `is_read` False means that only the memory's text is sure; then the first write reads it again.
        """
        self.current, self._thread, self._is_read = state.memory, state.thread, is_read

    async def update(self, args: dict[str, Json]) -> Json:
        """Apply a call of the tool and return its result; calls of one step are applied one after the other.

        Raises `ToolInputInvalid` for what breaks schema, type or size, and what `writing.changed` raises.
        """
        made = ToolUpdate(None, {})

        def change(stored: str) -> str:
            nonlocal made
            made = by_tool(self.options, stored, args)
            return stored if made.text is None else made.text

        async with self._lock:
            try:
                known = self.current if self._is_read else None
                written = await writing.changed(
                    self._storage, self.target, change, writer=self._writer, known=known, thread=self._thread
                )
            except Invalid as invalid:
                raise ToolInputInvalid(invalid.problems) from invalid
            self.current, self._is_read = written.memory, True
        return made.result

    def _tool(self) -> Tool:
        form = tool_form(self.options)

        async def run(args: dict[str, Json], context: ToolContext) -> Json:
            return await self.update(args)

        return Tool(form.name, form.id, form.description, form.parameters, run)
