"""Runs the processors of one turn, in order (PR-4): one pipeline into the prompt, one into the store (case H27)."""

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from threadkeep.errors import ConfigurationError, ModelRejected, ModelUnavailable, ProcessorFailed, ThreadkeepError
from threadkeep.models.port import ModelChunk, ModelResponse, PromptMessage, ReasoningDelta, TextDelta
from threadkeep.turn.message_list import MessageList, PromptItem, RunMessage
from threadkeep.turn.processors.base import Aborted, Edited, Processor, ProcessorCall, RunFacts
from threadkeep.turn.signals import StateSignal, StateSignals
from threadkeep.turn.tools import CallOutcome

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pipeline:
    """The processors of one run with what they know of it. Each method raises `Aborted` where one stops the run.

    Raises `ConfigurationError` if two processors of one direction have the same id.
    """

    inputs: Sequence[Processor]
    outputs: Sequence[Processor]
    facts: RunFacts
    max_retries: int = 0
    step: int = 0
    retries: int = 0
    said: tuple[PromptMessage, ...] = ()
    _states: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def __post_init__(self) -> None:
        check_ids(self.inputs)
        check_ids(self.outputs)

    async def input(self, messages: MessageList) -> MessageList:
        """Everything that enters the prompt when the run begins."""
        return await self._entered(messages, self.inputs)

    async def input_step(self, messages: MessageList) -> MessageList:
        """Each new version of a system text passes `process_input` of the processors behind: it enters the prompt."""
        for place, processor in enumerate(self.inputs):
            before = messages
            messages = _applied(messages, await self._ask(processor, processor.process_input_step, messages))
            for text in messages.system:
                if text.key and text not in before.system:
                    entered = await self._entered(MessageList((text,)), self.inputs[place + 1 :])
                    left = (t for t in entered.system if t.key == text.key)
                    messages = messages.with_system(next(left, replace(text, text="")))
        return messages

    async def state_signals(self, states: StateSignals, known: Sequence[RunMessage]) -> list[RunMessage]:
        """The signals that are due before a model call; `known` are the messages that the model sees (SIG-8)."""
        due: list[RunMessage] = []
        for processor in filter(_tells_state, self.inputs):
            window = states.window(processor.state_id or processor.id, (*known, *due))
            wanted = await self._ask(processor, processor.compute_state_signal, window)
            message = states.message(_of_state(wanted, processor), window) if wanted is not None else None
            if message is None:
                continue
            entered = await self._entered(MessageList((), (message,)), self.inputs)
            for left in (m for m in entered.messages if m.id == message.id):
                states.track(left, window)
                due.append(left)
        return due

    async def _entered(self, messages: MessageList, processors: Sequence[Processor]) -> MessageList:
        """What enters the prompt after the run began, as the filters leave it (case H27)."""
        for processor in processors:
            messages = _applied(messages, await self._ask(processor, processor.process_input, messages))
        return messages

    async def request(self, prompt: tuple[PromptItem, ...]) -> tuple[PromptItem, ...]:
        """The prompt of one model call. What measures runs last: limits count what is left after filters."""
        for processor in sorted(self.inputs, key=lambda p: p.measures):
            edited = await self._ask(processor, processor.process_llm_request, prompt)
            prompt = prompt if edited is None else tuple(edited)
        return prompt

    async def stream(self, chunk: ModelChunk) -> ModelChunk | None:
        """A piece of the answer on its way to a watcher; None if a processor holds it back."""
        for processor in self.outputs:
            if not isinstance(chunk, TextDelta | ReasoningDelta):
                return chunk
            passed = await self._ask(processor, processor.process_output_stream, chunk)
            if passed is None:
                return None
            chunk = passed
        return chunk

    async def response(self, response: ModelResponse) -> ModelResponse:
        for processor in self.outputs:
            response = await self._ask(processor, processor.process_llm_response, response) or response
        for processor in self.outputs:
            response = await self._ask(processor, processor.process_output_step, response) or response
        return response

    async def tool_result(self, outcome: CallOutcome) -> CallOutcome:
        for processor in self.outputs:
            outcome = await self._ask(processor, processor.process_tool_result, outcome) or outcome
        return outcome

    async def api_error(
        self, error: ModelRejected | ModelUnavailable, prompt: tuple[PromptItem, ...]
    ) -> tuple[PromptItem, ...]:
        """The prompt of the first processor that wants another try; without one, or any left, the error is raised."""
        for processor in unique((*self.inputs, *self.outputs)):
            if self.retries >= self.max_retries:
                break
            again = await self._ask(processor, processor.process_api_error, error, prompt)
            if again is not None:
                self.retries += 1
                return tuple(again)
        raise error

    async def output(self, messages: tuple[RunMessage, ...]) -> tuple[RunMessage, ...]:
        """Everything of the answer that is stored and returned, once per run."""
        for processor in self.outputs:
            edited = await self._ask(processor, processor.process_output_result, messages)
            messages = messages if edited is None else tuple(edited)
        return messages

    def retry(self, aborted: Aborted) -> None:
        """Count one more try of the model; raises `aborted` where it asks for none, or none is left (PR-7)."""
        if not aborted.tripwire.retry or self.retries >= self.max_retries:
            raise aborted
        self.retries += 1

    async def _ask(self, processor: Processor, method: Callable[..., Any], *subject: Any) -> Any:
        state = self._states.setdefault(processor.id, {})
        call = ProcessorCall(processor.id, self.facts, state, self.step, self.retries, self.said)
        try:
            answer = method(*subject, call)
            return await answer if inspect.isawaitable(answer) else answer
        except (Aborted, ThreadkeepError):
            raise
        except Exception as error:  # a processor may raise anything
            _log.warning("processor %s failed", processor.id, exc_info=True)
            raise ProcessorFailed(f"Processor {processor.id} failed") from error


def check_ids(processors: Iterable[Processor]) -> None:
    """Raises `ConfigurationError` for a processor without id, or two of one id (PR-5)."""
    known: set[str] = set()
    for processor in processors:
        if not processor.id:
            raise ConfigurationError(f"Processor {type(processor).__name__} has no id")
        if processor.id in known:
            raise ConfigurationError(f"Two processors of one direction have the id {processor.id}")
        known.add(processor.id)


def unique(processors: Iterable[Processor]) -> list[Processor]:
    """Each object once, for those that are listed in both directions."""
    return list({id(p): p for p in processors}.values())


def _tells_state(processor: Processor) -> bool:
    return type(processor).compute_state_signal is not Processor.compute_state_signal


def _of_state(wanted: StateSignal, processor: Processor) -> StateSignal:
    known = processor.state_id or processor.id
    if wanted.id != known:
        raise ConfigurationError(f"Processor {processor.id} tells the state {wanted.id}, it has the state {known}")
    return wanted


def _applied(messages: MessageList, edited: Edited | None) -> MessageList:
    if edited is None:
        return messages
    return edited if isinstance(edited, MessageList) else messages.edited(edited)
