"""What crosses between a supervisor and what runs its sub-agents: orders, reports, and the port (DESIGN 6)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

from threadkeep.clock import Millis
from threadkeep.jsontext import Json
from threadkeep.memory.messages import Content
from threadkeep.models.port import Usage
from threadkeep.turn.context import RequestContext

if TYPE_CHECKING:
    from threadkeep.turn.events import Event
    from threadkeep.turn.request import Services, TurnAgent

Failure = Literal["failed", "timeout", "died", "cancelled", "conflict"]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the forwarded conversation; system texts only where the supervisor forwards them."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[Content, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """One delegation, ready to run: everything that hooks and filters decide has been decided.

    `id` is made of the run, the step and the call, so that a repeat is the same order and finds what is stored.
    `path` leads to the sub-agent: the id of the agent that was called first, then a key for each level. `owner` is the
    supervisor's resource, or `ids.nobodys_resource`; `thread_id` its thread, None where it has none; `is_stored` tells
    whether that thread exists. `said` is the forwarded conversation, `deadline` a point in time. `asked_steps` is
    what the model wants, which the sub-agent's own limit caps, `max_steps` what a hook says, uncapped. `delegations`,
    `depth` and `tokens` are what is left of the limits for the sub-run. `inherits` says that a sub-agent without memory
    uses the supervisor's Memory. `within` is the durable run that all this is part of.
    """

    id: str
    path: tuple[str, ...]
    call_id: str
    run_id: str
    prompt: str
    owner: str
    thread_id: str | None = None
    is_stored: bool = False
    instructions: str | None = None
    max_steps: int | None = None
    asked_steps: int | None = None
    said: tuple[Said, ...] = ()
    deadline: Millis | None = None
    delegations: int = 0
    depth: int = 0
    tokens: int = 0
    inherits: bool = True
    read_only: bool = False
    within: str | None = None
    context: RequestContext = field(default_factory=RequestContext)

    @property
    def key(self) -> str:
        """The sub-agent's key in its supervisor's map."""
        return self.path[-1]

    def to_json(self) -> dict[str, Json]:
        """The order without what JSON cannot say of its context (D-RC-1)."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        said: list[Json] = [{"role": s.role, "parts": list(s.parts)} for s in self.said]
        return {**plain, "path": list(self.path), "said": said, "context": self.context.to_json()}

    @classmethod
    def read(cls, body: dict[str, Json]) -> "Order":
        """An order as `to_json` wrote it."""
        said = tuple(Said(s["role"], tuple(s["parts"])) for s in body["said"])
        read: dict[str, Any] = {"path": tuple(body["path"]), "said": said, "context": RequestContext(body["context"])}
        return cls(**{**body, **read})


@dataclass(frozen=True, slots=True)
class Report:
    """What came of an order: a text and what goes with it, or a failure.

    `tool_results` as in `DelegationResult`; `delegations` counts those that were made below. `told` are the data parts
    of the answer (DEL-26). `reason` is for logs and hooks, never for a model (DEL-23). `duration` is in milliseconds.
    """

    id: str
    text: str = ""
    finish_reason: str = "other"
    thread_id: str | None = None
    resource_id: str | None = None
    tool_results: tuple[dict[str, Json], ...] = ()
    usage: Usage = Usage()
    delegations: int = 0
    failure: Failure | None = None
    reason: str = ""
    duration: Millis = 0
    told: tuple[Content, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "tool_results": list(self.tool_results), "told": list(self.told)}

    @classmethod
    def read(cls, body: dict[str, Json]) -> "Report":
        """A report as `to_json` wrote it."""
        rows = {name: tuple(body[name]) for name in ("tool_results", "told")}
        read: dict[str, Any] = {**rows, "usage": Usage(**body["usage"])}
        return cls(**{**body, **read})


@dataclass(frozen=True, slots=True)
class Team:
    """Who delegates, for a delegator in the same process: the supervisor's run, with the sub-agents that it has.

    `tell` passes on what the sub-agent of a call says, where somebody watches. `stopped` is the run's own.
    """

    agent: "TurnAgent"
    services: "Services"
    tell: "Callable[[str, Event], Awaitable[None]] | None" = None
    stopped: Callable[[], Awaitable[bool]] | None = None


class Delegator(Protocol):
    """Runs the delegations of one step. Adapters: in the same process, and by Step Functions."""

    async def delegate(self, team: Team, orders: Sequence[Order]) -> tuple[Report, ...]:
        """Run orders side by side, at most ten at a time; the reports keep their order, one failing stops no other.

        Raises nothing that one order brought about: that is a report with a `failure`.
        """
        ...
