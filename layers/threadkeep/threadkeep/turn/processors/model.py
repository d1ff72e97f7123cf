"""A model with the processors of a run around each of its calls."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from threadkeep.errors import ModelRejected, ModelUnavailable, ProcessorFailed
from threadkeep.models.port import Model, ModelRequest, ModelResponse, PromptMessage, TextPart, Usage
from threadkeep.models.streams import streamed
from threadkeep.turn.live import Live
from threadkeep.turn.message_list import MessageList, PromptItem, RunMessage, messages_of
from threadkeep.turn.processors.base import Aborted
from threadkeep.turn.processors.pipeline import Pipeline
from threadkeep.turn.signals import StateSignals, later


class ProcessedModel:
    """Asked by the loop as any other model; the prompt comes from `messages` and what the run said since.

    The first request of the loop holds the prompt without the run's own answers; whatever later requests
    hold beyond it are these. State signals stand where they were told: behind the input, or behind the
    results of the step before; `told` are the latter. `is_gone` tells which messages a budget keeps out of the
    prompt, so that no state counts as known by them. `shown` is the prompt of the last call. `usage` counts every call,
    also those whose answer was refused.
    """

    def __init__(
        self,
        model: Model,
        pipeline: Pipeline,
        live: Live,
        *,
        keep_pending: bool = False,
        states: StateSignals | None = None,
        is_gone: Callable[[RunMessage], bool] | None = None,
    ):
        self.messages = MessageList()
        self.shown: tuple[PromptItem, ...] = ()
        self.usage = Usage()
        self._model = model
        self._pipeline = pipeline
        self._live = live
        self._keep_pending = keep_pending
        self._states = states
        self._is_gone = is_gone
        self._told: list[tuple[int, RunMessage]] = []  # with the number of messages said before each
        self._opening: int | None = None

    @property
    def told(self) -> tuple[RunMessage, ...]:
        """The state signals that came after the first call."""
        return tuple(message for _, message in self._told)

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """One step. Raises `Aborted` where a processor stops the run."""
        if self._opening is None:
            self._opening = len(request.messages)
        said = request.messages[self._opening :]
        self._pipeline.said = said
        self.messages = await self._pipeline.input_step(self.messages)
        await self._tell_states(len(said))
        prompt = self.messages.prompt(keep_pending=self._keep_pending)
        response = await self._accepted(request, (*prompt, *self._since(said)))
        self._pipeline.step += 1
        return response

    async def _tell_states(self, said: int) -> None:
        if self._states is None:
            return
        known = [m for m in self.messages.messages if not (self._is_gone and self._is_gone(m))]
        due = await self._pipeline.state_signals(self._states, (*known, *self.told))
        if said:
            self._told += [(said, later(message)) for message in due]
        else:
            self.messages = self.messages.plus(*due)

    def _since(self, said: Sequence[PromptMessage]) -> list[PromptItem]:
        """The run's own steps, and the signals told between them."""
        items: list[PromptItem] = []
        for count in range(len(said) + 1):
            items += [PromptItem(said[count - 1], "response")] if count else []
            told = [message for place, message in self._told if place == count]
            items += MessageList((), tuple(told)).prompt()
        return items

    async def _accepted(self, request: ModelRequest, prompt: tuple[PromptItem, ...]) -> ModelResponse:
        """The first answer that no processor refuses; its usage includes that of the refused ones."""
        before = self.usage
        while True:
            response = await self._asked(request, prompt)
            self.usage += response.usage
            try:
                accepted = await self._pipeline.response(response)
            except Aborted as aborted:
                self._pipeline.retry(aborted)
                prompt = (*prompt, *_feedback(response, aborted.tripwire.reason))
            else:
                return replace(accepted, usage=_difference(self.usage, before))

    async def _asked(self, request: ModelRequest, prompt: tuple[PromptItem, ...]) -> ModelResponse:
        while True:
            shown = await self._pipeline.request(prompt)
            if all(item.source == "system" for item in shown):
                raise ProcessorFailed("The processors left no message for the model; nothing was stored")
            self.shown = shown
            try:
                return await self._call(replace(request, messages=messages_of(shown)))
            except (ModelRejected, ModelUnavailable) as error:
                prompt = await self._pipeline.api_error(error, prompt)

    async def _call(self, request: ModelRequest) -> ModelResponse:
        if self._live.sink is None:
            return await self._model.generate(request)
        return await self._live.heard(streamed(self._model, request), self._pipeline)


def _feedback(refused: ModelResponse, reason: str) -> tuple[PromptItem, ...]:
    """What the model sees of a refused answer: its text, and why; its calls did not run."""
    text = f"Your answer was not accepted: {reason}\nAnswer again with this in mind."
    wanted = PromptItem(PromptMessage("user", (TextPart(text),)), "response")
    if not refused.text:
        return (wanted,)
    return PromptItem(PromptMessage("assistant", (TextPart(refused.text),)), "response"), wanted


def _difference(after: Usage, before: Usage) -> Usage:
    return Usage(
        after.input_tokens - before.input_tokens,
        after.output_tokens - before.output_tokens,
        after.reasoning_tokens - before.reasoning_tokens,
        after.cached_input_tokens - before.cached_input_tokens,
    )
