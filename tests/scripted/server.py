"""The HTTP side of the scripted model: a threading server on 127.0.0.1."""

import json
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from tests.scripted import directives, wire
from tests.scripted.directives import Answer, Body

HOLD_SECONDS = 60
_POLL_SECONDS = 0.02
_KEPT_REQUESTS = 1_000


class State:
    """What was asked, and who is held. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = self._hangups = 0
        self._requests: deque[Body] = deque(maxlen=_KEPT_REQUESTS)
        self._gates: dict[str, threading.Event] = {}
        self._waiting: list[str] = []

    def record(self, body: Body) -> None:
        with self._lock:
            self._count += 1
            self._requests.append(body)

    def calls(self) -> tuple[int, list[Body]]:
        with self._lock:
            return self._count, list(self._requests)

    def held(self) -> list[str]:
        with self._lock:
            return list(self._waiting)

    def hangups(self) -> int:
        with self._lock:
            return self._hangups

    def hung_up(self) -> None:
        with self._lock:
            self._hangups += 1

    def hold(self, name: str, check: Callable[[], None]) -> None:
        """Return when the name is released, or after `HOLD_SECONDS`; `check` may raise meanwhile."""
        gate = self._gate(name)
        if gate.is_set():
            return
        with self._lock:
            self._waiting.append(name)
        deadline = time.monotonic() + HOLD_SECONDS
        try:
            while not gate.wait(_POLL_SECONDS) and time.monotonic() < deadline:
                check()
        finally:
            with self._lock:
                self._waiting.remove(name)

    def release(self, name: str) -> None:
        self._gate(name).set()

    def reset(self) -> None:
        """Forget everything and let go of whoever is held."""
        with self._lock:
            self._count = self._hangups = 0
            self._requests.clear()
            gates, self._gates = self._gates, {}
        for gate in gates.values():
            gate.set()

    def _gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(name, threading.Event())


class ScriptedModel:
    """A scripted server in this process, usable while the `with` block lasts."""

    def __init__(self, port: int = 0):
        self._state = State()
        self._server = _Server(("127.0.0.1", port), self._state)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state.reset()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The base URL for `SCRIPTED_BASE_URL`."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def calls(self) -> int:
        """How many model calls were made since the start or the last reset, failed ones included."""
        return self._state.calls()[0]

    @property
    def requests(self) -> list[Body]:
        """Their bodies, oldest first, the newest 1,000."""
        return self._state.calls()[1]

    @property
    def hangups(self) -> int:
        """How many clients hung up before the end of their answer, since the start or the last reset."""
        return self._state.hangups()

    @property
    def held(self) -> list[str]:
        """The names that answers are held at now."""
        return self._state.held()

    def release(self, name: str) -> None:
        self._state.release(name)

    def reset(self) -> None:
        self._state.reset()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], state: State):
        self.state = state
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet
    timeout = 75
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._reply(200, {"object": "list", "data": [{"id": "model", "object": "model", "owned_by": "tests"}]})
        elif self.path == "/_calls":
            count, requests = self.server.state.calls()
            self._reply(200, {"count": count, "requests": requests, "hangups": self.server.state.hangups()})
        elif self.path == "/_held":
            self._reply(200, {"held": self.server.state.held()})
        else:
            self._reply(404, wire.error(404, f"no such route: GET {self.path}"))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/v1/chat/completions":
            self._chat(raw)
        elif self.path == "/_reset":
            self.server.state.reset()
            self._reply(200, {"ok": True})
        elif self.path.startswith("/_release/"):
            self.server.state.release(unquote(self.path.removeprefix("/_release/")))
            self._reply(200, {"ok": True})
        else:
            self._reply(404, wire.error(404, f"no such route: POST {self.path}"))

    def _chat(self, raw: bytes) -> None:
        try:
            body = json.loads(raw)
            self.server.state.record(body)
            answer = directives.answer(body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._reply(400, wire.error(400, f"not a chat request: {error!r}"))
            return
        try:
            self._wait(answer.wait_ms)
            for name in answer.holds:
                self.server.state.hold(name, self._check)
            self._answer(body, answer)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has given up waiting
            self.server.state.hung_up()

    def _wait(self, milliseconds: int) -> None:
        if milliseconds and select.select([self.connection], [], [], milliseconds / 1000)[0]:
            self._check()

    def _check(self) -> None:
        """Raise if the client has hung up: while it waits for its answer it sends nothing but the end."""
        if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError

    def _answer(self, body: Body, answer: Answer) -> None:
        if answer.status != 200:
            self._reply(answer.status, wire.error(answer.status, answer.text))
        elif body.get("stream"):
            self._stream(body, answer)
        elif answer.breaks:
            self._reply(answer.breaks.status, wire.error(answer.breaks.status, answer.breaks.message))
        else:
            self._reply(200, wire.completion(body, answer))

    def _reply(self, status: int, body: Body) -> None:
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if status >= 400:
            self.send_header("x-should-retry", "false")  # one scripted failure is one model call
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _stream(self, body: Body, answer: Answer) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        head = wire.chunk_head(body)
        for number, chunk in enumerate(wire.opening(head, answer)):
            if number > 1:  # 0 is the role, 1 the first piece
                self._between(answer)
            self._event(json.dumps(chunk, ensure_ascii=False))
        if answer.breaks:
            self._event(json.dumps(wire.error(answer.breaks.status, answer.breaks.message)))
        else:
            for chunk in wire.closing(head, body, answer):
                self._event(json.dumps(chunk, ensure_ascii=False))
            self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _between(self, answer: Answer) -> None:
        self._wait(answer.pause_ms)
        for name in answer.stalls:
            self.server.state.hold(name, self._check)

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode("utf-8", "replace")
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
