"""A client that sends a request again after a cut answer gets one turn, not two (DESIGN 4; H12, H13, H21)."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from tests.e2e.application import Application, eventually, new_id
from tests.scripted.server import ScriptedModel


def asked(scripted: ScriptedModel, text: str) -> int:
    """How often a model was asked with this text; titles are asked for with a transcript."""
    return sum(str(request["messages"][-1]["content"]).startswith(text) for request in scripted.requests)


def body(text: str, thread: str, owner: str) -> dict[str, Any]:
    return {"messages": text, "memory": {"thread": thread, "resource": owner}}


def post(application: Application, json: dict[str, Any], **headers: str) -> httpx.Response:
    return application.http.post("/api/agents/assistant/generate", json=json, headers=headers)


def test_a_request_cut_off_and_sent_again_while_it_runs_is_one_turn(
    application: Application, scripted: ScriptedModel, hold: str, aside: Callable[..., Future[Any]], thread: str,
    owner: str,
) -> None:  # fmt: skip
    given = body(f"Cut {thread}\n@hold {hold}\n@say Here it is", thread, owner)
    with pytest.raises(httpx.ReadTimeout):
        application.http.post("/api/agents/assistant/generate", json=given, timeout=2)
    eventually(lambda: hold in scripted.held)
    again = aside(post, application, given)
    time.sleep(1)
    assert not again.done()
    scripted.release(hold)
    reply = again.result(30)
    assert (reply.status_code, reply.json()["text"]) == (200, "Here it is")
    assert [role for role, _ in application.texts(thread)] == ["user", "assistant"]
    assert asked(scripted, f"Cut {thread}") == 1


def test_an_idempotency_key_answers_again_without_another_turn(
    application: Application, scripted: ScriptedModel, thread: str, owner: str
) -> None:
    given, key = body(f"Key {thread}\n@say Once", thread, owner), {"Idempotency-Key": new_id("key")}
    first, second = post(application, given, **key), post(application, given, **key)
    assert first.status_code == second.status_code == 200
    assert first.json()["messages"] == second.json()["messages"]
    assert len(application.texts(thread)) == 2 and asked(scripted, f"Key {thread}") == 1
    other = post(application, body("Other", thread, owner), **key)
    assert other.status_code == 422, other.text
    assert len(application.texts(thread)) == 2


def test_a_key_whose_run_is_not_finished_is_409_with_retry_after(
    application: Application, scripted: ScriptedModel, hold: str, aside: Callable[..., Future[Any]], thread: str,
    owner: str,
) -> None:  # fmt: skip
    given, key = body(f"Slow {thread}\n@hold {hold}\n@say Done", thread, owner), {"Idempotency-Key": new_id("key")}
    first = aside(post, application, given, **key)
    eventually(lambda: hold in scripted.held)
    meanwhile = post(application, given, **key)
    assert meanwhile.status_code == 409, meanwhile.text
    assert 1 <= int(meanwhile.headers["retry-after"]) <= 40
    scripted.release(hold)
    assert first.result(30).status_code == 200
    assert post(application, given, **key).json()["text"] == "Done"
    assert asked(scripted, f"Slow {thread}") == 1


def test_two_equal_texts_one_after_the_other_are_two_turns(application: Application, thread: str, owner: str) -> None:
    for _ in range(2):
        application.say("yes\n@say ok", thread, owner)
    assert len(application.texts(thread)) == 4


def test_a_failed_request_may_be_sent_again_at_once(application: Application, thread: str, owner: str) -> None:
    key = {"Idempotency-Key": new_id("key")}
    given = body("@fail 400 no", thread, owner)
    assert [post(application, given, **key).status_code for _ in range(2)] == [424, 424]
    assert application.texts(thread) == []
