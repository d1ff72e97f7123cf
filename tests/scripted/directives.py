"""From a chat request to the answer that its directives ask for. Pure: no clock, no network."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

_DIRECTIVE = re.compile(r"\s*@(say|call|dump|fail|wait|hold|pause|stall)(?:\s+(.*?))?\s*")
_TRANSCRIPT = re.compile(r"\s*(User|Assistant): ")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BREAK = re.compile(r"(.*?)\s*&&\s*@fail (\d+)(?: (.*))?")
_AND = re.compile(r"\s*&&\s*")

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Failure:
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What one model call gets. `status` other than 200 makes it an error with `text` as its message.

    `pause_ms`, `stalls` and `breaks` are for streams: the time between two pieces, what the second piece waits
    for, and the error that comes instead of the end.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    status: int = 200
    wait_ms: int = 0
    holds: tuple[str, ...] = ()
    pause_ms: int = 0
    stalls: tuple[str, ...] = ()
    breaks: Failure | None = None


def answer(body: Body) -> Answer:
    """The answer to a chat request, 400 if the prompt is not legal."""
    if broken := illegal(body):
        return Answer(broken, status=400)
    messages: list[Body] = body["messages"]
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    said = text_of(messages[last_user]) if last_user >= 0 else ""
    script = said
    if _TRANSCRIPT.match(said):
        script = "\n".join(text_of(m) for m in messages if m["role"] == "system")
    answers = parse(script, body)
    if not answers:
        return Answer(f"You said: {said}")
    taken = sum(m["role"] == "assistant" for m in messages[last_user + 1 :])
    return answers[taken] if taken < len(answers) else Answer("Done.")


def parse(script: str, body: Body) -> list[Answer]:
    """The answers that a text asks for, in order; what stands before no answer counts for nothing."""
    answers: list[Answer] = []
    pace = Answer()
    for line in script.splitlines():
        match = _DIRECTIVE.fullmatch(line)
        if not match:
            continue
        word, rest = match[1], match[2] or ""
        if word == "wait":
            pace = replace(pace, wait_ms=pace.wait_ms + int(rest))
        elif word == "hold":
            pace = replace(pace, holds=(*pace.holds, rest))
        elif word == "pause":
            pace = replace(pace, pause_ms=pace.pause_ms + int(rest))
        elif word == "stall":
            pace = replace(pace, stalls=(*pace.stalls, rest))
        else:
            answers.append(_paced(pace, word, rest, body))
            pace = Answer()
    return answers


def _paced(pace: Answer, word: str, rest: str, body: Body) -> Answer:
    breaks = None
    if word != "fail" and (broken := _BREAK.fullmatch(rest)):
        rest, breaks = broken[1], Failure(int(broken[2]), broken[3] or "")
    text, calls, status = _content(word, rest, body)
    return replace(pace, text=text, calls=calls, status=status, breaks=breaks)


def _content(word: str, rest: str, body: Body) -> tuple[str, tuple[Call, ...], int]:
    if word == "say":
        return _spoken(rest), (), 200
    if word == "dump":
        return json.dumps(dump(body), ensure_ascii=False), (), 200
    if word == "fail":
        status, _, message = rest.partition(" ")
        return message, (), int(status)
    text, calls = _calls(rest)
    return text, calls, 200


def _spoken(rest: str) -> str:
    try:
        literal = json.loads(rest)
    except ValueError:
        return rest
    return literal if isinstance(literal, str) else rest


def _calls(rest: str) -> tuple[str, tuple[Call, ...]]:
    """`tool {json} && tool {json} && @say text`"""
    calls: list[Call] = []
    while rest:
        if rest.startswith("@say"):
            return _spoken(rest.removeprefix("@say").strip()), tuple(calls)
        tool, _, after = rest.removeprefix("@call ").partition(" ")
        arguments, rest = _arguments(after.strip())
        calls.append(Call(tool, arguments))
    return "", tuple(calls)


def _arguments(text: str) -> tuple[str, str]:
    """The arguments at the start of the text, and what follows the ` && ` behind them."""
    if joined := _AND.match(text):
        return "{}", text[joined.end() :]
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        end = len(text)
    rest = text[end:]
    if joined := _AND.match(rest):
        return text[:end], rest[joined.end() :]
    return text or "{}", ""


def dump(body: Body) -> Body:
    """What the model was sent, as `@dump` tells it."""
    messages: list[Body] = body["messages"]
    return {
        "model": body.get("model"),
        "system": [text_of(m) for m in messages if m["role"] == "system"],
        "roles": [m["role"] for m in messages],
        "user": [text_of(m) for m in messages if m["role"] == "user"],
        "tools": [tool["function"]["name"] for tool in body.get("tools") or []],
        "tool_choice": body.get("tool_choice"),
        "messages": messages,
    }


def text_of(message: Body) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def illegal(body: Body) -> str | None:
    """Why OpenAI would refuse the prompt, or None."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: must be a list that is not empty"
    names = [tool["function"]["name"] for tool in body.get("tools") or []]
    if wrong := [name for name in names if not _TOOL_NAME.fullmatch(name)]:
        return f"tools: the name {wrong[0]!r} does not match {_TOOL_NAME.pattern}"
    if len(set(names)) < len(names):
        return "tools: names must be unique"
    return _broken_pairs(messages)


def _broken_pairs(messages: list[Body]) -> str | None:
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                return f"messages[{index}]: a tool result must answer a call of the assistant message before it"
            open_calls.discard(message["tool_call_id"])
            continue
        if open_calls:
            return f"messages[{index}]: no result for the tool calls {', '.join(sorted(open_calls))}"
        if role not in ("system", "developer", "user", "assistant"):
            return f"messages[{index}]: unknown role {role!r}"
        if role == "assistant":
            open_calls = {call["id"] for call in message.get("tool_calls") or []}
            if not open_calls and message.get("content") is None:
                return f"messages[{index}]: an assistant message needs content or tool calls"
        elif message.get("content") is None:
            return f"messages[{index}]: content is missing"
    return f"no result for the tool calls {', '.join(sorted(open_calls))}" if open_calls else None
