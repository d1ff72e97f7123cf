"""`Agent`: what a deployer writes."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from threadkeep import ids
from threadkeep.config import settings
from threadkeep.errors import ConfigurationError
from threadkeep.memory.memory import Memory
from threadkeep.models.port import Model, ModelSettings
from threadkeep.turn.context import RequestContext, value_of
from threadkeep.turn.request import DEFAULT_MAX_STEPS, TurnAgent
from threadkeep.turn.tools import Tool

T = TypeVar("T")
Dynamic = T | Callable[[RequestContext], T | Awaitable[T]]  # a value, or a function of the request context


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: instructions, a model, a memory and tools.

    `model` is `provider/model`, for example `bedrock/<model id>` or `openai/<model>`; empty means the
    deployment's default. `instructions`, `model`, `memory` and `tools` may each be a function of the
    request context, async or not (D-RC-4). Without `memory` the agent remembers nothing.
    Raises `ConfigurationError` for an id that cannot travel in a URL, or two tools of one name.
    """

    id: str
    instructions: Dynamic[str] = ""
    name: str = ""
    description: str = ""
    model: Dynamic[str | Model] = ""
    memory: Dynamic[Memory] | None = None
    tools: Dynamic[Sequence[Tool]] = field(default_factory=tuple[Tool, ...])
    max_steps: int = DEFAULT_MAX_STEPS
    model_settings: ModelSettings = ModelSettings()

    def __post_init__(self) -> None:
        if broken := ids.http_problem(self.id):
            raise ConfigurationError(f"Agent id {self.id!r}: {broken}")
        if self.max_steps < 1:
            raise ConfigurationError(f"Agent {self.id}: max_steps must be at least 1")
        if not callable(self.tools):
            self._by_name(self.tools)

    @property
    def display_name(self) -> str:
        return self.name or self.id

    async def resolve(self, context: RequestContext) -> TurnAgent:
        """The agent for one request, with everything dynamic evaluated once.

        Raises `ConfigurationError` if a memory function returns no Memory (D-RC-4).
        """
        memory: Any = await value_of(self.memory, context)
        if callable(self.memory) and not isinstance(memory, Memory):
            raise ConfigurationError(f"Agent {self.id}: the memory function returned no Memory")
        return TurnAgent(
            id=self.id,
            instructions=await value_of(self.instructions, context),
            model=await value_of(self.model, context) or settings().default_model,
            memory=memory,
            tools=self._by_name(await value_of(self.tools, context)),
            max_steps=self.max_steps,
            settings=self.model_settings,
        )

    def _by_name(self, tools: Sequence[Tool]) -> Mapping[str, Tool]:
        named = {tool.name: tool for tool in tools}
        if len(named) < len(tools):
            raise ConfigurationError(f"Agent {self.id} has two tools of one name")
        return named
