"""Each call of the client against the real operations, and each described request against openapi.json."""

import asyncio
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from local.stack import ROOT
from tests.unit.client.door import KEY, Door
from threadkeep_client import (
    AccessDenied,
    AsyncClient,
    Client,
    ConnectionFailed,
    InvalidRequest,
    NotFound,
    Retries,
    Unauthenticated,
    calls,
    models,
)
from threadkeep_client.request import Request

OPENAPI: dict[str, Any] = json.loads((ROOT / "docs/openapi.json").read_text())
EVERY: dict[str, Request[Any]] = {
    "health": calls.health(),
    "list_agents": calls.list_agents(partial=True),
    "get_agent": calls.get_agent("assistant"),
    "execute_tool": calls.execute_tool("get-time", {"zone": "CET"}, run_id="r", request_context={"a": 1}),
    "execute_tool of an agent": calls.execute_tool("get-time", None, agent_id="plain"),
    "generate": calls.generate(
        "assistant",
        ["Hi", {"role": "user", "content": "there"}],
        thread={"id": "t", "title": "T"},
        resource="ada",
        memory_options={"lastMessages": 3},
        instructions="Be brief.",
        system=["a", {"role": "system", "content": "b"}],
        context="c",
        max_steps=2,
        tool_choice={"type": "tool", "toolName": "x"},
        active_tools=("x",),
        model_settings={"topP": 0.5},
        run_id="run-1",
        speaker={"authorId": "ada"},
        request_context={"tenant": "x"},
        client_tools={"pick": {"inputSchema": {"type": "object"}}},
        structured_output={"schema": {"type": "object"}},
        require_tool_approval=True,
        limits={"seconds": 60},
    ),
    "start_run": calls.start_run("assistant", "Hi", thread="t", resource="ada", limits={"delegations": 3}),
    "get_run": calls.get_run("assistant", "r", resource_id="ada"),
    "list_runs": calls.list_runs("assistant", "t", resource_id="ada"),
    "cancel_run": calls.cancel_run("assistant", "r", resource_id="ada"),
    "stream": calls.stream("assistant", "Hi", thread="t", resource="ada"),
    "create_thread": calls.create_thread("assistant", resource_id="ada", thread_id="t", title="T", metadata={"a": 1}),
    "get_thread": calls.get_thread("t", resource_id="ada"),
    "list_threads": calls.list_threads(resource_id="ada", page=1, per_page=False, metadata={"a": None}),
    "update_thread": calls.update_thread("t", title="T", metadata={}, resource_id="ada"),
    "delete_thread": calls.delete_thread("t", resource_id="ada"),
    "clone_thread": calls.clone_thread(
        "t", source_resource_id="a", new_thread_id="u", resource_id="b", title="T", metadata={}, message_limit=2,
        message_filter={"messageIds": ["m"]},
    ),
    "transfer_thread": calls.transfer_thread("t", "eve", resource_id="ada"),
    "list_messages": calls.list_messages(
        "t", resource_id="ada", filter={"roles": ["user"]}, include=[{"id": "m"}], include_system_reminders=True
    ),
    "save_messages": calls.save_messages([{"threadId": "t", "role": "user", "content": "hi"}], resource_id="ada"),
    "delete_messages": calls.delete_messages(["m"], resource_id="ada"),
    "get_memory_status": calls.get_memory_status("assistant"),
    "get_memory_config": calls.get_memory_config("assistant"),
    "get_working_memory": calls.get_working_memory("t", agent_id="a", resource_id="ada", memory_config={"x": 1}),
    "update_working_memory": calls.update_working_memory(
        "t", {"a": 1}, agent_id="a", resource_id="ada", memory_config={"x": 1}, version=3
    ),
    "get_resource_memory": calls.get_resource_memory("ada", agent_id="a"),
    "replace_resource_memory": calls.replace_resource_memory("ada", "", agent_id="a", version=0),
    "patch_resource_memory": calls.patch_resource_memory("ada", {"a": None}, agent_id="a", version=3),
}  # fmt: skip


def public(holder: Any) -> set[str]:
    return {name for name, value in vars(holder).items() if callable(value) and not name.startswith("_")}


def operation(request: Request[Any]) -> tuple[str, dict[str, Any]]:
    found = [
        (path, methods[request.method.lower()])
        for path, methods in sorted(OPENAPI["paths"].items(), key=lambda item: item[0].count("{"))
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", path), request.path) and request.method.lower() in methods
    ]
    assert found, f"there is no {request.method} {request.path}"
    return found[0]


def check(schema: Any, value: Any) -> None:
    Draft202012Validator({**schema, "components": OPENAPI["components"]}).validate(value)


