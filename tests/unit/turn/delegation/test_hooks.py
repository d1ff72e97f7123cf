"""What a deployer's hooks decide of delegations and of iterations (DEL-16 to DEL-21)."""

import asyncio
from typing import Any

import pytest

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Agent, Delegation, DelegationOutcome, DelegationStart, IterationVerdict, Memory, clock
from threadkeep.errors import ProcessorFailed
from threadkeep.models import openai
from threadkeep.models.bedrock import _Turns
from threadkeep.turn.delegation.options import HOOK_ERRORS_KEY


class Hook:
    """Answers with `answers` in turn, and remembers what it was told; an error is raised."""

    def __init__(self, *answers: Any, is_async: bool = False):
        self.answers, self.told, self.is_async = list(answers), [], is_async

    def __call__(self, subject: Any) -> Any:
        self.told.append(subject)
        return self._later() if self.is_async else self._now()

    def _now(self) -> Any:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _later(self) -> Any:
        await asyncio.sleep(0)
        return self._now()


def hooks(**named: Any) -> dict[str, Any]:
    return {"delegation": Delegation(**named)}


def prompt_of(model: FakeModel) -> str:
    return model.prompt[-1][1]


@pytest.mark.parametrize("is_async", [False, True])
async def test_del16_a_hook_rewrites_prompt_instructions_and_steps(desk, is_async):
    hook = Hook(DelegationStart(prompt="find Y", instructions="be exact", max_steps=1), is_async=is_async)
    looping = tuple(calls(("nope", {})) for _ in range(9))
    d = desk((asks("researcher", instructions="be brief"), "done"), looping, hooks(on_start=hook))
    await d.turn()
    (sub,) = await d.sub_threads()
    assert (await d.texts(sub.id))[0] == ("user", "find Y")  # the prompt as executed (DEL-11)
    assert d.sub_model.prompt[0] == ("system", "SUB INSTR\n\nbe exact") and len(d.sub_model.requests) == 1
    (call,) = hook.told
    assert (call.prompt, call.instructions, call.max_steps) == ("find X", "be brief", None)
    assert call.request_context["MastraMemory"]["thread"] == {"id": "T"}


async def test_del16_a_hook_is_told_who_delegates_what_to_whom(desk):
    hook = Hook()
    clerk = Agent(id="clerk-agent", model=FakeModel("sub answer"))
    d = desk(
        (asks("clerk", instructions="be brief", maxSteps=3), "done"),
        on_boss={"agents": {"clerk": clerk}, **hooks(on_start=hook)},
    )
    result = await d.turn()
    (call,) = hook.told
    (made,) = result.steps[0].response.tool_calls
    assert (call.key, call.agent_id, call.call_id, call.run_id) == ("clerk", "clerk-agent", made.id, result.run_id)
    assert (call.thread_id, call.resource_id, call.parent_id, call.parent_name) == ("T", "U", "boss", "Boss")
    assert (call.prompt, call.instructions, call.max_steps, call.iteration) == ("find X", "be brief", 3, 1)
    assert [(m.role, m.text) for m in call.messages] == [("user", "hello first")]


async def test_del16_the_iteration_counts_the_answers_that_are_forwarded(desk):
    hook = Hook()
    d = desk(("a", "b", asks("researcher"), "done"), on_boss=hooks(on_start=hook))
    for text in ("one", "two", "three"):
        await d.turn(text)
    assert hook.told[0].iteration == 2


async def test_del17_a_rejection_is_read_and_stored_and_the_run_goes_on(desk):
    start, complete = Hook(DelegationStart(proceed=False, rejection="not today")), Hook()
    d = desk((asks("researcher"), "done"), on_boss=hooks(on_start=start, on_complete=complete))
    result = await d.turn()
    assert d.told == ["[Delegation Rejected] not today"] and result.text == "done"
    (sub,) = await d.sub_threads()
    assert await d.texts(sub.id) == [("user", "find X"), ("assistant", "[Delegation Rejected] not today")]
    assert d.sub_model.requests == [] and complete.told == []
    assert results_of(result)[0]["subAgentThreadId"] == sub.id


