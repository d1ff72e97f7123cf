"""Streams of the deployed application, through the front door: what a client sees, and when (DESIGN 7, spec-http 3)."""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from tests.e2e.application import Application, eventually
from tests.oidc import Issuer
from tests.scripted.server import ScriptedModel

NEAR_SECONDS = 0.05  # how far the first piece may lie behind that of the model itself


def body(text: str, thread: str, owner: str, **more: Any) -> dict[str, Any]:
    return {"messages": text, "memory": {"thread": thread, "resource": owner}} | more


def chunks(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def stream(api: httpx.Client, given: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    with api.stream("POST", "/api/agents/assistant/stream", json=given, **more) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(chunks(response.iter_lines()))


def said(seen: Iterable[dict[str, Any]]) -> str:
    return "".join(c["payload"]["text"] for c in seen if c["type"] == "text-delta")


def texts(application: Application, thread: str) -> list[tuple[str, Any]]:
    answer = application.http.get(f"/api/memory/threads/{thread}/messages").json()
    return [(m["role"], m["content"].get("content")) for m in answer["messages"]]


def test_a_streamed_turn_is_stored_like_any_other(application: Application, thread: str, owner: str) -> None:
    seen = stream(application.http, body("@say Hello from a stream", thread, owner))
    assert [c["type"] for c in seen][:3] == ["start", "step-start", "text-start"]
    assert said(seen) == "Hello from a stream"
    assert len([c for c in seen if c["type"] == "text-delta"]) > 1
    assert texts(application, thread) == [("user", "@say Hello from a stream"), ("assistant", said(seen))]
    answer = application.http.get(f"/api/memory/threads/{thread}/messages").json()["messages"][-1]
    assert answer["id"] == seen[0]["payload"]["messageId"]


def test_pieces_arrive_while_the_model_still_speaks(
    application: Application, thread: str, owner: str, hold: str, scripted: ScriptedModel
) -> None:
    """The model has not finished, and cannot before the test lets it, when its first words are here."""
    given = body(f"@stall {hold}\n@say The first words and the rest", thread, owner)
    with application.http.stream("POST", "/api/agents/assistant/stream", json=given) as response:
        arriving = chunks(response.iter_lines())
        first = next(c for c in arriving if c["type"] == "text-delta")
        assert first["payload"]["text"] == "The firs"
        assert hold in scripted.held
        scripted.release(hold)
        assert said(arriving) == "t words and the rest"


@pytest.mark.parametrize("remembers", [True, False])
def test_the_first_piece_is_close_behind_the_models_own(
    application: Application, scripted: ScriptedModel, thread: str, owner: str, remembers: bool
) -> None:
    """Median of 30, each against a direct call made next to it: the machine is the same for both."""
    directly = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "@say Hello there"}]}
    memory = {"memory": {"thread": thread, "resource": owner, "options": {"generateTitle": False}}}
    behind: list[float] = []
    with httpx.Client(base_url=scripted.url, trust_env=False) as model:
        for turn in range(32):
            direct = _first_piece(model, "/chat/completions", directly)
            asked = {"messages": f"Turn {turn}\n@say Hello there"} | (memory if remembers else {})
            behind.append(_first_piece(application.http, "/api/agents/assistant/stream", asked) - direct)
    assert statistics.median(behind[2:]) < NEAR_SECONDS, behind


def _first_piece(client: httpx.Client, path: str, given: dict[str, Any]) -> float:
    """Seconds until the first piece of text is there; the answer is read to its end."""
    started, first = time.perf_counter(), 0.0
    with client.stream("POST", path, json=given) as response:
        for line in response.iter_lines():
            if not first and "Hello th" in line:
                first = time.perf_counter()
    assert first, "no text came"
    return first - started


