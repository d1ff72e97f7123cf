"""Whose memory a sub-agent uses, and what is stored of a delegation (DEL-5 to DEL-11, SUB-1 to SUB-3, H17, H28)."""

import json

import pytest

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Agent, DelegatedMemory, Memory
from threadkeep.errors import ConfigurationError
from threadkeep.ids import derived, shown_resource, sub_resource
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import MemoryTarget, NewThread
from threadkeep.turn.receipts import repeatable

NOTE = {"memory": "# Notes\n- likes tea"}


def notes(text: str = "noted"):
    return calls(("updateWorkingMemory", NOTE), text=text)


async def memory_of(d, resource: str) -> str | None:
    return (await d.storage.get_working_memory(MemoryTarget("resource", resource))).text or None


async def test_del5_sub1_each_delegation_has_a_new_thread_of_one_resource(desk):
    d = desk((asks("researcher"), asks("researcher", prompt="find Y"), "done"), ("one", "two"))
    first, second = results_of(await d.turn())
    assert first["subAgentResourceId"] == second["subAgentResourceId"] == "U-researcher"
    assert first["subAgentThreadId"] != second["subAgentThreadId"]
    assert all(r["subAgentThreadId"].startswith("T-") for r in (first, second))
    assert await d.texts(first["subAgentThreadId"]) == [("user", "find X"), ("assistant", "one")]
    assert await d.texts(second["subAgentThreadId"]) == [("user", "find Y"), ("assistant", "two")]
    shown = [text for _, text in d.sub_model.prompt]
    assert "find Y" in shown and "find X" not in shown  # the second begins with no history
    assert [t.id for t in await d.threads()] == ["T"]


async def test_del5_nested_threads_and_resources_are_made_of_those_above(nest):
    n = nest(on_mid={"memory": Memory()})
    await n.desk.turn()
    (mid,) = await n.desk.sub_threads("U", "middy")
    (leaf,) = await n.desk.sub_threads("U", "middy", "leafy")
    assert mid.id.startswith("T-") and shown_resource(mid.resource_id) == "U-middy"
    assert leaf.id.startswith(f"{mid.id}-") and shown_resource(leaf.resource_id) == "U-middy-leafy"


async def test_del5_a_thread_id_that_grows_too_long_is_hashed(desk):
    d = desk((asks("researcher"), "done"))
    await d.turn(thread="T" * 250)
    (sub,) = await d.sub_threads()
    assert len(sub.id) == 64 and await d.texts(sub.id) == [("user", "find X"), ("assistant", "sub answer")]
    assert derived("T" * 250, "x" * 36) != derived("T" * 250, "y" * 36)


async def test_del6_ddisc17_without_ids_the_reply_is_stored_and_nobody_shares_it(desk):
    d = desk((asks("researcher"), "done") * 2, (says("one"), says("two")))
    (first,) = results_of(await d.turn(thread=None, resource=None))
    (second,) = results_of(await d.turn(thread=None, resource=None))
    assert first["subAgentResourceId"] == second["subAgentResourceId"] == "boss-researcher"
    assert await d.texts(first["subAgentThreadId"]) == [("user", "find X"), ("assistant", "one")]
    assert await d.texts(second["subAgentThreadId"]) == [("user", "find X"), ("assistant", "two")]
    owners = [(await d.storage.get_thread(r["subAgentThreadId"])).resource_id for r in (first, second)]
    assert owners[0] != owners[1]


async def test_del6_h17_runs_of_nobody_that_choose_the_same_id_share_nothing(desk):
    d = desk((asks("researcher"), "done") * 2, (says("ana's secret"), says("two")))
    await d.turn(thread=None, resource=None, run_id="1")
    (second,) = results_of(await d.turn(thread=None, resource=None, run_id="1"))
    assert second["text"] == "two"


async def test_h17_runs_of_two_owners_that_choose_the_same_id_share_nothing(desk):
    d = desk((asks("researcher"), "done") * 2, (says("ana's"), says("bo's")))
    (ana,) = results_of(await d.turn(thread="T", resource="u-ana", run_id="1"))
    (bo,) = results_of(await d.turn(thread="T2", resource="u-bo", run_id="1"))
    assert (ana["text"], bo["text"]) == ("ana's", "bo's")
    assert [t.id for t in await d.sub_threads("u-bo")] == [bo["subAgentThreadId"]]


