"""An OpenAI-compatible server in front of a small model, so that the product meets an ordinary provider.

It answers `POST /v1/chat/completions` and `GET /v1/models`. The model itself never sees tools, and sees a short
prompt: the system texts, what the user has told so far in his own words, the last two exchanges. What it is told is
only what the request says; the shim keeps nothing from one request to the next.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from local.models.decide import MEMORY_TOOL, Ask, Body, Call, Tool, as_object, choose_call, facts

Take = Callable[[Body], bool]  # gets a chunk of the model's stream, returns whether to stop
Stream = Callable[[Body, Take], object]  # one call of the model that streams; the request body says so too

MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_ANSWER_TOKENS = 160
_RECENT_MESSAGES = 4  # two exchanges; more of them and the model copies its own earlier answers
_FACT_CHARACTERS = 2000
_NO_MEMORY = ("(empty: nothing has been stored yet)", "No working memory data is available.")  # as the prompt says it
_FACTS = "The user has told you these things, in the user's own words. Use them to answer:"


class BadRequest(Exception):
    """A request that repeating cannot mend; `status` is the HTTP status and the text is safe to show."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request says: the system texts, the messages before the last user message, that message, and the
    results of the tools that were called since."""

    system: tuple[str, ...]
    earlier: tuple[tuple[str, str], ...]  # (role, text)
    asked: str
    results: tuple[tuple[str, str], ...]  # (tool, text)

    @property
    def working_memory(self) -> str:
        return "\n".join(data for text in self.system if (data := _memory_data(text)))

    @property
    def told(self) -> list[str]:
        return [fact for role, text in self.earlier if role == "user" for fact in facts(text)]


def complete(request: Body, model: str, ask: Ask, speak: Ask | None = None) -> Body:
    """The `chat.completion` body that answers a chat completions request; raises `BadRequest`.

    `speak`, if given, is asked for the words that the user will read, `ask` for the decisions before them.
    """
    conversation = read_conversation(request.get("messages"))
    tools, choice = _offered(request)
    if tools and not conversation.results and conversation.asked:
        memory, told = conversation.working_memory, conversation.told
        call = choose_call(conversation.asked, memory, told, tools, choice, _checked(ask))
        if call:
            return _completion(model, _call_message(call), "tool_calls", {})
    body = {"messages": prompt(conversation), "temperature": 0, "max_tokens": _max_tokens(request)}
    if request.get("response_format"):
        body["response_format"] = request["response_format"]
    answer = _checked(speak or ask)(body)
    choice_ = answer["choices"][0]
    message = {"role": "assistant", "content": choice_["message"].get("content") or ""}
    return _completion(model, message, choice_.get("finish_reason") or "stop", answer.get("usage") or {})


def read_conversation(messages: Any) -> Conversation:
    """Sorts the messages of a request; raises `BadRequest` naming the message that cannot be read."""
    sent = [as_object(message) for message in _array(messages)]
    if not sent:
        raise BadRequest("messages: must be a non-empty array")
    entries = [_entry(message, index) for index, message in enumerate(sent)]
    last = max((i for i, (role, _) in enumerate(entries) if role == "user"), default=-1)
    objects = [message or {} for message in sent]
    names = _call_names(objects)
    results = [
        (names.get(objects[i].get("tool_call_id"), "the tool"), text)
        for i, (role, text) in enumerate(entries)
        if role == "tool" and i > last
    ]
    return Conversation(
        system=tuple(text for role, text in entries if role == "system" and text),
        earlier=tuple((role, text) for role, text in entries[: max(last, 0)] if role in ("user", "assistant") and text),
        asked=entries[last][1] if last >= 0 else "",
        results=tuple(results),
    )


def prompt(conversation: Conversation) -> list[Body]:
    """The messages that the model reads. The part before the last exchanges only grows, so its cache stays warm."""
    blocks = [_memory_note(text) for text in conversation.system]
    if conversation.told:
        blocks.append("\n".join([_FACTS, *(f"- {fact}" for fact in _newest(conversation.told))]))
    messages: list[Body] = [{"role": "system", "content": "\n\n".join(blocks)}] if blocks else []
    recent = conversation.earlier[-_RECENT_MESSAGES:]
    messages += [{"role": role, "content": text} for role, text in recent]
    results = "\n".join(f"Result of {name}: {text}" for name, text in conversation.results if name != MEMORY_TOOL)
    asked = "\n\n".join(part for part in (conversation.asked, results) if part)
    return [*messages, {"role": "user", "content": asked}]


def _newest(told: Sequence[str]) -> list[str]:
    """The newest facts that fit, each once, oldest first."""
    kept: list[str] = []
    room = _FACT_CHARACTERS
    for fact in reversed(dict.fromkeys(told)):
        room -= len(fact)
        if room < 0:
            break
        kept.append(fact)
    return kept[::-1]


def _memory_note(text: str) -> str:
    """The prompt's rules for keeping working memory are for a tool that this model never sees; its content stays."""
    data = _memory_data(text)
    return text if data is None else f"What you know about the user:\n{data}" if data else ""


