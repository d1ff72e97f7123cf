"""How a supervisor delegates: its hooks, what sub-agents see, and how far a run may go (DEL-13, DEL-16 to DEL-21)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic.alias_generators import to_snake

from threadkeep import ids
from threadkeep.errors import ConfigurationError
from threadkeep.jsontext import Json
from threadkeep.memory.options import configured
from threadkeep.models.port import FinishReason, ToolCall, Usage
from threadkeep.turn.context import RequestContext
from threadkeep.turn.message_list import RunMessage
from threadkeep.turn.tools import CallOutcome

HOOK_ERRORS_KEY = "__mastra_delegationHookErrors"  # in the run's request context (DEL-20)

LimitReached = Literal["max-delegations", "max-depth", "max-tokens", "max-seconds"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one run may go, its delegations included; it ends in an orderly way where it comes to a limit.

    The `finish_reason` is then `max-delegations`, `max-depth`, `max-tokens` or `max-seconds`. `delegations` counts the
    calls of sub-agents. `depth` is how many levels of sub-agents may stand below the run: 0 delegates nothing. `tokens`
    counts what models read and wrote. `seconds` is the time from the run's start. The delegations of one step get equal
    shares of what is left. How many model calls a run makes is `max_steps` of the agent or the call (LOOP-1).
    """

    delegations: int = 50
    depth: int = 3
    tokens: int = 2_000_000
    seconds: float = 3_600.0

    def __post_init__(self) -> None:
        for name, kind in (("delegations", int), ("depth", int), ("tokens", int), ("seconds", int | float)):
            if isinstance(given := getattr(self, name), bool) or not isinstance(given, kind):
                raise ConfigurationError(f"Limits: {name} must be a number, received {given!r}")
        if self.delegations < 0 or self.depth < 0 or self.tokens < 1 or self.seconds <= 0:
            raise ConfigurationError("Limits: delegations and depth must be at least 0, tokens and seconds above 0")

    def within(self, other: "Limits") -> "Limits":
        """The narrower of each of the two."""
        return Limits(
            min(self.delegations, other.delegations),
            min(self.depth, other.depth),
            min(self.tokens, other.tokens),
            min(self.seconds, other.seconds),
        )


@dataclass(frozen=True, slots=True)
class DelegationCall:
    """What a hook is told of a delegation that is about to begin (DEL-16).

    `agent_id` is the sub-agent's own id, `key` that under which the supervisor knows it. `instructions` and `max_steps`
    are the model's. `messages` is the conversation that the sub-agent will see.
    """

    key: str
    agent_id: str
    prompt: str
    instructions: str | None
    max_steps: int | None
    iteration: int
    run_id: str
    call_id: str
    thread_id: str | None
    resource_id: str | None
    parent_id: str
    parent_name: str
    messages: tuple[RunMessage, ...]
    request_context: RequestContext


@dataclass(frozen=True, slots=True)
class DelegationStart:
    """What `on_start` may decide. None leaves what the model said; `max_steps` is not capped (DEL-22)."""

    proceed: bool = True
    rejection: str = ""
    prompt: str | None = None
    instructions: str | None = None
    max_steps: int | None = None


@dataclass(frozen=True, slots=True)
class DelegationResult:
    """What came of a delegation. `tool_results` are `{"toolName", "toolCallId", "result", "args"?, "isError"?}`."""

    text: str
    finish_reason: str
    thread_id: str | None
    resource_id: str | None
    tool_results: tuple[dict[str, Json], ...]
    usage: Usage


@dataclass
class DelegationCompletion:
    """What a hook is told of a delegation that is over (DEL-18). `duration` is in milliseconds.

    `bail()` ends the supervisor's run after this iteration (DEL-19).
    """

    call: DelegationCall
    result: DelegationResult
    duration: int
    success: bool
    error: str | None = None
    bailed: bool = False

    def bail(self) -> None:
        self.bailed = True


@dataclass(frozen=True, slots=True)
class DelegationOutcome:
    """What `on_complete` may decide: a message for the supervisor's model, and another text of the result."""

    feedback: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Iteration:
    """What the iteration hook is told after each step (DEL-21). `number` counts from 1."""

    number: int
    max_iterations: int
    text: str
    tool_calls: tuple[ToolCall, ...]
    outcomes: tuple[CallOutcome, ...]
    is_final: bool
    finish_reason: FinishReason
    run_id: str
    thread_id: str | None
    resource_id: str | None
    agent_id: str
    agent_name: str


@dataclass(frozen=True, slots=True)
class IterationVerdict:
    """What the iteration hook may decide: to stop, or to go on past an answer; and a message for the model."""

    go_on: bool | None = None
    feedback: str | None = None


OnStart = Callable[[DelegationCall], DelegationStart | None | Awaitable[DelegationStart | None]]
OnComplete = Callable[[DelegationCompletion], DelegationOutcome | None | Awaitable[DelegationOutcome | None]]
MessageFilter = Callable[[DelegationCall], Sequence[RunMessage] | Awaitable[Sequence[RunMessage]]]
OnIteration = Callable[[Iteration], IterationVerdict | None | Awaitable[IterationVerdict | None]]


@dataclass(frozen=True, slots=True)
class Delegation:
    """How an agent delegates. Hooks may be async. Raises `ConfigurationError` for what is no hook.

    `message_filter` chooses what of `DelegationCall.messages` the sub-agent sees, after `on_start` (DEL-13). A hook
    that raises, or answers with something else, is logged, noted in `TurnResult.hook_errors` and in the run's context
    under `HOOK_ERRORS_KEY`, and passed over; with `hook_errors` "throw" the delegation fails with its message instead
    (DEL-20). `system_texts` also forwards the supervisor's own
    system texts (D-DISC-19). `references` gives results a name by which later delegations may cite them (DEL-27).
    `whole_results` shows the model the whole result as JSON, not only its text (DEL-3).
    """

    on_start: OnStart | None = None
    on_complete: OnComplete | None = None
    message_filter: MessageFilter | None = None
    hook_errors: Literal["warn", "throw"] = "warn"
    system_texts: bool = False
    references: bool = False
    whole_results: bool = False

    def __post_init__(self) -> None:
        if self.hook_errors not in ("warn", "throw"):
            raise ConfigurationError(f"Delegation: hook_errors must be warn or throw, received {self.hook_errors!r}")
        for name in ("on_start", "on_complete", "message_filter"):
            if not callable(getattr(self, name) or callable):
                raise ConfigurationError(f"Delegation: {name} must be a function")


@dataclass(frozen=True, slots=True)
class DelegatedMemory:
    """What memory an agent uses when it is delegated to, instead of a thread and a resource of its own (SHR-5, DEL-10).

    What is None stays as it would be. `options` change those of its Memory. Raises `ConfigurationError` for an id that
    no caller could use, such as that of another sub-agent's resource, and as `Memory` does for its options.
    """

    resource: str | None = None
    thread: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name, given in (("resource", self.resource), ("thread", self.thread)):
            if given is not None and (broken := ids.http_problem(given)):
                raise ConfigurationError(f"DelegatedMemory: {name} {given!r} {broken}")
        configured({to_snake(name): value for name, value in self.options.items()})
