"""What a deployer writes agents with."""

from threadkeep.agents.agent import Agent
from threadkeep.agents.registry import Registry
from threadkeep.agents.tool import tool

__all__ = ["Agent", "Registry", "tool"]
