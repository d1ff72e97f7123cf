"""`python -m local.demo`: brings the stack up with a model and has two short conversations over HTTP with agents.

The last question of the first can only be answered from what was told in its first request. In the second an agent is
told something on one thread and asked for it on another, which only its working memory connects. The exit code says
whether it knew both.
"""

import json
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from local.__main__ import ENV_FILE, INTERRUPTED, PORT, development_stack, up
from local.models.choose import SWITCH, Choice, NoModel, choose
from local.stack import ROOT, StackError

AGENT = "assistant"
KEEPER = "personal-assistant"  # has working memory
_NAMES = ("Biscuit", "Comet", "Juniper", "Mango", "Nutmeg", "Pepper", "Pickles", "Waffle", "Zephyr")
_CITIES = ("Bergen", "Cusco", "Kyoto", "Lisbon", "Nairobi", "Oslo", "Quito", "Tunis", "Zagreb")
_REPEATS = 2
_TURN_SECONDS = 60

Say = Callable[[str], None]


class DemoFailed(Exception):
    """The conversation did not go as it should; the text is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and the directive that tells a scripted model what to answer."""

    text: str
    script: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a conversation takes place: with which agent, on which thread, for which resource."""

    agent: str
    thread: str
    resource: str


@dataclass(frozen=True, slots=True)
class Exchange:
    asked: str
    answered: str
    seconds: float


def conversation(name: str) -> tuple[Turn, ...]:
    """Three requests: a fact, something else, a question about the fact that does not contain it."""
    return (
        Turn(f"Hello! I am Ada and my dog is called {name}.", f"@say Hello Ada! I will remember {name}."),
        Turn("How many days does a leap year have?", "@say A leap year has 366 days."),
        Turn("What is my dog called?", "@dump"),
    )


def across_threads(city: str) -> tuple[Turn, Turn]:
    """A fact for one thread, and a question about it, which does not contain it, for another."""
    memory = json.dumps({"memory": f"# User Profile\n- Name: Ada\n- Location: {city}"})
    return (
        Turn(f"I am Ada and I live in {city}.", f"@call updateWorkingMemory {memory}\n@say Welcome, Ada."),
        Turn("In which city do I live?", "@dump"),
    )


class Api:
    """The deployed application, as any HTTP client sees it."""

    def __init__(self, base_url: str, key: str, transport: httpx.BaseTransport | None = None):
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=_TURN_SECONDS, trust_env=False, transport=transport
        )

    def ask(self, text: str, place: Place, say: Say) -> str:
        """The agent's answer. A busy machine can be too slow for a turn; nothing is stored then, so it is asked again.

        Raises `DemoFailed`.
        """
        body = {"messages": text, "memory": {"thread": place.thread, "resource": place.resource}}
        path = f"/api/agents/{place.agent}/generate"
        reply = self._send("POST", path, json=body)
        for _ in range(_REPEATS):
            if reply.status_code not in (409, 503, 504):
                break
            say(f"not answered in time ({_error(reply)}); asking again")
            reply = self._send("POST", path, json=body)
        return str(_json(reply, "The agent answered")["text"])

    def stored(self, place: Place) -> list[tuple[str, str]]:
        """Role and text of the messages of a thread, oldest first. Raises `DemoFailed`."""
        reply = self._send("GET", f"/api/memory/threads/{place.thread}/messages", params={"agentId": place.agent})
        messages = _json(reply, "The messages could not be read:")["messages"]
        return [(message["role"], _text_of(message["content"])) for message in messages]

    def working_memory(self, place: Place) -> str:
        """What the agent keeps, empty for nothing. Raises `DemoFailed`."""
        query = {"agentId": place.agent, "resourceId": place.resource}
        reply = self._send("GET", memory_path(place), params=query)
        return _json(reply, "The working memory could not be read:")["workingMemory"] or ""

    def keep(self, place: Place, text: str) -> None:
        """Write the agent's working memory, as any program may. Raises `DemoFailed`."""
        body = {"workingMemory": text, "resourceId": place.resource}
        reply = self._send("POST", memory_path(place), params={"agentId": place.agent}, json=body)
        _json(reply, "The working memory could not be written:")

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise DemoFailed(f"{method} {path} got no answer: {error}") from error


def memory_path(place: Place) -> str:
    return f"/api/memory/threads/{place.thread}/working-memory"


