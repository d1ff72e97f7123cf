"""Working memory over HTTP: reading and writing it, versions, owners, and the views that threads show of it."""

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.unit.http.house import House, user
from threadkeep import Agent, Memory
from threadkeep.memory.working_memory.merge import merged
from threadkeep.storage.port import MemoryTarget, MemoryWrite, WorkingMemory

THREADS = "/api/memory/threads"
THREAD = THREADS + "/{threadId}"
OF_THREAD = THREAD + "/working-memory"
OF_RESOURCE = "/api/memory/resources/{resourceId}/working-memory"
MERGE_PATCH = "application/merge-patch+json"

TEMPLATE = "# User Profile\n- Name:\n- Location:\n- Interests:\n"
SHOWN_TEMPLATE = {"format": "markdown", "content": TEMPLATE.strip()}
ADA, GRACE = "# User Profile\n- Name: Ada\n", "# User Profile\n- Name: Grace\n"
FOREIGN = (403, {"error": "Access denied: thread belongs to a different resource"})
FOREIGN_MEMORY = (403, {"error": "Access denied: the working memory belongs to a different resource"})
MISSING = (404, {"error": "Thread not found"})
NOTHING = {"workingMemory": None, "source": "thread", "workingMemoryTemplate": None, "threadExists": False}
WRITTEN = (200, {"success": True})
LIMIT = 200  # bytes, of the agent "small" and its like


class Size(BaseModel):
    color: str | None = None
    size: str | None = None


class Person(BaseModel):
    name: str | None = None
    age: int | None = None
    tags: list[str] = []
    prefs: Size = Size()


JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "location": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "prefs": {"type": "object", "properties": {"color": {"type": "string"}, "size": {"type": "string"}}},
    },
}


def agent(name: str, read_only: bool = False, **options: Any) -> Agent:
    working = {"enabled": True} | options
    return Agent(id=name, model="fake/m", memory=Memory(working_memory=working, read_only=read_only))


def by_context(context: Any) -> Memory:
    return Memory(working_memory={"enabled": True, "template": f"# {context['tenant']}"})


@pytest.fixture
def house() -> House:
    return House(
        agents=[
            agent("template", template=TEMPLATE),
            agent("thread", template=TEMPLATE, scope="thread"),
            agent("schema", schema=JSON_SCHEMA),
            agent("person", schema=Person),
            agent("default"),
            agent("frozen", template=TEMPLATE, read_only=True),
            agent("frozen-thread", template=TEMPLATE, scope="thread", read_only=True),
            Agent(id="reader", model="fake/m", memory=Memory(working_memory=True), read_only=True),
            agent("small", max_bytes=LIMIT),
            agent("small-thread", max_bytes=LIMIT, scope="thread"),
            agent("small-schema", max_bytes=LIMIT, schema=JSON_SCHEMA),
            Agent(id="dynamic", model="fake/m", memory=by_context),
        ]
    )


def read(house: House, name: str, thread: str = "thr-1", resource: str | None = "user-ada", **more: Any) -> Any:
    query = {"agentId": name} | ({} if resource is None else {"resourceId": resource}) | more.pop("query", {})
    return house.call("GET", OF_THREAD, path={"threadId": thread}, query=query, **more)


def write(house: House, name: str, text: Any, thread: str = "thr-1", **more: Any) -> Any:
    body = {"workingMemory": text, "resourceId": "user-ada"} | more.pop("body", {})
    body = {key: value for key, value in body.items() if value is not None}
    return house.call("POST", OF_THREAD, path={"threadId": thread}, query={"agentId": name}, body=body, **more)


def of_resource(house: House, method: str = "GET", body: Any = None, name: str | None = None, **more: Any) -> Any:
    path = {"resourceId": more.pop("resource", "user-ada")}
    headers = {"Content-Type": more.pop("media", "application/json")} | more.pop("headers", {})
    query = {"agentId": name} if name else {}
    return house.call(method, OF_RESOURCE, path=path, query=query, body=body, headers=headers, **more)


def stored(house: House, scope: Any = "resource", owner: str = "user-ada") -> WorkingMemory:
    return asyncio.run(house.store.get_working_memory(MemoryTarget(scope, owner)))


def fields(reply: tuple[int, Any]) -> list[str]:
    status, body = reply
    assert status == 400, body
    return [issue["field"] for issue in body["issues"]]


# --- reading (WM-5; spec-http 2.3) ---


