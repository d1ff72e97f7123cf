"""How far a run may go: steps of sub-agents (DEL-22), delegations, depth, tokens and seconds."""

import asyncio

import pytest

from tests.unit.fakes import FakeModel, calls, says
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Agent, Delegation, DelegationStart, Limits, clock, tool
from threadkeep.errors import ConfigurationError
from threadkeep.turn.delegation.in_process import InProcess
from threadkeep.turn.receipts import repeatable
from threadkeep.turn.run import run_turn

LOOPING = tuple(calls(("nope", {})) for _ in range(12))


@pytest.mark.parametrize(
    ("asked", "own", "hook", "made"),
    [
        (7, 4, None, 4),  # the model's wish is capped by the sub-agent's own
        (None, 4, None, 4),
        (None, None, None, 5),  # the default
        (3, None, None, 3),
        ("3", None, None, 3),  # numbers may come as text
        (7, 4, 9, 9),  # a hook is not capped
    ],
)
async def test_del22_how_many_steps_a_sub_agent_takes(desk, asked, own, hook, made):
    args = {} if asked is None else {"maxSteps": asked}
    on_sub = {} if own is None else {"max_steps": own}
    on_boss = {"delegation": Delegation(on_start=lambda call: DelegationStart(max_steps=hook))}
    d = desk((asks("researcher", **args), "done"), LOOPING, on_boss, on_sub)
    result = await d.turn()
    assert len(d.sub_model.requests) == made and result.text == "done"


async def test_del22_loop2_a_sub_agent_out_of_steps_is_no_failure(desk):
    told = []
    d = desk(
        (asks("researcher"), "done"),
        (calls(("nope", {}), text="so far"),),
        {"delegation": Delegation(on_complete=lambda done: told.append(done))},
        {"max_steps": 1},
    )
    await d.turn()
    assert d.told == ["so far"] and told[0].result.finish_reason == "tool-calls" and told[0].success


async def test_delegations_are_counted_and_the_run_ends_at_the_limit(desk):
    d = desk(
        (asks("researcher", "researcher", "researcher"), "never"), ("one", "two"), {"limits": Limits(delegations=2)}
    )
    result = await d.turn()
    assert result.finish_reason == "max-delegations" and result.delegations == 2
    assert [o.error for o in result.steps[0].outcomes] == [None, None, "This run may delegate at most 2 times"]
    assert len(d.boss_model.requests) == 1 and [m.role for m in await d.stored("T")] == ["user", "assistant"]


async def test_delegations_below_count_too(nest):
    n = nest()
    n.desk.boss_model.answers = [asks("middy", prompt="mid task"), asks("middy", prompt="more"), "never"]
    result = await n.desk.turn(limits=Limits(delegations=2))
    assert result.finish_reason == "max-delegations" and result.delegations == 2


async def test_the_delegations_of_a_step_share_what_is_left(desk):
    """Two sub-agents that delegate without end make no more delegations together than their supervisor may."""
    busy = [asks("leaf", prompt=f"p{n}") for n in range(9)]
    leaf = Agent(id="leaf", model=FakeModel())
    agents = {k: Agent(id=k, model=FakeModel(*busy), agents={"leaf": leaf}, max_steps=9) for k in ("a", "b")}
    d = desk((asks("a", "b"), "done"), on_boss={"agents": agents, "limits": Limits(delegations=8)})
    result = await d.turn()
    assert result.delegations == 8 == 2 + len(leaf.model.requests)


@pytest.mark.parametrize(("depth", "leaf_runs", "reason"), [(0, 0, "max-depth"), (1, 0, "stop"), (2, 1, "stop")])
async def test_depth_is_how_many_levels_may_stand_below(nest, depth, leaf_runs, reason):
    n = nest()
    result = await n.desk.turn(limits=Limits(depth=depth))
    assert result.finish_reason == reason and len(n.leaf_model.requests) == leaf_runs
    assert len(n.mid_model.requests) == (0 if depth == 0 else 1 if depth == 1 else 2)
    if depth == 0:
        assert "may not delegate" in (result.steps[0].outcomes[0].error or "")


