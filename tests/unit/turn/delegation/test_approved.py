"""Delegations that a person has to approve first (MS-14)."""

import pytest

from tests.unit.fakes import calls
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Agent, Delegation, DelegationOutcome, DelegationStart, Limits, Memory
from threadkeep.errors import Conflict
from threadkeep.memory.history import DECLINED
from threadkeep.models.port import ModelResponse, ToolCall, Usage

CALL = "call-agent-researcher-0"


async def waiting(d, **call):
    result = await d.turn(ask_first=True, **call)
    assert result.finish_reason == "suspended" and d.sub_model.requests == []
    assert [c.name for c in result.suspended.waiting] == ["agent-researcher"]
    return result.run_id


async def test_ms14_an_approved_delegation_runs_once_and_the_run_goes_on(desk):
    d = desk((asks("researcher", text="may I?", instructions="be brief"), "done"), ("one", "two"))
    run = await waiting(d)
    result = await d.decide(run, CALL)
    assert result.text == "done" and [r["text"] for r in results_of(result)] == ["one"] and d.told == ["one"]
    again = await d.decide(run, CALL)
    assert again.text == "done" and len(d.sub_model.requests) == 1
    (sub,) = await d.sub_threads()
    assert sub.id.startswith("T-") and await d.texts(sub.id) == [("user", "find X"), ("assistant", "one")]
    with pytest.raises(Conflict):
        await d.decide(run, CALL, approved=False)


async def test_ms14_h17_it_sees_the_stored_thread_without_the_step_that_waits(desk):
    d = desk(("a", asks("researcher", text="may I?"), "done"), on_boss={"memory": Memory(last_messages=10)})
    await d.turn("before")
    await d.decide(await waiting(d), CALL)
    assert d.sub_model.prompt == [
        ("system", "SUB INSTR"),
        ("user", "before"),
        ("assistant", "a"),
        ("user", "hello first"),
        ("user", "find X"),
    ]


async def test_ms14_h17_users_whose_delegations_wait_keep_apart(desk):
    memory = Memory(working_memory=True)
    note = calls(("updateWorkingMemory", {"memory": "ana likes tea"}))
    d = desk((asks("researcher"),) * 2 + ("done",) * 2, (note, "for ana", "for bo"), {"memory": memory})
    runs = {user: await waiting(d, thread=f"T-{user}", resource=user) for user in ("u-ana", "u-bo")}
    for user, run in runs.items():
        (told,) = results_of(await d.decide(run, CALL))
        assert told["subAgentResourceId"] == f"{user}-researcher"
        assert [t.id for t in await d.sub_threads(user)] == [told["subAgentThreadId"]]
    assert "tea" not in str(d.sub_model.prompt)


async def test_ms14_of_the_answer_that_waits_only_earlier_steps_are_seen(desk):
    step = calls(("nope", {}), text="first this")
    d = desk((step, asks("researcher", text="may I?"), "done"))
    await d.decide(await waiting(d), CALL)
    said = [text for _, text in d.sub_model.prompt]
    assert said == ["SUB INSTR", "hello first", "first this", "find X"]


async def test_ms14_a_declined_delegation_does_not_run(desk):
    d = desk((asks("researcher"), "done"))
    result = await d.decide(await waiting(d), CALL, approved=False)
    assert result.text == "done" and d.told == ["no"] != [DECLINED]
    assert d.sub_model.requests == [] and await d.sub_threads() == ()


async def test_ms14_a_process_that_dies_behind_the_delegation_does_not_repeat_it(desk, monkeypatch):
    d = desk((asks("researcher"), "done"), ("one", "two"))
    run = await waiting(d)
    commit = d.storage.commit_turn

    async def dies(turn):
        if turn.updates:
            raise OSError("died")
        return await commit(turn)

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(d.storage, "commit_turn", dies)
        await d.decide(run, CALL)
    result = await d.decide(run, CALL)
    assert d.told == ["one"] and result.text == "done"
    assert len(d.sub_model.requests) == 1 == len(await d.sub_threads())


async def test_ms14_two_decisions_of_one_run_on_equal_calls_are_two_delegations(desk):
    d = desk((asks("researcher"), asks("researcher"), "done"), ("one", "two"))
    run = await waiting(d)
    second = await d.decide(run, CALL)
    assert second.finish_reason == "suspended"
    result = await d.decide(run, CALL)
    assert [r["text"] for r in results_of(result)] == ["two"] and len(await d.sub_threads()) == 2