def converse(api: Api, place: Place, turns: Sequence[Turn], scripted: bool, say: Say) -> list[Exchange]:
    """Has the conversation, and shows each exchange as it happens."""
    exchanges: list[Exchange] = []
    for turn in turns:
        asked = f"{turn.text}\n{turn.script}" if scripted else turn.text
        shown = [turn.text, *(f"[{line}]" for line in turn.script.splitlines() if scripted)]
        print(_line("you", "   ".join(shown), place.agent), flush=True)
        began = time.monotonic()
        answered = api.ask(asked, place, say)
        exchanges.append(Exchange(asked, answered, time.monotonic() - began))
        told = "(the prompt that the model was sent)" if turn.script == "@dump" and scripted else answered
        print(_line(place.agent, told, place.agent) + f"   ({exchanges[-1].seconds:.1f} s)\n", flush=True)
    return exchanges


def check(exchanges: Sequence[Exchange], stored: Sequence[tuple[str, str]], name: str, scripted: bool) -> str:
    """One sentence that says what was remembered. Raises `DemoFailed` if it was not.

    A script cannot answer a question, so with a script the fact must be in the prompt that it was sent for the last
    request, in a message before that request: there it can only come from the store.
    """
    _check_stored(exchanges, stored)
    last = exchanges[-1].answered
    if scripted:
        earlier = [text for text in _sent_to_script(last, "user")[:-1] if name in text]
        if not earlier:
            raise DemoFailed(f"The prompt of the last request did not hold the earlier message about {name}.")
        return f"Remembered: the last prompt brought back {_one_line(earlier[0])!r} out of the store."
    if name.lower() not in last.lower():
        raise DemoFailed(f"The last answer does not name {name}, which the first request told.")
    return f"Remembered: {name} was told in request 1 and is in the answer to request {len(exchanges)}."


def check_elsewhere(exchange: Exchange, stored: Sequence[tuple[str, str]], city: str, scripted: bool) -> str:
    """One sentence that says what another thread knew. Raises `DemoFailed` if it did not.

    The thread holds the question and its answer alone, so only working memory can have told the city. What a script
    was told is in the system texts of its prompt.
    """
    _check_stored([exchange], stored)
    if scripted:
        knew = any(city in text for text in _sent_to_script(exchange.answered, "system"))
        where = "the prompt"
    else:
        knew, where = city.lower() in exchange.answered.lower(), "the answer"
    if not knew:
        raise DemoFailed(f"On the other thread {where} does not name {city}, which working memory holds.")
    return f"Known elsewhere: {city} was told on one thread and is in {where} on another, which never heard of it."


def kept(api: Api, place: Place, city: str, told: str) -> tuple[str, bool]:
    """What the agent keeps once it was told the city, and whether its model wrote that by itself.

    Not every model calls the tool when it should. If this one has not, the fact is written over HTTP.
    """
    memory = api.working_memory(place)
    if city.lower() in memory.lower():
        return memory, True
    api.keep(place, f"{memory}\n- {told}".strip())
    return api.working_memory(place), False


def tell_elsewhere(api: Api, resource: str, scripted: bool, say: Say) -> str:
    """The second conversation, on two threads, and what is kept between them. Raises `DemoFailed`."""
    city = random.choice(_CITIES)
    told, asked = across_threads(city)
    first, second = (Place(KEEPER, f"demo-{secrets.token_hex(4)}", resource) for _ in range(2))
    print(f"\nThe agent {KEEPER} keeps a profile of its user. It is told something on the new thread {first.thread}\n")
    converse(api, first, [told], scripted, say)
    memory, by_model = kept(api, first, city, told.text)
    if not by_model:
        print(f"The model did not call its tool, so this program writes it down, by POST {memory_path(first)}.\n")
    print(f"Its working memory now, by GET {memory_path(first)}?agentId={KEEPER}&resourceId={resource}:")
    print("\n".join(f"  {line}" for line in memory.splitlines()))
    print(f"\nIt is asked on another new thread, {second.thread}\n")
    [exchange] = converse(api, second, [asked], scripted, say)
    known = check_elsewhere(exchange, api.stored(second), city, scripted)
    return known if by_model else f"{known} This program wrote it down, not the model."


def how_to_go_on(base_url: str, key: str, thread: str, resource: str, choice: Choice) -> str:
    """What a newcomer needs next: address, key, a request, a client, the end."""
    body = json.dumps({"messages": "And who am I?", "memory": {"thread": thread, "resource": resource}})
    script = f"\nThis was {choice.about}.\n{SWITCH}=packaged downloads a small model.\n" if choice.is_script else ""
    return f"""{script}
Go on:
  URL   {base_url}
  key   {key}   (both are in {ENV_FILE.relative_to(ROOT)})

  set -a; . {ENV_FILE.relative_to(ROOT)}; set +a
  curl "$BASE_URL/api/agents/{AGENT}/generate" -H "Authorization: Bearer $API_KEY" \\
    -H 'Content-Type: application/json' -d '{body}'

  curl "$BASE_URL/api/memory/resources/{resource}/working-memory" -H "Authorization: Bearer $API_KEY"

  .venv/bin/threadkeep chat {AGENT} --thread {thread} --resource {resource}

  // npm install @mastra/client-js
  import {{ MastraClient }} from "@mastra/client-js";
  const client = new MastraClient({{
    baseUrl: process.env.BASE_URL, headers: {{ Authorization: `Bearer ${{process.env.API_KEY}}` }},
  }});
  const reply = await client.getAgent("{AGENT}").generate("And who am I?", {{
    memory: {{ thread: "{thread}", resource: "{resource}" }},
  }});
  console.log(reply.text);

  Your own agents: layers/agents/agents/{AGENT}.py. Stop with `make down`."""


