"""`ToolCallFilter`: takes tool calls and their results out of the prompt (PR-13)."""

from collections.abc import Sequence
from dataclasses import replace

from threadkeep.errors import ConfigurationError
from threadkeep.models.port import Part, ToolCall, ToolResult
from threadkeep.turn.message_list import PromptItem
from threadkeep.turn.processors.base import Processor, ProcessorCall


class ToolCallFilter(Processor):
    """Takes out the calls of the tools in `exclude` (None: of all tools), each with its result; texts stay.

    By default only calls from before this run go. `filter_after_tool_steps=n` keeps those of the newest n
    steps that called tools, this run's included; 0 keeps none. The store is not touched. Raises
    `ConfigurationError` for a negative number.
    """

    id = "tool-call-filter"
    name = "ToolCallFilter"

    def __init__(self, *, exclude: Sequence[str] | None = None, filter_after_tool_steps: int | None = None):
        if filter_after_tool_steps is not None and filter_after_tool_steps < 0:
            raise ConfigurationError("ToolCallFilter: filter_after_tool_steps must be at least 0")
        self.exclude = None if exclude is None else frozenset(exclude)
        self.filter_after_tool_steps = filter_after_tool_steps

    def process_llm_request(self, prompt: tuple[PromptItem, ...], call: ProcessorCall) -> Sequence[PromptItem]:
        calls = [part for item in self._old(prompt) for part in item.message.parts if isinstance(part, ToolCall)]
        gone = {call.id for call in calls if self.exclude is None or call.name in self.exclude}
        kept = [(item, tuple(part for part in item.message.parts if _call_id(part) not in gone)) for item in prompt]
        return [replace(item, message=replace(item.message, parts=parts)) for item, parts in kept if parts]

    def _old(self, prompt: Sequence[PromptItem]) -> Sequence[PromptItem]:
        """The steps whose calls may go."""
        steps = [item for item in prompt if any(isinstance(part, ToolCall) for part in item.message.parts)]
        if self.filter_after_tool_steps is None:
            return [item for item in steps if item.source != "response"]
        return steps[: max(len(steps) - self.filter_after_tool_steps, 0)]


def _call_id(part: Part) -> str | None:
    if isinstance(part, ToolCall):
        return part.id
    return part.call_id if isinstance(part, ToolResult) else None