async def test_ms14_del16_hooks_decide_as_ever(desk):
    on = {"delegation": Delegation(on_start=lambda call: DelegationStart(prompt="find Y"))}
    d = desk((asks("researcher"), "done"), on_boss=on)
    await d.decide(await waiting(d), CALL)
    assert d.sub_model.prompt[-1] == ("user", "find Y")


async def test_ms14_del17_a_hook_may_reject_what_a_person_approved(desk):
    on = {"delegation": Delegation(on_start=lambda call: DelegationStart(proceed=False, rejection="not today"))}
    d = desk((asks("researcher"), "done"), on_boss=on)
    result = await d.decide(await waiting(d), CALL)
    assert d.told == ["[Delegation Rejected] not today"] and result.text == "done" and d.sub_model.requests == []


async def test_ms14_del18_feedback_is_told_when_the_run_goes_on(desk):
    on = {"delegation": Delegation(on_complete=lambda done: DelegationOutcome(feedback="check it"))}
    d = desk((asks("researcher"), "done"), on_boss=on)
    await d.decide(await waiting(d), CALL)
    assert [m.role for m in d.boss_model.requests[-1].messages] == ["system", "user", "assistant", "tool", "user"]
    assert d.boss_model.prompt[-1] == ("user", "check it")
    rows = await d.stored("T")
    assert [m.content.get("content") for m in rows].count("check it") == 1
    assert rows[-1].content["metadata"] == {"completionResult": {"suppressFeedback": True}}


async def test_ms14_del19_bail_ends_the_run_behind_the_decision(desk):
    on = {"delegation": Delegation(on_complete=lambda done: done.bail())}
    d = desk((asks("researcher"), "never"), on_boss=on)
    run = await waiting(d)
    result = await d.decide(run, CALL)
    assert result.finish_reason == "tool-calls" and len(d.boss_model.requests) == 1
    assert [r["text"] for r in results_of(result)] == ["sub answer"]
    assert len((await d.decide(run, CALL)).all_steps) == 1  # a repeat finds it over, too


async def test_ms14_del23_a_failing_one_is_told(desk):
    d = desk((asks("researcher"), "done"), (RuntimeError("x"),))
    result = await d.decide(await waiting(d), CALL)
    assert d.told == ["[Agent:Boss] - Failed agent tool execution for researcher"] and result.text == "done"


async def test_ms14_limits_go_on_where_the_run_was_suspended(desk):
    second = ModelResponse("", (ToolCall("c2", "agent-researcher", {"prompt": "b"}),), "tool-calls", Usage(), "f")
    d = desk((asks("researcher"), second, "done"), ("one", "two"))
    run = await waiting(d, limits=Limits(delegations=1))
    assert (await d.decide(run, CALL)).finish_reason == "suspended"
    result = await d.decide(run, "c2")
    assert "at most 0 times" in d.told[-1] and len(d.sub_model.requests) == 1
    assert result.finish_reason == "stop"


async def test_ms14_drc4_the_sub_agents_of_a_function_are_those_of_the_decision(desk):
    there = []

    def agents(context):
        return {"researcher": there[-1]} if there else {}

    from tests.unit.fakes import FakeModel

    there.append(Agent(id="researcher", model=FakeModel("first")))
    d = desk((asks("researcher"), "done"), on_boss={"agents": agents})
    run = await waiting(d)
    there.append(Agent(id="researcher", model=FakeModel("of now")))
    await d.decide(run, CALL)
    assert d.told == ["of now"]


async def test_ms14_a_sub_agent_that_is_gone_is_told(desk):
    there = {"researcher": Agent(id="researcher")}
    d = desk((asks("researcher"), "done"), on_boss={"agents": lambda context: dict(there)})
    run = await waiting(d)
    there.clear()
    await d.decide(run, CALL)
    assert d.told == ["There is no tool agent-researcher. Available tools: none"]


async def test_ms14_a_supervisor_without_thread_cannot_wait(desk):
    d = desk((asks("researcher"), "done"))
    await d.turn(ask_first=True, thread=None, resource=None)
    assert "needs a person's approval" in d.told[0] and d.sub_model.requests == []
