"""A model with the processors of a run around each of its calls."""

from dataclasses import replace

from threadkeep.errors import ModelRejected, ModelUnavailable, ProcessorFailed
from threadkeep.models.port import Model, ModelRequest, ModelResponse, PromptMessage, TextPart, Usage
from threadkeep.turn.message_list import MessageList, PromptItem, messages_of
from threadkeep.turn.processors.base import Aborted
from threadkeep.turn.processors.pipeline import Pipeline


class ProcessedModel:
    """Asked by the loop as any other model; the prompt comes from `messages` and what the run said since.

    The first request of the loop holds the prompt without the run's own answers; whatever later requests
    hold beyond it are these. `usage` counts every call, also those whose answer was refused.
    """

    def __init__(self, model: Model, pipeline: Pipeline, *, keep_pending: bool = False):
        self.messages = MessageList()
        self.usage = Usage()
        self._model = model
        self._pipeline = pipeline
        self._keep_pending = keep_pending
        self._opening: int | None = None

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """One step. Raises `Aborted` where a processor stops the run."""
        if self._opening is None:
            self._opening = len(request.messages)
        said = request.messages[self._opening :]
        self._pipeline.said = said
        self.messages = await self._pipeline.input_step(self.messages)
        prompt = self.messages.prompt(keep_pending=self._keep_pending)
        response = await self._accepted(request, (*prompt, *(PromptItem(m, "response") for m in said)))
        self._pipeline.step += 1
        return response

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
            try:
                return await self._model.generate(replace(request, messages=messages_of(shown)))
            except (ModelRejected, ModelUnavailable) as error:
                prompt = await self._pipeline.api_error(error, prompt)


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
