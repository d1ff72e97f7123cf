"""The registry: finds the agents that the deployer's package offers."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, cast

from threadkeep.agents.agent import Agent
from threadkeep.errors import ConfigurationError


class Registry:
    """Agents by id. Raises `ConfigurationError` if two share one."""

    def __init__(self, agents: Iterable[Agent]):
        self._agents: dict[str, Agent] = {}
        for agent in agents:
            if agent.id in self._agents:
                raise ConfigurationError(f"Two agents have the id {agent.id}")
            self._agents[agent.id] = agent

    @classmethod
    def load(cls, module: str) -> "Registry":
        """The agents in the list `agents` of a module. Raises `ConfigurationError` if it has none."""
        found: Any = getattr(import_module(module), "agents", None)
        if not isinstance(found, list) or not all(isinstance(agent, Agent) for agent in cast(list[Any], found)):
            raise ConfigurationError(f"The module {module} must have a list named `agents` that holds Agent objects")
        return cls(cast(list[Agent], found))

    def get(self, agent_id: str) -> Agent | None:
        return self._agents.get(agent_id)

    def listed(self) -> list[Agent]:
        return list(self._agents.values())