async def test_an_agent_that_delegates_to_itself_ends_at_the_depth(desk):
    model = FakeModel(*[asks("me", prompt=f"p{n}") for n in range(9)])
    selves: dict[str, Agent] = {}
    me = Agent(id="me", model=model, agents=selves)
    selves["me"] = me
    assert repr(me)  # a circle, and still an agent
    d = desk(("done",), on_boss={"model": model, "agents": selves, "limits": Limits(depth=3)})
    result = await d.turn()
    read = [p.text for r in model.requests for m in r.messages if m.role == "tool" for p in m.parts]
    assert 3 < result.delegations < 10 and "ok" in read  # each circle ended, and was reported to the one above
    assert await d.sub_threads("U", "me") and not await d.sub_threads("U", "me", "me")  # one level inherits


async def test_two_agents_that_delegate_to_each_other_end_at_the_depth(desk):
    endless = lambda key: FakeModel(*[asks(key, prompt=f"p{n}") for n in range(99)])  # noqa: E731
    a = Agent(id="a", model=endless("b"), agents=lambda context: {"b": b})
    b = Agent(id="b", model=endless("a"), agents=lambda context: {"a": a})
    d = desk((asks("a"), "done"), on_boss={"agents": {"a": a}, "limits": Limits(depth=4, delegations=40)})
    result = await d.turn()
    assert result.text == "done" and result.delegations <= 40


async def test_tokens_include_what_sub_agents_used(desk):
    """Each answer uses 15: 15 + 2 x 15 are 45."""
    d = desk((asks("researcher", "researcher"), "never"), ("one", "two"), {"limits": Limits(tokens=45)})
    result = await d.turn()
    assert result.finish_reason == "max-tokens" and len(d.boss_model.requests) == 1
    assert (result.usage.total_tokens, result.delegated.total_tokens) == (15, 30)
    assert [m.role for m in await d.stored("T")] == ["user", "assistant"]


async def test_tokens_one_more_and_the_run_goes_on(desk):
    d = desk((asks("researcher", "researcher"), "done"), ("one", "two"), {"limits": Limits(tokens=46)})
    assert (await d.turn()).finish_reason == "stop"


async def test_tokens_that_are_left_go_down_in_equal_shares(desk):
    """100 - 15 leave 42 for each of two; a sub-agent's third answer brings it to 45."""
    models = {key: FakeModel(*LOOPING) for key in ("a", "b")}
    agents = {key: Agent(id=key, model=model) for key, model in models.items()}
    d = desk((asks("a", "b"), "done"), on_boss={"agents": agents, "limits": Limits(tokens=100)})
    result = await d.turn()
    assert [len(m.requests) for m in models.values()] == [3, 3] and result.finish_reason == "max-tokens"


async def test_a_runs_own_tokens_count_without_sub_agents(desk):
    d = desk(LOOPING, on_boss={"agents": {}, "limits": Limits(tokens=30)})
    result = await d.turn()
    assert result.finish_reason == "max-tokens" and len(d.boss_model.requests) == 2


async def test_seconds_end_a_run_between_its_steps(desk, monkeypatch):
    d = desk((asks("researcher"), "never"), on_boss={"limits": Limits(seconds=60)})
    at = clock.now()

    async def slow():
        monkeypatch.setattr(clock, "now", lambda: at + 61_000)
        return says("sub answer")

    d.sub_model.answers = [slow]
    result = await d.turn()
    assert result.finish_reason == "max-seconds" and [r["text"] for r in results_of(result)] == ["sub answer"]


async def test_an_answer_that_comes_in_time_is_no_limit(desk, monkeypatch):
    d = desk(("done",), on_boss={"limits": Limits(tokens=1)})
    assert (await d.turn()).finish_reason == "stop"


async def test_a_sub_agent_gets_the_time_that_is_left_and_fails_when_it_is_over(desk):
    async def endless():
        await asyncio.sleep(60)

    d = desk((asks("researcher"), "done"), (endless,))
    result = await d.turn(deadline=2.0)
    assert d.told == ["[Agent:Boss] - Failed agent tool execution for researcher: it took too long"]
    assert result.text == "done"
    (sub,) = await d.sub_threads()
    assert await d.stored(sub.id) == ()


async def test_limits_of_a_call_narrow_those_of_the_agent_and_never_widen_them(desk):
    d = desk((asks("researcher", "researcher"), "x"), on_boss={"limits": Limits(delegations=1)})
    result = await d.turn(limits=Limits(delegations=9))
    assert result.delegations == 1 and result.finish_reason == "max-delegations"


