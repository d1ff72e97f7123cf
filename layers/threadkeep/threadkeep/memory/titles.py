"""Titles of threads: when one is due, what the model is asked, what of its answer is kept (TT-1 to TT-4)."""

import re
from collections.abc import Iterable, Iterator

from threadkeep import jsontext
from threadkeep.memory.messages import Content, parts_of
from threadkeep.memory.options import TitleOptions
from threadkeep.models.port import ModelRequest, PromptMessage, TextPart
from threadkeep.storage.port import Message

MAX_TITLE = 200  # characters; the model is asked for 80 (TT-3)
TIMEOUT = 30.0  # seconds; well within the function's time
_EXCERPT = 200  # characters of a tool's arguments or result
_INSTRUCTIONS = (
    "Name this conversation. Answer with a title only, of at most 80 characters, that says what it is about. "
    "Use no quotation marks and no colons. Always give a title, however short the conversation is."
)
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


def is_due(options: TitleOptions | None, title: str, roles: Iterable[str]) -> bool:
    """Whether a turn that ends with messages of these roles owes its thread a title (TT-2, case H34)."""
    known = list(roles)
    return options is not None and not title and len(known) >= options.min_messages and "user" in known


def title_request(model: str, messages: Iterable[Message], instructions: str | None) -> ModelRequest:
    """One system message with the instructions, one user message with the transcript (TT-3)."""
    transcript = "\n".join(line for message in messages for line in _lines(message))
    return ModelRequest(
        model=model,
        messages=(
            PromptMessage("system", (TextPart(instructions or _INSTRUCTIONS),)),
            PromptMessage("user", (TextPart(transcript),)),
        ),
        timeout=TIMEOUT,
    )


def clean(answer: str) -> str:
    """The title in a model's answer: without its thinking, on one line, cut; may be empty (TT-4)."""
    return " ".join(_THINKING.sub("", answer).split())[:MAX_TITLE]


def _lines(message: Message) -> Iterator[str]:
    speaker = "User" if message.role == "user" else "Assistant"
    for part in parts_of(message.content):
        if part.get("type") == "text":
            yield f"{speaker}: {part.get('text', '')}"
        elif part.get("type") == "reasoning":
            yield f"Reasoning: {part.get('reasoning', '')}"
        elif part.get("type") == "tool-invocation":
            yield from _tool_lines(jsontext.as_object(part.get("toolInvocation")) or {})


def _tool_lines(invocation: Content) -> Iterator[str]:
    name = invocation.get("toolName", "")
    yield f"Tool Call {name}: {jsontext.dumps(invocation.get('args'))[:_EXCERPT]}"
    if "result" in invocation:
        yield f"Tool Result {name}: {jsontext.dumps(invocation['result'])[:_EXCERPT]}"
