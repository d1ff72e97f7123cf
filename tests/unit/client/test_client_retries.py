"""What is sent again, and what never: a repeat must not have a second effect."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.unit.client.door import KEY, Door
from threadkeep_client import (
    NEVER,
    AsyncClient,
    Client,
    Conflict,
    ConnectionFailed,
    Retries,
    ServerError,
    StillRunning,
    ThreadkeepError,
    TimedOut,
    Unavailable,
    UnreadableReply,
    VersionMismatch,
    calls,
)
from threadkeep_client.request import Request

THREAD = {
    "id": "t", "resourceId": "ada", "title": "", "createdAt": "2026-11-29T00:00:00.000Z",
    "updatedAt": "2026-11-29T00:00:00.000Z",
}  # fmt: skip
DONE = {
    "text": "Hello", "finishReason": "stop", "usage": {}, "totalUsage": {}, "steps": [], "toolCalls": [],
    "toolResults": [], "reasoning": [], "sources": [], "files": [], "warnings": [], "providerMetadata": {},
    "request": {}, "response": {}, "usedFallbackValue": False, "runId": "r", "messages": [], "rememberedMessages": [],
}  # fmt: skip
KEPT = {"workingMemory": None, "version": 0, "updatedAt": None, "writer": None, "revisions": []}
Answer = httpx.Response | Exception

SAFE: dict[str, tuple[Request[Any], Any]] = {
    "reading": (calls.get_thread("t"), THREAD),
    "a turn on a thread": (calls.generate("a", "Hi", thread="t", resource="ada"), DONE),
    "creating a thread": (calls.create_thread("a", resource_id="ada"), THREAD),
    "copying to a new id": (calls.clone_thread("t"), {"thread": THREAD, "clonedMessages": [], "messageIdMap": {}}),
    "saving messages": (calls.save_messages([]), {"messages": []}),
}
UNSAFE: dict[str, tuple[Request[Any], Any]] = {
    "a turn without memory": (calls.generate("a", "Hi"), DONE),
    "a turn that stores nothing": (calls.generate("a", "Hi", thread="t", memory_options={"readOnly": True}), DONE),
    "a tool": (calls.execute_tool("x", {}), {}),
    "changing a thread": (calls.update_thread("t", title="x"), THREAD),
    "giving a thread away": (calls.transfer_thread("t", "eve"), THREAD),
    "deleting a thread": (calls.delete_thread("t"), {"result": ""}),
    "copying to an id of one's own": (
        calls.clone_thread("t", new_thread_id="u"), {"thread": THREAD, "clonedMessages": [], "messageIdMap": {}}
    ),
    "writing what an agent keeps": (calls.update_working_memory("t", "x", agent_id="a"), {"success": True}),
    "replacing an owner's memory": (calls.replace_resource_memory("ada", "x", version=1), KEPT),
    "patching an owner's memory": (calls.patch_resource_memory("ada", {"a": [1]}), KEPT),
    "deleting messages": (calls.delete_messages(["m"]), {"success": True, "message": ""}),
}  # fmt: skip


def unavailable(status: int = 503, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": "busy"}, headers=headers)


def lost() -> httpx.ReadError:
    return httpx.ReadError("cut")


class Script:
    """A server that gives these answers in turn, and keeps what it was asked."""

    def __init__(self, *answers: Answer):
        self.answers: Iterator[Answer] = iter(answers)
        self.seen: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, retries: Retries = Retries()) -> Client:  # noqa: B008
        return Client("http://server", KEY, transport=httpx.MockTransport(self), retries=retries)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that the blocking client makes, which take no time here."""
    taken: list[float] = []
    monkeypatch.setattr("threadkeep_client.client.time.sleep", taken.append)
    return taken


@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize("problem", [lost, unavailable, lambda: unavailable(502), lambda: unavailable(504)])
def test_what_is_safe_is_sent_again(name: str, problem: Callable[[], Answer]) -> None:
    request, reply = SAFE[name]
    script = Script(problem(), problem(), httpx.Response(200, json=reply))
    script.client().send(request)
    first, *others = [(r.method, r.url, r.content, r.headers.get("idempotency-key")) for r in script.seen]
    assert others == [first, first]
    assert (first[3] is None) == (request.method == "GET")


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("problem", [lost, unavailable, lambda: httpx.ReadTimeout("late")])
def test_what_is_not_safe_is_sent_once(name: str, problem: Callable[[], Answer]) -> None:
    script = Script(problem())
    with pytest.raises((ConnectionFailed, Unavailable)):
        script.client().send(UNSAFE[name][0])
    assert len(script.seen) == 1


@pytest.mark.parametrize("name", UNSAFE)
def test_what_never_left_is_sent_again_whatever_it_is(name: str) -> None:
    request, reply = UNSAFE[name]
    script = Script(httpx.ConnectError("refused"), httpx.ConnectTimeout("slow"), httpx.Response(200, json=reply))
    script.client().send(request)
    assert len(script.seen) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 413, 422, 424, 429, 500])
def test_what_repeating_cannot_mend_is_sent_once(status: int) -> None:
    script = Script(unavailable(status))
    with pytest.raises(ThreadkeepError):
        script.client().send(SAFE["a turn on a thread"][0])
    assert len(script.seen) == 1


def test_each_call_has_a_key_of_its_own_unless_one_is_given() -> None:
    script = Script(*[httpx.Response(200, json=THREAD) for _ in range(3)])
    client = script.client()
    for key in (None, None, "mine"):
        client.create_thread("a", idempotency_key=key)
    keys = [r.headers["idempotency-key"] for r in script.seen]
    assert len(set(keys)) == 3 and keys[2] == "mine"


