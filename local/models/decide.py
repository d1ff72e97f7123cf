"""Decisions that a small model cannot make alone: what in a text is a fact, which tool to call, with what arguments.

The packaged model never writes a usable tool call, but it chooses well among a few named actions when the answer is
constrained to them, and it answers well from the user's own sentences. So it is never shown a tool: it is asked which
action fits, and the call is written here.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

Body = dict[str, Any]  # a JSON object of the chat completions API
Ask = Callable[[Body], Body]  # one call of the model: request body in, `chat.completion` body out


def as_object(value: Any) -> Body | None:
    """`value` if it is a JSON object."""
    return cast(Body, value) if isinstance(value, dict) else None


REPLY = "reply"
MEMORY_TOOL = "updateWorkingMemory"
_VERBATIM = ("prompt", "message", "query", "question", "input", "text")  # arguments that are the user's own words

_SENTENCE = re.compile(r"[^.!?。！？\n]*[.!?。！？\n]+|[^.!?。！？\n]+")  # joined again they are the text
_FIRST_PERSON = re.compile(
    r"\b(?:i|i'm|i've|i'd|i'll|im|my|mine|me|we|we're|we've|our|ours|us"  # English
    r"|je|j'\w+|mon|ma|mes|nous|notre|nos|ich|mein\w*|mir|mich|wir|unser\w*"  # French, German
    r"|yo|mi|mis|soy|tengo|nuestr\w+|io|mio|mia|miei|sono|nostr\w+|eu|meu|minha|tenho|ik|mijn|wij|onze)\b",
    re.IGNORECASE,
)
_TO_KEEP = re.compile(r"(?:^|[.!]\s+)(?:please\s+)?(?:remember|note|keep in mind|don't forget)\b", re.IGNORECASE)
_ASKS = re.compile(
    r"^(?:(?:and|so|but|ok|okay|please|hey|now)[, ]+)*"
    r"(?:who|what|when|where|which|why|how|whose|whom|do|does|did|is|are|am|was|were|can|could|will|would|should|may"
    r"|have|has|tell|give|show|write|explain|help|list|name|say|guess|describe|suggest|thanks|thank)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w{3,}")
_COMMON = frozenset(
    {"and", "are", "can", "did", "does", "for", "from", "get", "has", "have", "how", "its", "list", "make", "mine"}
    | {"need", "our", "show", "tell", "that", "the", "this", "time", "today", "want", "was", "what", "when", "where"}
    | {"which", "who", "why", "will", "with", "would", "you", "your"}
)
_WISHES = re.compile(
    r"\b(?:need|want|like|love to|wish|wonder\w*|look\w* for|want\w*|please|let's|let us)\b", re.IGNORECASE
)
_OTHER_SCRIPT = re.compile(r"[^\W\d_\u0000-\u024f]")  # letters outside Latin: no first-person rule for these here


def facts(text: str) -> list[str]:
    """The passages of `text` in which somebody tells something about himself, in his own words.

    A passage is what stands between questions and requests. It counts if it speaks in the first person or asks to be
    remembered. For scripts without a rule here every passage counts: telling too much costs a line of prompt, telling
    too little loses the fact.
    """
    return [passage for passage in _passages(text) if _tells(passage)]


def only_tells(text: str) -> bool:
    """Whether `text` tells facts and asks or wishes for nothing, so that no tool but the memory's can be meant."""
    return rule_decides(text) and facts(text) == [text.strip()] and not _WISHES.search(text)


def asks_what_is_known(text: str, known: Sequence[str]) -> bool:
    """Whether `text` asks for one of the `known` facts, so that no tool knows better.

    It does if it speaks of its author and shares a word with them, or shares two: "Will it rain in Oslo?" is not
    answered by "I live in Oslo", but "When does Heron ship?" is by "Our project Heron ships in March".
    """
    shared = _words(text) & _words(" ".join(known))
    return len(shared) >= (1 if _FIRST_PERSON.search(text) else 2)


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in _WORD.findall(text.lower()) if word not in _COMMON}


def rule_decides(text: str) -> bool:
    """Whether the first-person rule knows the language well enough; otherwise the model is asked."""
    return not _OTHER_SCRIPT.search(text)


def _passages(text: str) -> list[str]:
    passages = [""]
    for sentence in _SENTENCE.findall(text):
        if _asks(sentence.strip()):
            passages.append("")
        else:
            passages[-1] += sentence
    return [stripped for passage in passages if (stripped := passage.strip())]


def _asks(sentence: str) -> bool:
    return sentence.endswith(("?", "？")) or bool(_ASKS.match(sentence))


