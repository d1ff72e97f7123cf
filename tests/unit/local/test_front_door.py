"""The front door passes requests on unchanged, but for what no caller may send."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from starlette.testclient import TestClient

from local.front_door import create_app


class Upstream(BaseHTTPRequestHandler):
    """Keeps what it was sent; answers 418 with two cookies."""

    seen: list[Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(418)
        self.send_header("Set-Cookie", "a=1")
        self.send_header("Set-Cookie", "b=2")
        self.send_header("ETag", '"3"')
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_PUT = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[tuple[str, list[Any]]]:
    """The URL of an API, and what arrived there: path, headers and body of each request."""
    seen: list[Any] = []
    handler = type("Handler", (Upstream,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/stage/v1", seen
        server.shutdown()
        thread.join()


def test_path_query_body_and_answer_pass_unchanged(upstream: tuple[str, list[Any]]) -> None:
    url, seen = upstream
    with TestClient(create_app(lambda: url)) as client:
        answer = client.post("/api/a%2Fb%20c?x=1&x=%26&y", content=b"\x00\xff", headers={"Authorization": "Bearer k"})
    [(path, headers, body)] = seen
    assert path == "/stage/v1/api/a%2Fb%20c?x=1&x=%26&y"
    assert headers["authorization"] == "Bearer k"
    assert body == b"\x00\xff"
    assert (answer.status_code, answer.content) == (418, b"ok")
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]


def test_versions_pass_both_ways(upstream: tuple[str, list[Any]]) -> None:
    url, seen = upstream
    with TestClient(create_app(lambda: url)) as client:
        answer = client.put("/api", content=b"{}", headers={"If-Match": '"2"'})
    [(_, headers, _)] = seen
    assert (headers["if-match"], answer.headers["etag"]) == ('"2"', '"3"')


def test_no_caller_may_send_what_carries_identity_on_aws(upstream: tuple[str, list[Any]]) -> None:
    url, seen = upstream
    with TestClient(create_app(lambda: url)) as client:
        client.post("/", headers={"X-Amzn-Request-Context": "{}", "x-amzn-lambda-context": "{}", "X-Mine": "1"})
    [(_, headers, _)] = seen
    assert headers["x-mine"] == "1"
    assert not [name for name in headers if name.startswith("x-amzn-")]


def test_a_stack_that_is_down_is_a_503_in_json() -> None:
    with TestClient(create_app(lambda: "http://127.0.0.1:9/v1")) as client:
        answer = client.get("/api/agents")
    assert answer.status_code == 503
    assert "make up" in answer.json()["error"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/a%0Ab", 404), ("TRACE", "/api/agents", 405)])
def test_what_no_route_takes_is_refused_in_json(method: str, path: str, status: int) -> None:
    with TestClient(create_app(lambda: "http://127.0.0.1:9/v1")) as client:
        answer = client.request(method, path)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