def test_every_call_is_checked_here_and_is_one_of_both_clients() -> None:
    described = {name for name, f in inspect.getmembers(calls, inspect.isfunction) if not name.startswith("_")}
    described = {name for name in described if getattr(calls, name).__module__ == calls.__name__}
    assert {name.partition(" ")[0] for name in EVERY} == described
    for client in (Client, AsyncClient):
        assert {name for name in described if callable(getattr(client, name))} == described
        assert all(getattr(client, name).__doc__ for name in described)


@pytest.mark.parametrize("name", EVERY)
def test_every_request_is_one_that_openapi_describes(name: str) -> None:
    request = EVERY[name]
    _, described = operation(request)
    sent = request.arguments()
    known = {p["name"]: p for p in described["parameters"] if p["in"] == "query"}
    for parameter, value in (sent["params"] or {}).items():
        assert parameter in known, parameter
        if "content" in known[parameter]:
            check(known[parameter]["content"]["application/json"]["schema"], json.loads(value))
    assert all(known[p]["required"] is False or p in (sent["params"] or {}) for p in known)
    assert (request.body is None) == ("requestBody" not in described)
    if request.body is not None:
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        body = json.loads(sent["content"])
        check(schema, body)
        if "$ref" in schema:
            fields = OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
            assert body.keys() <= fields.keys()


@pytest.mark.parametrize("name", sorted(EVERY.keys() - {"stream"}))
def test_every_reply_type_is_that_of_openapi(name: str) -> None:
    _, described = operation(EVERY[name])
    success = next(response for status, response in described["responses"].items() if status[0] == "2")
    schema = success["content"]["application/json"]["schema"]
    kind: Any = EVERY[name].reply
    if "$ref" in schema:
        assert kind.__name__ == schema["$ref"].rpartition("/")[2]
        assert kind is getattr(models, kind.__name__)
    elif kind is not object:
        assert schema["additionalProperties"]["$ref"].endswith(f"/{kind.__args__[1].__name__}")


def test_all_options_of_a_turn_are_those_of_the_route() -> None:
    body = OPENAPI["components"]["schemas"]["GenerateBody"]["properties"]
    sent = EVERY["generate"].body
    assert sent is not None and set(sent) == set(body)


def test_threads_are_created_read_changed_listed_and_deleted(client: Client) -> None:
    created = client.create_thread("assistant", resource_id="ada", thread_id="t1", title="Hi", metadata={"a": [1]})
    assert (created.id, created.resource_id, created.metadata) == ("t1", "ada", {"a": [1]})
    assert client.get_thread("t1", resource_id="ada") == created
    assert client.update_thread("t1", title="Ho").title == "Ho"
    assert client.update_thread("t1", metadata={"b": None}).metadata == {"b": None}
    client.create_thread("assistant", resource_id="ada")
    page = client.list_threads(resource_id="ada", per_page=1, order_by="createdAt", direction="ASC")
    assert ([t.id for t in page.threads], page.total, page.has_more) == (["t1"], 2, True)
    assert len(client.list_threads(per_page=False).threads) == 2
    assert [t.id for t in client.list_threads(metadata={"b": None}).threads] == ["t1"]
    assert client.transfer_thread("t1", "eve", resource_id="ada").resource_id == "eve"
    assert client.delete_thread("t1").result == "Thread deleted"
    with pytest.raises(NotFound, match="Thread not found"):
        client.get_thread("t1")


def test_a_turn_is_stored_and_its_messages_are_read_saved_and_deleted(client: Client) -> None:
    done = client.generate("assistant", "Hello", thread={"id": "t1", "title": "T"}, resource="ada")
    assert (done.text, done.finish_reason, len(done.messages)) == ("Hello", "stop", 2)
    saved = client.save_messages([{"threadId": "t1", "role": "user", "content": "Ünï", "id": "m/1"}], resource_id="ada")
    assert saved.messages[0].content["parts"] == [{"type": "text", "text": "Ünï"}]
    assert client.list_messages("t1", filter={"metadata": {"x": 1}}).total == 0
    page = client.list_messages("t1", per_page=1, direction="DESC")
    assert (page.messages[0].id, page.total) == ("m/1", 3)
    assert client.delete_messages("m/1").success
    assert client.list_messages("t1").total == 2
    cloned = client.clone_thread("t1", message_limit=1, title="Copy")
    assert (cloned.thread.title, len(cloned.cloned_messages)) == ("Copy", 1)


def test_agents_tools_status_and_health(client: Client) -> None:
    assert client.health().success
    assert client.list_agents()["plain"].tools["current_time"].id == "get-time"
    assert client.get_agent("assistant").supports_memory
    assert client.execute_tool("get-time", {"zone": "CET"}) == "CET"
    assert client.execute_tool("get-time", {}, agent_id="plain")["error"] is True
    assert client.get_memory_status("assistant").result and not client.get_memory_status("plain").result
    assert (client.get_memory_config("assistant").config or {})["lastMessages"] == 10


