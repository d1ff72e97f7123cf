"""The contract of a processor: what it may see, change and refuse (PR-1 to PR-3, PR-7)."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from threadkeep.errors import ModelRejected, ModelUnavailable
from threadkeep.jsontext import Json
from threadkeep.models.port import ModelResponse, PromptMessage, ReasoningDelta, TextDelta
from threadkeep.storage.port import Thread
from threadkeep.turn.context import RequestContext
from threadkeep.turn.message_list import MessageList, PromptItem, RunMessage
from threadkeep.turn.signals import StateSignal, StateWindow

if TYPE_CHECKING:  # these are only named here: tools know nothing of processors
    from threadkeep.turn.tools import CallOutcome
    from threadkeep.turn.working_memory import RunMemory

T = TypeVar("T")
Answer = T | None | Awaitable[T | None]  # None leaves everything as it is
Edited = MessageList | Sequence[RunMessage]


@dataclass(frozen=True, slots=True)
class Tripwire:
    """Why a processor stopped the run (PR-7). `retry` says that the model may try again with the reason in mind."""

    reason: str
    processor_id: str
    retry: bool = False
    metadata: dict[str, Json] | None = None


class Aborted(Exception):
    """A processor called `abort`. It never leaves a turn: the result carries the tripwire."""

    def __init__(self, tripwire: Tripwire):
        super().__init__(tripwire.reason)
        self.tripwire = tripwire


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is the same for every processor of a run.

    `thread` and `history` (ascending, never edited) are what the run loaded; `thread` is None without
    memory and where a run that stores nothing is the first of its thread. `memory` is the run's working
    memory as it is at the moment, None where the run has none.
    """

    run_id: str
    agent_id: str
    thread_id: str | None = None
    resource_id: str | None = None
    request_context: RequestContext = field(default_factory=RequestContext)
    thread: Thread | None = None
    history: tuple[RunMessage, ...] = ()
    memory: "RunMemory | None" = None


@dataclass(frozen=True, slots=True)
class ProcessorCall:
    """What a processor is told besides its subject.

    `state` is its own for this run and shared by its methods. `step` counts model calls from 0,
    `retry_count` the answers refused so far. `said` is what the model answered in earlier steps of this run
    and the results of its calls.
    """

    processor_id: str
    facts: RunFacts
    state: dict[str, Any]
    step: int = 0
    retry_count: int = 0
    said: tuple[PromptMessage, ...] = ()

    @property
    def request_context(self) -> RequestContext:
        return self.facts.request_context

    def abort(self, reason: str = "", *, retry: bool = False, metadata: dict[str, Json] | None = None) -> NoReturn:
        """Stop the run: nothing is stored, the caller gets the reason with status 200 (PR-7).

        `retry=True` in `process_llm_response` or `process_output_step` lets the model answer again, as
        often as the agent's `max_processor_retries` allows; what it said is not stored.
        """
        text = reason or f"Stopped by processor {self.processor_id}"
        raise Aborted(Tripwire(text, self.processor_id, retry, metadata))


class Processor:
    """Base of all processors. Override what you need, as plain or `async` methods.

    A plain method runs on the event loop, so one that waits must be async. One object serves all runs at
    once: keep what belongs to a run in `call.state`. Returning None changes nothing. An exception fails the
    run with one clear error and stores nothing (PR-8); errors of `threadkeep.errors` keep their status.

    As input processor: `process_input`, `process_input_step`, `compute_state_signal`, `process_llm_request`. As
    output processor: `process_output_stream`, `process_llm_response`, `process_output_step`,
    `process_tool_result`, `process_output_result`. In both: `process_api_error`. An agent may list one object in
    both directions.

    What a stream shows cannot be taken back. So the answer of a run is withheld until it is finished where a
    processor has one of the hooks that edit answers but no `process_output_stream`.
    """

    id: str = ""
    name: str = ""
    state_id: str = ""  # of the state that `compute_state_signal` tells; empty means the processor's id
    measures: ClassVar[bool] = False  # its `process_llm_request` counts, so it runs after all that filter (case H27)

    @property
    def display_name(self) -> str:
        return self.name or self.id

    def process_input(self, messages: MessageList, call: ProcessorCall) -> Answer[Edited]:
        """Once, before the first model call. Edits of input messages are what is stored (PR-2).

        What enters the prompt later in the run passes here too, alone: a new version of the working memory's
        system text, a state signal (case H27).
        """

    def process_input_step(self, messages: MessageList, call: ProcessorCall) -> Answer[Edited]:
        """Before each model call. `call.said` holds the run's own steps, which are not in `messages`."""

    def compute_state_signal(self, state: StateWindow, call: ProcessorCall) -> Answer[StateSignal]:
        """Before each model call of a run with a thread, after `process_input_step`: what the model is to be told of
        a state, given what it knows of it. What it knows already is not told again (SIG-7, SIG-8)."""

    def process_llm_request(self, prompt: tuple[PromptItem, ...], call: ProcessorCall) -> Answer[Sequence[PromptItem]]:
        """Before each model call, on the prompt as the provider gets it. Nothing that is stored changes."""

    def process_output_stream(
        self, chunk: TextDelta | ReasoningDelta, call: ProcessorCall
    ) -> Answer[TextDelta | ReasoningDelta]:
        """Each piece of text on its way to the watcher of a stream; **None drops it** from the stream (PR-1).

        What is stored is what the other hooks make of the whole answer.
        """
        return chunk

    def process_llm_response(self, response: ModelResponse, call: ProcessorCall) -> Answer[ModelResponse]:
        """Each answer of the model, as it came."""

    def process_output_step(self, response: ModelResponse, call: ProcessorCall) -> Answer[ModelResponse]:
        """Each answer after `process_llm_response` of all processors, before its tools run."""

    def process_tool_result(self, outcome: "CallOutcome", call: ProcessorCall) -> Answer["CallOutcome"]:
        """Each outcome of a tool call, before the model sees it; `outcome.with_result` makes another."""

    def process_api_error(
        self, error: ModelRejected | ModelUnavailable, prompt: tuple[PromptItem, ...], call: ProcessorCall
    ) -> Answer[Sequence[PromptItem]]:
        """A failed model call. Return a prompt to try again with, within `max_processor_retries`."""

    def process_output_result(
        self, messages: tuple[RunMessage, ...], call: ProcessorCall
    ) -> Answer[Sequence[RunMessage]]:
        """Once, the run's answer as it will be stored. Edits change both stored and returned text (PR-3)."""