def test_wm5_a_thread_scope_is_read_with_its_template(house: House) -> None:
    house.add_thread()
    assert read(house, "thread")[1]["workingMemory"] is None
    assert house.headers["etag"] == '"0"'
    assert write(house, "thread", ADA) == WRITTEN
    shown = {
        "workingMemory": ADA,
        "source": "thread",
        "workingMemoryTemplate": SHOWN_TEMPLATE,
        "threadExists": True,
    }
    assert read(house, "thread") == (200, shown)
    assert house.headers["etag"] == '"1"'
    assert read(house, "template")[1] == shown | {"workingMemory": None, "source": "resource"}


def test_wm5_a_resource_scope_is_shared_by_all_its_threads(house: House) -> None:
    house.add_thread()
    house.add_thread("thr-2")
    assert write(house, "template", ADA) == WRITTEN
    shown = {"workingMemory": ADA, "source": "resource", "workingMemoryTemplate": SHOWN_TEMPLATE}
    assert read(house, "template", "thr-2") == (200, shown | {"threadExists": True})
    assert read(house, "template", "missing") == (200, shown | {"threadExists": False})
    assert read(house, "thread")[1]["workingMemory"] is None


def test_wm5_a_missing_thread_is_no_error(house: House) -> None:
    assert read(house, "thread", "missing") == (
        200,
        {"workingMemory": None, "source": "thread", "workingMemoryTemplate": SHOWN_TEMPLATE, "threadExists": False},
    )
    house.add_thread()
    write(house, "thread", ADA)
    house.call("DELETE", THREAD, path={"threadId": "thr-1"})
    assert read(house, "thread")[1] == NOTHING | {"workingMemoryTemplate": SHOWN_TEMPLATE}


@pytest.mark.parametrize("name", ["plain", "nope"])
def test_without_memory_there_is_nothing(house: House, name: str) -> None:
    house.add_thread()
    assert read(house, name) == (200, NOTHING)
    assert "etag" not in house.headers


def test_wm1_disabled_working_memory_shows_nothing_but_the_thread(house: House) -> None:
    house.add_thread()
    assert read(house, "assistant") == (200, NOTHING | {"threadExists": True})
    assert read(house, "assistant", resource="user-eve") == FOREIGN


def test_wm24_a_schema_shows_its_empty_value(house: House) -> None:
    house.add_thread()
    content = '{"name":"","location":"","tags":[],"prefs":{"color":"","size":""}}'
    shown = read(house, "schema")[1]
    assert shown["workingMemoryTemplate"] == {"format": "json", "content": content}
    assert write(house, "schema", '{"name":"Lin","tags":["a"]}') == WRITTEN
    assert json.loads(read(house, "schema")[1]["workingMemory"]) == {"name": "Lin", "tags": ["a"]}


def test_the_word_undefined_is_no_resource(house: House) -> None:
    house.add_thread()
    write(house, "thread", ADA)
    assert read(house, "thread", resource="undefined")[1]["workingMemory"] == ADA


@pytest.mark.parametrize("name", ["thread", "template"])
def test_another_owners_thread_is_403(house: House, name: str) -> None:
    house.add_thread()
    write(house, name, ADA)
    assert read(house, name, resource="user-eve") == FOREIGN
    assert read(house, name, caller=user("user-eve")) == FOREIGN
    assert write(house, name, "x", body={"resourceId": "user-eve"}) == FOREIGN
    assert write(house, name, "x", caller=user("user-eve")) == FOREIGN
    assert read(house, name)[1]["workingMemory"] == ADA


def test_a_service_that_names_no_resource_reads_the_owners(house: House) -> None:
    house.add_thread()
    write(house, "template", ADA)
    shown = read(house, "template", resource=None)[1]
    assert (shown["workingMemory"], shown["source"], house.headers["etag"]) == (ADA, "resource", '"1"')
    shown = read(house, "template", "missing", resource=None)[1]
    assert (shown["workingMemory"], shown["source"]) == (None, "thread")
    assert read(house, "assistant", resource=None)[1] == NOTHING | {"threadExists": True}


def test_a_user_always_reads_the_own_resource(house: House) -> None:
    house.add_thread()
    write(house, "template", ADA)
    assert read(house, "template", resource="user-eve", caller=user("user-ada"))[1]["workingMemory"] == ADA
    eve = read(house, "template", "missing", resource="user-ada", caller=user("user-eve"))[1]
    assert (eve["workingMemory"], eve["source"]) == (None, "resource")