def test_a_run_that_still_runs_is_waited_for(pauses: list[float]) -> None:
    running = unavailable(409, **{"retry-after": "7"})
    script = Script(lost(), running, httpx.Response(200, json=DONE))
    assert script.client().send(SAFE["a turn on a thread"][0]).text == "Hello"
    assert pauses[0] <= 0.25 and 7 <= pauses[1] <= 7.5


def test_retry_after_of_an_unavailable_server_is_honoured_up_to_a_bound(pauses: list[float]) -> None:
    script = Script(unavailable(503, **{"retry-after": "3"}), unavailable(503, **{"retry-after": "61"}))
    with pytest.raises(Unavailable) as caught:
        script.client().get_thread("t")
    assert len(pauses) == 1 and 3 <= pauses[0] <= 3.25
    assert caught.value.retry_after == 61


def test_attempts_are_bounded_and_pauses_jittered(pauses: list[float]) -> None:
    for _ in range(100):
        script = Script(*[unavailable() for _ in range(4)])
        with pytest.raises(Unavailable):
            script.client().get_thread("t")
        assert len(script.seen) == 4
    for n, most in enumerate((0.25, 0.5, 1.0)):
        drawn = pauses[n::3]
        assert 0 <= min(drawn) < 0.2 * most and 0.8 * most < max(drawn) <= most
    assert all(Retries(attempts=99).pause("always", 40, TimedOut("", sent=True)) or 0 <= 8.0 for _ in range(100))


def test_repeats_can_be_switched_off() -> None:
    script = Script(unavailable())
    with pytest.raises(Unavailable):
        script.client(NEVER).get_thread("t")
    assert len(script.seen) == 1


async def test_the_async_client_repeats_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []

    async def sleep(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr("threadkeep_client.client.asyncio", SimpleNamespace(sleep=sleep))
    script = Script(lost(), unavailable(), httpx.Response(200, json=DONE), lost())
    async with AsyncClient("http://server", transport=httpx.MockTransport(script)) as client:
        assert (await client.send(SAFE["a turn on a thread"][0])).text == "Hello"
        with pytest.raises(ConnectionFailed, match="The connection broke: cut"):
            await client.send(UNSAFE["a tool"][0])
    assert len(taken) == 2 and len({r.headers.get("idempotency-key") for r in script.seen[:3]}) == 1


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        (409, {"error": "x"}, {}, Conflict),
        (409, {"error": "x"}, {"retry-after": "2"}, StillRunning),
        (409, {"error": "x", "version": 3}, {}, VersionMismatch),
        (412, {"error": "x", "version": 3}, {}, VersionMismatch),
        (500, {"error": "x", "requestId": "req"}, {}, ServerError),
        (502, "<html>", {}, Unavailable),
        (418, [1], {}, ThreadkeepError),
    ],
)
def test_a_refusal_becomes_the_exception_of_its_kind(status: int, body: Any, headers: Any, kind: type) -> None:
    script = Script(httpx.Response(status, headers=headers, **({"text": body} if body == "<html>" else {"json": body})))
    with pytest.raises(kind) as caught:
        script.client(NEVER).get_thread("t")
    error = caught.value
    assert type(error) is kind or status == 418
    assert (error.status, error.body) == (status, body)  # type: ignore[attr-defined]
    assert getattr(error, "version", 3) == 3
    assert status != 500 or error.request_id == "req"  # type: ignore[attr-defined]
    assert str(error) == ("x" if isinstance(body, dict) else f"The server answered {status}")


@pytest.mark.parametrize("text", ["", "<html>", '{"id": "t"}', "[]"])
def test_an_answer_that_is_no_reply_is_unreadable_and_not_repeated(text: str) -> None:
    script = Script(httpx.Response(200, text=text))
    with pytest.raises(UnreadableReply, match="GET /api/memory/threads/t"):
        script.client().get_thread("t")
    assert len(script.seen) == 1


def test_what_a_newer_server_adds_is_kept() -> None:
    script = Script(httpx.Response(200, json=THREAD | {"starred": True}))
    thread = script.client().get_thread("t")
    assert thread.model_extra == {"starred": True}


class Cutting(httpx.HTTPTransport):
    """Loses the first answers after the server has given them."""

    def __init__(self, losses: int):
        super().__init__()
        self.losses = losses

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        response.read()
        if self.losses:
            self.losses -= 1
            raise lost()
        return response


def test_h12_a_lost_answer_leaves_one_turn_one_thread_one_copy(door: Door) -> None:
    with Client(door.url, KEY, transport=Cutting(2)) as client:
        done = client.generate("assistant", "Hello", thread="t1", resource="ada")
    assert door.house.model.calls == 1 and [m["role"] for m in done.messages] == ["user", "assistant"]
    with Client(door.url, KEY, transport=Cutting(1)) as client:
        made = client.create_thread("assistant", resource_id="ada")
    assert sorted(door.house.threads()) == sorted(["t1", made.id])
    with Client(door.url, KEY, transport=Cutting(1)) as client:
        cloned = client.clone_thread("t1")
    assert len(door.house.threads()) == 3 and len(cloned.message_id_map) == 2
    with Client(door.url, KEY, transport=Cutting(1)) as client:
        client.save_messages([{"threadId": made.id, "resourceId": "ada", "role": "user", "content": "hi"}])
        assert client.list_messages(made.id).total == 1


def test_equal_calls_are_two_turns(door: Door) -> None:
    with Client(door.url, KEY) as client:
        for _ in range(2):
            client.generate("assistant", "yes", thread="t1", resource="ada")
        assert client.list_messages("t1").total == 4
    assert asyncio.run(door.house.store.get_thread("t1")) is not None