async def test_the_limits_of_a_sub_agent_are_its_own_and_what_is_left(nest):
    n = nest(on_mid={"limits": Limits(delegations=0)})
    result = await n.desk.turn()
    assert n.leaf_model.requests == [] and result.text == "done"
    assert results_of(result)[0]["subAgentToolResults"][0]["isError"]


@pytest.mark.parametrize("broken", [{"delegations": -1}, {"depth": -1}, {"tokens": 0}, {"seconds": 0}])
def test_limits_that_cannot_be(broken):
    with pytest.raises(ConfigurationError, match="Limits"):
        Limits(**broken)


async def test_a_repeat_tells_the_same_end(desk):
    d = desk((asks("researcher", "researcher"), "never"), ("one",), {"limits": Limits(delegations=1)})
    repeat = repeatable(owner="U", route="r", thread_id="T", body=b"{}", arrived=0, key="k")
    first = await d.turn(repeat=repeat)
    again = await d.turn(repeat=repeat)
    assert first.finish_reason == again.finish_reason == "max-delegations"
    assert (again.delegations, again.delegated, again.usage) == (first.delegations, first.delegated, first.usage)
    assert again.run_id == first.run_id and again.steps[-1].response.finish_reason == "tool-calls"


async def test_a_limit_that_is_met_in_the_last_step_is_the_one_that_is_named(desk):
    d = desk((asks("researcher", "researcher"), "never"), ("one",), {"limits": Limits(delegations=1)})
    assert (await d.turn(max_steps=1)).finish_reason == "max-delegations"


async def test_what_is_left_waits_with_a_run_that_waits(desk, monkeypatch):
    """Used: 15 each for two steps and a sub-agent; one delegation; two seconds. The wait itself counts for nothing."""
    at = clock.now()

    async def takes_two_seconds():
        monkeypatch.setattr(clock, "now", lambda: at + 2_000)
        return says("sub answer")

    @tool(require_approval=True)
    def erase() -> str:
        """Erase"""
        return "gone"

    monkeypatch.setattr(clock, "now", lambda: at)
    limits = Limits(delegations=4, depth=2, tokens=1_000, seconds=60)
    d = desk(
        (asks("researcher"), calls(("erase", {})), "done"), (takes_two_seconds,), {"tools": [erase], "limits": limits}
    )
    result = await d.turn()
    assert result.suspended is not None
    kept = result.suspended.request["limits"]
    assert kept == {"delegations": 3, "depth": 2, "tokens": 955, "seconds": 58.0}
    monkeypatch.setattr(clock, "now", lambda: at + 3_600_000)
    assert (await d.decide(result.run_id, "call-erase-0")).finish_reason == "stop"


@pytest.mark.parametrize(
    ("deadline", "seconds", "given"),
    [
        (100.0, 3_600, 95_000),  # five seconds less
        (10.0, 3_600, 8_000),  # a fifth less, where that is less
        (100.0, 50, 45_000),  # whichever ends first
        (None, 50, 45_000),
    ],
)
async def test_the_deadline_of_an_order_leaves_its_supervisor_time(desk, monkeypatch, deadline, seconds, given):
    at = clock.now()
    monkeypatch.setattr(clock, "now", lambda: at)
    told = []

    class Telling(InProcess):
        async def delegate(self, team, orders):
            told.extend(orders)
            return await super().delegate(team, orders)

    d = desk((asks("researcher"), "done"), on_boss={"limits": Limits(seconds=seconds)})
    d.delegator = Telling(run_turn)
    await d.turn(deadline=deadline)
    (order,) = told
    assert order.deadline == at + given
    assert (order.delegations, order.depth, order.tokens) == (49, 2, 2_000_000 - 15)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: Limits(delegations="3"), "delegations must be a number"),
        (lambda: Limits(depth=1.5), "depth must be a number"),
        (lambda: Limits(seconds=True), "seconds must be a number"),
        (lambda: Limits(tokens=0), "tokens and seconds above 0"),
        (lambda: Delegation(hook_errors="ignore"), "hook_errors must be warn or throw"),
        (lambda: Delegation(on_start=3), "on_start must be a function"),
    ],
)
def test_settings_that_cannot_be_are_refused_where_they_are_written(wrong, named):
    with pytest.raises(ConfigurationError, match=named):
        wrong()
