"""`Agent`: what a deployer writes."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from pydantic import BaseModel

from threadkeep import ids
from threadkeep.config import settings
from threadkeep.errors import ConfigurationError
from threadkeep.memory.memory import Memory
from threadkeep.models.port import Model, ModelSettings
from threadkeep.turn.context import RequestContext, check_context, value_of
from threadkeep.turn.delegation.options import DelegatedMemory, Delegation, Limits, OnIteration
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.processors.pipeline import check_ids
from threadkeep.turn.request import DEFAULT_MAX_STEPS, SubAgent, TurnAgent
from threadkeep.turn.result import TurnResult
from threadkeep.turn.tools import Tool

if TYPE_CHECKING:  # functions that only list agents need no turn
    from threadkeep.agents.library import CallOptions, Hook, Said
    from threadkeep.storage.port import Storage
    from threadkeep.turn.events import Event

_KEY = re.compile(r"[A-Za-z0-9_-]{1,58}")  # what fits into `agent-<key>`, a tool's name

T = TypeVar("T")
Dynamic = T | Callable[[RequestContext], T | Awaitable[T]]  # a value, or a function of the request context


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: instructions, a model, a memory and tools.

    `model` is `provider/model`, for example `bedrock/<model id>` or `openai/<model>`; empty means the
    deployment's default. `instructions`, `model`, `memory`, `tools`, `agents` and both lists of processors may each
    be a function of the request context, async or not (D-RC-4). Without `memory` the agent remembers nothing.
    `read_only` lets it read all memory and write none, whatever its Memory and a call say (case H14).
    `agents` are sub-agents by key: each is a tool `agent-<key>` of this agent (DEL-1); `delegation` says how it
    delegates, `limits` how far one run may go. `delegated_memory` is what memory this agent uses when another
    delegates to it.
    `on_iteration` is asked after each step whether the run goes on (DEL-21).
    `max_processor_retries` is how often processors may have the model answer again in one run (PR-7).
    `request_context_schema` is a pydantic model that the request context must satisfy before anything
    runs (D-RC-5). Raises `ConfigurationError` for an id that cannot travel in a URL, or two tools or
    processors of one name.
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
    input_processors: Dynamic[Sequence[Processor]] = field(default_factory=tuple[Processor, ...])
    output_processors: Dynamic[Sequence[Processor]] = field(default_factory=tuple[Processor, ...])
    max_processor_retries: int = 0
    read_only: bool = False
    request_context_schema: type[BaseModel] | None = None
    agents: "Dynamic[Mapping[str, Agent]]" = field(default_factory=dict[str, "Agent"])
    delegation: Delegation = Delegation()
    limits: Limits = Limits()
    delegated_memory: DelegatedMemory = DelegatedMemory()
    on_iteration: OnIteration | None = None

    def __post_init__(self) -> None:
        if broken := ids.http_problem(self.id):
            raise ConfigurationError(f"Agent id {self.id!r}: {broken}")
        if self.max_steps < 1:
            raise ConfigurationError(f"Agent {self.id}: max_steps must be at least 1")
        if self.max_processor_retries < 0:
            raise ConfigurationError(f"Agent {self.id}: max_processor_retries must be at least 0")
        if not callable(self.tools):
            self._by_name(self.tools)
        if not callable(self.agents):
            self._team(self.agents)
        for processors in (self.input_processors, self.output_processors):
            if not callable(processors):
                check_ids(processors)

    @property
    def display_name(self) -> str:
        return self.name or self.id

    async def resolve(self, context: RequestContext) -> TurnAgent:
        """The agent for one request, with everything dynamic evaluated once.

        Raises `ConfigurationError` if a memory function returns no Memory (D-RC-4), `InvalidInput` if the
        context breaks the agent's schema (D-RC-5).
        """
        if self.request_context_schema is not None:
            check_context(context, self.request_context_schema)
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
            input_processors=tuple(await value_of(self.input_processors, context)),
            output_processors=tuple(await value_of(self.output_processors, context)),
            max_processor_retries=self.max_processor_retries,
            read_only=self.read_only,
            name=self.display_name,
            agents=self._team(await value_of(self.agents, context)),
            delegation=self.delegation,
            limits=self.limits,
            delegated=self.delegated_memory,
            on_iteration=self.on_iteration,
        )

    async def generate(self, messages: "Said", **call: "Unpack[CallOptions]") -> TurnResult:
        """Run one turn in this process, with what is due after it; no AWS is needed (CALL-1).

        `messages` are a text, or a list of texts and `{role, content}` as over HTTP; `call` is what
        `threadkeep.agents.library.CallOptions` lists. Raises `InvalidInput` where only one of thread and
        resource is given (TH-17), `TypeError` for an option that does not exist, and what `run_turn` raises.
        """
        from threadkeep.agents import library

        return await library.run_in_process(*await library.prepared(self, messages, call))

    async def stream(self, messages: "Said", **call: "Unpack[CallOptions]") -> "AsyncGenerator[Event]":
        """As `generate`, told while it goes on: events of `threadkeep.turn.events`, `RunFinished` as the last.

        Closing the generator ends the run; what was seen of its answer is stored, marked `aborted`.
        """
        from threadkeep.agents import library

        async with aclosing(library.stream_in_process(*await library.prepared(self, messages, call))) as events:
            async for event in events:
                yield event

    async def resume(
        self,
        run_id: str,
        call_id: str,
        *,
        approved: bool,
        reason: str | None = None,
        storage: "Storage | None" = None,
        request_context: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        on_step_finish: "Hook | None" = None,
        on_finish: "Hook | None" = None,
        on_title_generated: "Hook | None" = None,
    ) -> TurnResult:
        """Approve or decline a call of a run that waits for it, and go on with the run (MS-14).

        `TurnResult.suspended` names what a run waits for. The tool runs once, however often this is called; the
        model reads the reason of a decline. `request_context` is laid over that of the suspended run. `storage` and
        hooks are as for `generate`. Raises `NotFound` for a run or call that does not exist (any more),
        `Conflict` if the call was decided otherwise, and what `run_turn` raises.
        """
        from threadkeep.agents import library
        from threadkeep.turn.approvals import Decision

        hooks = library.Hooks(on_step_finish, on_finish, on_title_generated)
        decision = Decision(call_id, approved, reason)
        return await library.resume_in_process(self, run_id, decision, storage, request_context, deadline, hooks)

    def storage_or(self, default: "Storage") -> "Storage":
        """The store of the agent's own memory, where that is no function and names one; else the default."""
        return (self.memory.storage if isinstance(self.memory, Memory) else None) or default

    def _team(self, agents: "Mapping[str, Agent]") -> Mapping[str, SubAgent]:
        """Raises `ConfigurationError` unless it is a map of agents whose keys can be part of a tool's name."""
        given: Any = agents
        if not isinstance(given, Mapping) or not all(isinstance(a, Agent) for a in list[Any](agents.values())):
            raise ConfigurationError(f"Agent {self.id}: agents must be a map from keys to agents")
        if broken := [key for key in agents if not _KEY.fullmatch(key)]:
            rule = f"a sub-agent's key must match {_KEY.pattern}"
            raise ConfigurationError(f"Agent {self.id}: {rule}, received {broken[0]!r}")
        return {key: SubAgent(a.id, a.display_name, a.description, a.resolve) for key, a in agents.items()}

    def _by_name(self, tools: Sequence[Tool]) -> Mapping[str, Tool]:
        named = {tool.name: tool for tool in tools}
        if len(named) < len(tools):
            raise ConfigurationError(f"Agent {self.id} has two tools of one name")
        return named