async def test_del7_sub2_without_memory_the_supervisors_is_used(desk):
    own = InMemoryStorage()
    d = desk((asks("researcher"), "done"), on_boss={"memory": Memory(storage=own)})
    (told,) = results_of(await d.turn())
    stored = (await own.list_messages(told["subAgentThreadId"])).page.items
    assert [m.role for m in stored] == ["user", "assistant"]
    assert await d.sub_threads() == ()


async def test_del7_sub2_its_own_memory_wins(desk):
    own = InMemoryStorage()
    d = desk((asks("researcher"), "done"), on_sub={"memory": Memory(storage=own)})
    (told,) = results_of(await d.turn())
    stored = (await own.list_messages(told["subAgentThreadId"])).page.items
    assert [m.role for m in stored] == ["user", "assistant"]
    assert await d.sub_threads() == () and len(await d.stored("T")) == 2


async def test_del8_sub3_inherited_memory_loads_no_history_and_leaves_the_supervisors_alone(desk):
    memory = Memory(last_messages=20, generate_title=True)
    d = desk((asks("researcher"), "done", "title", asks("researcher"), "done"), ("one", "two"), {"memory": memory})
    await d.turn()
    await d.turn()
    shown = [text for role, text in d.sub_model.prompt]
    assert shown == ["SUB INSTR", "hello first", "done", "hello first", "find X"]  # the supervisor's window
    assert (memory.options.window, memory.options.generate_title is None) == (20, False)


async def test_del8_sub3_nothing_is_read_of_a_threads_history_that_cannot_be_there(desk, monkeypatch):
    d = desk((asks("researcher"), "done"), on_boss={"memory": Memory(last_messages=20)})
    load, read = d.storage.load_turn, {}

    async def noting(thread_id, **more):
        read[thread_id] = (more["last_messages"], more["budget"])
        return await load(thread_id, **more)

    monkeypatch.setattr(d.storage, "load_turn", noting)
    (told,) = results_of(await d.turn())
    assert read["T"][0] == 20 and read[told["subAgentThreadId"]] == (0, None)


async def test_del8_h17_working_memory_of_a_sub_agent_stays_and_is_not_the_supervisors(desk):
    memory = Memory(working_memory=True)
    boss = (asks("researcher"), "done", asks("researcher", prompt="find Y"), "done", "done")
    d = desk(boss, (notes(), "one", "two"), on_boss={"memory": memory})
    await d.turn()
    assert "likes tea" not in str(d.boss_model.prompt)
    await d.turn(thread="T2")
    assert "likes tea" in d.sub_model.prompt[0][1] + d.sub_model.prompt[1][1]
    assert await memory_of(d, "U") is None
    assert "likes tea" in (await memory_of(d, sub_resource("U", "researcher")) or "")
    await d.turn(thread="T3", resource="V")
    assert await memory_of(d, sub_resource("V", "researcher")) is None


async def test_del9_inheritance_is_one_level(nest):
    n = nest()
    result = await n.desk.turn()
    (mid,) = results_of(result)
    (leaf,) = mid["subAgentToolResults"]
    assert leaf["result"]["text"] == "leaf says" and leaf["result"]["subAgentThreadId"]
    (mid_thread,) = await n.desk.sub_threads("U", "middy")
    assert await n.desk.sub_threads("U", "middy", "leafy") == ()
    assert [role for role, _ in await n.desk.texts(mid_thread.id)] == ["user", "assistant"]


async def test_del9_a_memory_of_its_own_is_inherited_in_turn(nest):
    n = nest(on_mid={"memory": Memory()})
    await n.desk.turn()
    (leaf,) = await n.desk.sub_threads("U", "middy", "leafy")
    assert await n.desk.texts(leaf.id) == [("user", "leaf task"), ("assistant", "leaf says")]


