"""Messages that are sent to a thread, their worker, and subscriptions, in one process (DESIGN 7)."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.http.house import SERVICE, NoWorkers, user
from tests.unit.turn.test_stream import Talker
from threadkeep import Agent, Memory, clock, tool
from threadkeep.agents import Registry
from threadkeep.errors import AccessDenied, Conflict, InvalidInput, KeyReused, NotFound, StoreUnavailable
from threadkeep.http import asgi, identity, live, live_decisions, work
from threadkeep.http.app import App
from threadkeep.http.route import Request, Route
from threadkeep.http.serve import serve
from threadkeep.models.registry import Models
from threadkeep.storage.live import Channel, Claim, Place
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Receipt

CHANNEL = Channel("ada", "t")
LONG = 900.0


@dataclass
class Desk:
    """One application whose workers run only when a test says so."""

    model: Any
    store: InMemoryStorage = field(default_factory=InMemoryStorage)
    workers: NoWorkers | None = field(default_factory=NoWorkers)
    tools: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        agent = Agent(id="talker", model="fake/m", memory=Memory(), tools=self.tools)
        self.app = App(self.store, Registry([agent]), Models(adapters={"fake": self.model}), self.workers)

    async def post(
        self, path: str, body: Any, caller: Any = SERVICE, query: dict[str, list[str]] | None = None, **headers: str
    ) -> Any:
        route: Route[Any, Any, Any] = next(
            r for r in (*live.ROUTES, *live_decisions.ROUTES) if r.path.endswith(f"/{path}")
        )
        raw = json.dumps(body).encode()
        given = {"content-type": "application/json"} | headers
        request = Request({"agentId": "talker"}, query or {}, given, raw, identity.from_authorizer(caller), clock.now())
        return json.loads((await serve(route, request, self.app)).body)

    async def send(self, message: Any, caller: Any = SERVICE, **headers: str) -> Any:
        body = {"message": message, "threadId": "t", "resourceId": "ada"}
        return await self.post("send-message", body, caller, **headers)

    async def work(self, seconds: float = LONG) -> list[str]:
        """Run a worker; "again" if it wants another one."""
        wanted: list[str] = []

        async def again() -> None:
            wanted.append("again")

        await work.work(self.app, CHANNEL, lambda: seconds, again)
        return wanted

    async def told(self) -> list[Any]:
        return [c for o in await self.store.read_output(CHANNEL, Place(0, 0)) for c in o.chunks]

    async def types(self) -> list[str]:
        return [c["type"] for c in await self.told()]

    async def stored(self) -> list[tuple[str, Any]]:
        rows = (await self.store.list_messages("t", per_page=None)).page.items
        return [(m.role, m.content.get("content")) for m in rows]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease and a pace that a test can wait for."""
    monkeypatch.setattr(work, "LEASE", 200)
    monkeypatch.setattr(work, "RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr(work, "_PACE", 0.01)
    monkeypatch.setattr(work, "_FIRST_PACE", 0.001)


async def test_a_message_is_accepted_run_and_told() -> None:
    desk = Desk(FakeModel(says("Hello")))
    reply = await desk.send({"contents": "Hi", "metadata": {"clientMessageId": "c"}})
    assert (desk.workers.started, desk.model.requests) == ([CHANNEL], [])
    assert await desk.work() == []
    told = await desk.told()
    assert [c["type"] for c in told[:2]] == ["data-user-message", "start"]
    assert told[0]["data"] == reply["signal"]
    assert {c["runId"] for c in told} == {reply["runId"]}
    assert await desk.stored() == [("user", "Hi"), ("assistant", "Hello")]
    row = (await desk.store.list_messages("t")).page.items[0]
    assert (row.id, row.content["metadata"]) == (reply["signal"]["id"], {"clientMessageId": "c"})


async def test_options_of_the_call_are_the_turns() -> None:
    desk = Desk(FakeModel(says("Hello")))
    options = {
        "instructions": "Be brief.",
        "memory": {"options": {"readOnly": True}, "thread": {"id": "x", "title": "T"}},
    }
    body = {"message": "Hi", "threadId": "t", "resourceId": "ada", "ifIdle": {"streamOptions": options}}
    await desk.post("send-message", body)
    await desk.work()
    assert "Be brief." in str(desk.model.requests[0].messages)
    assert await desk.store.get_thread("t") is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"message": ""}, "message"),
        ({"message": []}, "message"),
        ({"message": {"contents": ""}}, "message.contents"),
        ({"message": {"contents": [{"type": "video"}]}}, "message.contents.0.type"),
        ({"message": 5}, "message"),
        ({"message": "Hi", "ifIdle": {"behavior": "persist"}}, "ifIdle.behavior"),
        ({"message": "Hi", "ifActive": {"behavior": "discard"}}, "ifActive.behavior"),
        ({"message": "Hi", "ifIdle": {"streamOptions": {"maxSteps": -1}}}, "ifIdle.streamOptions.maxSteps"),
        ({"message": {"contents": "Hi", "type": "reactive"}}, "message.type"),
    ],
)
async def test_what_cannot_run_is_refused_at_once(given: Any, field: str) -> None:
    desk = Desk(FakeModel())
    with pytest.raises(InvalidInput) as raised:
        await desk.post("send-message", {"threadId": "t", "resourceId": "ada"} | given)
    assert [issue.field for issue in raised.value.issues] == [field]
    assert desk.workers.started == []
    assert await desk.store.claim_run(CHANNEL, "w", 1) is None