def _tells(passage: str) -> bool:
    if not rule_decides(passage):
        return True
    return bool(_TO_KEEP.search(passage) or _FIRST_PERSON.search(passage))


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the request offers; `parameters` is the JSON Schema of its arguments object."""

    name: str
    description: str
    parameters: Body

    @property
    def properties(self) -> Body:
        return as_object(self.parameters.get("properties")) or {}


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Body


def choose_call(
    text: str, memory: str, told: Sequence[str], tools: Sequence[Tool], choice: str, ask: Ask
) -> Call | None:
    """The tool call that answers the user's `text`, or None for an answer in words.

    `memory` is the working memory as the prompt shows it, `told` the facts of the conversation so far; `choice` is
    `auto`, `required` or a tool's name.
    """
    tool = _choose_tool(text, [memory, *told], tools, choice, ask)
    if tool is None:
        return None
    arguments = _arguments(text, memory, tool, ask)
    return None if arguments is None else Call(tool.name, arguments)


def _choose_tool(text: str, known: Sequence[str], tools: Sequence[Tool], choice: str, ask: Ask) -> Tool | None:
    by_name = {tool.name: tool for tool in tools}
    if choice in by_name:
        return by_name[choice]
    if choice == "required" and len(tools) == 1:
        return tools[0]
    keeps = by_name.pop(MEMORY_TOOL, None)
    if choice != "required":
        if keeps and facts(text) and (rule_decides(text) or _states_fact(text, ask)):
            return keeps
        if not by_name or only_tells(text) or asks_what_is_known(text, known):
            return None
    return by_name.get(_ask_for_action(text, list(by_name.values()), choice != "required", ask))


_GATE = (
    "You choose the next action for a message. Choose an action only if the message clearly asks for what the action "
    "does. Greetings, thanks, small talk, opinions and facts that somebody tells are always: reply."
)
_GATE_SHOTS = (
    ("- reply\n- getWeather: current weather of a city\n- agent-cook: finds recipes", "Hi there!", "reply"),
    ("- reply\n- getWeather: current weather of a city", "Will it rain in Oslo tomorrow?", "getWeather"),
    ("- reply\n- getWeather: current weather of a city", "I live in Oslo with my sister.", "reply"),
    ("- reply\n- agent-cook: finds recipes\n- agent-tax: tax questions", "How do I make gnocchi?", "agent-cook"),
    ("- reply\n- agent-cook: finds recipes\n- agent-tax: tax questions", "What is my sister's name?", "reply"),
    ("- reply\n- agent-search: looks up facts", "Where do I work?", "reply"),
    ("- reply\n- agent-search: looks up facts", "Where was Goethe born?", "agent-search"),
    ("- reply\n- convertMoney: converts between currencies", "How much are 40 dollars in yen?", "convertMoney"),
    ("- reply\n- convertMoney: converts between currencies", "Thanks, that was quick.", "reply"),
)


def _ask_for_action(text: str, tools: Sequence[Tool], may_reply: bool, ask: Ask) -> str:
    listed = [f"- {REPLY}"] * may_reply + [f"- {tool.name}: {_first_sentence(tool.description)}" for tool in tools]
    names = [REPLY] * may_reply + [tool.name for tool in tools]
    shots = [(f"{actions}\nMessage: {message}", {"action": action}) for actions, message, action in _GATE_SHOTS]
    schema = {"type": "object", "properties": {"action": {"enum": names}}, "required": ["action"]}
    chosen = _constrained(_GATE, shots, "\n".join(listed) + f"\nMessage: {text}", schema, 24, ask)
    return str(chosen.get("action", REPLY)) if chosen else REPLY


_FACT_GATE = "Does the message state a fact about its author that is worth remembering? Questions and greetings do not."
_FACT_SHOTS = (
    ("Hi there!", False),
    ("我叫王芳，住在上海。", True),
    ("谢谢你！", False),
    ("私は猫を二匹飼っています。", True),
    ("今日の天気はどうですか", False),
    ("Меня зовут Анна, я врач.", True),
)


def _states_fact(text: str, ask: Ask) -> bool:
    shots = [(message, {"states_fact": answer}) for message, answer in _FACT_SHOTS]
    schema = {"type": "object", "properties": {"states_fact": {"type": "boolean"}}, "required": ["states_fact"]}
    answer = _constrained(_FACT_GATE, shots, text, schema, 16, ask)
    return bool(answer and answer.get("states_fact"))


def _arguments(text: str, memory: str, tool: Tool, ask: Ask) -> Body | None:
    """Words of the user are passed on unchanged, because a small model loses half of what it rewrites."""
    if tool.name == MEMORY_TOOL and _type_of(tool, "memory") == "string":
        return {"memory": "\n".join([*memory.splitlines(), *(f"- {fact}" for fact in facts(text) or [text])]).strip()}
    verbatim = next((name for name in _VERBATIM if _type_of(tool, name) == "string"), None)
    if verbatim and set(tool.parameters.get("required", ())) <= {verbatim}:
        return {verbatim: text}
    if not tool.properties:
        return {}
    asked = f"{memory}\nFunction {tool.name}: {_first_sentence(tool.description)}\nMessage: {text}".strip()
    return _constrained(_FILL, _FILL_SHOTS, asked, tool.parameters, 160, ask)


_FILL = "Fill in the arguments of the function from the message, as JSON. Examples in its description are not values."
_FILL_SHOTS = (
    ("Function getWeather: weather of a city such as Berlin\nMessage: Is it cold in Madrid?", {"city": "Madrid"}),
    (
        "Function localTime: clock of a zone such as America/New_York\nMessage: What time is it in Cairo?",
        {"zone": "Africa/Cairo"},
    ),
    (
        "Function convertMoney: converts between currencies\nMessage: How much are 40 dollars in yen?",
        {"amount": 40, "from": "USD", "to": "JPY"},
    ),
)


def _type_of(tool: Tool, name: str) -> Any:
    schema = as_object(tool.properties.get(name))
    return schema.get("type") if schema else None


def _constrained(
    system: str, shots: Sequence[tuple[str, Body]], text: str, schema: Body, max_tokens: int, ask: Ask
) -> Body | None:
    """One object that follows `schema`, or None if the answer was cut off before it was whole."""
    messages = [{"role": "system", "content": system}]
    for message, answer in shots:
        messages += [{"role": "user", "content": message}, {"role": "assistant", "content": json.dumps(answer)}]
    messages.append({"role": "user", "content": text})
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    reply = ask({"messages": messages, "response_format": form, "temperature": 0, "max_tokens": max_tokens})
    try:
        return as_object(json.loads(reply["choices"][0]["message"]["content"]))
    except ValueError:
        return None


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0][:160]