async def test_del10_ddisc18_a_read_only_supervisor_stores_nothing_below(desk):
    d = desk((asks("researcher"), "done"), (notes(), "one"), on_boss={"memory": Memory(working_memory=True)})
    (told,) = results_of(await d.turn(options={"read_only": True}))
    assert told["text"].endswith("one") and told["subAgentToolResults"][0]["isError"]  # there is no such tool
    assert await d.sub_threads() == await d.threads() == ()


@pytest.mark.parametrize("place", ["resource", "thread"])
def test_shr5_h17_no_delegated_memory_is_that_of_another_users_sub_agent(place):
    """The id may come from the request: the separator of a pair must not come with it."""
    with pytest.raises(ConfigurationError, match=f"DelegatedMemory: {place} .* control characters"):
        DelegatedMemory(**{place: sub_resource("ada", "researcher")})


@pytest.mark.parametrize("options", [{"readonly": True}, {"working_memory": {"scop": "thread"}}, {"last_messages": -1}])
def test_del10_options_of_delegated_memory_are_checked(options):
    with pytest.raises(ConfigurationError, match="Memory"):
        DelegatedMemory(options=options)


def test_del10_options_of_delegated_memory_may_be_spelled_as_on_the_wire():
    assert DelegatedMemory(options={"readOnly": True, "workingMemory": {"maxBytes": 100}}).options["readOnly"]


@pytest.mark.parametrize(
    "on_sub",
    [
        {"memory": Memory(read_only=True)},
        {"memory": Memory(), "read_only": True},
        {"memory": Memory(), "delegated_memory": DelegatedMemory(options={"read_only": True})},
    ],
)
async def test_del10_ddisc18_a_read_only_sub_agent_stores_nothing(desk, on_sub):
    d = desk((asks("researcher"), "done"), on_sub=on_sub)
    (told,) = results_of(await d.turn())
    assert told["text"] == "sub answer"
    assert await d.sub_threads() == () and len(await d.stored("T")) == 2


@pytest.mark.parametrize("option", [{"working_memory": {"max_bytes": 100}}, {"workingMemory": {"maxBytes": 100}}])
async def test_del10_delegated_options_count_in_either_spelling_at_any_depth(desk, option):
    memory = Memory(working_memory={"enabled": True, "scope": "resource", "max_bytes": 1_000})
    note = calls(("updateWorkingMemory", {"memory": "x" * 200}))
    on_sub = {"memory": memory, "delegated_memory": DelegatedMemory(options=option)}
    d = desk((asks("researcher"), "done"), (note, "noted"), on_sub=on_sub)
    (told,) = results_of(await d.turn())
    assert "100" in str(told["subAgentToolResults"][0]["result"])
    kept = await d.storage.get_working_memory(MemoryTarget("resource", sub_resource("U", "researcher")))
    assert kept.text == ""


async def test_del10_shr5_a_sub_agent_may_use_the_memory_of_another_resource(desk):
    shared = DelegatedMemory(resource="house", thread="archive")
    d = desk(
        (asks("researcher"), "done") * 2,
        ("one", "two"),
        on_sub={"memory": Memory(last_messages=10), "delegated_memory": shared},
    )
    await d.turn()
    (told,) = results_of(await d.turn(thread="T2", resource="V"))
    assert (told["subAgentThreadId"], told["subAgentResourceId"]) == ("archive", "house")
    assert await d.texts("archive") == [
        ("user", "find X"),
        ("assistant", "one"),
        ("user", "find X"),
        ("assistant", "two"),
    ]
    assert ("assistant", "one") in d.sub_model.prompt  # its own options count: the history is loaded
    assert await d.sub_threads() == await d.sub_threads("V") == ()


async def test_del10_del8_an_inherited_memory_loads_the_history_of_a_thread_that_is_named(desk):
    diary = DelegatedMemory(thread="diary")
    memory = Memory(last_messages=10, generate_title=True)
    boss = (asks("researcher"), "done", "title") * 2
    d = desk(boss, ("one", "two"), {"memory": memory}, {"delegated_memory": diary})
    await d.turn()
    await d.turn(thread="T2")
    assert ("assistant", "one") in d.sub_model.prompt
    assert (await d.storage.get_thread("diary")).title == ""