async def test_the_async_client_does_the_same(door: Door) -> None:
    async with AsyncClient(door.url, KEY) as client:
        created = await client.create_thread("assistant", resource_id="ada", thread_id="t1")
        turns = [client.generate("assistant", f"Hello {n}", thread="t1", resource="ada") for n in range(3)]
        assert [done.text for done in await asyncio.gather(*turns)] == ["Hello"] * 3
        assert (await client.list_messages("t1")).total == 6
        assert (await client.get_thread("t1")).id == created.id
        with pytest.raises(AccessDenied):
            await client.get_thread("t1", resource_id="eve")


def test_a_refusal_has_status_body_and_issues(client: Client) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.create_thread("assistant", resource_id="a b", title="x" * 1001)
    assert caught.value.status == 400 and caught.value.body["error"] == "Invalid request body"
    assert [i.field for i in caught.value.issues] == ["resourceId", "title"]
    assert "resourceId: may only contain" in str(caught.value)


def test_a_token_acts_for_its_own_user(door: Door) -> None:
    with Client(door.url, "user-ada") as client:
        assert client.create_thread("assistant", resource_id="eve").resource_id == "ada"
        with pytest.raises(AccessDenied):
            client.transfer_thread("t", "eve")
    with Client(door.url, "nobody") as client, pytest.raises(Unauthenticated, match="Invalid or expired token"):
        client.list_agents()


@pytest.mark.parametrize("thread", ["a b", "a/b", "a%2Fb", "ä?#", "a:b@c|d+e=f,g~h"])
def test_h32_ids_in_paths_are_encoded_exactly_once(door: Door, client: Client, thread: str) -> None:
    legal = re.fullmatch(r"[\w.~:@|+=,-]+", thread, re.ASCII) is not None
    if legal:
        door.house.add_thread(thread)
        assert client.get_thread(thread).id == thread
    else:
        with pytest.raises(InvalidRequest, match="threadId"):
            client.get_thread(thread)
    assert door.seen[-1][1] == f"/api/memory/threads/{encoded(thread)}"


def encoded(text: str) -> str:
    """Percent-encoding written another way than the client's."""
    return "".join(
        c if re.fullmatch(r"[\w.~-]", c, re.ASCII) else "".join(f"%{b:02X}" for b in c.encode()) for c in text
    )


@pytest.mark.parametrize("thread", ["", ".", ".."])
def test_ids_that_lead_to_another_route_are_not_sent(door: Door, client: Client, thread: str) -> None:
    with pytest.raises(ValueError, match="An id must not be empty"):
        client.delete_thread(thread)
    assert door.seen == []


def test_a_base_url_may_have_a_path(door: Door) -> None:
    with Client(f"{door.url}/prod/", KEY) as client, pytest.raises(NotFound):
        client.get_thread("t")
    assert door.seen[-1][1] == "/prod/api/memory/threads/t"
    with pytest.raises(ValueError, match="must begin with http"):
        Client("localhost:4111")


def test_nobody_there_is_a_connection_that_failed() -> None:
    quick = Retries(first_pause=0.01)
    with Client("http://127.0.0.1:9", KEY, retries=quick) as client, pytest.raises(ConnectionFailed) as caught:
        client.delete_thread("t")
    assert caught.value.sent is False


def files() -> Iterator[Path]:
    yield from (ROOT / "clients/python/threadkeep_client").rglob("*.py")


def test_the_client_does_not_use_the_server() -> None:
    for file in files():
        assert not re.search(r"^\s*(from|import) threadkeep\b(?!_client)", file.read_text(), re.MULTILINE), file


def test_a_durable_run_is_begun_awaited_and_cancelled(door: Door) -> None:
    with Client(door.url, KEY) as client:
        run = client.start_run("assistant", "Hi", thread="t", resource="ada", idempotency_key="k")
        assert client.start_run("assistant", "Hi", thread="t", resource="ada", idempotency_key="k") == run
        assert client.get_run("assistant", run.run_id, resource_id="ada").state == "running"
        with pytest.raises(TimeoutError, match=run.run_id):
            client.wait_for_run("assistant", run.run_id, seconds=0)
        assert [r.run_id for r in client.list_runs("assistant", "t", resource_id="ada").runs] == [run.run_id]
        assert client.cancel_run("assistant", run.run_id).state == "cancelled"
        assert client.wait_for_run("assistant", run.run_id).state == "cancelled"


def test_an_async_client_waits_for_a_run_too(door: Door) -> None:
    async def wait() -> str:
        async with AsyncClient(door.url, KEY) as client:
            run = await client.start_run("assistant", "Hi", thread="t", resource="ada")
            waiting = asyncio.create_task(client.wait_for_run("assistant", run.run_id))
            await asyncio.sleep(0.05)
            await client.cancel_run("assistant", run.run_id)
            return (await waiting).state

    assert asyncio.run(wait()) == "cancelled"
