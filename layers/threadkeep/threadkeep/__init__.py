"""Threadkeep: memory for AI agents on AWS.

Everything named here is the public API; the rest may change between versions.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadkeep.agents.agent import Agent
    from threadkeep.agents.tool import tool
    from threadkeep.memory.memory import Memory
    from threadkeep.models.port import ModelSettings
    from threadkeep.turn.context import RequestContext
    from threadkeep.turn.tools import Tool, ToolContext

__version__ = "0.1.0"
__all__ = ["Agent", "Memory", "ModelSettings", "RequestContext", "Tool", "ToolContext", "tool"]

_HOMES = {
    "Agent": "threadkeep.agents.agent",
    "Memory": "threadkeep.memory.memory",
    "ModelSettings": "threadkeep.models.port",
    "RequestContext": "threadkeep.turn.context",
    "Tool": "threadkeep.turn.tools",
    "ToolContext": "threadkeep.turn.tools",
    "tool": "threadkeep.agents.tool",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that a function pays only for what it needs."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'threadkeep' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