def test_one_round_trip_reads_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.add_thread()
    calls: list[str] = []
    for name in ("load_turn", "get_thread", "get_working_memory"):
        usual = getattr(house.store, name)

        def counted(*args: Any, name: str = name, usual: Any = usual, **more: Any) -> Any:
            calls.append(name)
            return usual(*args, **more)

        monkeypatch.setattr(house.store, name, counted)
    read(house, "template")
    read(house, "thread")
    assert calls == ["load_turn"] * 2


def test_memory_config_changes_the_options_of_one_request(house: House) -> None:
    house.add_thread()
    config = '{"workingMemory":{"scope":"thread","template":"# Own"}}'
    shown = read(house, "template", query={"memoryConfig": config})[1]
    assert (shown["source"], shown["workingMemoryTemplate"]["content"]) == ("thread", "# Own")
    assert write(house, "template", "x", body={"memoryConfig": json.loads(config)}) == WRITTEN
    assert stored(house, "thread", "thr-1").text == "x"
    assert read(house, "assistant", query={"memoryConfig": '{"workingMemory":true}'})[1]["source"] == "resource"


@pytest.mark.parametrize(
    "config,field",
    [
        ('{"workingMemory":{"scope":"all"}}', "memoryConfig.workingMemory.scope"),
        ('{"workingMemory":{"maxBytes":65536}}', "memoryConfig.workingMemory.maxBytes"),
        ("[]", "memoryConfig"),
        ("{x", "memoryConfig"),
    ],
)
def test_a_bad_memory_config_is_named(house: House, config: str, field: str) -> None:
    assert fields(read(house, "template", query={"memoryConfig": config})) == [field]


def test_memory_that_depends_on_the_context_gets_it(house: House) -> None:
    house.add_thread()
    shown = read(house, "dynamic", query={"requestContext": "eyJ0ZW5hbnQiOiJhY21lIn0="})[1]  # {"tenant":"acme"}
    assert shown["workingMemoryTemplate"]["content"] == "# acme"
    assert fields(read(house, "dynamic")) == ["requestContext"]


# --- replacing what an agent keeps (WM-6) ---


def test_wm6_the_whole_text_is_replaced(house: House) -> None:
    house.add_thread(metadata={"category": "support"})
    for version, text in enumerate((ADA, GRACE), 1):
        assert write(house, "thread", text) == WRITTEN
        assert house.headers["etag"] == f'"{version}"'
    assert read(house, "thread")[1]["workingMemory"] == GRACE
    assert write(house, "schema", '{"name":"Lin"}') == WRITTEN
    assert write(house, "schema", {"tags": ["a"]}) == WRITTEN
    assert json.loads(stored(house).text) == {"tags": ["a"]}
    [current, before] = stored(house).past
    assert (current.version, current.writer, before.version) == (2, "http", 1)


def test_h21_the_same_text_again_makes_no_new_version(house: House) -> None:
    house.add_thread()
    for _ in range(2):
        assert write(house, "thread", ADA) == WRITTEN
        assert house.headers["etag"] == '"1"'


@pytest.mark.parametrize("name", ["thread", "template"])
def test_e7_a_missing_thread_is_404(house: House, name: str) -> None:
    assert write(house, name, "x", "missing") == MISSING
    assert stored(house).version == 0


def test_e5_a_resource_scope_needs_a_resource(house: House) -> None:
    house.add_thread()
    reply = write(house, "template", "x", body={"resourceId": None})
    assert fields(reply) == ["resourceId"]
    assert "thread" in reply[1]["issues"][0]["message"]
    assert write(house, "thread", "x", body={"resourceId": None}) == WRITTEN
    assert write(house, "template", "x", body={"resourceId": None}, caller=user("user-ada")) == WRITTEN


def test_e6_disabled_working_memory_is_not_written(house: House) -> None:
    house.add_thread()
    for reply in (write(house, "assistant", "x"), of_resource(house, "PUT", {"workingMemory": "x"}, "assistant")):
        assert fields(reply) == ["agentId"]
        assert "not enabled" in reply[1]["issues"][0]["message"]
    assert write(house, "nope", "x") == (404, {"error": "Agent not found"})
    assert write(house, "plain", "x") == (400, {"error": "Memory is not initialized"})