async def test_without_workers_there_are_no_such_routes() -> None:
    desk = Desk(FakeModel(), workers=None)
    with pytest.raises(NotFound, match="^Not Found$"):
        await desk.send("Hi")
    with pytest.raises(NotFound, match="^Not Found$"):
        await desk.post("abort", {"threadId": "t", "resourceId": "ada"})


async def test_a_key_that_comes_again_is_answered_as_before_and_starts_a_worker_that_is_missing() -> None:
    desk = Desk(FakeModel(says("Hello")))
    key = {"idempotency-key": "k"}
    first = await desk.send("Hi", **key)
    assert await desk.send("Hi", **key) == first
    assert desk.workers.started == [CHANNEL, CHANNEL]
    with pytest.raises(KeyReused):
        await desk.send("Other", **key)
    await desk.work()
    assert await desk.send("Hi", **key) == first
    assert len(desk.workers.started) == 2
    assert len(desk.model.requests) == 1


async def test_the_sender_is_the_speaker_in_the_worker_too() -> None:
    """MUT-7"""
    desk = Desk(FakeModel(says("Hello")))
    await desk.post("send-message", {"message": "Hi", "threadId": "t", "resourceId": "eve"}, user("ada"))
    claim = await desk.store.claim_run(CHANNEL, "w", 1)
    assert isinstance(claim, Claim)
    assert (claim.request["sent"]["kind"], claim.request["sent"]["resource"]) == ("user", "ada")


async def test_messages_that_wait_are_run_by_the_same_worker_while_it_has_time() -> None:
    desk = Desk(FakeModel(says("one"), says("two"), says("three")))
    for text in ("1", "2", "3"):
        await desk.send(text)
    assert await desk.work(work.SHORTEST_RUN - 1) == ["again"]
    assert [text for role, text in await desk.stored() if role == "assistant"] == ["one"]
    assert await desk.work() == []
    assert [text for role, text in await desk.stored() if role == "assistant"] == ["one", "two", "three"]


async def test_a_run_that_fails_is_told_and_the_next_goes_on() -> None:
    desk = Desk(FakeModel(StoreUnavailable("no"), says("two")))
    await desk.send("1")
    await desk.send("2")
    await desk.work()
    types = await desk.types()
    assert (types.count("error"), types.count("finish")) == (1, 2)
    assert (await desk.stored())[-1] == ("assistant", "two")


async def test_an_abort_ends_the_run_before_the_model_is_asked() -> None:
    desk = Desk(FakeModel(says("never")))
    await desk.send("Hi")
    assert await desk.post("abort", {"threadId": "t", "resourceId": "ada"}) == {"aborted": True}
    await desk.work()
    assert (await desk.types())[-1] == "finish"
    assert desk.model.requests == []
    assert await desk.post("abort", {"threadId": "t", "resourceId": "ada"}) == {"aborted": False}


@tool(id="delete-file", name="deleteFile", require_approval=True)
def delete_file(path: str) -> str:
    """Delete a file"""
    return f"deleted {path}"


async def suspended() -> tuple[Desk, dict[str, Any]]:
    """A desk whose thread waits for the approval of a call, and the chunk that asks for it."""
    desk = Desk(FakeModel(calls(("deleteFile", {"path": "/x"})), says("done")), tools=[delete_file])
    await desk.send("Delete it")
    await desk.work()
    told = await desk.told()
    assert told[-1]["type"] == "tool-call-approval"
    return desk, told[-1]


