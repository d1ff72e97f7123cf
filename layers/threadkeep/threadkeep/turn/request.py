"""What a turn is asked for, by whom, and with which agent."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from threadkeep.clock import Millis
from threadkeep.jsontext import Json
from threadkeep.memory.memory import Memory
from threadkeep.memory.messages import Content
from threadkeep.memory.options import MemoryOptions
from threadkeep.models.port import Model, ModelSettings
from threadkeep.storage.port import Message, Origin, Storage, SuspendedRun
from threadkeep.turn.context import RequestContext
from threadkeep.turn.delegation.options import DelegatedMemory, Delegation, Limits, OnIteration
from threadkeep.turn.processors.base import Processor
from threadkeep.turn.result import Step
from threadkeep.turn.structured import StructuredOutput
from threadkeep.turn.tools import Tool

if TYPE_CHECKING:  # a turn is handed its models; it does not know the adapters behind them
    from threadkeep.models.registry import Models
    from threadkeep.turn.delegation.orders import Delegator
    from threadkeep.turn.events import Sink
    from threadkeep.turn.journal import RunJournal

DEFAULT_MAX_STEPS = 5  # model calls in one run (LOOP-1)


@dataclass(frozen=True, slots=True)
class SubAgent:
    """An agent in a supervisor's map; it is resolved only when it is delegated to (DEL-1)."""

    id: str
    name: str
    description: str
    resolve: "Callable[[RequestContext], Awaitable[TurnAgent]]"


@dataclass(frozen=True, slots=True)
class TurnAgent:
    """An agent as it is for one request: everything dynamic has been resolved (D-RC-4).

    `agents` are its sub-agents by key. `delegated` is the memory that it uses when it is delegated to.
    """

    id: str
    instructions: str
    model: str | Model
    memory: Memory | None
    tools: Mapping[str, Tool]
    max_steps: int = DEFAULT_MAX_STEPS
    settings: ModelSettings = ModelSettings()
    input_processors: tuple[Processor, ...] = ()
    output_processors: tuple[Processor, ...] = ()
    read_only: bool = False  # whatever memory and call say (case H14)
    max_processor_retries: int = 0  # answers that processors may refuse with `retry` (PR-7)
    name: str = ""
    agents: Mapping[str, SubAgent] = field(default_factory=dict[str, SubAgent])
    delegation: Delegation = Delegation()
    limits: Limits = Limits()
    delegated: DelegatedMemory = DelegatedMemory()
    inherits: bool = False  # whether its Memory is that of its supervisor
    on_iteration: OnIteration | None = None


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message of the caller. `parts` are stored parts (MS-2) without times; `id` only if the caller gave one.

    A `tool` message holds results of client-side tools: invocations without arguments. `metadata` is stored with it.
    """

    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[Content, ...]
    id: str | None = None
    metadata: dict[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Whose memory a turn uses. Title, metadata and origin count only where the turn creates the thread."""

    thread_id: str
    resource_id: str
    title: str = ""
    metadata: dict[str, Json] | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Repeatable:
    """How a request is recognised when it comes again (DESIGN 4).

    With the caller's key (`Idempotency-Key`) a repeat is told to come back later; an equal request with
    the same run id, or just on the same thread, waits for the running one. A key and a run id answer for
    a day. Without them only a request that arrived before the first was answered is its repeat; a later
    one is a new turn (people say "yes" twice). `arrived` is when the gateway took the request in.
    """

    key: str
    request_hash: str
    waits: bool
    lasts: bool
    arrived: Millis


@dataclass(frozen=True, slots=True)
class Resumed:
    """A suspended run whose calls are decided: its record, the messages that it stored, and the step to go on from."""

    run: SuspendedRun
    messages: tuple[Message, ...]
    step: Step


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn. `options` are the agent's memory options with the call's merged in.

    `deadline` is in seconds from the start of the turn; a turn that is not ready to store by then
    stores nothing and raises `DeadlineExceeded`. `client_tools` are run by the caller. With `ask_first`
    every tool of the agent needs approval. `on_step` is awaited after each step. `repeat` tells how the
    request is recognised when it is sent again; None means that it is not. `watcher` is told what the run
    says while it says it; a watched run that is cut keeps what was seen of it. `stopped` is asked before
    each step whether somebody wants the run to end. `memory_options` is what the call itself asks of the memory, as
    JSON: it is kept with a run that is suspended. `resumes` is the suspended run that this turn goes on with.
    `limits` narrow those of the agent. `began` is when the run began, 0 for now. `path` leads to the agent where it is
    delegated to (`delegation.orders.Order`). `within` is the durable run that the turn is part of; with
    a `journal` it is that run itself, and its commit the run's end.
    """

    messages: tuple[InputMessage, ...]
    run_id: str
    conversation: Conversation | None = None
    options: MemoryOptions = MemoryOptions()
    context: tuple[InputMessage, ...] = ()
    instructions: str | None = None
    system: str | None = None
    max_steps: int | None = None
    tool_choice: str = "auto"
    active_tools: frozenset[str] | None = None
    settings: ModelSettings | None = None
    deadline: float | None = None
    request_context: RequestContext = field(default_factory=RequestContext)
    client_tools: tuple[Tool, ...] = ()
    ask_first: bool = False
    structured_output: StructuredOutput | None = None
    on_step: Callable[[Step], Awaitable[None]] | None = None
    repeat: Repeatable | None = None
    watcher: "Sink | None" = None
    stopped: Callable[[], Awaitable[bool]] | None = None
    memory_options: Mapping[str, Json] | None = None
    resumes: "Resumed | None" = None
    limits: Limits | None = None
    began: Millis = 0
    path: tuple[str, ...] = ()
    within: str | None = None
    journal: "RunJournal | None" = None


@dataclass(frozen=True, slots=True)
class Services:
    """What a turn needs of the world. Without a `delegator` sub-agents run in the same process."""

    storage: Storage
    models: "Models"
    delegator: "Delegator | None" = None
