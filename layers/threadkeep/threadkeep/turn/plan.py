"""What one turn does with memory: decided before anything is read (PR-5, PR-6, PR-9, RX-2, CFG-4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from threadkeep.errors import ConfigurationError
from threadkeep.memory import budget
from threadkeep.memory.options import HistoryBudget
from threadkeep.storage.port import Budget, Storage, Thread
from threadkeep.turn.context import RESOURCE_KEY, RUN_KEY, THREAD_KEY, RequestContext
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.processors.history_budget import MemoryTokenLimiter
from threadkeep.turn.processors.message_history import MessageHistory
from threadkeep.turn.request import Conversation, Services, TurnAgent, TurnRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """`conversation` is None for a run without memory. `window` is how many messages may be loaded; `limits`
    are those of a token budget. `stores` tells whether the run is stored."""

    storage: Storage
    conversation: Conversation | None
    window: int
    limits: HistoryBudget | None
    stores: bool
    inputs: tuple[Processor, ...]
    outputs: tuple[Processor, ...]

    @property
    def budget(self) -> Budget | None:
        """Where loading ends. Messages weigh least where filters may take out all but their texts (case H27)."""
        if self.limits is None:
            return None
        weigh = budget.text_weight if any(map(_filters, self.inputs)) else budget.weight
        return Budget(self.limits.max_tokens, weigh)

    def limiter(self, thread: Thread | None) -> MemoryTokenLimiter | None:
        """The processor that keeps the history within its budget, with the boundary that the thread keeps."""
        if self.limits is None:
            return None
        return MemoryTokenLimiter(self.limits, budget.stored_boundary(thread.metadata if thread else None, self.limits))


def own_context(request: TurnRequest) -> TurnRequest:
    """The request with a context of its own: what the run sets there, the caller never sees (D-DISC-20).

    Thread and resource that the server set in the context override those of the call, and suffice without
    them (RX-2). Raises `ConfigurationError` if one of them is no text.
    """
    context = request.request_context.copy()
    conversation = _overridden(request.conversation, context)
    if conversation is not None:
        options = request.options.model_dump(by_alias=True, mode="json", exclude_none=True, fallback=lambda _: None)
        thread = {"id": conversation.thread_id}
        context[RUN_KEY] = {"thread": thread, "resourceId": conversation.resource_id, "memoryConfig": options}
    return replace(request, request_context=context, conversation=conversation)


def planned(agent: TurnAgent, request: TurnRequest, services: Services) -> Plan:
    """Raises nothing that depends on the store."""
    loading, storing = _history(agent.input_processors), _history(agent.output_processors)
    histories = [p for p in (loading, storing) if isinstance(p, MessageHistory)]
    own = agent.memory.storage if agent.memory else None
    conversation = request.conversation if agent.memory or histories else None
    window = _window(agent, request, loading) if conversation else 0
    limits = request.options.message_history if agent.memory and loading is None and window else None
    automatic = (MessageHistory(last_messages=window),) if window and loading is None else ()
    keeps = isinstance(storing, MessageHistory) if storing else agent.memory is not None
    return Plan(
        storage=next((s for s in (*(p.storage for p in histories), own) if s is not None), services.storage),
        conversation=conversation,
        window=window,
        limits=limits,
        stores=keeps and conversation is not None and not request.options.read_only,
        inputs=(*automatic, *agent.input_processors),
        outputs=agent.output_processors,
    )


def _history(processors: Sequence[Processor]) -> Processor | None:
    """The deployer's own history processor of one direction: it takes the place of the Memory's (PR-5)."""
    return next((p for p in processors if p.id == MessageHistory.id), None)


def _window(agent: TurnAgent, request: TurnRequest, loading: Processor | None) -> int:
    if loading is None:
        return request.options.window if agent.memory else 0
    return loading.last_messages if isinstance(loading, MessageHistory) else 0


def _filters(processor: Processor) -> bool:
    changes = type(processor).process_llm_request is not Processor.process_llm_request
    return changes and not processor.measures


def _overridden(given: Conversation | None, context: RequestContext) -> Conversation | None:
    thread, resource = _text(context, THREAD_KEY), _text(context, RESOURCE_KEY)
    if given is not None:
        return replace(given, thread_id=thread or given.thread_id, resource_id=resource or given.resource_id)
    return Conversation(thread, resource) if thread and resource else None


def _text(context: RequestContext, key: str) -> str | None:
    value = context.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"The request context's {key} must be a text")
    return value