async def test_del17_a_rejection_is_told_even_if_it_cannot_be_stored(desk, monkeypatch):
    d = desk((asks("researcher"), "done"), on_boss=hooks(on_start=Hook(DelegationStart(proceed=False, rejection="no"))))
    create = d.storage.create_thread

    async def broken(new):
        if new.id != "T":
            raise OSError("no store")
        return await create(new)

    monkeypatch.setattr(d.storage, "create_thread", broken)
    result = await d.turn()
    assert d.told == ["[Delegation Rejected] no"] and result.text == "done"


async def test_del18_the_completion_hook_is_told_all(desk):
    hook = Hook()
    d = desk((asks("researcher"), "done"), on_boss=hooks(on_complete=hook))
    await d.turn()
    (done,) = hook.told
    (sub,) = await d.sub_threads()
    assert (done.result.text, done.result.finish_reason, done.success, done.error) == ("sub answer", "stop", True, None)
    assert (done.result.thread_id, done.result.resource_id) == (sub.id, "U-researcher")
    assert (done.result.usage.total_tokens, done.result.tool_results) == (15, ())
    assert done.call.prompt == "find X"
    assert [m.text for m in done.call.messages] == ["hello first"]


async def test_del18_the_duration_is_how_long_the_sub_agent_took(desk, monkeypatch):
    hook, at = Hook(), clock.now()

    async def slow():
        monkeypatch.setattr(clock, "now", lambda: at + 7_000)
        return says("sub answer")

    monkeypatch.setattr(clock, "now", lambda: at)
    await desk((asks("researcher"), "done"), (slow,), hooks(on_complete=hook)).turn()
    assert hook.told[0].duration == 7_000


async def test_del18_the_usage_includes_what_was_used_below(nest):
    hook = Hook()
    result = await nest(on_boss=hooks(on_complete=hook)).desk.turn()
    assert hook.told[0].result.usage.total_tokens == result.delegated.total_tokens == 45  # 15 a call: two and one
    assert result.usage.total_tokens == 30


async def test_del18_it_may_replace_the_text(desk):
    d = desk((asks("researcher"), "done"), on_boss=hooks(on_complete=Hook(DelegationOutcome(text="better"))))
    (told,) = results_of(await d.turn())
    assert d.told == ["better"] and told["text"] == "better"
    (_, answer) = await d.stored("T")
    assert answer.content["parts"][0]["toolInvocation"]["result"]["text"] == "better"
    (sub,) = await d.sub_threads()
    assert (await d.texts(sub.id))[1] == ("assistant", "sub answer")


async def test_del18_also_where_the_sub_agent_failed(desk):
    hook = Hook(DelegationOutcome(text="not available"))
    d = desk((asks("researcher"), "done"), (RuntimeError("boom"),), hooks(on_complete=hook))
    (told,) = results_of(await d.turn())
    assert d.told == ["not available"] and told["text"] == "not available"
    assert (hook.told[0].success, hook.told[0].error) == (
        False,
        "[Agent:Boss] - Failed agent tool execution for researcher",
    )


@pytest.fixture
def with_feedback(desk):
    return desk(
        (asks("researcher", text="wait"), "done"), on_boss=hooks(on_complete=Hook(DelegationOutcome("check it")))
    )


async def test_del18_feedback_is_shown_behind_the_results_and_stored(with_feedback):
    d = with_feedback
    await d.turn()
    roles = [m.role for m in d.boss_model.requests[-1].messages]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert prompt_of(d.boss_model) == "check it"
    rows = await d.stored("T")
    (row,) = [m for m in rows if m.content["content"] == "check it"]
    assert row.role == "assistant" and row.content["metadata"] == {"completionResult": {"suppressFeedback": True}}
    assert len(rows) == 3


