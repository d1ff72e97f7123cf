"""The registry: finds the agents that the deployer's package offers, and those that stand only below others."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, cast

from threadkeep.agents.agent import Agent
from threadkeep.errors import ConfigurationError


class Registry:
    """Agents by id: those that are listed, and at any depth the sub-agents in maps that are no functions.

    Sub-agents of a function of the request context are found through their supervisor alone. Raises
    `ConfigurationError` if two agents share an id.
    """

    def __init__(self, agents: Iterable[Agent]):
        self._listed = list(agents)
        self._agents: dict[str, Agent] = {}
        for agent in self._listed:
            if agent.id in self._agents:
                raise _shared(agent.id)
            self._agents[agent.id] = agent
        for agent in self._listed:
            self._add_team(agent)

    @classmethod
    def load(cls, module: str) -> "Registry":
        """The agents in the list `agents` of a module. Raises `ConfigurationError` if it has none."""
        found: Any = getattr(import_module(module), "agents", None)
        if not isinstance(found, list) or not all(isinstance(agent, Agent) for agent in cast(list[Any], found)):
            raise ConfigurationError(f"The module {module} must have a list named `agents` that holds Agent objects")
        return cls(cast(list[Agent], found))

    def get(self, agent_id: str) -> Agent | None:
        """An agent that is listed, or works under one that is."""
        return self._agents.get(agent_id)

    def listed(self) -> list[Agent]:
        """The agents of the deployer's list, in its order."""
        return list(self._listed)

    def _add_team(self, agent: Agent) -> None:
        for sub in () if callable(agent.agents) else agent.agents.values():
            known = self._agents.get(sub.id)
            if known is None:
                self._agents[sub.id] = sub
                self._add_team(sub)
            elif known is not sub:
                raise _shared(sub.id)


def _shared(agent_id: str) -> ConfigurationError:
    return ConfigurationError(f"Two agents have the id {agent_id}")
