"""A model that answers from a list and remembers what it was asked."""

import asyncio
from collections.abc import Awaitable, Callable

from threadkeep.models.port import ModelRequest, ModelResponse, ToolCall, Usage

Answer = str | ModelResponse | Exception | Callable[[], Awaitable[ModelResponse]]


def calls(*wanted: tuple[str, dict], text: str = "") -> ModelResponse:
    """An answer that calls tools."""
    made = tuple(ToolCall(f"call-{name}-{n}", name, args) for n, (name, args) in enumerate(wanted))
    return ModelResponse(text, made, "tool-calls", Usage(10, 5), "fake-1")


def says(text: str) -> ModelResponse:
    return ModelResponse(text, (), "stop", Usage(10, 5), "fake-1")


class FakeModel:
    """Gives its answers in turn; `requests` holds what it was asked. A missing answer is `ok`."""

    def __init__(self, *answers: Answer):
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else "ok"
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return says(answer)
        return answer if isinstance(answer, ModelResponse) else await answer()

    @property
    def prompt(self) -> list[tuple[str, str]]:
        """Role and text of each message of the newest request; calls and results in brackets."""
        return [(m.role, m.text or "".join(_shown(p) for p in m.parts)) for m in self.requests[-1].messages]


class Gate:
    """Holds a model's answer until it is opened."""

    def __init__(self, answer: ModelResponse):
        self.answer = answer
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> ModelResponse:
        self.reached.set()
        await self.opened.wait()
        return self.answer


def _shown(part: object) -> str:
    if isinstance(part, ToolCall):
        return f"[call {part.name}]"
    return f"[{type(part).__name__} {getattr(part, 'text', '')}]"
