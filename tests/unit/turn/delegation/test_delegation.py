"""A supervisor delegates in its own process (DEL-1 to DEL-15)."""

from tests.unit.fakes import says
from tests.unit.turn.delegation.conftest import asks, results_of


async def test_del15_the_worked_example(desk):
    d = desk((asks("researcher", text="let me delegate", threadId="halluc", instructions="be brief"), "done"))
    result = await d.turn()
    assert d.sub_model.prompt == [
        ("system", "SUB INSTR\n\nbe brief"),
        ("user", "hello first"),
        ("user", "find X"),
    ]
    (sub,) = await d.sub_threads()
    assert sub.id.startswith("T-") and sub.title == ""
    assert await d.texts(sub.id) == [("user", "find X"), ("assistant", "sub answer")]
    assert results_of(result) == [
        {
            "text": "sub answer",
            "subAgentThreadId": sub.id,
            "subAgentResourceId": "U-researcher",
            "subAgentToolResults": [],
        }
    ]
    assert d.boss_model.requests[-1].messages[-1].parts[0].text == "sub answer"
    assert [m.role for m in await d.stored("T")] == ["user", "assistant"]


async def test_del4_invalid_arguments_are_told_to_the_model(desk):
    d = desk((asks("researcher", maxSteps=1), "done"))
    await d.turn()
    assert "maxSteps" in d.boss_model.requests[-1].messages[-1].parts[0].text
    assert d.sub_model.requests == []


async def test_del23_a_failing_sub_agent_is_told_without_its_cause(desk):
    d = desk((asks("researcher"), "done"), (RuntimeError("secret"),))
    await d.turn()
    told = d.boss_model.requests[-1].messages[-1].parts[0]
    assert told.text == "[Agent:Boss] - Failed agent tool execution for researcher" and told.is_error
    (sub,) = await d.sub_threads()
    assert await d.stored(sub.id) == ()


async def test_del6_without_ids_the_reply_is_stored_and_nobody_shares_it(desk):
    d = desk((asks("researcher"), "done", asks("researcher"), "done"), (says("one"), says("two")))
    (first,) = results_of(await d.turn(thread=None, resource=None))
    (second,) = results_of(await d.turn(thread=None, resource=None))
    assert first["subAgentResourceId"] == second["subAgentResourceId"] == "boss-researcher"
    assert await d.texts(first["subAgentThreadId"]) == [("user", "find X"), ("assistant", "one")]
    assert await d.texts(second["subAgentThreadId"]) == [("user", "find X"), ("assistant", "two")]
    owners = [(await d.storage.get_thread(r["subAgentThreadId"])).resource_id for r in (first, second)]
    assert owners[0] != owners[1]