def bring_up(env: Mapping[str, str], say: Say) -> tuple[Choice, str, str]:
    """The model, the base URL and the key of the running stack. The build and the model's download go side by side.

    Raises `NoModel` or `StackError`.
    """
    port = int(env.get("PORT") or PORT)
    first = development_stack(say=say)
    with first.alone():
        first.check_port(port)
        with ThreadPoolExecutor(max_workers=1) as pool:
            build = pool.submit(first.build)
            choice = choose(env, lambda line: say(f"model: {line}"))
            say(f"model: using {choice.about}")
            build.result()
        stack = development_stack(choice=choice, say=say)
        up(stack, port, choice)
    return choice, stack.base_url, stack.service_key()


def run(env: Mapping[str, str]) -> None:
    """The whole demonstration. Raises `DemoFailed`, `NoModel` or `StackError`."""
    say = _clock()
    choice, base_url, key = bring_up(env, say)
    place, name = Place(AGENT, f"demo-{secrets.token_hex(4)}", f"ada-{secrets.token_hex(4)}"), random.choice(_NAMES)
    print(f"\nA conversation with the agent {AGENT} on the new thread {place.thread}, over HTTP")
    if choice.is_script:
        print(
            f"with {choice.about}.\nWhat stands in [brackets] goes along, on lines of its own, and tells it what to do."
        )
    print()
    api = Api(base_url, key)
    exchanges = converse(api, place, conversation(name), choice.is_script, say)
    stored = api.stored(place)
    print(f"Stored now, by GET /api/memory/threads/{place.thread}/messages?agentId={AGENT}:")
    for number, (role, text) in enumerate(stored, 1):
        print(f"  {number} {role:9}  {_one_line(text)}")
    print(f"\n{check(exchanges, stored, name, choice.is_script)}")
    print(tell_elsewhere(api, place.resource, choice.is_script, say))
    print(how_to_go_on(base_url, key, place.thread, place.resource, choice))


def main() -> int:
    try:
        run(os.environ)
    except (DemoFailed, NoModel, StackError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(INTERRUPTED.format("run"), file=sys.stderr)
        return 130
    return 0


def _clock() -> Say:
    """Progress lines with the seconds since the start, one at a time from any thread."""
    began, lock = time.monotonic(), threading.Lock()

    def say(line: str) -> None:
        with lock:
            print(f"  {time.monotonic() - began:5.1f} s  {line}", flush=True)

    return say


def _check_stored(exchanges: Sequence[Exchange], stored: Sequence[tuple[str, str]]) -> None:
    said = [text for exchange in exchanges for text in (exchange.asked, exchange.answered)]
    if [text for _, text in stored] != said:
        raise DemoFailed(f"The thread should hold the {len(said)} messages of this conversation; it holds other ones.")


def _sent_to_script(dumped: str, kind: str) -> list[str]:
    """The texts of the `user` or `system` messages in the prompt that `@dump` shows. Raises `DemoFailed`."""
    try:
        return [str(text) for text in json.loads(dumped)[kind]]
    except (ValueError, LookupError, TypeError):
        raise DemoFailed(f"The scripted model did not show its prompt but said: {_one_line(dumped)}") from None


def _json(reply: httpx.Response, failed: str) -> Any:
    """The reply's JSON. Raises `DemoFailed` with `failed`, the status and the reason."""
    if reply.status_code != 200:
        raise DemoFailed(f"{failed} {reply.status_code}: {_error(reply)}")
    return reply.json()


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content["parts"] if part["type"] == "text")


def _error(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"])
    except (ValueError, LookupError, TypeError):
        return _one_line(reply.text)


def _line(who: str, text: str, agent: str) -> str:
    """A line of a conversation with `agent`, in two columns."""
    return f"  {who:{len(agent)}}  {_one_line(text)}"


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 160 else f"{flat[:157]}..."


if __name__ == "__main__":
    sys.exit(main())
