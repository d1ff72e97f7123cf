"""`messageHistory`: the history that a Memory's token budget leaves in the prompt (PR-14)."""

from collections.abc import Sequence

from threadkeep.memory import budget, tokens
from threadkeep.memory.budget import Boundary
from threadkeep.memory.options import HistoryBudget
from threadkeep.turn.message_list import PromptItem, RunMessage, opener_cost
from threadkeep.turn.processors.base import Processor, ProcessorCall


class MemoryTokenLimiter(Processor):
    """Lets the oldest remembered messages go once the whole prompt exceeds the budget. Made for one run.

    It counts what is left after filters (case H27). A message goes whole, with its calls and results.
    What went does not come back: `boundary` is kept in the thread until the limits change.
    """

    id = "memory-token-limiter"
    name = "MemoryTokenLimiter"
    measures = True

    def __init__(self, limits: HistoryBudget, boundary: Boundary | None):
        self.limits = limits
        self.boundary = boundary

    def process_llm_request(self, prompt: tuple[PromptItem, ...], call: ProcessorCall) -> Sequence[PromptItem]:
        history = {m.id: m for m in call.facts.history}
        left = [item for item in prompt if not self.is_gone(history.get(item.id or ""))]
        costs = [tokens.prompt_message(item.message) for item in left]
        total, first = tokens.CONVERSATION_OVERHEAD + sum(costs), 0
        system = sum(item.source == "system" for item in left)
        left, costs = left[system:], costs[system:]
        limit = self.limits.max_tokens
        while first < len(left) and total + opener_cost(left[first]) > limit and left[first].source == "memory":
            limit = self.limits.target
            oldest = left[first].id
            while first < len(left) and left[first].id == oldest:
                total -= costs[first]
                first += 1
            self._let_go(history.get(oldest or ""))
        return [*(item for item in prompt if item.source == "system"), *left[first:]]

    def is_gone(self, message: RunMessage | None) -> bool:
        """Whether the model no longer sees a message of the history."""
        return message is not None and self.boundary is not None and self.boundary.holds(message.created_at, message.id)

    def _let_go(self, message: RunMessage | None) -> None:
        if message is not None:  # only what this thread holds can move its boundary
            self.boundary = budget.moved(self.boundary, message.created_at, message.id)
