"""A stand-in for Bedrock on 127.0.0.1 that streams events in their binary form, so that the real client reads them."""

import json
import socket
import struct
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Event = tuple[str, dict]  # the event's name and its JSON; a name that ends in Exception is sent as one


class Stall(threading.Event):
    """In a list of events: wait here until it is set."""


def frame(event: Event) -> bytes:
    """One message of `application/vnd.amazon.eventstream`."""
    name, content = event
    kind = "exception" if name.endswith("Exception") else "event"
    headers = {":message-type": kind, f":{kind}-type": name, ":content-type": "application/json"}
    head = b"".join(_header(key, value) for key, value in headers.items())
    payload = json.dumps(content).encode()
    prelude = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + head + payload
    return message + struct.pack("!I", zlib.crc32(message))


def _header(name: str, value: str) -> bytes:
    return struct.pack("!B", len(name)) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()


class BedrockServer:
    """Answers every request with `events`, or with `refusal` (status, code, message).

    `is_whole` False leaves out the end of the body; `hangups` counts clients that went before the end.
    """

    def __init__(self) -> None:
        self.events: list[Event | Stall | bytes] = []
        self.refusal: tuple[int, str, str] | None = None
        self.is_whole = True
        self.hangups = 0
        self.seen: list[tuple[str, dict, object]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.seen.append((self.path, body, self.client_address))
                try:
                    owner._refuse(self) if owner.refusal else owner._stream(self)
                except (BrokenPipeError, ConnectionResetError):
                    owner.hangups += 1
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> "BedrockServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _refuse(self, handler: BaseHTTPRequestHandler) -> None:
        status, code, message = self.refusal or (500, "", "")
        data = json.dumps({"message": message}).encode()
        handler.send_response(status)
        handler.send_header("x-amzn-errortype", code)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _stream(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "application/vnd.amazon.eventstream")
        handler.send_header("x-amzn-requestid", "request-1")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for event in self.events:
            if isinstance(event, Stall):
                _hold(event, handler.connection)
            else:
                data = event if isinstance(event, bytes) else frame(event)
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if self.is_whole:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            handler.close_connection = True


def _hold(stall: Stall, connection: socket.socket) -> None:
    """Wait, and raise `ConnectionResetError` once the client is gone."""
    connection.setblocking(False)
    deadline = time.monotonic() + 10
    try:
        while not stall.wait(0.01) and time.monotonic() < deadline:
            try:
                if not connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError
            except BlockingIOError:
                continue
    finally:
        connection.setblocking(True)