async def decide(desk: Desk, approved: bool, call_id: str = "call-deleteFile-0", **more: Any) -> Any:
    body = {"threadId": "t", "resourceId": "ada", "toolCallId": call_id, "approved": approved} | more
    return await desk.post("send-tool-approval", body)


async def test_an_approved_call_runs_and_its_subscribers_see_the_rest() -> None:
    desk, asked = await suspended()
    before = len(await desk.told())
    reply = await decide(desk, True)
    assert reply == {"accepted": True, "runId": asked["runId"], "toolCallId": "call-deleteFile-0"}
    await desk.work()
    told = (await desk.told())[before:]
    assert {c["runId"] for c in told} == {asked["runId"]}
    assert "start" not in [c["type"] for c in told]
    assert [c["payload"]["result"] for c in told if c["type"] == "tool-result"] == ["deleted /x"]
    assert told[-1]["type"] == "finish"
    with pytest.raises(NotFound):
        await decide(desk, True)


async def test_nobody_decides_on_the_thread_of_another_owner() -> None:
    desk, _ = await suspended()
    body = {"threadId": "t", "toolCallId": "call-deleteFile-0", "approved": True}
    with pytest.raises(AccessDenied):
        await decide(desk, True, resourceId="eve")
    with pytest.raises(AccessDenied):
        await desk.post("send-tool-approval", body, query={"resourceId": ["eve"]})
    assert (await desk.post("send-tool-approval", body, query={"resourceId": ["ada"]}))["accepted"]


async def test_a_declined_call_does_not_run_and_the_model_reads_why() -> None:
    desk, _ = await suspended()
    await decide(desk, False, resumeData={"reason": "too dear"})
    await desk.work()
    assert "too dear" in str(desk.model.requests[-1].messages)
    assert (await desk.types())[-1] == "finish"


async def test_a_decision_that_waits_is_taken_once() -> None:
    desk, _ = await suspended()
    assert await decide(desk, True) == await decide(desk, True)
    with pytest.raises(Conflict):
        await decide(desk, False)
    await desk.work()
    assert (await desk.types()).count("tool-result") == 1


async def test_results_of_the_callers_tools_go_on_for_subscribers() -> None:
    desk = Desk(FakeModel(calls(("pick", {})), says("Teal it is")))
    options = {"clientTools": {"pick": {"description": "Pick"}}}
    body = {"message": "Which?", "threadId": "t", "resourceId": "ada", "ifIdle": {"streamOptions": options}}
    await desk.post("send-message", body)
    await desk.work()
    assert (await desk.types())[-1] == "finish"
    result = {"type": "tool-result", "toolCallId": "call-pick-0", "toolName": "pick", "result": "teal"}
    messages = [{"role": "tool", "content": [result]}]
    assert (await decide(desk, True, "call-pick-0", messages=messages, streamOptions=options))["accepted"]
    await desk.work()
    assert "teal" in str(desk.model.requests[-1].messages)
    assert (await desk.types()).count("data-user-message") == 1
    assert (await desk.stored())[-1] == ("assistant", "Teal it is")


async def died(desk: Desk, *chunks: str) -> None:
    """A worker that told so much and was then killed."""
    claim = await desk.store.claim_run(CHANNEL, f"dead-{len(chunks)}-{clock.now()}", 50)
    assert isinstance(claim, Claim)
    for type in chunks:
        claim = await desk.store.append_output(claim, [{"type": type, "runId": claim.run_id}])


async def test_a_worker_waits_for_the_lease_of_a_dead_one_and_begins_again() -> None:
    desk = Desk(FakeModel(says("Hello")))
    await desk.send("Hi")
    await died(desk, "data-user-message")
    await desk.work()
    types = await desk.types()
    assert types[:2] == ["data-user-message", "start"]
    assert "error" not in types
    assert await desk.stored() == [("user", "Hi"), ("assistant", "Hello")]


async def test_what_a_dead_worker_told_of_the_answer_is_taken_back() -> None:
    desk = Desk(FakeModel(says("Hello")))
    await desk.send("Hi")
    await died(desk, "data-user-message", "start", "text-delta")
    await desk.work()
    assert (await desk.types())[:5] == ["data-user-message", "start", "text-delta", "error", "start"]