async def test_del18_feedback_makes_a_prompt_that_providers_take(with_feedback):
    d = with_feedback
    await d.turn()
    messages = d.boss_model.requests[-1].messages[1:]
    turns = _Turns("anthropic.claude", with_tools=True).of(messages)
    assert [t["role"] for t in turns] == ["user", "assistant", "user"]
    assert [next(iter(b)) for b in turns[-1]["content"]] == ["toolResult", "text"]  # results first
    wire = [m for message in messages for m in openai._messages(message)]
    assert [m["role"] for m in wire] == ["user", "assistant", "tool", "user"]
    assert wire[1]["tool_calls"][0]["id"] == wire[2]["tool_call_id"]


async def test_del18_the_feedback_of_parallel_delegations_comes_in_their_order(desk):
    hook = Hook(DelegationOutcome("first"), DelegationOutcome("second"), is_async=True)
    d = desk((asks("researcher", "researcher"), "done"), ("one", "two"), hooks(on_complete=hook))
    await d.turn()
    assert [text for _, text in d.boss_model.prompt[-2:]] == ["first", "second"]


async def test_del19_bail_ends_the_run_after_the_step_and_the_others_finish(desk):
    def bail(done):
        if done.call.key == "a":
            done.bail()

    agents = {key: Agent(id=key, model=FakeModel(f"{key} says")) for key in ("a", "b")}
    d = desk((asks("a", "b"), "never"), on_boss=hooks(on_complete=bail) | {"agents": agents})
    result = await d.turn()
    assert (result.finish_reason, result.text, result.ended) == ("tool-calls", "", None)
    assert [r["text"] for r in results_of(result)] == ["a says", "b says"] and len(d.boss_model.requests) == 1
    assert [m.role for m in await d.stored("T")] == ["user", "assistant"]


@pytest.mark.parametrize("hook", ["on_start", "on_complete", "message_filter"])
@pytest.mark.parametrize("strategy", ["warn", "throw"])
async def test_del20_errors_of_hooks_are_passed_over_or_fail_the_call(desk, hook, strategy):
    broken = Hook(ValueError("bad hook"), is_async=hook == "on_start")
    d = desk((asks("researcher"), "done"), on_boss=hooks(hook_errors=strategy, **{hook: broken}))
    result = await d.turn()
    assert d.told == (["sub answer"] if strategy == "warn" else ["bad hook"]) and result.text == "done"
    wire = {"on_start": "onDelegationStart", "on_complete": "onDelegationComplete", "message_filter": "messageFilter"}
    assert result.hook_errors == (
        {
            "hook": wire[hook],
            "primitiveId": "researcher",
            "toolCallId": "call-agent-researcher-0",
            "runId": result.run_id,
            "name": "ValueError",
            "message": "bad hook",
        },
    )


async def test_del20_they_stand_in_the_request_context_of_the_run_and_not_in_that_of_others(desk):
    seen: list[Any] = []

    def instructions(context):
        seen.append(context.get(HOOK_ERRORS_KEY))
        return "SUB"

    start = Hook(ValueError("one"), None, is_async=True)
    d = desk(
        (asks("researcher"), asks("researcher", prompt="b"), "done"),
        on_boss=hooks(on_start=start),
        on_sub={"instructions": instructions},
    )
    await d.turn(request_context={HOOK_ERRORS_KEY: "from a client"})
    assert seen == [None, None]
    assert [e["message"] for e in start.told[1].request_context[HOOK_ERRORS_KEY]] == ["one"]


async def test_del20_an_answer_of_another_type_is_an_error(desk):
    d = desk((asks("researcher"), "done"), on_boss=hooks(on_start=Hook({"proceed": False})))
    result = await d.turn()
    assert d.told == ["sub answer"]
    assert result.hook_errors[0]["message"] == "onDelegationStart must return DelegationStart or None, returned dict"


async def test_del21_the_iteration_hook_is_told_each_step(desk):
    hook = Hook(is_async=True)
    d = desk((asks("researcher", text="wait"), "done"), on_boss={"on_iteration": hook, "max_steps": 7})
    result = await d.turn()
    first, last = hook.told
    assert (first.number, first.max_iterations, first.text, first.is_final) == (1, 7, "wait", False)
    assert [c.name for c in first.tool_calls] == ["agent-researcher"] and first.outcomes[0].result[
        "text"
    ] == "sub answer"
    assert (last.number, last.is_final, last.finish_reason, last.text) == (2, True, "stop", "done")
    assert (last.run_id, last.thread_id, last.resource_id) == (result.run_id, "T", "U")
    assert (last.agent_id, last.agent_name) == ("boss", "Boss")


