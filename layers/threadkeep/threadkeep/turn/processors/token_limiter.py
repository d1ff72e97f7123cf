"""`TokenLimiter`: keeps a prompt, or an answer, within a number of tokens (PR-12, case H08)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from threadkeep.errors import ConfigurationError
from threadkeep.jsontext import Json
from threadkeep.memory import tokens
from threadkeep.memory.messages import Content, parts_of
from threadkeep.models.port import ToolCall
from threadkeep.turn.message_list import PromptItem, RunMessage, messages_of, opener_cost
from threadkeep.turn.processors.base import Processor, ProcessorCall

Unit = tuple[int, ...]  # places in the prompt that stay or go together: calls and their results


class TokenLimiter(Processor):
    """As input processor it trims the provider's prompt to `limit` tokens; nothing that is stored changes.

    Older history pays first. System texts, context, the input and this run's calls and results stay; where
    they alone are over the limit the run stops and says so, and the model is not called. `trim_mode`
    `contiguous` keeps the newest history without gaps, `best-fit` also older messages that still fit.

    As output processor it cuts the answer's text (`strategy="truncate"`) or stops the run (`"abort"`) at
    `limit` tokens, over the whole answer (`count_mode="cumulative"`) or each part of it (`"part"`).
    Raises `ConfigurationError` for a limit below 1.
    """

    id = "token-limiter"
    name = "TokenLimiter"
    measures = True

    def __init__(
        self,
        limit: int,
        *,
        strategy: Literal["truncate", "abort"] = "truncate",
        count_mode: Literal["cumulative", "part"] = "cumulative",
        trim_mode: Literal["best-fit", "contiguous"] = "best-fit",
    ):
        if limit < 1:
            raise ConfigurationError(f"TokenLimiter: the limit must be at least 1, received {limit}")
        self.limit = limit
        self.strategy = strategy
        self.count_mode = count_mode
        self.trim_mode = trim_mode

    def process_llm_request(self, prompt: tuple[PromptItem, ...], call: ProcessorCall) -> Sequence[PromptItem]:
        if tokens.prompt(messages_of(prompt)) <= self.limit:
            return prompt
        current = [item for item in prompt if item.source != "memory"]
        self._check(current, call)
        left = self.limit - tokens.prompt(item.message for item in current)
        kept = {n for n, item in enumerate(prompt) if item.source != "memory"}
        for unit in reversed(list(_units(prompt))):
            cost = sum(tokens.prompt_message(prompt[n].message) for n in unit)
            if cost + opener_cost(prompt[unit[0]]) <= left:
                kept |= set(unit)
                left -= cost
            elif self.trim_mode == "contiguous":
                break
        return [item for n, item in enumerate(prompt) if n in kept]

    def _check(self, prompt: Sequence[PromptItem], call: ProcessorCall) -> None:
        """Stop the run where no history at all would still be too much."""
        system = [item.message for item in prompt if item.source == "system"]
        current = [item for item in prompt if item.source != "system"]
        taken = sum(map(tokens.prompt_message, system))
        known: dict[str, Json] = {"systemTokens": round(taken), "limit": self.limit}
        if not current:
            call.abort(f"TokenLimiter: there is no message to send within {self.limit} tokens", metadata=known)
        if taken >= self.limit:
            call.abort(f"TokenLimiter: the system messages alone take the limit of {self.limit} tokens", metadata=known)
        left = self.limit - taken - tokens.CONVERSATION_OVERHEAD
        needed = sum(map(tokens.prompt_message, messages_of(current)))
        if needed > left:
            call.abort(
                f"TokenLimiter: this run's own messages need {round(needed)} tokens, "
                f"the limit of {self.limit} leaves {round(left)}",
                metadata=known | {"remainingBudget": round(left), "messageCount": len(current)},
            )

    def process_output_result(self, messages: tuple[RunMessage, ...], call: ProcessorCall) -> Sequence[RunMessage]:
        left = float(self.limit)
        kept: list[RunMessage] = []
        for message in messages:
            parts: list[Content] = []
            for part in parts_of(message.content):
                left = self.limit if self.count_mode == "part" else left
                part, left = self._cut(part, left, call)
                parts += [part] if part.get("text") != "" else []
            kept += _rebuilt(message, parts)
        return kept

    def _cut(self, part: Content, left: float, call: ProcessorCall) -> tuple[Content, float]:
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            return part, left
        spent = tokens.count(text)
        if spent <= left:
            return part, left - spent
        if self.strategy == "abort":
            call.abort(
                f"TokenLimiter: the answer is over the limit of {self.limit} tokens", metadata={"limit": self.limit}
            )
        return part | {"text": tokens.cut(text, left)}, 0


def _units(prompt: Sequence[PromptItem]) -> Iterator[Unit]:
    """The history in pieces that may go, in order: a message, or calls with the results that follow."""
    for place, item in enumerate(prompt):
        if item.source != "memory" or item.message.role == "tool":
            continue
        calls = any(isinstance(part, ToolCall) for part in item.message.parts)
        yield (place, place + 1) if calls else (place,)


def _rebuilt(message: RunMessage, parts: list[Content]) -> list[RunMessage]:
    """The message with these parts; none if nothing is left of it but starts of steps."""
    if all(part.get("type") == "step-start" for part in parts):
        return []
    content = message.content | {"parts": parts}
    content.pop("content", None)
    if texts := [part["text"] for part in parts if part.get("type") == "text"]:
        content["content"] = texts[-1]
    return [replace(message, content=content)]