async def test_a_turn_that_was_stored_is_told_again_and_not_run_again() -> None:
    desk = Desk(FakeModel(says("Hello")))
    await desk.send("Hi")
    claim = await desk.store.claim_run(CHANNEL, "dead", 300)
    assert isinstance(claim, Claim)
    outlet = work.Outlet(desk.store, claim)
    await work._tell(desk.app, claim, outlet, 60)  # it dies before it has told anything
    await desk.work()
    assert len(desk.model.requests) == 1
    told = await desk.told()
    assert "".join(c["payload"]["text"] for c in told if c["type"] == "text-delta") == "Hello"
    assert told[-1]["type"] == "finish"
    assert len(await desk.stored()) == 2


async def test_a_run_that_was_told_to_its_end_is_not_told_again() -> None:
    desk = Desk(FakeModel(says("next")))
    await desk.send("Hi")
    await died(desk, "data-user-message", "start", "text-delta", "finish")
    await desk.send("More")
    await desk.work()
    types = await desk.types()
    assert types[:6] == ["data-user-message", "start", "text-delta", "finish", "data-user-message", "start"]
    assert (types.count("finish"), "error" in types) == (2, False)
    assert not (await desk.store.live_state(CHANNEL)).is_live


async def test_h21_a_turn_within_which_a_worker_died_begins_again_at_once_and_is_the_new_workers_alone() -> None:
    desk = Desk(FakeModel(says("Hello")))
    await desk.send("Hi")
    claim = await desk.store.claim_run(CHANNEL, "dead", 50)
    assert isinstance(claim, Claim) and claim.request
    sent = work.Sent(**claim.request["sent"])
    _, request = await work.turn_of_sent(desk.app, CHANNEL, claim.agent_id, claim.run_id, sent, claim.at, 60)
    assert request.repeat is not None
    held = Receipt(request.repeat.key, "holder", request.repeat.request_hash, "running", clock.now() + 60_000)
    await desk.store.load_turn("t", last_messages=0, claim=held)
    await asyncio.wait_for(desk.work(), 10)
    assert await desk.stored() == [("user", "Hi"), ("assistant", "Hello")]
    stored = await desk.store.get_receipt(held.key)
    assert stored is not None and (stored.status, stored.run_id != "holder") == ("done", True)


async def test_a_run_over_which_two_workers_died_is_given_up() -> None:
    desk = Desk(FakeModel(says("next")))
    await desk.send("poison")
    await desk.send("next")
    for _ in range(work.ATTEMPTS):
        await died(desk)
        await asyncio.sleep(0.06)
    await desk.work()
    types = await desk.types()
    assert types[:3] == ["error", "step-finish", "finish"]
    assert await desk.stored() == [("user", "next"), ("assistant", "next")]


async def test_one_worker_too_many_leaves_the_run_to_the_other() -> None:
    release = asyncio.Event()

    class Slow(FakeModel):
        async def generate(self, request: Any) -> Any:
            await release.wait()
            return await super().generate(request)

    desk = Desk(Slow(says("Hello")))
    await desk.send("Hi")
    first = asyncio.create_task(desk.work())
    await asyncio.sleep(0.1)
    assert await desk.work() == []
    assert not first.done()
    release.set()
    await first
    assert (await desk.types()).count("finish") == 1


async def test_a_store_that_does_not_answer_for_a_moment_cuts_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_REPEAT", 0.01)
    desk, failures = Desk(Talker("Hello ", asyncio.Event(), "world")), 2
    gate, append = desk.model.pieces[1], desk.store.append_output

    async def flaky(claim: Any, chunks: Any) -> Any:
        nonlocal failures
        if any(c["type"] == "text-delta" for c in chunks) and failures:
            failures -= 1
            if not failures:
                gate.set()
            raise StoreUnavailable("throttled")
        return await append(claim, chunks)

    monkeypatch.setattr(desk.store, "append_output", flaky)
    await desk.send("Hi")
    await desk.work()
    assert failures == 0
    assert await desk.stored() == [("user", "Hi"), ("assistant", "Hello world")]
    assert "".join(c["payload"]["text"] for c in await desk.told() if c["type"] == "text-delta") == "Hello world"
    assert (await desk.types()).count("finish") == 1


async def test_a_worker_that_lost_its_run_stops() -> None:
    stopped = asyncio.Event()

    class Endless(FakeModel):
        async def generate(self, request: Any) -> Any:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()

    desk = Desk(Endless())
    await desk.send("Hi")
    running = asyncio.create_task(desk.work())
    await asyncio.sleep(0.05)
    desk.store._forget_live("ada", "t")
    await asyncio.wait_for(running, 5)
    assert stopped.is_set()