async def test_del21_it_stops_a_run(desk):
    d = desk((asks("researcher"), "never"), on_boss={"on_iteration": Hook(IterationVerdict(go_on=False))})
    result = await d.turn()
    assert len(d.boss_model.requests) == 1 and result.finish_reason == "tool-calls"


async def test_del21_stopping_with_feedback_gives_one_more_turn(desk):
    hook = Hook(IterationVerdict(go_on=False, feedback="sum up"), IterationVerdict(go_on=True))
    d = desk((asks("researcher"), asks("researcher", prompt="b"), "never"), ("one", "two"), {"on_iteration": hook})
    result = await d.turn()
    assert len(d.boss_model.requests) == 2 and len(hook.told) == 1
    assert prompt_of(d.boss_model) == "sum up" and result.finish_reason == "tool-calls"


async def test_del21_it_goes_on_past_an_answer_up_to_the_steps(desk):
    hook = Hook(*[IterationVerdict(go_on=True)] * 9)
    d = desk(("a ", "b ", "c ", "d"), on_boss={"on_iteration": hook})
    result = await d.turn(max_steps=3)
    assert result.text == "a b c " and result.usage.total_tokens == 45
    assert d.boss_model.requests[0].messages == d.boss_model.requests[2].messages  # the same prompt again


async def test_del21_feedback_is_stored_only_if_another_iteration_follows(desk):
    hook = Hook(IterationVerdict(go_on=True, feedback="better"), IterationVerdict(feedback="too late"))
    d = desk(("a", "b"), on_boss={"on_iteration": hook})
    await d.turn()
    assert [role for role, _ in d.boss_model.prompt] == ["system", "user", "assistant", "user"]
    rows = [m.content["content"] for m in await d.stored("T")]
    assert "better" in rows and "too late" not in rows


async def test_del21_nobody_goes_on_past_a_call_that_waits_for_the_caller(desk):
    from threadkeep.turn.tools import Tool

    pick = Tool("pick", "pick", "Pick", {"type": "object"}, None)
    for verdict in (IterationVerdict(go_on=True), IterationVerdict(go_on=False, feedback="sum up")):
        d = desk((calls(("pick", {})), "never"), on_boss={"on_iteration": Hook(verdict)})
        result = await d.turn(client_tools=[pick])
        assert len(d.boss_model.requests) == 1 and result.steps[-1].pending


@pytest.mark.parametrize("strategy", ["warn", "throw"])
async def test_del20_del21_errors_of_the_iteration_hook(desk, strategy):
    on_boss = {"on_iteration": Hook(ValueError("bad")), "delegation": Delegation(hook_errors=strategy)}
    d = desk(("done",), on_boss=on_boss)
    if strategy == "throw":
        with pytest.raises(ProcessorFailed, match="iteration hook of agent boss failed"):
            await d.turn()
    else:
        result = await d.turn()
        assert result.text == "done"
        assert [(e["hook"], e["message"]) for e in result.hook_errors] == [("onIterationComplete", "bad")]


async def test_hooks_of_a_call_take_the_place_of_the_agents(desk):
    mine, other = Hook(), Hook()
    d = desk((asks("researcher"), "done"), on_boss=hooks(on_start=mine))
    await d.turn(delegation=Delegation(on_start=other))
    assert (len(mine.told), len(other.told)) == (0, 1)


async def test_the_hooks_of_a_sub_agent_are_its_own(nest):
    above, below = Hook(), Hook()
    n = nest(
        on_boss={"delegation": Delegation(on_start=above)},
        on_mid={"delegation": Delegation(on_start=below), "memory": Memory()},
    )
    await n.desk.turn()
    assert [c.key for c in above.told] == ["middy"] and [c.key for c in below.told] == ["leafy"]
    assert below.told[0].parent_id == "mid"
    assert below.told[0].prompt == "leaf task"
