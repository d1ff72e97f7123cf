"""The memory of an agent, as one request may use it."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from threadkeep.errors import InvalidInput, Issue, NotFound
from threadkeep.http.logs import logger
from threadkeep.jsontext import Json
from threadkeep.memory.options import MemoryOptions, merged
from threadkeep.memory.working_memory import Invalid, seeds
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.storage.port import MemorySeed
from threadkeep.turn.context import RequestContext, value_of

if TYPE_CHECKING:
    from threadkeep.agents import Agent, Registry

WRITER = "http"
Metadata = dict[str, Json]


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """The options of an agent's memory with those of the request merged in.

    `read_only` is sticky: what agent or memory say, a request cannot lift.
    """

    agent_id: str
    options: MemoryOptions
    read_only: bool

    @property
    def working(self) -> WorkingMemoryOptions:
        return self.options.working_memory

    def writable(self) -> WorkingMemoryOptions:
        """The options of a working memory that is about to be written.

        Raises `InvalidInput` naming the agent where it is disabled (E6) or read-only.
        """
        if not self.working.enabled:
            raise unfit(f"the working memory of {self.agent_id} is not enabled")
        self.check_not_read_only()
        return self.working

    def check_not_read_only(self) -> None:
        """Raises `InvalidInput` naming the agent."""
        if self.read_only:
            raise unfit(f"the memory of {self.agent_id} is read-only")


def unfit(reason: str) -> InvalidInput:
    """The request names an agent that cannot do this."""
    return InvalidInput(Issue("agentId", reason), where="query parameters")


async def memory_of(
    registry: "Registry", agent_id: str, context: dict[str, Json], config: dict[str, Json] | None = None
) -> AgentMemory | None:
    """The memory of an agent for this request context; None where there is no such agent, or it has no memory.

    `config` are the memory's options as the request changes them. Raises `InvalidInput` naming
    `memoryConfig`, or `requestContext` where the agent's own function makes no memory of it.
    """
    agent = registry.get(agent_id)
    if agent is None or agent.memory is None:
        return None
    own = await _options(agent, RequestContext.from_client(context))
    options = _merged(own, config)
    return AgentMemory(agent_id, options, agent.read_only or own.read_only or options.read_only)


async def needed(
    registry: "Registry", agent_id: str, context: dict[str, Json], config: dict[str, Json] | None = None
) -> AgentMemory:
    """As `memory_of`, for what cannot be done without. Raises `NotFound`, `InvalidInput`."""
    memory = await _known(registry, agent_id, context, config)
    if memory is None:
        raise InvalidInput(summary="Memory is not initialized")
    return memory


class _NamesAgent(Protocol):
    """A query that may name an agent, with the context that its memory may depend on."""

    @property
    def agent_id(self) -> str | None: ...
    @property
    def request_context(self) -> dict[str, Json]: ...


async def divided(
    registry: "Registry", query: _NamesAgent, metadata: Metadata | None
) -> tuple[Metadata | None, MemorySeed | None]:
    """The metadata of a thread to store, and the text in it that is for working memory (WM-20).

    It is the thread's own where no agent is named. Raises `NotFound` for an unknown agent, `InvalidInput`
    for what the memory may not hold, or if it is read-only.
    """
    if metadata is None or seeds.KEY not in metadata:
        return metadata, None
    memory = await _named(registry, query)
    options = WorkingMemoryOptions(enabled=True, scope="thread") if query.agent_id is None else _working(memory)
    with naming(f"metadata.{seeds.KEY}"):
        rest, seed = seeds.divided(options, metadata, WRITER)
    if seed is not None and memory is not None:
        memory.check_not_read_only()
    return rest, seed


async def is_of_resource(registry: "Registry", query: _NamesAgent) -> bool:
    """Whether the agent that the query names, if it names one, keeps and writes the memory of a resource."""
    memory = await _named(registry, query)
    return memory is not None and not memory.read_only and memory.working.enabled and memory.working.scope == "resource"


async def _named(registry: "Registry", query: _NamesAgent) -> AgentMemory | None:
    if query.agent_id is None:
        return None
    return await _known(registry, query.agent_id, query.request_context)


async def _known(
    registry: "Registry", agent_id: str, context: dict[str, Json], config: dict[str, Json] | None = None
) -> AgentMemory | None:
    """As `memory_of`; raises `NotFound` where there is no such agent."""
    if registry.get(agent_id) is None:
        raise NotFound("Agent not found")
    return await memory_of(registry, agent_id, context, config)


def _working(memory: AgentMemory | None) -> WorkingMemoryOptions:
    return memory.working if memory else WorkingMemoryOptions()


@contextmanager
def naming(field: str) -> Generator[None]:
    """Makes of what a working memory may not hold an `InvalidInput` with fields of or below `field`."""
    try:
        yield
    except Invalid as error:
        raise error.at(field) from error


async def _options(agent: "Agent", context: RequestContext) -> MemoryOptions:
    try:
        return (await value_of(agent.memory, context)).options
    except Exception as error:
        logger().warning("memory cannot be told", exc_info=True, extra={"fields": {"agentId": agent.id}})
        issue = Issue("requestContext", f"the memory of {agent.id} depends on values that are not in it")
        raise InvalidInput(issue, where="query parameters") from error


def _merged(own: MemoryOptions, config: dict[str, Json] | None) -> MemoryOptions:
    try:
        return merged(own, config)
    except InvalidInput as error:
        issues = (Issue(i.field.replace("memory.options", "memoryConfig", 1), i.message) for i in error.issues)
        raise InvalidInput(*issues) from error