@dataclass
class Subscriber:
    """A client of the ASGI app; `text` is what has arrived."""

    desk: Desk
    text: str = ""
    status: int = 0

    def __post_init__(self) -> None:
        self.gone = asyncio.Event()
        self.news = asyncio.Event()

    async def listen(self, **headers: str) -> None:
        app = asgi.StreamApp(live.STREAMS, lambda: self.desk.app)
        given = {"content-type": "application/json", "x-amzn-request-context": json.dumps({"authorizer": SERVICE})}
        path = "/api/agents/talker/threads/subscribe"
        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in (given | headers).items()],
        }  # fmt: skip
        unread = [{"type": "http.request", "body": b'{"threadId": "t", "resourceId": "ada"}', "more_body": False}]

        async def receive() -> Any:
            if unread:
                return unread.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.status = message.get("status", self.status)
            self.text += message.get("body", b"").decode()
            self.news.set()

        await app(scope, receive, send)

    async def until(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(10):
            while self.text.count(text) < times:
                self.news.clear()
                await self.news.wait()


async def test_a_subscription_says_that_it_is_connected_and_ends_when_nothing_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "IDLE_SECONDS", 0.3)
    subscriber = Subscriber(Desk(FakeModel()))
    await asyncio.wait_for(subscriber.listen(), 5)
    assert subscriber.text == ": connected\n\ndata: [DONE]\n\n"


async def test_a_subscription_stays_while_a_worker_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(live, "_LONGEST_PAUSE", 0.1)
    desk = Desk(FakeModel())
    await desk.send("Hi")
    claim = await desk.store.claim_run(CHANNEL, "w", 60_000)
    assert isinstance(claim, Claim)
    subscriber = Subscriber(desk)
    listening = asyncio.create_task(subscriber.listen())
    await asyncio.sleep(0.5)
    assert not listening.done()
    await desk.store.finish_run(claim, [{"type": "finish"}])
    await asyncio.wait_for(listening, 5)
    assert '"finish"' in subscriber.text


async def test_whatever_is_sent_once_a_subscription_is_connected_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(FakeModel(says("Hello")))
    state = desk.store.live_state

    async def slowly(channel: Any) -> Any:
        await asyncio.sleep(0.1)
        return await state(channel)

    monkeypatch.setattr(desk.store, "live_state", slowly)
    subscriber = Subscriber(desk)
    listening = asyncio.create_task(subscriber.listen())
    await subscriber.until("connected")
    await desk.send("Hi")
    await desk.work()
    await subscriber.until('"finish"')
    subscriber.gone.set()
    await listening


async def test_a_subscription_outlives_a_store_that_does_not_answer_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, down = Desk(FakeModel(says("Hello"))), [True, True, False]
    read = desk.store.read_output

    async def flaky(channel: Any, after: Any) -> Any:
        if down and down.pop(0):
            raise StoreUnavailable("throttled")
        return await read(channel, after)

    monkeypatch.setattr(desk.store, "read_output", flaky)
    subscriber = Subscriber(desk)
    listening = asyncio.create_task(subscriber.listen())
    await subscriber.until("connected")
    await desk.send("Hi")
    await desk.work()
    await subscriber.until('"finish"')
    subscriber.gone.set()
    await listening
    assert not down
    assert subscriber.text.count('"finish"') == 1


async def test_a_client_that_names_the_last_place_goes_on_behind_it() -> None:
    desk = Desk(FakeModel(says("one"), says("two")))
    await desk.send("1")
    await desk.work()
    whole = await desk.told()
    outputs = await desk.store.read_output(CHANNEL, Place(0, 0))
    subscriber = Subscriber(desk)
    listening = asyncio.create_task(subscriber.listen(**{"last-event-id": str(outputs[0].place)}))
    await desk.send("2")
    await desk.work()
    await subscriber.until('"finish"', 2)
    subscriber.gone.set()
    await listening
    seen = [json.loads(b[6:]) for b in subscriber.text.split("\n\n") if b.startswith("data: {")]
    assert seen == whole[len(outputs[0].chunks) :] + (await desk.told())[len(whole) :]


@pytest.mark.parametrize("place", ["", "x", "1", "1.", "-1.2", "1.2.3", "٣.٤", "1" * 40 + ".1"])
async def test_a_place_that_was_never_told_is_400(place: str) -> None:
    subscriber = Subscriber(Desk(FakeModel()))
    await subscriber.listen(**{"last-event-id": place})
    assert (subscriber.status, "Last-Event-ID" in subscriber.text) == (400, True)
