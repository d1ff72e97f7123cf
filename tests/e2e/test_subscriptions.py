"""Messages that are sent to a thread, and what its subscribers see (DESIGN 7; spec-http 2.2 and 5).

The subscription is served by the front door's process, the message by that of `GenerateFunction`, the run by that of
`WorkFunction`: nothing passes between them but what the table holds.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from local.stack import Stack
from tests.conftest import client_of
from tests.e2e.application import Application, eventually, kill, new_id
from tests.oidc import Issuer
from tests.scripted.server import ScriptedModel

AGENT = "/api/agents/assistant"
NEAR_SECONDS = 1.5  # from sending to the first word at a subscriber, on a warm worker; a bound for a busy machine
Chunk = dict[str, Any]


class Subscriber:
    """A connection of its own that reads a subscription until it is closed."""

    def __init__(self, stack: Stack, thread: str, owner: str | None, *, token: str = "", after: str = ""):
        credential = {"Authorization": f"Bearer {token or stack.service_key()}"}
        self._client = httpx.Client(base_url=stack.base_url, headers=credential, timeout=90, trust_env=False)
        headers = {"Last-Event-ID": after} if after else {}
        given = {"threadId": thread} | ({"resourceId": owner} if owner else {})
        request = self._client.build_request("POST", f"{AGENT}/threads/subscribe", json=given, headers=headers)
        self._response = self._client.send(request, stream=True)
        self.status = self._response.status_code
        self.comments: list[str] = []
        self.seen: list[Chunk] = []
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self._response.iter_lines():
                if line.startswith(": "):
                    self.comments.append(line.removeprefix(": "))
                elif line.startswith("data: {"):
                    self.times.append(time.monotonic())
                    self.seen.append(json.loads(line.removeprefix("data: ")))
        except (httpx.HTTPError, RuntimeError):  # closed
            pass

    def until(self, type: str, count: int = 1, seconds: float = 30) -> list[Chunk]:
        """What was seen, once there are so many chunks of a type."""
        try:
            eventually(lambda: self.types.count(type) >= count, seconds)
        except AssertionError:
            raise AssertionError(f"no {type} among {self.types}") from None
        return list(self.seen)

    @property
    def types(self) -> list[str]:
        return [c["type"] for c in self.seen]

    @property
    def text(self) -> str:
        return "".join(c["payload"]["text"] for c in self.seen if c["type"] == "text-delta")

    def close(self) -> None:
        self._response.close()
        self._client.close()
        self._thread.join(5)


Subscribe = Callable[..., Subscriber]


@pytest.fixture
def subscribe(stack: Stack) -> Iterator[Subscribe]:
    opened: list[Subscriber] = []

    def subscribed(thread: str, owner: str | None = None, **more: str) -> Subscriber:
        opened.append(Subscriber(stack, thread, owner, **more))
        return opened[-1]

    yield subscribed
    for subscriber in opened:
        subscriber.close()


def send(application: Application, thread: str, owner: str, message: Any, *, status: int = 200, **headers: str) -> Any:
    given = {"message": message, "threadId": thread, "resourceId": owner}
    answer = application.http.post(f"{AGENT}/send-message", json=given, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def abort(application: Application, thread: str, owner: str, **more: str) -> bool:
    answer = application.http.post(f"{AGENT}/threads/abort", json={"threadId": thread, "resourceId": owner} | more)
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["aborted"])


def messages(application: Application, thread: str) -> list[Any]:
    answer = application.http.get(f"/api/memory/threads/{thread}/messages")
    return answer.json()["messages"] if answer.status_code == 200 else []


def stored(application: Application, thread: str) -> list[tuple[str, str]]:
    return [(m["role"], m["content"].get("content", "")) for m in messages(application, thread)]


def test_a_subscriber_sees_the_message_and_then_its_answer(
    application: Application, subscribe: Subscribe, thread: str, owner: str
) -> None:
    subscriber = subscribe(thread, owner)
    eventually(lambda: subscriber.comments[:1] == ["connected"])
    message = {"contents": "hello\n@say Hi there, you", "metadata": {"clientMessageId": "cm-1"}}
    reply = send(application, thread, owner, message)
    seen = subscriber.until("finish")
    assert subscriber.types[:3] == ["data-user-message", "start", "step-start"]
    assert [t for t in subscriber.types if t != "text-delta"][3:] == ["text-start", "text-end", "step-finish", "finish"]
    assert subscriber.text == "Hi there, you"
    assert {c["runId"] for c in seen} == {reply["runId"]}
    data = seen[0]["data"]
    assert (data["id"], data["contents"]) == (reply["signal"]["id"], message["contents"])
    assert data["metadata"] == reply["signal"]["metadata"] == {"clientMessageId": "cm-1"}
    first, second = messages(application, thread)
    assert (first["id"], first["role"]) == (data["id"], "user")
    assert first["content"]["metadata"]["clientMessageId"] == "cm-1"
    assert (second["id"], second["content"]["content"]) == (seen[1]["payload"]["messageId"], "Hi there, you")


def test_words_reach_a_subscriber_while_the_model_still_speaks(
    application: Application, subscribe: Subscribe, scripted: ScriptedModel, hold: str, thread: str, owner: str
) -> None:
    subscriber = subscribe(thread, owner)
    send(application, thread, owner, "@say warm")
    subscriber.until("finish")
    began = time.monotonic()
    send(application, thread, owner, f"@stall {hold}\n@say The first words and the rest")
    subscriber.until("text-delta", subscriber.types.count("text-delta") + 1)
    assert hold in scripted.held
    first = next(at for at, c in zip(subscriber.times, subscriber.seen, strict=True) if _says(c, "The firs"))
    assert first - began < NEAR_SECONDS
    scripted.release(hold)
    subscriber.until("finish", 2)
    assert subscriber.text == "warm" + "The first words and the rest"


def _says(chunk: Chunk, text: str) -> bool:
    return chunk["type"] == "text-delta" and chunk["payload"]["text"] == text


def test_whoever_comes_late_or_comes_back_misses_nothing_and_sees_nothing_twice(
    application: Application, subscribe: Subscribe, scripted: ScriptedModel, hold: str, thread: str, owner: str
) -> None:
    early, another = subscribe(thread, owner), subscribe(thread, owner)
    send(application, thread, owner, f"@stall {hold}\n@say The first words and the rest")
    early.until("text-delta")
    late = subscribe(thread, owner)
    late.until("text-delta")
    assert late.types[0] == "data-user-message"
    place = next(c.removeprefix("at ") for c in reversed(early.comments) if c.startswith("at "))
    before = len(early.seen)
    early.close()
    again = subscribe(thread, owner, after=place)
    scripted.release(hold)
    for subscriber in (another, late, again):
        subscriber.until("finish")
    assert another.seen == late.seen == early.seen[:before] + again.seen
    assert another.text == "The first words and the rest"
    after = subscribe(thread, owner)
    send(application, thread, owner, "@say Next")
    after.until("finish")
    assert after.text == "Next"


def test_a_message_that_comes_while_a_run_is_live_is_answered_after_it(
    application: Application, subscribe: Subscribe, scripted: ScriptedModel, hold: str, thread: str, owner: str
) -> None:
    subscriber = subscribe(thread, owner)
    runs = [send(application, thread, owner, f"one\n@hold {hold}\n@say First")["runId"]]
    eventually(lambda: hold in scripted.held)
    runs += [send(application, thread, owner, f"{name}\n@say {name}")["runId"] for name in ("Second", "Third")]
    time.sleep(1)
    assert subscriber.types.count("data-user-message") == 1
    scripted.release(hold)
    subscriber.until("finish", 3)
    assert subscriber.text == "FirstSecondThird"
    order = [c["runId"] for c in subscriber.seen if c["type"] == "start"]
    assert order == runs
    assert [text for role, text in stored(application, thread) if role == "assistant"] == ["First", "Second", "Third"]


def test_the_same_message_sent_again_is_one_run(
    application: Application, subscribe: Subscribe, thread: str, owner: str
) -> None:
    subscriber = subscribe(thread, owner)
    key = {"Idempotency-Key": new_id("key")}
    first, second = (send(application, thread, owner, "once\n@say Once", **key) for _ in range(2))
    assert first == second
    named = {"id": new_id("message"), "contents": "named\n@say Named"}
    assert send(application, thread, owner, named) == send(application, thread, owner, named)
    equal = [send(application, thread, owner, "equal\n@say Equal")["runId"] for _ in range(2)]
    assert equal[0] == equal[1]
    subscriber.until("finish", 3)
    send(application, thread, owner, "other", status=422, **key)
    send(application, thread, owner, named | {"contents": "other"}, status=409)
    assert send(application, thread, owner, "once\n@say Once", **key) == first
    time.sleep(1)
    assert len(stored(application, thread)) == 6
    assert messages(application, thread)[2]["id"] == named["id"]


def test_an_aborted_run_ends_before_its_next_step(
    application: Application, subscribe: Subscribe, scripted: ScriptedModel, hold: str, thread: str, owner: str
) -> None:
    assert not abort(application, thread, owner)
    subscriber = subscribe(thread, owner)
    script = f'stop\n@hold {hold}\n@call roll {{"sides": 6}} && @say Rolling\n@say Never said'
    run = send(application, thread, owner, script)["runId"]
    eventually(lambda: hold in scripted.held)
    assert not abort(application, thread, owner, expectedRunId="another")
    assert abort(application, thread, owner, expectedRunId=run)
    scripted.release(hold)
    subscriber.until("finish")
    assert "Never said" not in subscriber.text
    assert not abort(application, thread, owner)
    assert [m["role"] for m in messages(application, thread)] == ["user", "assistant"]
    assert "Never said" not in json.dumps(messages(application, thread)[1])


@pytest.mark.parametrize("where", ["before it says anything", "while it speaks"])
def test_a_run_whose_worker_was_killed_is_taken_up_again(
    application: Application,
    subscribe: Subscribe,
    scripted: ScriptedModel,
    hold: str,
    thread: str,
    owner: str,
    where: str,
) -> None:
    subscriber = subscribe(thread, owner)
    word = "hold" if where == "before it says anything" else "stall"
    send(application, thread, owner, f"kill\n@{word} {hold}\n@say The first words and the rest")
    eventually(lambda: hold in scripted.held)
    if word == "stall":
        subscriber.until("text-delta")
    behind = send(application, thread, owner, "behind\n@say Behind")["runId"]
    kill(application, "WorkFunction")
    scripted.release(hold)
    subscriber.until("finish", 2, seconds=60)
    last = max(n for n, c in enumerate(subscriber.seen) if c["type"] == "start" and c["runId"] != behind)
    said = [c["payload"]["text"] for c in subscriber.seen[last:] if c["type"] == "text-delta"]
    assert "".join(said) == "The first words and the rest" + "Behind"
    assert subscriber.types.count("data-user-message") == 2
    assert (subscriber.types.count("error") == 1) == (word == "stall")
    assert [text for role, text in stored(application, thread) if role == "assistant"] == [
        "The first words and the rest",
        "Behind",
    ]
    assert len(stored(application, thread)) == 4


def test_a_run_that_fails_tells_so_and_holds_nobody_up(
    application: Application, subscribe: Subscribe, thread: str, owner: str
) -> None:
    subscriber = subscribe(thread, owner)
    send(application, thread, owner, "@fail 400 no")
    send(application, thread, owner, "@say Still here")
    subscriber.until("finish", 2)
    assert subscriber.types.count("error") == 1
    assert subscriber.text == "Still here"
    assert [role for role, _ in stored(application, thread)] == ["user", "assistant"]


def test_threads_and_owners_do_not_see_each_other(
    application: Application, subscribe: Subscribe, issuer: Issuer, stack: Stack, thread: str
) -> None:
    ada, eve = new_id("ada"), new_id("eve")
    hers, other = subscribe(thread, token=issuer.token(ada)), subscribe(new_id(), token=issuer.token(ada))
    foreign = subscribe(thread, token=issuer.token(eve))  # nobody owns the thread yet
    given = {"message": "mine\n@say Yours", "threadId": thread, "resourceId": eve}
    with client_of(stack) as client:
        as_ada = {"Authorization": f"Bearer {issuer.token(ada)}"}
        assert client.post(f"{AGENT}/send-message", json=given, headers=as_ada).status_code == 200
        hers.until("finish")
        as_eve = {"Authorization": f"Bearer {issuer.token(eve)}"}
        for path in ("send-message", "threads/subscribe", "threads/abort"):
            answer = client.post(f"{AGENT}/{path}", json=given, headers=as_eve)
            assert (answer.status_code, answer.json()["error"]) == (
                403,
                "Access denied: thread belongs to a different resource",
            ), path
    time.sleep(1)
    assert hers.text == "Yours"
    assert (other.seen, foreign.seen) == ([], [])
    assert application.thread(thread)["resourceId"] == ada


def test_bad_requests_are_refused_before_anything_is_accepted(
    application: Application, subscribe: Subscribe, thread: str, owner: str
) -> None:
    for given, field in (
        ({"message": "hi", "resourceId": owner}, "threadId"),
        ({"threadId": thread, "resourceId": owner}, "message"),
        ({"message": "hi", "threadId": thread}, "resourceId"),
        ({"message": " ", "threadId": thread, "resourceId": owner}, "message"),
        (
            {"message": {"contents": [{"type": "x"}]}, "threadId": thread, "resourceId": owner},
            "message.contents.0.type",
        ),
    ):
        answer = application.http.post(f"{AGENT}/send-message", json=given)
        assert answer.status_code == 400, answer.text
        assert [issue["field"] for issue in answer.json()["issues"]] == [field]
    given = {"message": "hi", "threadId": thread, "resourceId": owner}
    assert application.http.post("/api/agents/nobody/send-message", json=given).status_code == 404
    assert subscribe(thread).status == 400
    assert application.thread(thread) is None
    assert not [key for key in application.rows() if thread in key[0]]


def test_a_deployment_may_turn_subscriptions_off(deploy: Callable[..., Stack]) -> None:
    """Clients then fall back to `stream`."""
    with client_of(deploy(parameters={"Subscriptions": "off"})) as client:
        given = {"message": "hi", "threadId": "t", "resourceId": "r"}
        for path in ("send-message", "queue-message", "threads/subscribe", "threads/abort"):
            assert client.post(f"{AGENT}/{path}", json=given).status_code == 404, path
        assert client.post(f"{AGENT}/signals", json={"signal": "hi"} | given).status_code == 404
        assert client.post(f"{AGENT}/generate", json={"messages": "@say Hi"}).json()["text"] == "Hi"