async def test_h17_sub_threads_are_found_by_their_owner_and_go_with_the_supervisors(desk):
    d = desk((asks("researcher"), "done"))
    (told,) = results_of(await d.turn())
    assert await d.storage.list_sub_resources("U") == ("researcher",)
    await d.storage.delete_thread("T", resource_id="U")
    await d.storage.purge_thread("T", limit=1_000)
    assert await d.storage.get_thread(told["subAgentThreadId"]) is None


async def test_del10_a_read_only_reader_of_another_thread_sees_and_writes_nothing(desk):
    shared = DelegatedMemory(resource="house", thread="archive", options={"read_only": True})
    d = desk((asks("researcher"), "done"), on_sub={"memory": Memory(last_messages=10), "delegated_memory": shared})
    writer = Agent(id="w", model=FakeModel("kept"), memory=Memory())
    await writer.generate("keep this", thread="archive", resource="house", storage=d.storage)
    await d.turn()
    assert ("assistant", "kept") in d.sub_model.prompt
    assert await d.texts("archive") == [("user", "keep this"), ("assistant", "kept")]


async def test_del10_a_fixed_thread_of_the_sub_agents_resource_stays_when_the_supervisors_goes(desk):
    fixed = DelegatedMemory(thread="diary")
    d = desk((asks("researcher"), "done"), on_sub={"memory": Memory(), "delegated_memory": fixed})
    await d.turn()
    assert (await d.storage.get_thread("diary")).resource_id == sub_resource("U", "researcher")
    await d.storage.delete_thread("T", resource_id="U")
    await d.storage.purge_thread("T", limit=1_000)
    assert await d.storage.get_thread("diary") is not None


async def test_del10_a_fixed_thread_of_somebody_else_fails_the_delegation(desk):
    fixed = DelegatedMemory(thread="diary")
    d = desk((asks("researcher"), "done"), on_sub={"memory": Memory(), "delegated_memory": fixed})
    await d.storage.create_thread(NewThread("diary", "somebody"))
    await d.turn()
    assert d.told == ["[Agent:Boss] - Failed agent tool execution for researcher"]
    assert await d.stored("diary") == () and d.sub_model.requests == []


async def test_del11_h28_exactly_two_rows_in_either_thread(desk):
    d = desk((asks("researcher", text="let me see"), "done"))
    await d.turn("compare A and B")
    (sub,) = await d.sub_threads()
    assert await d.texts(sub.id) == [("user", "find X"), ("assistant", "sub answer")]
    assert await d.texts("T") == [("user", "compare A and B"), ("assistant", "done")]
    assert ("user", "compare A and B") in d.sub_model.prompt  # forwarded, and not stored below
    (_, answer) = await d.stored("T")
    assert [p["type"] for p in answer.content["parts"]] == ["text", "tool-invocation", "step-start", "text"]


async def test_h28_no_stored_text_is_routing_and_lists_show_no_sub_thread(desk):
    d = desk((asks("researcher"), asks("researcher", prompt="find Y"), "done"), ("one", "two"))
    await d.turn("compare A and B")
    for thread in ("T", *(t.id for t in await d.sub_threads())):
        for message in await d.stored(thread):
            for part in message.content["parts"]:
                assert not (part["type"] == "text" and _is_json(part["text"]))
    assert [t.id for t in await d.threads()] == ["T"]
    assert [t.title for t in await d.sub_threads()] == ["", ""]
    assert ("user", "find X") not in d.sub_model.prompt


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


@pytest.mark.parametrize(("own", "titled"), [(None, False), (Memory(generate_title=True), True), (Memory(), False)])
async def test_sub3_tt7_mdisc10_a_sub_thread_gets_a_title_only_if_its_own_memory_asks(own, titled):
    writer = Agent(id="w", model=FakeModel("sub answer", "Its own title"), memory=own)
    model = FakeModel(asks("w"), "done", "The top title")
    boss = Agent(id="boss", model=model, memory=Memory(generate_title=True), agents={"w": writer})
    storage, titles = InMemoryStorage(), []
    await boss.generate("hi", thread="T", resource="U", storage=storage, on_title_generated=titles.append)
    (sub,) = (await storage.list_threads(sub_resource("U", "w"))).items
    assert sub.title == ("Its own title" if titled else "")
    assert titles == ["The top title"] and (await storage.get_thread("T")).title == "The top title"


