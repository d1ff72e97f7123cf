"""Threadkeep: memory for AI agents on AWS.

Everything named here is the public API; the rest may change between versions.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.agents.agent import Agent
    from threadkeep.agents.speakers import Speaker, SpeakerTurns, as_user_turn, read_user_turn
    from threadkeep.agents.tool import schema_tool, tool
    from threadkeep.memory.memory import Memory
    from threadkeep.memory.signals import Signal
    from threadkeep.models.port import ModelSettings
    from threadkeep.turn.context import RequestContext
    from threadkeep.turn.delegation.options import (
        DelegatedMemory,
        Delegation,
        DelegationCall,
        DelegationCompletion,
        DelegationOutcome,
        DelegationResult,
        DelegationStart,
        Iteration,
        IterationVerdict,
        Limits,
    )
    from threadkeep.turn.message_list import MessageList, PromptItem, RunMessage, SystemText
    from threadkeep.turn.processors.base import Processor, ProcessorCall
    from threadkeep.turn.processors.message_history import MessageHistory
    from threadkeep.turn.processors.token_limiter import TokenLimiter
    from threadkeep.turn.processors.tool_call_filter import ToolCallFilter
    from threadkeep.turn.processors.working_memory import WorkingMemory
    from threadkeep.turn.result import Step, TurnResult
    from threadkeep.turn.signals import StateSignal, StateWindow
    from threadkeep.turn.structured import StructuredOutput
    from threadkeep.turn.tools import Tool, ToolContext

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "DelegatedMemory",
    "Delegation",
    "DelegationCall",
    "DelegationCompletion",
    "DelegationOutcome",
    "DelegationResult",
    "DelegationStart",
    "Iteration",
    "IterationVerdict",
    "Limits",
    "Memory",
    "MessageHistory",
    "MessageList",
    "ModelSettings",
    "Processor",
    "ProcessorCall",
    "PromptItem",
    "RequestContext",
    "RunMessage",
    "Signal",
    "Speaker",
    "SpeakerTurns",
    "StateSignal",
    "StateWindow",
    "Step",
    "StructuredOutput",
    "SystemText",
    "TokenLimiter",
    "Tool",
    "ToolCallFilter",
    "ToolContext",
    "TurnResult",
    "WorkingMemory",
    "as_user_turn",
    "read_user_turn",
    "schema_tool",
    "tool",
]

_HOMES = {
    "Agent": "threadkeep.agents.agent",
    "DelegatedMemory": "threadkeep.turn.delegation.options",
    "Delegation": "threadkeep.turn.delegation.options",
    "DelegationCall": "threadkeep.turn.delegation.options",
    "DelegationCompletion": "threadkeep.turn.delegation.options",
    "DelegationOutcome": "threadkeep.turn.delegation.options",
    "DelegationResult": "threadkeep.turn.delegation.options",
    "DelegationStart": "threadkeep.turn.delegation.options",
    "Iteration": "threadkeep.turn.delegation.options",
    "IterationVerdict": "threadkeep.turn.delegation.options",
    "Limits": "threadkeep.turn.delegation.options",
    "Memory": "threadkeep.memory.memory",
    "MessageHistory": "threadkeep.turn.processors.message_history",
    "MessageList": "threadkeep.turn.message_list",
    "ModelSettings": "threadkeep.models.port",
    "Processor": "threadkeep.turn.processors.base",
    "ProcessorCall": "threadkeep.turn.processors.base",
    "PromptItem": "threadkeep.turn.message_list",
    "RequestContext": "threadkeep.turn.context",
    "RunMessage": "threadkeep.turn.message_list",
    "Signal": "threadkeep.memory.signals",
    "Speaker": "threadkeep.agents.speakers",
    "SpeakerTurns": "threadkeep.agents.speakers",
    "StateSignal": "threadkeep.turn.signals",
    "StateWindow": "threadkeep.turn.signals",
    "Step": "threadkeep.turn.result",
    "StructuredOutput": "threadkeep.turn.structured",
    "SystemText": "threadkeep.turn.message_list",
    "TokenLimiter": "threadkeep.turn.processors.token_limiter",
    "Tool": "threadkeep.turn.tools",
    "ToolCallFilter": "threadkeep.turn.processors.tool_call_filter",
    "ToolContext": "threadkeep.turn.tools",
    "TurnResult": "threadkeep.turn.result",
    "WorkingMemory": "threadkeep.turn.processors.working_memory",
    "as_user_turn": "threadkeep.agents.speakers",
    "read_user_turn": "threadkeep.agents.speakers",
    "schema_tool": "threadkeep.agents.tool",
    "tool": "threadkeep.agents.tool",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that a function pays only for what it needs."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'threadkeep' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
