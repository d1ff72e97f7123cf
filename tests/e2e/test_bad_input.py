"""Bad input through the real gateway: a 4xx in JSON that names the field; nothing is stored, no model is called."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest

from local.stack import Stack
from tests.e2e.application import THREADS, Application, new_id
from tests.oidc import AUDIENCE, Issuer
from tests.scripted.server import ScriptedModel

GENERATE = "/api/agents/assistant/generate"
CREATE = f"{THREADS}?agentId=assistant"
LONG = "x" * 257
OWNED = {"thread": "t-1", "resource": "r-1"}

Unchanged = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def unchanged(application: Application, scripted: ScriptedModel) -> Unchanged:
    """A context in which the table stays as it is and no model is called."""

    @contextmanager
    def watched() -> Iterator[None]:
        before, calls = application.quiet(), scripted.calls
        yield
        assert application.rows() == before
        assert scripted.calls == calls

    return watched


@dataclass(frozen=True)
class Case:
    """A request and the one field that its refusal names; `body` may also be text that is no JSON."""

    method: str
    path: str
    body: Any = None
    names: str = ""
    content_type: str = "application/json"

    def __str__(self) -> str:
        shown = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return f"{self.method} {self.path[:60]} {(shown or '')[:60]} {self.names}"


def generate(names: str, **body: Any) -> Case:
    return Case("POST", GENERATE, {"messages": "hi", "memory": OWNED} | body, names)


def create(names: str, **body: Any) -> Case:
    return Case("POST", CREATE, {"resourceId": "r-1"} | body, names)


def listing(query: str, names: str) -> Case:
    return Case("GET", f"{THREADS}?{query}", names=names)


BAD = [
    # JSON that is none
    Case("POST", GENERATE, '{"messages": "hi"', "body"),
    Case("POST", GENERATE, "", "body"),
    Case("POST", GENERATE, '{"messages": "hi", "maxSteps": NaN}', "body"),
    Case("POST", GENERATE, '{"messages": "hi", "modelSettings": {"temperature": Infinity}}', "body"),
    Case("POST", GENERATE, "[" * 100_000, "body"),
    Case("POST", GENERATE, "messages=hi", "body", "application/x-www-form-urlencoded"),
    Case("POST", CREATE, "not json", "body"),
    Case("POST", CREATE, '{"resourceId": "r-1", "metadata": {"n": NaN}}', "body"),
    Case("POST", CREATE, '{"resourceId": "r-1", "metadata": {"n": 1e999}}', "body"),
    Case(
        "POST", CREATE, '{"resourceId": "r-1", "metadata": {"n": 0.1234567890123456789012345678901234567890}}', "body"
    ),
    Case("POST", CREATE, [], "root"),
    Case("POST", CREATE, '"text"', "root"),
    Case("POST", GENERATE, [], "root"),
    # messages
    Case("POST", GENERATE, {}, "messages"),
    generate("messages", messages=""),
    generate("messages", messages=[]),
    generate("messages", messages=None),
    generate("messages", messages="   "),
    generate("messages", messages=5),
    generate("messages", messages={"role": "user", "content": "hi"}),
    generate("messages.1", messages=["hi", 5]),
    generate("messages.0.role", messages=[{"role": "wizard", "content": "hi"}]),
    generate("messages.0.role", messages=[{"content": "hi"}]),
    generate("messages.0.content", messages=[{"role": "user"}]),
    generate("messages.0.content", messages=[{"role": "user", "content": 5}]),
    generate("messages.0.content.0.type", messages=[{"role": "user", "content": [{"type": "hologram"}]}]),
    generate("messages.0.id", messages=[{"role": "user", "content": "hi", "id": "a" * 300}]),
    generate("messages", messages=["hi"] * 1001),
    # ids
    generate("memory.thread", memory={"thread": "a/b", "resource": "r"}),
    generate("memory.thread", memory={"thread": "", "resource": "r"}),
    generate("memory.thread", memory={"thread": LONG, "resource": "r"}),
    generate("memory.thread", memory={"thread": 7, "resource": "r"}),
    generate("memory.thread.id", memory={"thread": {"id": "a b"}, "resource": "r"}),
    generate("memory.resource", memory={"thread": "t", "resource": "a#b"}),
    generate("memory.resource", memory={"thread": "t", "resource": LONG}),
    generate("memory.resource", memory={"thread": "t"}),
    generate("memory.thread", memory={"resource": "r"}),
    generate("memory", memory="t"),
    generate("runId", runId="a%b"),
    create("threadId", threadId="a/b"),
    create("threadId", threadId="a%2Fb"),
    create("threadId", threadId="tür"),
    create("threadId", threadId=""),
    create("threadId", threadId=".."),
    create("threadId", threadId="a\nb"),
    create("threadId", threadId=LONG),
    create("threadId", threadId=5),
    create("resourceId", resourceId="a b"),
    create("resourceId", resourceId=LONG),
    create("resourceId", resourceId=None),
    # types and bounds
    generate("maxSteps", maxSteps="5"),
    generate("maxSteps", maxSteps=-1),
    generate("maxSteps", maxSteps=1_000),
    generate("maxSteps", maxSteps=1.5),
    generate("instructions", instructions=7),
    generate("context", context=5),
    generate("toolChoice", toolChoice="sometimes"),
    generate("toolChoice.toolName", toolChoice={"type": "tool", "toolName": "nothing"}),
    generate("modelSettings.temperature", modelSettings={"temperature": 9}),
    generate("memory.options.lastMessages", memory=OWNED | {"options": {"lastMessages": -1}}),
    generate("memory.options.lastMessages", memory=OWNED | {"options": {"lastMessages": "many"}}),
    generate("memory.options", memory=OWNED | {"options": []}),
    generate("structuredOutput.schema", structuredOutput={"schema": 5}),
    generate("structuredOutput.schema", structuredOutput={}),
    create("title", title=5),
    create("title", title="x" * 1_001),
    create("metadata", metadata=[]),
    create("metadata", metadata={"k": "x" * 200_001}),
    # queries
    Case("POST", THREADS, {"resourceId": "r-1"}, "agentId"),
    listing("page=-1", "page"),
    listing("page=one", "page"),
    listing("perPage=-1", "perPage"),
    listing("perPage=1.5", "perPage"),
    listing("page=99999999999999999999", "page"),
    listing("orderBy=%7Bbroken", "orderBy"),
    listing("orderBy=password", "orderBy"),
    listing("orderBy[field]=password", "orderBy.field"),
    listing("orderBy[field]=createdAt&orderBy[direction]=UP", "orderBy.direction"),
    listing("resourceId=a%20b", "resourceId"),
    listing("metadata=%7Bbroken", "metadata"),
    listing("metadata=%7B%22a.b%22%3A1%7D", "metadata"),
    Case("GET", f"{THREADS}/t/messages?page=-1", names="page"),
    Case("GET", f"{THREADS}/t/messages?perPage=abc", names="perPage"),
    Case("GET", f"{THREADS}/t/messages?filter=%7Bbroken", names="filter"),
    Case("GET", f"{THREADS}/t/messages?filter[dateRange][start]=yesterday", names="filter.dateRange.start"),
    Case("GET", f"{THREADS}/t/messages?filter=%7B%22roles%22%3A5%7D", names="filter.roles"),
    Case("GET", f"{THREADS}/t/messages?include=m", names="include"),
    Case("GET", f"{THREADS}/t/messages?include=%5B%7B%7D%5D", names="include.0.id"),
    # changing, copying, saving, deleting
    Case("PATCH", f"{THREADS}/t", {"title": 5}, "title"),
    Case("PATCH", f"{THREADS}/t", {"metadata": None}, "metadata"),
    Case("POST", f"{THREADS}/t/transfer", {}, "resourceId"),
    Case("POST", f"{THREADS}/t/clone", {"newThreadId": "a/b"}, "newThreadId"),
    Case("POST", f"{THREADS}/t/clone", {"options": {"messageLimit": -1}}, "options.messageLimit"),
    Case("POST", "/api/memory/save-messages", {"messages": {}}, "messages"),
    Case("POST", "/api/memory/save-messages", {"messages": [{"role": "user", "content": "x"}]}, "messages.0.threadId"),
    Case("POST", "/api/memory/messages/delete", {}, "messageIds"),
    Case("POST", "/api/memory/messages/delete", {"messageIds": ["a", ""]}, "messageIds.1"),
    Case("GET", "/api/memory/status", names="agentId"),
    Case("GET", f"{THREADS}/a%20b", names="threadId"),
    Case("DELETE", f"{THREADS}/{LONG}", names="threadId"),
    Case("GET", f"{THREADS}/a%23b/messages", names="threadId"),
    Case("GET", "/api/agents/a%20b", names="agentId"),
]


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_input_names_its_field(api: httpx.Client, unchanged: Unchanged, case: Case) -> None:
    headers = {"content-type": case.content_type}
    content = case.body if isinstance(case.body, str) else None if case.body is None else json.dumps(case.body)
    with unchanged():
        answer = api.request(case.method, case.path, content=content, headers=headers)
    body = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json"), body
    assert isinstance(body["error"], str)
    assert [issue["field"] for issue in body["issues"]] == [case.names]
    assert all(issue["message"] for issue in body["issues"])


MISSING = [
    ("POST", "/api/agents/nobody/generate", {"messages": "hi"}, "Agent with id nobody not found"),
    ("POST", f"{THREADS}?agentId=nobody", {"resourceId": "r-1"}, "Agent not found"),
    ("GET", "/api/agents/nobody", None, "Agent with id nobody not found"),
    ("GET", f"{THREADS}/no-such-thread", None, "Thread not found"),
    ("GET", f"{THREADS}/no-such-thread/messages", None, "Thread not found"),
    ("DELETE", f"{THREADS}/no-such-thread", None, "Thread not found"),
    ("PATCH", f"{THREADS}/no-such-thread", {"title": "x"}, "Thread not found"),
    ("POST", f"{THREADS}/no-such-thread/transfer", {"resourceId": "r-1"}, "Thread not found"),
    ("POST", f"{THREADS}/no-such-thread/clone", {}, "Source thread not found"),
    ("GET", "/", None, "Not Found"),
    ("GET", "/api/nothing", None, "Not Found"),
    ("POST", "/health", None, "Not Found"),
    ("DELETE", "/api/agents/assistant", None, "Not Found"),
    ("GET", f"{THREADS}/t/messages/m", None, "Not Found"),
    ("GET", GENERATE, None, "Not Found"),
]


@pytest.mark.parametrize(("method", "path", "body", "error"), MISSING, ids=lambda value: str(value)[:40])
def test_what_is_not_there_is_404(
    api: httpx.Client, unchanged: Unchanged, method: str, path: str, body: Any, error: str
) -> None:
    with unchanged():
        answer = api.request(method, path, json=body)
    assert (answer.status_code, answer.json()) == (404, {"error": error})


@pytest.mark.parametrize("size", [4_718_593, 6 * 1024 * 1024 + 1], ids=["over ours", "over Lambda's"])
@pytest.mark.parametrize("path", [GENERATE, CREATE])
def test_an_oversized_body_is_413(api: httpx.Client, unchanged: Unchanged, path: str, size: int) -> None:
    body = json.dumps({"messages": "", "resourceId": "r-1"}).replace('""', f'"{"x" * size}"')
    with unchanged():
        answer = api.post(path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()) == (413, {"error": "Request body too large"})


def test_a_turn_that_cannot_be_stored_is_413_before_the_model(
    application: Application, unchanged: Unchanged, thread: str, owner: str
) -> None:
    """By its number of messages: what is too big for the store is too big for a request."""
    memory = {"thread": thread, "resource": owner}
    with unchanged():
        answer = application.http.post(GENERATE, json={"messages": ["hi"] * 44, "memory": memory})
    assert (answer.status_code, list(answer.json())) == (413, ["error"])
    assert application.thread(thread) is None


# --- whose thread ---


def test_another_owners_thread_is_403_and_stays_as_it_is(
    application: Application, unchanged: Unchanged, thread: str, owner: str
) -> None:
    application.say("@say ok", thread, owner)
    other = new_id("owner")
    row = {"threadId": thread, "role": "user", "content": "x"}
    with unchanged():
        answers = [
            application.http.post(GENERATE, json={"messages": "hi", "memory": {"thread": thread, "resource": other}}),
            application.create(thread, other),
            application.http.get(f"{THREADS}/{thread}?resourceId={other}"),
            application.http.get(f"{THREADS}/{thread}/messages?resourceId={other}"),
            application.delete(thread, other),
            application.http.patch(f"{THREADS}/{thread}", json={"title": "x", "resourceId": other}),
            application.http.post(f"{THREADS}/{thread}/clone?resourceId={other}", json={}),
            application.http.post("/api/memory/save-messages", json={"messages": [row | {"resourceId": other}]}),
        ]
    refused = {"error": "Access denied: thread belongs to a different resource"}
    assert [(a.status_code, a.json()) for a in answers] == [(403, refused)] * 8


# --- who is calling ---


@pytest.fixture
def visitor(stack: Stack) -> Iterator[Callable[[str], httpx.Client]]:
    """Makes clients that carry a token."""
    opened: list[httpx.Client] = []

    def client(token: str) -> httpx.Client:
        credential = {"Authorization": f"Bearer {token}"}
        opened.append(httpx.Client(base_url=stack.base_url, headers=credential, timeout=60, trust_env=False))
        return opened[-1]

    yield client
    for one in opened:
        one.close()


def unsigned(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, key=None, algorithm="none", headers={"kid": "rsa-1"})


def signed_with_the_public_key(issuer: Issuer, claims: dict[str, Any]) -> str:
    """A token whose HMAC key is what everybody knows; the library of this test refuses to make one."""

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    header = {"alg": "HS256", "typ": "JWT", "kid": "rsa-1"}
    text = part(json.dumps(header).encode()) + b"." + part(json.dumps(claims).encode())
    return (text + b"." + part(hmac.digest(issuer.public_pem(), text, hashlib.sha256))).decode()


def bad_tokens(issuer: Issuer) -> dict[str, str]:
    claims = jwt.decode(issuer.token("user-ada"), options={"verify_signature": False})
    good = issuer.token("user-ada")
    return {
        "expired": issuer.token(expires_in=-60),
        "for another audience": issuer.token(aud="someone-else"),
        "without an audience": issuer.token(aud=None),
        "of another issuer": issuer.token(iss="http://127.0.0.1:9"),
        "without an expiry": issuer.token(exp=None),
        "not valid yet": issuer.token(nbf=4_102_444_800),
        "without a subject": issuer.token(sub=None),
        "whose subject is a number": issuer.token(subject=7),
        "changed": good[:-6] + ("AAAAAA" if not good.endswith("AAAAAA") else "BBBBBB"),
        "unsigned": unsigned(claims),
        "signed with the public key": signed_with_the_public_key(issuer, claims),
        "cut": good[: len(good) // 2],
    }


BAD_TOKENS = [
    "expired", "for another audience", "without an audience", "of another issuer", "without an expiry", "not valid yet",
    "without a subject", "whose subject is a number", "changed", "unsigned", "signed with the public key", "cut",
]  # fmt: skip


@pytest.mark.parametrize("kind", BAD_TOKENS)
def test_a_bad_token_is_401(
    visitor: Callable[[str], httpx.Client], issuer: Issuer, unchanged: Unchanged, kind: str
) -> None:
    client = visitor(bad_tokens(issuer)[kind])
    with unchanged():
        answers = [
            client.post(GENERATE, json={"messages": "hi", "memory": OWNED}),
            client.post(CREATE, json={"resourceId": "user-ada"}),
            client.get(THREADS),
        ]
    assert [(a.status_code, a.json()) for a in answers] == [(401, {"error": "Invalid or expired token"})] * 3


@pytest.mark.parametrize("credential", [None, "Bearer", "Bearer wrong", "Basic d3Jvbmc=", "wrong"])
def test_without_a_good_credential_nothing_happens(stack: Stack, unchanged: Unchanged, credential: str | None) -> None:
    headers = {} if credential is None else {"Authorization": credential}
    with unchanged(), httpx.Client(base_url=stack.base_url, headers=headers, timeout=60, trust_env=False) as client:
        answers = [client.post(GENERATE, json={"messages": "hi"}), client.post(CREATE, json={}), client.get(THREADS)]
    assert [(a.status_code, a.json()) for a in answers] == [(401, {"error": "Invalid or expired token"})] * 3


def test_a_users_token_is_the_owner_whatever_the_request_says(
    application: Application, visitor: Callable[[str], httpx.Client], issuer: Issuer, thread: str
) -> None:
    ada, eve = new_id("ada"), new_id("eve")
    as_ada, as_eve = visitor(issuer.token(ada)), visitor(issuer.token(eve))
    made = as_ada.post(CREATE, json={"threadId": thread, "resourceId": eve})
    assert (made.status_code, made.json()["resourceId"]) == (200, ada)
    again = new_id()
    said = as_ada.post(GENERATE, json={"messages": "@say Hello", "memory": {"thread": again, "resource": eve}})
    assert said.status_code == 200
    assert {message["resourceId"] for message in said.json()["messages"]} == {ada}
    assert application.thread(again)["resourceId"] == ada
    bare = as_ada.post(CREATE, json={})
    assert bare.json()["resourceId"] == ada
    listed = as_ada.get(THREADS, params={"resourceId": eve}).json()
    assert [t["id"] for t in listed["threads"]] == [bare.json()["id"], again, thread]
    assert as_eve.get(THREADS, params={"resourceId": ada}).json()["threads"] == []
    assert as_eve.get(THREADS).json()["total"] == 0


def test_a_users_token_opens_no_other_users_thread(
    application: Application, visitor: Callable[[str], httpx.Client], issuer: Issuer, unchanged: Unchanged, thread: str
) -> None:
    ada = new_id("ada")
    application.say("@say ok", thread, ada)
    eve = visitor(issuer.token(new_id("eve")))
    with unchanged():
        answers = [
            eve.get(f"{THREADS}/{thread}?resourceId={ada}"),
            eve.get(f"{THREADS}/{thread}/messages?resourceId={ada}"),
            eve.delete(f"{THREADS}/{thread}?resourceId={ada}"),
            eve.post(CREATE, json={"threadId": thread, "resourceId": ada}),
            eve.post(GENERATE, json={"messages": "hi", "memory": {"thread": thread, "resource": ada}}),
        ]
    refused = {"error": "Access denied: thread belongs to a different resource"}
    assert [(a.status_code, a.json()) for a in answers] == [(403, refused)] * 5


def test_a_token_whose_subject_cannot_be_an_owner_is_403(
    visitor: Callable[[str], httpx.Client], issuer: Issuer, unchanged: Unchanged
) -> None:
    with unchanged():
        answer = visitor(issuer.token("a/b")).post(GENERATE, json={"messages": "hi", "memory": {"thread": "t"}})
    assert answer.status_code == 403
    assert "subject cannot be a resourceId" in answer.json()["error"]


# --- a browser asks first ---


@pytest.mark.parametrize("path", [GENERATE, THREADS, f"{THREADS}/t", f"{THREADS}/t/messages", "/api/agents"])
def test_a_preflight_needs_no_credential(stack: Stack, path: str) -> None:
    asked = {"Origin": "https://app.example", "Access-Control-Request-Headers": "authorization,content-type"}
    answer = httpx.options(f"{stack.base_url}{path}", headers=asked, timeout=60, trust_env=False)
    allowed = answer.headers["access-control-allow-headers"].split(",")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
    assert {"Authorization", "Content-Type"} <= set(allowed)


@pytest.mark.parametrize(("path", "status"), [(f"{THREADS}/none", 404), (f"{THREADS}?page=-1", 400)])
def test_a_browser_may_read_refusals(api: httpx.Client, path: str, status: int) -> None:
    answer = api.get(path, headers={"Origin": "https://app.example"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, "*")


# --- a model that fails ---


@pytest.mark.parametrize(
    ("refusal", "status"),
    [("400 bad prompt", 424), ("401 bad key", 424), ("404 no model", 424), ("429 busy", 503), ("500 broken", 503)],
)
def test_a_model_that_fails_gives_one_clear_error_and_leaves_the_thread(
    application: Application, scripted: ScriptedModel, thread: str, owner: str, refusal: str, status: int
) -> None:
    application.say("@say ok", thread, owner)
    before, calls = application.quiet(), scripted.calls
    failed = application.say(f"@fail {refusal}", thread, owner, status=status)
    assert refusal.partition(" ")[2] in failed["error"]
    assert scripted.calls == calls + 1
    late = application.say(f"@call current_time\n@fail {refusal}", thread, owner, status=status)
    assert refusal.partition(" ")[2] in late["error"]
    assert application.rows() == before
    assert application.say("@say Back again", thread, owner)["text"] == "Back again"


def test_a_model_that_fails_in_a_first_turn_leaves_an_empty_thread(
    application: Application, thread: str, owner: str
) -> None:
    application.say("@fail 400 no", thread, owner, status=424)
    assert application.texts(thread) == []
    assert application.threads_of(owner) == [thread]


def test_audience_is_what_the_stack_was_told(issuer: Issuer, visitor: Callable[[str], httpx.Client]) -> None:
    """Without this the tests of bad tokens would also pass if no token were good."""
    assert visitor(issuer.token(new_id("ada"), aud=[AUDIENCE, "another"])).get(THREADS).status_code == 200