def test_h14_nothing_is_written_through_a_read_only_agent(house: House) -> None:
    house.add_thread()
    seed = {"metadata": {"workingMemory": "x"}}
    replies = [
        write(house, "frozen", "x"),
        write(house, "reader", "x"),
        write(house, "frozen", "x", body={"memoryConfig": {"readOnly": False}}),
        write(house, "template", "x", body={"memoryConfig": {"readOnly": True}}),
        of_resource(house, "PUT", {"workingMemory": "x"}, "frozen"),
        of_resource(house, "PATCH", {"a": 1}, "frozen"),
        house.call("POST", THREADS, query={"agentId": "frozen"}, body={"resourceId": "user-ada"} | seed),
        house.call("PATCH", THREAD, path={"threadId": "thr-1"}, query={"agentId": "frozen"}, body=seed),
    ]
    for reply in replies:
        assert fields(reply) == ["agentId"]
        assert "read-only" in reply[1]["issues"][0]["message"]
    assert (stored(house).version, house.threads()) == (0, ["thr-1"])
    assert house.call("PATCH", THREAD, path={"threadId": "thr-1"}, query={"agentId": "frozen"}, body={})[0] == 200


def test_an_empty_text_is_required_to_be_one(house: House) -> None:
    house.add_thread()
    for name, text in (("thread", ""), ("thread", " \n"), ("schema", " ")):
        assert write(house, name, text) == (400, {"error": 'Argument "workingMemory" is required'})


@pytest.mark.parametrize("name", ["thread", "schema"])
@pytest.mark.parametrize("text", [5, None, ["x"], True])
def test_what_is_no_text_names_the_field(house: House, name: str, text: Any) -> None:
    house.add_thread()
    assert fields(write(house, name, text)) == ["workingMemory"]


def test_an_object_needs_a_schema(house: House) -> None:
    house.add_thread()
    status, body = write(house, "thread", {"a": 1})
    assert (status, body["issues"]) == (
        400,
        [{"field": "workingMemory", "message": "expected string, received object"}],
    )


@pytest.mark.parametrize(
    "text,field",
    [
        ("not json", "workingMemory"),
        ("[1]", "workingMemory"),
        ('{"name":5}', "workingMemory.name"),
        ({"prefs": {"color": 1}}, "workingMemory.prefs.color"),
    ],
)
def test_a_text_that_breaks_the_schema_is_400_and_changes_nothing(house: House, text: Any, field: str) -> None:
    house.add_thread()
    write(house, "schema", {"name": "Lin"})
    assert fields(write(house, "schema", text)) == [field]
    assert fields(of_resource(house, "PUT", {"workingMemory": text}, "schema")) == [field]
    assert json.loads(stored(house).text) == {"name": "Lin"}


# --- versions ---


def test_h9_a_stale_version_in_the_body_is_409_with_the_current_one(house: House) -> None:
    house.add_thread()
    write(house, "thread", ADA, body={"version": 0})
    write(house, "thread", GRACE, body={"version": 1})
    status, body = write(house, "thread", "late", body={"version": 1})
    assert (status, body["version"], house.headers["etag"]) == (409, 2, '"2"')
    assert read(house, "thread")[1]["workingMemory"] == GRACE
    assert fields(write(house, "thread", "x", body={"version": -1})) == ["version"]
    assert fields(write(house, "thread", "x", body={"version": "2"})) == ["version"]


def test_if_match_is_412_with_the_current_version(house: House) -> None:
    house.add_thread()

    def conditional(tag: str, text: str) -> Any:
        return write(house, "thread", text, headers={"Content-Type": "application/json", "If-Match": tag})

    assert conditional("*", ADA)[0] == 412
    assert conditional('"0"', ADA) == WRITTEN
    assert conditional('"7", "1"', GRACE) == WRITTEN
    status, body = conditional('"1"', "late")
    assert (status, body["version"], house.headers["etag"]) == (412, 2, '"2"')
    assert fields(conditional('W/"2"', "weak")) == ["If-Match"]
    assert conditional("*", ADA) == WRITTEN
    assert house.headers["etag"] == '"3"'


