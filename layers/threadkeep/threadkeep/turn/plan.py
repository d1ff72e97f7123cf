"""What one turn does with memory: decided before anything is read (PR-4 to PR-6, PR-9, PR-10, RX-2, CFG-4, CFG-8)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from threadkeep.errors import ConfigurationError
from threadkeep.memory import budget
from threadkeep.memory.options import HistoryBudget
from threadkeep.memory.working_memory import seeds
from threadkeep.memory.working_memory.form import form_of
from threadkeep.memory.working_memory.invalid import Invalid
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.storage.port import Budget, MemorySeed, MemoryTarget, Storage, Thread
from threadkeep.turn.context import RESOURCE_KEY, RUN_KEY, THREAD_KEY, RequestContext
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.processors.history_budget import MemoryTokenLimiter
from threadkeep.turn.processors.message_history import MessageHistory
from threadkeep.turn.processors.working_memory import WorkingMemory
from threadkeep.turn.processors.working_memory_state import WorkingMemoryState
from threadkeep.turn.request import Conversation, Services, TurnAgent, TurnRequest
from threadkeep.turn.working_memory import MemoryPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """`conversation` is None for a run without memory. `window` is how many messages may be loaded; `limits`
    are those of a token budget. `creates` tells whether the run creates a thread that is missing, `stores`
    whether it is stored. `memory` is the working memory that it uses, `seed` a text for it that comes with
    the thread where this run creates it."""

    storage: Storage
    conversation: Conversation | None
    window: int
    limits: HistoryBudget | None
    creates: bool
    stores: bool
    memory: MemoryPlan | None
    seed: MemorySeed | None
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


def own_context(agent: TurnAgent, request: TurnRequest) -> TurnRequest:
    """The request with a context of its own: what the run sets there, the caller never sees (D-DISC-20).

    Its options are read-only if those of the agent or of its Memory are, whatever the call says (case H14).
    Thread and resource that the server set in the context override those of the call, and suffice without
    them (RX-2). Raises `ConfigurationError` if one of them is no text.
    """
    context = request.request_context.copy()
    if agent.read_only or (agent.memory is not None and agent.memory.options.read_only):
        request = replace(request, options=request.options.model_copy(update={"read_only": True}))
    conversation = _overridden(request.conversation, context)
    if conversation is not None:
        options = request.options.model_dump(by_alias=True, mode="json", exclude_none=True, fallback=lambda _: None)
        thread = {"id": conversation.thread_id}
        context[RUN_KEY] = {"thread": thread, "resourceId": conversation.resource_id, "memoryConfig": options}
    return replace(request, request_context=context, conversation=conversation)


def planned(agent: TurnAgent, request: TurnRequest, services: Services) -> Plan:
    """Raises nothing that depends on the store.

    Raises `ConfigurationError` if two processors name different stores, `InvalidInput` for a text of working
    memory in the thread's metadata that cannot be one.
    """
    loading = _by_hand(agent.input_processors, MessageHistory.id)
    storing = _by_hand(agent.output_processors, MessageHistory.id)
    showing = _by_hand(agent.input_processors, WorkingMemory.id)
    histories = [p for p in (loading, storing) if isinstance(p, MessageHistory)]
    shown = showing if isinstance(showing, WorkingMemory) else None
    conversation = request.conversation if agent.memory or histories or shown else None
    creates = bool(agent.memory or histories) and not request.options.read_only
    window = _window(agent, request, loading) if conversation else 0
    limits = request.options.message_history if agent.memory and loading is None and window else None
    options = _memory_options(agent, request, shown)
    conversation, seed = _divided(options, conversation, f"run {request.run_id}")
    before, after = _automatic(agent, options, request.options.read_only)
    history = (MessageHistory(last_messages=window),) if window and loading is None else ()
    keeps = isinstance(storing, MessageHistory) if storing else agent.memory is not None
    return Plan(
        storage=store_of(agent, services),
        conversation=conversation,
        window=window,
        limits=limits,
        creates=creates,
        stores=keeps and conversation is not None and not request.options.read_only,
        memory=_memory(conversation, options, shown, request.options.read_only),
        seed=seed,
        inputs=(*before, *history, *after, *agent.input_processors),
        outputs=agent.output_processors,
    )


def _memory_options(agent: TurnAgent, request: TurnRequest, shown: WorkingMemory | None) -> WorkingMemoryOptions:
    """A processor used by hand says whose memory the run uses: what it shows is what the tool writes."""
    options = request.options.working_memory if agent.memory else WorkingMemoryOptions()
    return options.model_copy(update={"scope": shown.scope}) if shown else options


def _divided(
    options: WorkingMemoryOptions, conversation: Conversation | None, writer: str
) -> tuple[Conversation | None, MemorySeed | None]:
    """The conversation, and the text of working memory that stood in the metadata of its thread (WM-20)."""
    if conversation is None:
        return None, None
    try:
        metadata, seed = seeds.divided(options, conversation.metadata, writer)
    except Invalid as invalid:
        raise invalid.at("memory.thread.metadata.workingMemory") from invalid
    return replace(conversation, metadata=metadata), seed


def _memory(
    conversation: Conversation | None, options: WorkingMemoryOptions, shown: WorkingMemory | None, read_only: bool
) -> MemoryPlan | None:
    if conversation is None or not (options.enabled or shown):
        return None
    of_thread = options.scope == "thread"
    target = MemoryTarget(options.scope, conversation.thread_id if of_thread else conversation.resource_id)
    hidden = read_only or (shown is not None and shown.read_only)
    return MemoryPlan(target, options, options.enabled and options.agent_managed and not hidden)


def _automatic(
    agent: TurnAgent, options: WorkingMemoryOptions, read_only: bool
) -> tuple[tuple[Processor, ...], tuple[Processor, ...]]:
    """What the Memory itself adds for working memory, before and after the history (PR-4, PR-6)."""
    if not options.enabled:
        return (), ()
    if not options.use_state_signals:
        own = _by_hand(agent.input_processors, WorkingMemory.id)
        return () if own else (WorkingMemory.of_memory(options, read_only=read_only),), ()
    own = _by_hand(agent.input_processors, WorkingMemoryState.id)
    return (), () if own else (WorkingMemoryState(form_of(options).format, options.scope),)


def store_of(agent: TurnAgent, services: Services) -> Storage:
    """The one store of an agent's runs: that of its processors, or the Memory's, or the deployment's."""
    inputs, outputs = agent.input_processors, agent.output_processors
    found = (
        _by_hand(inputs, MessageHistory.id),
        _by_hand(outputs, MessageHistory.id),
        _by_hand(inputs, WorkingMemory.id),
    )
    named = [p.storage for p in found if isinstance(p, MessageHistory | WorkingMemory) and p.storage is not None]
    if any(storage is not named[0] for storage in named):
        raise ConfigurationError(f"Agent {agent.id}: its processors name different stores; a run uses one")
    own = agent.memory.storage if agent.memory else None
    return next((s for s in (*named, own) if s is not None), services.storage)


def _by_hand(processors: Sequence[Processor], id: str) -> Processor | None:
    """The deployer's own processor of this id in one direction: it takes the place of the Memory's (PR-5)."""
    return next((p for p in processors if p.id == id), None)


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
