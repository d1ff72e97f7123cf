"""What a deployer writes agents with."""

from threadkeep.agents.agent import Agent
from threadkeep.agents.registry import Registry
from threadkeep.agents.tool import schema_tool, tool

__all__ = ["Agent", "Registry", "schema_tool", "tool"]