def test_a_writer_in_between_is_met_and_merged_with(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two others write between the read and the write of this one."""
    usual, others = house.store.put_working_memory, [{"prefs": {"size": "M"}}, {"name": "Lin"}]

    async def put(write: MemoryWrite) -> WorkingMemory:
        if others:
            there = await house.store.get_working_memory(write.target)
            text = json.dumps(merged(json.loads(there.text or "{}"), others.pop()))
            await usual(MemoryWrite(write.target, text, there, "other"))
        return await usual(write)

    monkeypatch.setattr(house.store, "put_working_memory", put)
    status, body = of_resource(house, "PATCH", {"prefs": {"color": "red"}}, "schema")
    assert (status, body["version"]) == (200, 3)
    assert [revision["writer"] for revision in body["revisions"]] == ["http", "other", "other"]
    assert json.loads(stored(house).text) == {"name": "Lin", "prefs": {"size": "M", "color": "red"}}


def test_h09_who_loses_for_too_long_is_409_with_the_version_that_is_stored(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = house.store.put_working_memory

    async def put(write: MemoryWrite) -> WorkingMemory:
        there = await house.store.get_working_memory(write.target)
        await usual(MemoryWrite(write.target, f"{there.version + 1}", there, "other"))
        return await usual(write)

    monkeypatch.setattr("threadkeep.http.working_memory.WRITE_SECONDS", 0.01)
    monkeypatch.setattr(house.store, "put_working_memory", put)
    status, body = of_resource(house, "PUT", {"workingMemory": "x"})
    version = stored(house).version
    assert version >= 1
    assert (status, body["version"], house.headers["etag"]) == (409, version, f'"{version}"')
    assert "other writers kept winning" in body["error"]


def test_a_store_that_hangs_is_503(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr("threadkeep.http.working_memory.STORE_SECONDS", 0.01)
    monkeypatch.setattr("threadkeep.http.working_memory.changed", never)
    assert of_resource(house, "PUT", {"workingMemory": "x"})[0] == 503


# --- the memory of a resource ---

EMPTY = {"workingMemory": None, "version": 0, "updatedAt": None, "writer": None, "revisions": []}


def test_a_resource_that_has_none(house: House) -> None:
    assert of_resource(house) == (200, EMPTY)
    assert house.headers["etag"] == '"0"'
    assert of_resource(house, "PUT", {"workingMemory": ""}) == (200, EMPTY)


def test_put_replaces_and_the_empty_text_clears(house: House) -> None:
    status, first = of_resource(house, "PUT", {"workingMemory": ADA}, "template")
    assert (status, first["workingMemory"], first["version"], first["writer"]) == (200, ADA, 1, "http")
    assert first["revisions"] == [{"version": 1, "updatedAt": first["updatedAt"], "writer": "http"}]
    assert of_resource(house) == (200, first)
    _, cleared = of_resource(house, "PUT", {"workingMemory": ""}, "template")
    assert (cleared["workingMemory"], cleared["version"], house.headers["etag"]) == (None, 2, '"2"')
    assert [revision["version"] for revision in cleared["revisions"]] == [2, 1]
    assert of_resource(house) == (200, cleared)


def test_put_without_an_agent_takes_text_and_objects(house: House) -> None:
    assert of_resource(house, "PUT", {"workingMemory": {"b": 1, "a": None}})[1]["workingMemory"] == '{"b":1,"a":null}'
    assert of_resource(house, "PUT", {"workingMemory": "text"})[1]["workingMemory"] == "text"
    assert fields(of_resource(house, "PUT", {"workingMemory": {"a": 1}}, "template")) == ["workingMemory"]
    assert fields(of_resource(house, "PUT", {})) == ["workingMemory"]
    assert fields(of_resource(house, "PUT", {"workingMemory": 5})) == ["workingMemory"]


@pytest.mark.parametrize("media", ["application/json", MERGE_PATCH, MERGE_PATCH + "; charset=utf-8"])
@pytest.mark.parametrize("name", [None, "schema"])
def test_patch_is_a_json_merge_patch(house: House, media: str, name: str | None) -> None:
    patches = [
        ({"name": "Lin", "prefs": {"size": "M"}}, {"name": "Lin", "prefs": {"size": "M"}}),
        ({"prefs": {"size": None}, "tags": ["a", "b"]}, {"name": "Lin", "prefs": {}, "tags": ["a", "b"]}),
        ({"name": None, "prefs": {"color": "red"}, "tags": ["c"]}, {"prefs": {"color": "red"}, "tags": ["c"]}),
    ]  # fmt: skip
    for version, (patch, expected) in enumerate(patches, 1):
        status, body = of_resource(house, "PATCH", patch, name, media=media)
        assert (status, body["version"], house.headers["etag"]) == (200, version, f'"{version}"'), body
        assert json.loads(body["workingMemory"]) == expected
    assert of_resource(house, "PATCH", {}, name, media=media)[1]["version"] == 3


def test_patch_must_fit(house: House) -> None:
    assert fields(of_resource(house, "PATCH", {"name": 5}, "schema")) == ["workingMemory.name"]
    assert fields(of_resource(house, "PATCH", ["x"], "schema")) == ["root"]
    assert fields(of_resource(house, "PATCH", {"a": 1}, "template")) == ["workingMemory"]
    assert fields(of_resource(house, "PATCH", {"a": 1}, "schema", media="text/plain")) == ["body"]
    assert fields(of_resource(house, "PUT", {"workingMemory": "x"}, media=MERGE_PATCH)) == ["body"]
    assert of_resource(house) == (200, EMPTY)


@pytest.mark.parametrize("text", ["# Markdown", "[1]", "5"])
def test_patch_without_an_agent_needs_stored_json(house: House, text: str) -> None:
    of_resource(house, "PUT", {"workingMemory": text})
    status, body = of_resource(house, "PATCH", {"a": 1})
    assert (status, "PUT" in body["error"]) == (409, True)
    assert stored(house).text == text


def test_put_and_patch_honour_versions(house: House) -> None:
    of_resource(house, "PUT", {"workingMemory": {"n": 1}, "version": 0})
    assert of_resource(house, "PUT", {"workingMemory": "x", "version": 0})[0] == 409
    for method, body in (("PUT", {"workingMemory": "x"}), ("PATCH", {"n": 2})):
        status, reply = of_resource(house, method, body, headers={"If-Match": '"0"'})
        assert (status, reply["version"], house.headers["etag"]) == (412, 1, '"1"')
    assert of_resource(house, "PATCH", {"n": 2}, headers={"If-Match": '"1"'})[1]["version"] == 2
    assert of_resource(house, "PUT", {"workingMemory": "x"}, headers={"If-Match": "*"})[1]["version"] == 3


@pytest.mark.parametrize("method,body", [("GET", None), ("PUT", {"workingMemory": "x"}), ("PATCH", {"a": 1})])
def test_users_reach_only_their_own_resource(house: House, method: str, body: Any) -> None:
    of_resource(house, "PUT", {"workingMemory": "{}"})
    assert of_resource(house, method, body, caller=user("user-eve")) == FOREIGN_MEMORY
    assert of_resource(house, method, body, caller=user("user-ada"))[0] == 200
    assert fields(of_resource(house, method, body, resource="a%2Fb")) == ["resourceId"]
    assert of_resource(house, method, body, caller=None)[0] == 401


def test_an_agent_whose_memory_is_the_threads_does_not_write_a_resources(house: House) -> None:
    for method, body in (("PUT", {"workingMemory": "x"}), ("PATCH", {"a": 1})):
        assert fields(of_resource(house, method, body, "thread")) == ["agentId"]
        assert of_resource(house, method, body, "nope") == (404, {"error": "Agent not found"})
        assert of_resource(house, method, body, "plain") == (400, {"error": "Memory is not initialized"})


def test_a_deleted_thread_leaves_the_resources_memory(house: House) -> None:
    house.add_thread()
    write(house, "template", ADA)
    house.call("DELETE", THREAD, path={"threadId": "thr-1"})
    assert of_resource(house)[1]["workingMemory"] == ADA


# --- threads: seeds and views (WM-20, M-DISC-6) ---


def create(house: House, name: str, metadata: Any = None, thread: str = "thr-1", **more: Any) -> Any:
    body = {"resourceId": "user-ada", "threadId": thread} | ({} if metadata is None else {"metadata": metadata})
    return house.call("POST", more.pop("route", THREADS), query={"agentId": name}, body=body, **more)


def update(house: House, metadata: Any, name: str | None = None, **more: Any) -> Any:
    query = {"agentId": name} if name else {}
    route = more.pop("route", THREAD)
    return house.call("PATCH", route, path={"threadId": "thr-1"}, query=query, body={"metadata": metadata}, **more)


def get(house: House, thread: str = "thr-1") -> Any:
    return house.call("GET", THREAD, path={"threadId": thread})[1]


def test_wm20_a_text_at_creation_is_the_threads_memory(house: House) -> None:
    status, created = create(house, "thread", {"category": "support", "workingMemory": ADA})
    assert (status, created["metadata"]) == (200, {"category": "support", "workingMemory": ADA})
    assert get(house)["metadata"] == created["metadata"]
    assert read(house, "thread")[1]["workingMemory"] == ADA
    assert stored(house).version == 0
    row = asyncio.run(house.store.get_thread("thr-1"))
    assert row is not None and row.metadata == {"category": "support"}
    listed = house.call("GET", THREADS, query={"resourceId": "user-ada"})[1]["threads"]
    assert [thread["metadata"] for thread in listed] == [created["metadata"]]


def test_wm20_a_text_at_creation_is_the_resources_memory(house: House) -> None:
    _, created = create(house, "template", {"workingMemory": ADA})
    assert created["metadata"]["workingMemory"] == ADA
    assert stored(house).text == ADA
    assert (get(house)["metadata"] or {}).get("workingMemory") is None
    assert read(house, "thread")[1]["workingMemory"] is None


def test_wm20_a_change_of_metadata_writes_it_too_and_never_clears_it(house: House) -> None:
    create(house, "thread", {"a": 1, "workingMemory": ADA})
    assert update(house, {"b": 2}, "thread")[1]["metadata"] == {"b": 2, "workingMemory": ADA}
    assert update(house, {"workingMemory": GRACE}, "thread")[1]["metadata"] == {"workingMemory": GRACE}
    assert stored(house, "thread", "thr-1").version == 2
    for nothing in ("", None):
        assert update(house, {"workingMemory": nothing}, "thread")[1]["metadata"] == {"workingMemory": GRACE}
    assert update(house, {"workingMemory": ADA}, "template")[0] == 200
    assert (stored(house).text, stored(house, "thread", "thr-1").text) == (ADA, GRACE)


def test_without_an_agent_a_change_writes_the_threads_own(house: House) -> None:
    house.add_thread()
    assert update(house, {"workingMemory": ADA})[1]["metadata"] == {"workingMemory": ADA}
    assert (stored(house, "thread", "thr-1").text, stored(house).version) == (ADA, 0)
    assert update(house, {"workingMemory": ADA}, "nope") == (404, {"error": "Agent not found"})


def test_m_disc_6_a_stale_copy_overwrites_nothing(house: House) -> None:
    create(house, "thread", {"workingMemory": ADA})
    write(house, "thread", GRACE)
    assert update(house, {"n": 1, "workingMemory": ADA}, "thread")[1]["metadata"] == {"n": 1, "workingMemory": GRACE}
    assert create(house, "thread", {"workingMemory": "other"})[1]["metadata"] == {"n": 1, "workingMemory": GRACE}
    assert stored(house, "thread", "thr-1").version == 2


@pytest.mark.parametrize("name", ["assistant"])
def test_wm20_disabled_working_memory_leaves_metadata_alone(house: House, name: str) -> None:
    metadata = {"workingMemory": {"any": ["thing"]}, "a": 1}
    assert create(house, name, metadata)[1]["metadata"] == metadata
    assert update(house, metadata | {"a": 2}, name)[1]["metadata"] == metadata | {"a": 2}
    assert update(house, {"workingMemory": "text"}, "plain")[1]["metadata"] == {"workingMemory": "text"}
    assert stored(house, "thread", "thr-1").version == 0


def test_an_object_is_a_seed_where_there_is_a_schema(house: House) -> None:
    create(house, "schema", {"workingMemory": {"name": "Lin"}})
    assert json.loads(stored(house).text) == {"name": "Lin"}
    assert fields(update(house, {"workingMemory": {"name": 5}}, "schema")) == ["metadata.workingMemory.name"]
    assert fields(update(house, {"workingMemory": {"name": "x"}}, "thread")) == ["metadata.workingMemory"]
    assert fields(update(house, {"workingMemory": 5}, "thread")) == ["metadata.workingMemory"]


def test_networks_seed_and_show_it_too(house: House) -> None:
    network = "/api/memory/network/threads"
    body = {"resourceId": "user-ada", "threadId": "thr-1", "metadata": {"workingMemory": ADA}}
    created = house.call("POST", network, query={"networkId": "thread"}, body=body)[1]
    assert created["metadata"] == {"workingMemory": ADA}
    changed = house.call(
        "PATCH",
        network + "/{threadId}",
        path={"threadId": "thr-1"},
        query={"networkId": "thread"},
        body={"metadata": {"workingMemory": GRACE}},
    )[1]
    assert changed["metadata"] == {"workingMemory": GRACE}


def test_lists_find_threads_by_what_they_show(house: House) -> None:
    create(house, "thread", {"workingMemory": ADA})
    query = {"resourceId": "user-ada", "metadata": json.dumps({"workingMemory": ADA})}
    assert house.call("GET", THREADS, query=query)[1]["total"] == 1


def test_th15_the_threads_own_memory_goes_with_it(house: House) -> None:
    create(house, "thread", {"workingMemory": ADA})
    _, moved = house.call("POST", THREAD + "/transfer", path={"threadId": "thr-1"}, body={"resourceId": "user-bob"})
    assert moved["metadata"] == {"workingMemory": ADA}
    assert read(house, "thread", resource="user-bob")[1]["workingMemory"] == ADA
    assert read(house, "thread") == FOREIGN


def clone(house: House, name: str | None = None, **body: Any) -> Any:
    query = {"agentId": name} if name else {}
    return house.call(
        "POST", THREAD + "/clone", path={"threadId": "thr-1"}, query=query, body={"newThreadId": "copy"} | body
    )


def test_th11_a_copy_has_the_threads_memory(house: House) -> None:
    create(house, "thread", {"workingMemory": ADA})
    status, copied = clone(house, "thread", metadata={"a": 1, "workingMemory": GRACE})
    assert status == 200
    assert copied["thread"]["metadata"]["workingMemory"] == ADA
    assert copied["thread"]["metadata"]["a"] == 1
    write(house, "thread", GRACE)
    assert read(house, "thread", "copy")[1]["workingMemory"] == ADA


@pytest.mark.parametrize("name,text", [("template", ADA), ("thread", GRACE), ("frozen", GRACE), (None, GRACE)])
def test_th11_a_copy_for_another_owner_takes_the_resources_memory(house: House, name: str | None, text: str) -> None:
    create(house, "template", {"workingMemory": ADA})
    of_resource(house, "PUT", {"workingMemory": GRACE}, resource="user-bob")
    assert clone(house, name, resourceId="user-bob")[0] == 200
    assert stored(house, owner="user-bob").text == text


# --- the limit, alike on all ways in (case H27) ---


@pytest.mark.parametrize("name,field", [("small", ""), ("small-thread", ""), ("small-schema", "")])
def test_h27_3_every_way_in_refuses_alike(house: House, name: str, field: str) -> None:
    house.add_thread()
    schema = name == "small-schema"
    long = json.dumps({"name": "ä" * LIMIT}, separators=(",", ":"), ensure_ascii=False) if schema else "ä" * LIMIT
    seed = {"metadata": {"workingMemory": long}}
    replies = {
        "create": house.call("POST", THREADS, query={"agentId": name}, body={"resourceId": "user-ada"} | seed),
        "update": house.call("PATCH", THREAD, path={"threadId": "thr-1"}, query={"agentId": name}, body=seed),
        "post": write(house, name, long),
    }
    if name != "small-thread":
        replies["put"] = of_resource(house, "PUT", {"workingMemory": long}, name)
    if schema:
        replies["patch"] = of_resource(house, "PATCH", json.loads(long), name)
        replies["object"] = write(house, name, json.loads(long))
    words: set[str] = set()
    for reply in replies.values():
        [found] = fields(reply)
        assert found.endswith("workingMemory")
        words.add(reply[1]["issues"][0]["message"])
    assert len(words) == 1, words
    assert str(LIMIT) in words.pop()
    assert (stored(house).version, stored(house, "thread", "thr-1").version, house.threads()) == (0, 0, ["thr-1"])


def test_without_an_agent_the_usual_limit_holds(house: House) -> None:
    assert of_resource(house, "PUT", {"workingMemory": "x" * 32_768})[0] == 200
    assert fields(of_resource(house, "PUT", {"workingMemory": "x" * 32_769})) == ["workingMemory"]
    of_resource(house, "PUT", {"workingMemory": ""})
    assert fields(of_resource(house, "PATCH", {"a": "x" * 32_768})) == ["workingMemory"]


# --- config ---


def config(house: House, name: str) -> Any:
    return house.call("GET", "/api/memory/config", query={"agentId": name})[1]["config"]["workingMemory"]


def test_config_shows_working_memory_with_its_defaults(house: House) -> None:
    assert config(house, "template") == {"enabled": True, "template": TEMPLATE}
    assert config(house, "thread") == {"enabled": True, "template": TEMPLATE, "scope": "thread"}
    assert config(house, "schema") == {"enabled": True, "schema": JSON_SCHEMA}
    assert config(house, "assistant") == {"enabled": False}
    default = config(house, "default")
    assert default["enabled"] is True
    assert "**First Name**" in default["template"]
    person = config(house, "person")["schema"]
    assert person["properties"].keys() == {"name", "age", "tags", "prefs"}