def test_h13_hanging_up_stops_the_model_and_keeps_what_was_said(
    application: Application, thread: str, owner: str, hold: str, scripted: ScriptedModel
) -> None:
    hangups = scripted.hangups
    given = body(f"@stall {hold}\n@say So far and no further", thread, owner)
    with application.http.stream("POST", "/api/agents/assistant/stream", json=given) as response:
        next(c for c in chunks(response.iter_lines()) if c["type"] == "text-delta")
    eventually(lambda: scripted.hangups == hangups + 1)
    eventually(lambda: len(texts(application, thread)) == 2)
    stored = application.http.get(f"/api/memory/threads/{thread}/messages").json()["messages"]
    assert stored[-1]["content"]["content"] == "So far a"
    assert stored[-1]["content"]["metadata"]["aborted"] is True
    assert stream(application.http, body("@say And on", thread, owner))[-1]["type"] == "finish"


def test_a_model_that_breaks_off_is_an_error_in_the_stream(application: Application, thread: str, owner: str) -> None:
    seen = stream(application.http, body("@say half an answer && @fail 500 broke", thread, owner))
    assert [c["type"] for c in seen][-3:] == ["error", "step-finish", "finish"]
    assert seen[-1]["payload"]["stepResult"]["reason"] == "error"
    assert texts(application, thread)[-1] == ("assistant", "half an answer")


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("/api/agents/nobody/stream", {"messages": "hi"}, 404),
        ("/api/agents/assistant/stream", {"messages": ""}, 400),
        ("/api/agents/assistant/stream", {"messages": "hi", "memory": {"thread": "t"}}, 400),
    ],
)
def test_what_is_wrong_is_an_ordinary_reply(application: Application, path: str, given: Any, status: int) -> None:
    answer = application.http.post(path, json=given)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert "error" in answer.json()


def test_nobody_streams_without_a_credential(application: Application) -> None:
    forged = {"x-amzn-request-context": '{"authorizer":{"kind":"service"}}'}
    for headers in ({}, {"Authorization": "Bearer nonsense"}, forged):
        answer = httpx.post(
            f"{application.stack.base_url}/api/agents/assistant/stream",
            json={"messages": "hi"},
            headers=headers,
            trust_env=False,
        )
        assert (answer.status_code, answer.json()) == (401, {"error": "Invalid or expired token"})


def test_h01_a_users_token_streams_only_into_its_own_threads(
    application: Application, thread: str, owner: str, issuer: Issuer
) -> None:
    stream(application.http, body("@say mine", thread, owner))
    other = {"Authorization": f"Bearer {issuer.token('user-eve')}"}
    answer = httpx.post(
        f"{application.stack.base_url}/api/agents/assistant/stream",
        json=body("@say yours", thread, owner),
        headers=other,
        trust_env=False,
    )
    assert answer.status_code == 403
    assert len(texts(application, thread)) == 2


def test_h12_racing_repeats_of_a_streamed_request_are_one_turn(
    application: Application, thread: str, owner: str, aside: Callable[..., Future[Any]]
) -> None:
    given = body("@wait 300\n@say Only once", thread, owner, runId=f"run-{thread}")
    racing = [aside(stream, application.http, given) for _ in range(4)]
    assert {said(one.result(60)) for one in racing} == {"Only once"}
    assert len(texts(application, thread)) == 2


def test_tt5_a_title_is_told_and_stored_before_the_end(application: Application, thread: str, owner: str) -> None:
    options = {"generateTitle": {"emitEvent": True}}
    given = body("@say Hello", thread, owner)
    given["memory"]["options"] = options
    seen = stream(application.http, given)
    kinds = [c["type"] for c in seen]
    assert kinds[-2:] == ["data-thread-title", "finish"]
    title = seen[-2]["data"]
    assert title["threadId"] == thread
    assert application.http.get(f"/api/memory/threads/{thread}").json()["title"] == title["title"] != ""


def test_streamed_and_buffered_turns_share_a_thread(application: Application, thread: str, owner: str) -> None:
    stream(application.http, body("@say one", thread, owner))
    given = body("@say two", thread, owner)
    assert application.http.post("/api/agents/assistant/generate", json=given).json()["text"] == "two"
    prompt = json.loads(said(stream(application.http, body("@dump", thread, owner))))
    assert [m["content"] for m in prompt["messages"] if m["role"] == "assistant"] == ["one", "two"]