async def test_h17_joined_texts_that_are_equal_are_not_one_memory(desk):
    memory = Memory(working_memory=True)
    agents = {key: Agent(id=key, model=FakeModel(notes(key), "ok")) for key in ("a-b", "b")}
    d = desk((asks("a-b"), "done", asks("b"), "done"), on_boss={"memory": memory, "agents": agents})
    (one,) = results_of(await d.turn(thread="T1", resource="team"))
    (two,) = results_of(await d.turn(thread="T2", resource="team-a"))
    assert one["subAgentResourceId"] == two["subAgentResourceId"] == "team-a-b"
    assert [t.id for t in await d.sub_threads("team", "a-b")] == [one["subAgentThreadId"]]
    assert [t.id for t in await d.sub_threads("team-a", "b")] == [two["subAgentThreadId"]]
    assert "likes tea" not in str(agents["b"].model.requests[0].messages)


async def test_h17_a_user_named_like_a_sub_agents_resource_is_somebody_else(desk):
    memory = Memory(working_memory=True, last_messages=10)
    d = desk((asks("researcher"), "done", "hello"), (notes(), "ok"), on_boss={"memory": memory})
    await d.turn(thread="T", resource="ada")
    (sub,) = await d.sub_threads("ada")
    assert await d.threads("ada-researcher") == ()
    await d.turn(thread="T2", resource="ada-researcher")
    assert "likes tea" not in str(d.boss_model.prompt)
    assert await memory_of(d, "ada-researcher") is None
    from threadkeep.errors import AccessDenied

    with pytest.raises(AccessDenied):
        await d.turn(thread=sub.id, resource="ada-researcher")


async def test_h17_a_run_that_is_sent_again_meets_the_same_delegation(desk):
    """The supervisor died behind its delegation: the same request finds what the sub-agent stored."""
    d = desk((asks("researcher"), RuntimeError("died"), asks("researcher"), "done"), ("one", "two"))
    repeat = repeatable(owner="U", route="r", thread_id="T", body=b"{}", arrived=0, run_id="run-1")
    with pytest.raises(RuntimeError):
        await d.turn(run_id="run-1", repeat=repeat)
    result = await d.turn(run_id="run-1", repeat=repeat)
    (told,) = results_of(result)
    assert told["text"] == "one" and len(d.sub_model.requests) == 1
    (sub,) = await d.sub_threads()
    assert told["subAgentThreadId"] == sub.id and len(await d.stored(sub.id)) == 2


async def test_h17_another_request_of_the_same_run_id_is_another_delegation(desk):
    d = desk((asks("researcher"), "done") * 2, ("one", "two"))
    for body in (b"{1}", b"{2}"):
        repeat = repeatable(owner="U", route="r", thread_id="T", body=body, arrived=0, run_id="run-1")
        result = await d.turn(run_id="run-1", repeat=repeat)
    assert results_of(result)[0]["text"] == "two" and len(await d.sub_threads()) == 2


async def test_an_orders_report_is_the_same_when_it_is_told_again(desk):
    """What a repeat reports: tool results, and what was used below, so that limits count it once."""
    d = desk((asks("researcher"), RuntimeError("died"), asks("researcher"), "done"), (calls(("nope", {})), "one"))
    repeat = repeatable(owner="U", route="r", thread_id="T", body=b"{}", arrived=0, run_id="run-1")
    with pytest.raises(RuntimeError):
        await d.turn(run_id="run-1", repeat=repeat)
    result = await d.turn(run_id="run-1", repeat=repeat)
    assert [r["toolName"] for r in results_of(result)[0]["subAgentToolResults"]] == ["nope"]
    assert result.delegated.total_tokens == 30 and result.delegations == 1