def _memory_data(text: str) -> str | None:
    _, opened, rest = text.partition("<working_memory_data>")
    data = rest.partition("</working_memory_data>")[0].strip()
    return ("" if data in _NO_MEMORY else data) if opened else None


def _array(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _entry(message: Body | None, index: int) -> tuple[str, str]:
    if message is None:
        raise BadRequest(f"messages[{index}]: must be an object")
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise BadRequest(f"messages[{index}].role: must be system, developer, user, assistant or tool")
    return "system" if role == "developer" else role, _text(message.get("content"), index)


def _text(content: Any, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise BadRequest(f"messages[{index}].content: must be a string or an array of parts")
    parts = [as_object(part) or {} for part in _array(content)]
    if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in parts):
        raise BadRequest(f"messages[{index}].content: this model reads only text parts")
    return "".join(part["text"] for part in parts)


def _call_names(messages: Sequence[Body]) -> dict[Any, str]:
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {call.get("id"): call.get("function", {}).get("name", "the tool") for call in calls}


def _offered(request: Body) -> tuple[list[Tool], str]:
    """The tools that may be called now, and `auto`, `required` or the one tool's name."""
    choice = request.get("tool_choice") or "auto"
    named = as_object(choice)
    functions = [(as_object(tool) or {}).get("function") for tool in _array(request.get("tools"))]
    tools = [
        Tool(f["name"], f.get("description") or "", f.get("parameters") or {}) for f in map(as_object, functions) if f
    ]
    return ([], "none") if choice == "none" else (tools, str(named["function"]["name"] if named else choice))


def _max_tokens(request: Body) -> int:
    asked = request.get("max_completion_tokens") or request.get("max_tokens") or MAX_ANSWER_TOKENS
    if not isinstance(asked, int) or asked < 1:
        raise BadRequest("max_tokens: must be a positive integer")
    return min(asked, MAX_ANSWER_TOKENS)


def _checked(ask: Ask) -> Ask:
    """The model's own refusals (a prompt too long, a schema it cannot follow) as `BadRequest`."""

    def asking(body: Body) -> Body:
        answer = ask(body)
        if error := as_object(answer.get("error")):
            raise BadRequest(str(error.get("message", error)), int(error.get("code") or 500))
        return answer

    return asking


def _call_message(call: Call) -> Body:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    tool_call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call]}


def _completion(model: str, message: Body, finish_reason: str, usage: Body) -> Body:
    counted = {name: usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": counted,
    }


def spoken(stream: Stream, say: Callable[[str], None]) -> Ask:
    """A call of the model that says each piece of its answer as it is made, and returns the whole.

    What `say` raises stops the model and is raised here, for the runtime would swallow it.
    """

    def speaking(body: Body) -> Body:
        heard = _Heard(say)
        stream({**body, "stream": True, "stream_options": {"include_usage": True}}, heard.take)
        if heard.failure:
            raise heard.failure
        return heard.answer

    return speaking


class _Heard:
    """What came out of one stream of the model."""

    def __init__(self, say: Callable[[str], None]):
        self.failure: Exception | None = None
        self._say = say
        self._pieces: list[str] = []
        self._rest: Body = {}
        self._finish_reason: str | None = None

    @property
    def answer(self) -> Body:
        message = {"role": "assistant", "content": "".join(self._pieces)}
        return {"choices": [{"message": message, "finish_reason": self._finish_reason}], **self._rest}

    def take(self, chunk: Body) -> bool:
        try:
            self._rest |= {name: chunk[name] for name in ("usage", "error") if chunk.get(name)}
            for choice in chunk.get("choices") or ():
                self._finish_reason = choice.get("finish_reason") or self._finish_reason
                if piece := choice["delta"].get("content"):
                    self._pieces.append(piece)
                    self._say(piece)
        except Exception as error:
            self.failure = error
        return self.failure is not None


class ShimServer(ThreadingHTTPServer):
    """Serves `model` on a loopback `port` (0: a free one). The model answers one request at a time."""

    daemon_threads = True

    def __init__(self, port: int, model: str, ask: Ask, stream: Stream):
        super().__init__(("127.0.0.1", port), _Handler)
        self.model = model
        self._ask = ask
        self._stream = stream
        self._turn = threading.Lock()

    def complete(self, request: Body, say: Callable[[str], None] | None = None) -> Body:
        """The answer to a request; `say` hears its words while the model makes them."""
        with self._turn:
            return complete(request, self.model, self._ask, spoken(self._stream, say) if say else None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ShimServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 60  # seconds an idle connection is kept

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._error(404, f"No route GET {self.path}")
        model = {"id": self.server.model, "object": "model", "created": 0, "owned_by": "local"}
        self._send(200, "application/json", json.dumps({"object": "list", "data": [model]}))

    def do_POST(self) -> None:
        events: _Events | None = None
        try:
            request = self._body()
            if self.path != "/v1/chat/completions":
                raise BadRequest(f"No route POST {self.path}", 404)
            if request.get("model") != self.server.model:
                raise BadRequest(f"model: unknown, this server has only {self.server.model}", 404)
            if not request.get("stream"):
                completion = self.server.complete(request)
                return self._send(200, "application/json", json.dumps(completion, ensure_ascii=False))
            events = _Events(self, self.server.model)
            usage = bool((as_object(request.get("stream_options")) or {}).get("include_usage"))
            events.end(self.server.complete(request, events.say), usage)
        except BadRequest as error:
            self._fail(events, error.status, str(error))
        except ConnectionError:
            self.close_connection = True  # the client has hung up
        except (LookupError, TypeError, AttributeError) as error:
            self._fail(events, 400, f"Not a chat completions request: {type(error).__name__}: {error}")
        except Exception as error:
            self._fail(events, 500, f"{type(error).__name__}: {error}")

    def _fail(self, events: "_Events | None", status: int, message: str) -> None:
        if events and events.is_open:
            events.fail(status, message)
        else:
            self._error(status, message)

    def _body(self) -> Body:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True  # the rest of the request stays unread
            raise BadRequest(f"The body needs a Content-Length of at most {MAX_BODY_BYTES} bytes", 413)
        try:
            body = as_object(json.loads(self.rfile.read(int(length))))
        except ValueError:
            raise BadRequest("The body is not JSON") from None
        if body is None:
            raise BadRequest("The body must be a JSON object")
        return body

    def _error(self, status: int, message: str) -> None:
        self._send(status, "application/json", json.dumps(_failure(status, message)))

    def _send(self, status: int, content_type: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """One line per request on stderr would hold what users say; nothing is logged."""


class _Events:
    """The reply to one request that streams, opened by its first event: until then it may still be an error."""

    def __init__(self, handler: BaseHTTPRequestHandler, model: str):
        self.is_open = False
        self._handler = handler
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion.chunk"}
        self._head: Body = head | {"created": int(time.time()), "model": model}

    def say(self, text: str) -> None:
        """One piece of the answer's text."""
        self._choice({"content": text} if self.is_open else {"role": "assistant", "content": text})

    def end(self, completion: Body, include_usage: bool) -> None:
        """What was not said yet of the whole answer, how it ended, its usage."""
        choice = completion["choices"][0]
        if not self.is_open:
            message = dict(choice["message"])
            if calls := message.get("tool_calls"):
                message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
            self._choice(message)
        self._choice({}, choice["finish_reason"])
        if include_usage:
            self._chunk({"choices": [], "usage": completion["usage"]})
        self._write("data: [DONE]\n\n", is_last=True)

    def fail(self, status: int, message: str) -> None:
        """The error that ends a stream which has begun."""
        self._write(f"data: {json.dumps(_failure(status, message))}\n\n", is_last=True)

    def _choice(self, delta: Body, finish_reason: str | None = None) -> None:
        self._chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

    def _chunk(self, content: Body) -> None:
        self._write(f"data: {json.dumps(self._head | content, ensure_ascii=False)}\n\n")

    def _write(self, text: str, is_last: bool = False) -> None:
        if not self.is_open:
            self.is_open = True
            self._handler.send_response(200)
            self._handler.send_header("Content-Type", "text/event-stream")
            self._handler.send_header("Transfer-Encoding", "chunked")
            self._handler.end_headers()
        data = text.encode()
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) + (b"0\r\n\r\n" if is_last else b""))


def _failure(status: int, message: str) -> Body:
    return {"error": {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error"}}
