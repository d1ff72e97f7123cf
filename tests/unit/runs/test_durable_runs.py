"""Durable runs: what is done is done once, whatever dies (DESIGN 6)."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.fakes import calls, says
from tests.unit.http.house import user
from tests.unit.runs.desk import SERVICE, Desk, Points, delegates, in_rounds, notes
from threadkeep import Agent, Memory, Processor, ToolContext, clock, tool
from threadkeep.agents import Registry
from threadkeep.errors import (
    AccessDenied,
    Conflict,
    InvalidInput,
    KeyReused,
    ModelRejected,
    ModelUnavailable,
    NotFound,
    StoreUnavailable,
)
from threadkeep.http import approvals, identity
from threadkeep.http.route import Request
from threadkeep.http.serve import serve
from threadkeep.memory.messages import parts_of
from threadkeep.models.port import ModelRequest, ModelResponse
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import NewThread
from threadkeep.turn.tools import ToolInputInvalid

WORKING_MEMORY = Memory(working_memory={"enabled": True})


def whole_story(points: Points | None = None) -> Desk:
    """A run with two tools in a step, a write to working memory, two delegations beside a tool, and an answer."""
    write = calls(("updateWorkingMemory", {"memory": "likes tea"}))
    mixed = replace(delegates("A", "B"), tool_calls=(*delegates("A", "B").tool_calls, *notes("three").tool_calls))
    return Desk(
        in_rounds(notes("one", "two"), write, mixed, "the end"),
        on_boss={"memory": WORKING_MEMORY},
        points=points or Points(),
    )


async def test_a_run_goes_through_its_steps_and_is_stored_as_one_turn() -> None:
    desk = whole_story()
    run_id = await desk.begin()
    assert desk.executions.started == [run_id]
    assert (await desk.view(run_id))["state"] == "running"
    assert await desk.drive(run_id) == "SUCCEEDED"
    view = await desk.view(run_id)
    assert view["state"] == "succeeded"
    assert view["result"]["text"] == "the end"
    assert view["result"]["finishReason"] == "stop"
    assert len(view["result"]["messageIds"]) == 2
    assert [[c["toolName"] for c in step["toolCalls"]] for step in view["steps"]] == [
        ["note", "note"],
        ["updateWorkingMemory"],
        ["agent-researcher", "agent-researcher", "note"],
        [],
    ]
    assert [(d["state"], d["text"]) for d in view["delegations"]] == [("succeeded", "sub answer")] * 2
    assert sorted(d["subAgentThreadId"] for d in view["delegations"]) == sorted(await desk.sub_threads())
    assert await desk.stored() == [("user", "hello"), ("assistant", "the end")]
    assert desk.tasks == 2 + 2  # two steps, two sub-agents


def _points() -> list[str]:
    desk = whole_story()

    async def story() -> int:
        run_id = await desk.begin()
        first = len(desk.points.seen)
        await desk.drive(run_id)
        return first

    first = asyncio.run(story())
    return [f"{n} {name}" for n, name in enumerate(desk.points.seen) if n >= first]


@pytest.mark.parametrize("where", _points())
async def test_killed_at_any_point_a_run_does_nothing_twice_that_it_has_noted(where: str) -> None:
    """Only what was done and not noted yet is done again: one model call, or one tool, with the same ids."""
    number, _, name = where.partition(" ")
    desk = whole_story(Points(int(number)))
    run_id = await desk.begin()
    assert await desk.drive(run_id) == "SUCCEEDED"
    view = await desk.view(run_id)
    assert (view["state"], view["result"]["text"], len(view["steps"])) == ("succeeded", "the end", 4)
    assert await desk.stored() == [("user", "hello"), ("assistant", "the end")]
    subs = await desk.sub_threads()
    assert len(subs) == 2
    for sub in subs:
        assert [role for role, _ in await desk.stored(sub)] == ["user", "assistant"]
    memory = await desk.store.get_working_memory(_resource("U"))
    assert (memory.text, memory.version) == ("likes tea", 1)
    again = sum(count - 1 for count in desk.boss_model.asked.values()) + len(desk.ran) - 3
    assert desk.sub_model.asked["sub answer"] <= 3
    assert again <= (name in ("after model", "after tool", "before write_entries")) + (name == "before write_entries")
    assert sorted(set(desk.ran)) == ["one", "three", "two"]


def _resource(owner: str) -> Any:
    from threadkeep.storage.port import MemoryTarget

    return MemoryTarget("resource", owner)


async def test_what_was_noted_is_not_asked_again_when_later_steps_fail() -> None:
    desk = Desk(in_rounds(notes("one"), delegates("A"), ModelUnavailable("down")))
    desk.retries = 1
    run_id = await desk.begin()
    assert await desk.drive(run_id) == "FAILED"
    assert (await desk.view(run_id))["error"] == {"name": "ModelUnavailable", "message": "down"}
    assert await desk.stored() == []
    desk.boss_model.answer = in_rounds("?", "?", "the end")
    assert await desk.drive(run_id, redriven=True) == "SUCCEEDED"
    view = await desk.view(run_id)
    assert (view["state"], view["result"]["text"], "error" in view) == ("succeeded", "the end", False)
    assert (desk.ran, desk.sub_model.asked["sub answer"], desk.boss_model.asked["?"]) == (["one"], 1, 0)


async def test_a_run_that_fails_again_after_a_redrive_is_failed_again() -> None:
    desk = Desk(in_rounds(ModelRejected("no")))
    run_id = await desk.begin()
    assert await desk.drive(run_id) == "FAILED"
    assert await desk.drive(run_id, redriven=True) == "FAILED"
    assert (await desk.view(run_id))["error"]["message"] == "no"
    desk.boss_model.answer = in_rounds("fine")
    assert await desk.drive(run_id, redriven=True) == "SUCCEEDED"


async def test_the_time_of_a_run_counts_anew_from_a_redrive(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(in_rounds(notes("one"), ModelRejected("no")))
    run_id = await desk.begin(limits={"seconds": 60})
    await desk.drive(run_id)
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + 3_600_000)
    desk.store.clock = clock.now
    desk.boss_model.answer = in_rounds("?", notes("two"), "the end")
    assert await desk.drive(run_id, redriven=True) == "SUCCEEDED"
    assert (await desk.view(run_id))["result"]["finishReason"] == "stop"


async def test_time_that_runs_out_ends_a_run_after_the_steps_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(in_rounds(notes("one"), delegates("A"), "never"))
    run_id = await desk.begin(limits={"seconds": 60})
    state = await desk._step({"runId": run_id, "outcomes": []}, 900)  # pyright: ignore[reportPrivateUsage]
    state = await desk._delegated(state)  # pyright: ignore[reportPrivateUsage]
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + 61_000)
    assert (await desk._step(state, 900))["next"] == "over"  # pyright: ignore[reportPrivateUsage]
    view = await desk.view(run_id)
    assert (view["result"]["finishReason"], len(view["steps"])) == ("max-seconds", 2)
    assert [role for role, _ in await desk.stored()] == ["user", "assistant"]


async def test_a_task_that_is_short_of_time_leaves_the_rest_to_the_next() -> None:
    desk = Desk(in_rounds(notes("one"), notes("two"), "the end"))
    run_id = await desk.begin()
    assert await desk.drive(run_id, seconds=10) == "SUCCEEDED"
    assert desk.tasks == 3
    assert desk.ran == ["one", "two"]
    assert len(desk.boss_model.requests) == 3


async def test_cancelled_runs_store_nothing_more() -> None:
    desk = Desk(in_rounds(notes("one"), delegates("A"), "the end"))
    run_id = await desk.begin()
    state = await desk._step({"runId": run_id, "outcomes": []}, 900)  # pyright: ignore[reportPrivateUsage]
    assert state["next"] == "delegate"
    status, cancelled = await desk.http("POST", f"boss/runs/{run_id}/cancel")
    assert (status, cancelled["state"]) == (200, "cancelled")
    assert desk.executions.stopped == [run_id]
    outcome = (await desk._delegated(state))["outcomes"][0]  # pyright: ignore[reportPrivateUsage]
    assert outcome["failure"]
    for thread in await desk.sub_threads():
        assert await desk.stored(thread) == []
    assert (await desk._step(state | {"outcomes": [outcome]}, 900))["next"] == "over"  # pyright: ignore[reportPrivateUsage]
    assert await desk.stored() == []
    assert (await desk.view(run_id))["state"] == "cancelled"
    assert (await desk.http("POST", f"boss/runs/{run_id}/cancel"))[1]["state"] == "cancelled"


async def test_nothing_is_begun_for_a_run_that_was_cancelled() -> None:
    """Not a tool of an answer that came too late, not a sub-agent, not its thread, and no further step of one."""
    desk = Desk(in_rounds(delegates("A"), "the end"), in_rounds(delegates("never"), "never"))
    run_id = await desk.begin()
    state = await desk._step({"runId": run_id, "outcomes": []}, 900)  # pyright: ignore[reportPrivateUsage]
    await desk.http("POST", f"boss/runs/{run_id}/cancel")
    outcomes = (await desk._delegated(state))["outcomes"]  # pyright: ignore[reportPrivateUsage]
    assert [outcome["failure"] for outcome in outcomes] == ["cancelled"]
    assert (desk.sub_model.requests, await desk.sub_threads()) == ([], [])


async def test_a_sub_agent_of_a_cancelled_run_takes_no_further_step() -> None:
    desk = Desk(in_rounds(delegates("A"), "the end"))
    run_id = await desk.begin()

    @tool(id="cancelling")
    async def cancelling() -> str:
        """Cancel the run"""
        await desk.store.end_run(run_id, "cancelled")
        return "cancelled"

    sub = Agent(id="researcher", model="sub/m", tools=[cancelling])
    boss = Agent(id="boss", model="boss/m", memory=Memory(), agents={"researcher": sub})
    desk.app = replace(desk.app, registry=Registry([boss]))
    desk.sub_model.answer = in_rounds(calls(("cancelling", {})), "never")
    assert await desk.drive(run_id) == "SUCCEEDED"
    assert len(desk.sub_model.requests) == 1
    assert [await desk.stored(thread) for thread in await desk.sub_threads()] == [[]]


async def test_a_sub_agent_with_a_store_of_its_own_works_for_a_durable_run() -> None:
    own = InMemoryStorage()
    desk = Desk(in_rounds(delegates("A"), "the end"), on_sub={"memory": Memory(storage=own)})
    view = await desk.run()
    assert [d["state"] for d in view["delegations"]] == ["succeeded"]
    assert [m.role for m in (await own.list_messages(view["delegations"][0]["subAgentThreadId"])).page.items] == [
        "user", "assistant",
    ]  # fmt: skip


async def test_an_agent_with_a_store_of_its_own_has_no_durable_runs() -> None:
    desk = Desk(in_rounds("the end"), on_boss={"memory": Memory(storage=InMemoryStorage())})
    with pytest.raises(Conflict):
        await desk.begin()


async def test_a_run_that_waits_for_an_approval_is_over_and_goes_on_by_the_decision() -> None:
    done: list[str] = []

    @tool(id="pay", require_approval=True)
    def pay(what: str) -> str:
        """Pay"""
        done.append(what)
        return "paid"

    desk = Desk(in_rounds(calls(("pay", {"what": "rent"})), "the end"), on_boss={"tools": [pay]})
    view = await desk.run()
    assert (view["state"], view["result"]["finishReason"], done) == ("succeeded", "suspended", [])
    run = await desk.store.get_suspended_run(view["runId"])
    assert run is not None
    route = next(r for r in approvals.ROUTES if r.path.endswith("/approve-tool-call-generate"))
    body = json.dumps({"runId": view["runId"], "toolCallId": run.waiting[0].id}).encode()
    json_only, service = {"content-type": "application/json"}, identity.from_authorizer(SERVICE)
    answer = await serve(route, Request({"agentId": "boss"}, {}, json_only, body, service, clock.now()), desk.app)
    assert (json.loads(answer.body)["text"], done) == ("the end", ["rent"])


async def test_an_execution_that_was_stopped_among_its_delegations_is_redriven_there() -> None:
    """Somebody saw meanwhile that nothing drives it, so what its sub-agents then do is not stored: they do it again."""
    desk = Desk(in_rounds(delegates("A", "B"), "the end"))
    run_id = await desk.begin()
    state = await desk._step({"runId": run_id, "outcomes": []}, 900)  # pyright: ignore[reportPrivateUsage]
    await desk.store.end_run(run_id, "failed", error={"name": "ExecutionEnded", "message": "ABORTED"})
    state = await desk._delegated(state)  # pyright: ignore[reportPrivateUsage]
    assert [outcome["failure"] for outcome in state["outcomes"]] == ["cancelled"] * 2
    assert await desk.drive(run_id, at=state) == "SUCCEEDED"
    view = await desk.view(run_id)
    assert (view["state"], view["result"]["text"]) == ("succeeded", "the end")
    assert [d["state"] for d in view["delegations"]] == ["succeeded"] * 2
    for sub in await desk.sub_threads():
        assert [role for role, _ in await desk.stored(sub)] == ["user", "assistant"]


async def test_a_task_that_died_is_a_failure_once_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It left no report, and only the step behind it is told of it by the machine."""
    desk = Desk(in_rounds(delegates("A"), delegates("B"), "the end"))
    delegated: Any = desk._delegated  # pyright: ignore[reportPrivateUsage]
    asked: list[int] = []

    async def dying(state: Any) -> Any:
        asked.append(len(state["orders"]))
        if len(asked) > 1:
            return await delegated(state)
        return {"runId": state["runId"], "outcomes": [{"id": o["id"], "failure": "died"} for o in state["orders"]]}

    monkeypatch.setattr(desk, "_delegated", dying)
    view = await desk.run()
    assert (view["state"], view["result"]["text"], asked) == ("succeeded", "the end", [1, 1])
    assert [d["state"] for d in view["delegations"]] == ["failed", "succeeded"]
    assert desk.sub_model.asked["sub answer"] == 1


async def test_a_tool_that_failed_is_told_the_same_to_the_model_each_time() -> None:
    """As an error, not as a result, and it is not called again."""
    ran: list[str] = []

    @tool(id="breaks")
    async def breaks(how: str) -> str:
        """Fail"""
        ran.append(how)
        if how == "raise":
            raise RuntimeError("out of order")
        raise ToolInputInvalid({"how": "is not known"})

    asked = calls(("breaks", {"how": "raise"}), ("breaks", {"how": "refuse"}))
    desk = Desk(in_rounds(asked, delegates("A"), delegates("B"), "the end"), on_boss={"tools": [breaks]})
    view = await desk.run()
    assert (view["state"], view["result"]["text"], ran) == ("succeeded", "the end", ["raise", "refuse"])
    read = [
        [(part.text, part.is_error) for part in request.messages[-1 - 2 * later].parts]
        for later, request in enumerate(desk.boss_model.requests[1:])
    ]
    assert read[0] == read[1] == read[2]
    (raised, refused) = read[0]
    assert "out of order" in raised[0] and raised[1]
    assert "is not known" in refused[0]


@pytest.mark.parametrize("fails", [False, True])
async def test_del26_data_that_a_tool_told_before_the_run_was_begun_again_are_stored_with_its_call(fails: bool) -> None:
    @tool(id="drive")
    async def drive(context: ToolContext) -> str:
        """Drive"""
        await context.tell("data-progress", {"km": 7})
        if fails:
            raise RuntimeError("out of fuel")
        return "there"

    desk = Desk(in_rounds(calls(("drive", {})), delegates("A"), "the end"), on_boss={"tools": [drive]})
    assert (await desk.run())["state"] == "succeeded"
    (_, answer) = (await desk.store.list_messages("T", per_page=None)).page.items
    assert [part for part in parts_of(answer.content) if part["type"] == "data-progress"] == [
        {"type": "data-progress", "data": {"km": 7}}
    ]


@pytest.mark.parametrize("answer", [0, 1])
async def test_cancel_while_the_model_answers(answer: int) -> None:
    desk = Desk(in_rounds(notes("one"), "the end"))

    def cancelling(request: Any) -> Any:
        if answer == sum(m.role == "tool" for m in request.messages):
            desk.store._runs[run_id] = (  # pyright: ignore[reportPrivateUsage]
                replace(desk.store._runs[run_id][0], state="cancelled"),  # pyright: ignore[reportPrivateUsage]
                desk.store._runs[run_id][1],  # pyright: ignore[reportPrivateUsage]
            )
        return in_rounds(notes("one"), "the end")(request)

    desk.boss_model.answer = cancelling
    run_id = await desk.begin()
    assert await desk.drive(run_id) == "SUCCEEDED"
    assert (await desk.stored(), desk.ran) == ([], ["one"] * answer)
    assert (await desk.view(run_id))["state"] == "cancelled"


async def test_a_run_that_is_over_cannot_be_cancelled() -> None:
    desk = Desk(in_rounds("the end"))
    run = await desk.run()
    status, answer = await desk.http("POST", f"boss/runs/{run['runId']}/cancel")
    assert (status, answer["state"], desk.executions.stopped) == (200, "succeeded", [])


@pytest.mark.parametrize("prompts", [("A",), ("A", "B", "C", "D")])
async def test_results_of_5_megabytes_travel_by_the_store(prompts: tuple[str, ...]) -> None:
    size = 4_990_000  # each: as much as a message may have
    desk = Desk(in_rounds(delegates(*prompts), "the end"), in_rounds("x" * size))
    view = await desk.run()
    assert view["state"] == "succeeded"
    assert max(desk.payloads) < 2_000
    assert [len(d["text"]) for d in view["delegations"]] == [500] * len(prompts)
    read = [p.text for m in desk.boss_model.requests[-1].messages if m.role == "tool" for p in m.parts]
    assert all(text.startswith("x" * 400_000) and f"of {size} characters]" in text for text in read)
    below = view["delegations"][0]["subAgentThreadId"]
    rows = (await desk.store.list_messages(below, per_page=None)).page.items
    assert "x" * size in str(rows[-1].content), "the whole is in the sub-agent's thread"


async def test_h17_on_the_async_path_memory_is_the_users_own_also_after_a_forced_resume() -> None:
    remembering = Memory(working_memory={"enabled": True, "scope": "resource"})

    def sub(request: Any) -> Any:
        known = next((m.text for m in request.messages if "fact of" in m.text and m.role == "system"), "")
        wanted = [m.text for m in request.messages if m.role == "user"][-1]
        if any(m.role == "tool" for m in request.messages):
            return says("done")
        seen = {owner for owner in ("U1", "U2") if f"fact of {owner}" in known}
        return calls(("updateWorkingMemory", {"memory": wanted})) if wanted.startswith("fact") else says(str(seen))

    for kill in range(-1, 32):  # never, and at each point
        desk = Desk(in_rounds("?"), sub, on_sub={"memory": remembering}, points=Points())
        for owner in ("U1", "U2"):
            for prompt in (f"fact of {owner}", "what do you know"):
                other = {"threadId": "T-stolen", "resourceId": "U2" if owner == "U1" else "U1"}
                order = calls(("agent-researcher", {"prompt": prompt, **other}))
                desk.boss_model.answer = in_rounds(order, "the end")
                run_id = await desk.begin(thread=f"T-{owner}-{prompt[0]}", owner=owner)
                desk.points.seen, desk.points.kill_at = [], kill
                assert await desk.drive(run_id) == "SUCCEEDED"
                desk.points.kill_at = None
        for owner in ("U1", "U2"):
            threads = await desk.sub_threads(owner)
            assert len(threads) == 2, "one sub-thread for each delegation, also after a repeat"
            texts = [text for thread in threads for role, text in await desk.stored(thread) if role == "assistant"]
            assert sorted(texts) == sorted(["done", str({owner})])


async def test_a_failed_delegation_is_told_the_same_to_the_model_each_time() -> None:
    def raising(request: Any) -> Any:
        raise ModelRejected("bad key")

    desk = Desk(in_rounds(delegates("A"), notes("one"), delegates("B"), "the end"), raising)
    view = await desk.run()
    assert [d["state"] for d in view["delegations"]] == ["failed", "failed"]
    assert "bad key" not in str(view)
    texts = [[p.text for m in r.messages if m.role == "tool" for p in m.parts] for r in desk.boss_model.requests]
    assert texts[-1][0] == texts[1][0]
    assert "Failed agent tool execution" in texts[-1][0]


@pytest.mark.parametrize(
    ("limits", "ended"),
    [({"delegations": 1}, "max-delegations"), ({"depth": 0}, "max-depth"), ({"tokens": 1}, "max-tokens")],
)
async def test_limits_end_a_run_in_an_orderly_way(limits: dict[str, int], ended: str) -> None:
    desk = Desk(in_rounds(delegates("A"), delegates("B"), "never"))
    view = await desk.run(limits=limits)
    assert (view["state"], view["result"]["finishReason"]) == ("succeeded", ended)


async def test_many_delegations_of_one_step_keep_the_order_of_their_calls() -> None:
    prompts = [f"P{n}" for n in range(50)]
    desk = Desk(in_rounds(delegates(*prompts), "the end"), lambda request: says(request.messages[-1].text))
    view = await desk.run(limits={"delegations": 50})
    assert view["state"] == "succeeded"
    assert [d["text"] for d in view["delegations"]] == prompts


async def test_structured_output_and_its_failure() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    desk = Desk(in_rounds(notes("one"), '{"n": 3}'))
    assert (await desk.run(structuredOutput={"schema": schema}))["result"]["object"] == {"n": 3}
    desk.boss_model.answer = in_rounds("no json")
    view = await desk.run(structuredOutput={"schema": schema})
    assert (view["state"], view["error"]["name"]) == ("failed", "OutputInvalid")


async def test_calls_of_the_callers_tools_end_the_run() -> None:
    desk = Desk(in_rounds(calls(("where", {"x": 1})), "never"))
    view = await desk.run(clientTools={"where": {"description": "Where am I"}})
    assert (view["state"], view["result"]["finishReason"]) == ("succeeded", "tool-calls")
    assert view["steps"][-1]["toolCalls"] == [{"toolCallId": "call-where-0", "toolName": "where", "args": {"x": 1}}]


async def test_a_run_without_memory_keeps_its_result_too() -> None:
    desk = Desk(in_rounds(delegates("A"), "the end"))
    view = await desk.run(thread=None)
    assert (view["state"], view["result"]["text"], view["result"]["messageIds"]) == ("succeeded", "the end", [])
    assert "threadId" not in view


class Redacting(Processor):
    id = "redacting"

    def process_output_result(self, messages: Any, call: Any) -> Any:
        return [
            replace(m, content={**m.content, "content": "***", "parts": [{"type": "text", "text": "***"}]})
            for m in messages
        ]


class Stopping(Processor):
    id = "stopping"

    def process_output_step(self, response: Any, call: Any) -> None:
        if "secret" in response.text:
            call.abort("no secrets")


async def test_what_processors_take_out_never_shows() -> None:
    desk = Desk(
        in_rounds(replace(delegates("A"), text="a secret"), "the secret end"),
        in_rounds("sub secret"),
        on_boss={"output_processors": [Redacting()]},
    )
    run_id = await desk.begin()
    state = await desk._step({"runId": run_id, "outcomes": []}, 900)  # pyright: ignore[reportPrivateUsage]
    assert "secret" not in str(await desk.view(run_id))
    state = await desk._delegated(state)  # pyright: ignore[reportPrivateUsage]
    await desk._step(state, 900)  # pyright: ignore[reportPrivateUsage]
    view = await desk.view(run_id)
    assert view["result"]["text"] == "***"
    assert "secret" not in str(view)


async def test_a_run_that_a_processor_stops_has_a_tripwire_and_stores_nothing() -> None:
    desk = Desk(in_rounds(notes("one"), "a secret"), on_boss={"output_processors": [Stopping()]})
    view = await desk.run()
    assert (view["state"], view["result"]["tripwire"]["reason"]) == ("succeeded", "no secrets")
    assert await desk.stored() == []


async def test_a_tool_result_that_is_too_big_to_note_is_an_error_that_the_model_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("threadkeep.storage.journals.MAX_ENTRY_BYTES", 2_000)

    @tool(id="long")
    def long() -> str:
        """Say much"""
        return "y" * 2_000

    desk = Desk(in_rounds(calls(("long", {})), "the end"), on_boss={"tools": [long]})
    view = await desk.run(thread=None)
    assert view["state"] == "succeeded", view
    assert "TooLarge" in desk.boss_model.requests[-1].messages[-1].parts[0].text


async def test_an_outcome_that_could_not_be_noted_fails_the_task_not_the_tool() -> None:
    desk = Desk(in_rounds(notes("one"), "the end"))
    run_id = await desk.begin()
    write, failures = desk.store.write_entries, [StoreUnavailable("down")]

    async def once_down(journal: str, entries: Any, **more: Any) -> Any:
        if failures and ".call." in entries[0].name:
            raise failures.pop()
        return await write(journal, entries, **more)

    desk.store.write_entries = once_down  # type: ignore[method-assign]
    assert await desk.drive(run_id) == "FAILED"
    assert len(desk.boss_model.requests) == 1
    assert await desk.drive(run_id, redriven=True) == "SUCCEEDED"
    assert desk.ran == ["one", "one"]


# --- The routes ----------------------------------------------------------------------------------

BODY = {"messages": "hello", "memory": {"thread": "T", "resource": "U"}}


async def test_the_same_request_is_the_same_run() -> None:
    desk = Desk(in_rounds("the end"))
    first = await desk.http("POST", "boss/runs", BODY, idempotency_key="k")
    assert first == await desk.http("POST", "boss/runs", BODY, idempotency_key="k")
    assert set(desk.executions.started) == {first[1]["runId"]}
    with pytest.raises(KeyReused):
        await desk.http("POST", "boss/runs", BODY | {"maxSteps": 3}, idempotency_key="k")
    named = BODY | {"runId": "mine"}
    assert (await desk.http("POST", "boss/runs", named))[1] == {"runId": "mine"}
    assert (await desk.http("POST", "boss/runs", named))[1] == {"runId": "mine"}
    with pytest.raises(Conflict):
        await desk.http("POST", "other/runs", named)
    with pytest.raises(Conflict):
        await desk.http("POST", "boss/runs", named | {"memory": {"thread": "T2", "resource": "V"}})
    started = len(desk.executions.started)
    await desk.drive("mine")
    assert (await desk.http("POST", "boss/runs", named))[0] == 202
    assert len(desk.executions.started) == started


async def test_what_cannot_run_is_refused_before_anything_is_stored() -> None:
    desk = Desk(in_rounds("the end"))
    await desk.store.create_thread(NewThread("T", "somebody"))
    for error, path, body in (
        (NotFound, "nobody/runs", BODY),
        (AccessDenied, "boss/runs", BODY),
        (InvalidInput, "boss/runs", {"messages": ""}),
        (InvalidInput, "boss/runs", BODY | {"limits": {"seconds": 0}}),
        (InvalidInput, "boss/runs", BODY | {"memory": {"thread": "T"}}),
    ):
        with pytest.raises(error):
            await desk.http("POST", path, body | {"runId": "r"})
    assert await desk.store.get_run("r") is None
    assert desk.executions.started == []


async def test_users_see_their_own_runs_only() -> None:
    desk = Desk(in_rounds("the end"))
    _, started = await desk.http("POST", "boss/runs", {"messages": "x", "memory": {"thread": "T"}}, user("ana"))
    run_id = started["runId"]
    await desk.drive(run_id)
    assert (await desk.view(run_id, user("ana")))["resourceId"] == "ana"
    for method, path in (("GET", f"boss/runs/{run_id}"), ("POST", f"boss/runs/{run_id}/cancel")):
        with pytest.raises(AccessDenied) as denied:
            await desk.http(method, path, caller=user("bo"))
        assert str(denied.value) == "Access denied: the run belongs to a different resource"
        with pytest.raises(AccessDenied):
            await desk.http(method, path, query={"resourceId": "bo"})
        with pytest.raises(NotFound):
            await desk.http(method, path.replace("boss", "other"), caller=user("ana"))
        assert (await desk.http(method, path, query={"resourceId": "ana"}))[0] == 200
    with pytest.raises(NotFound):
        await desk.view("unknown")


async def test_runs_of_a_thread_newest_first() -> None:
    desk = Desk(in_rounds("the end"))
    ids = [(await desk.run(runId=name))["runId"] for name in ("r1", "r2", "r3")]
    _, listed = await desk.http("GET", "boss/runs", query={"threadId": "T"})
    assert [run["runId"] for run in listed["runs"]] == ids[::-1]
    assert {run["state"] for run in listed["runs"]} == {"succeeded"}
    _, listed = await desk.http("GET", "boss/runs", query={"threadId": "T", "perPage": "2"}, caller=user("U"))
    assert len(listed["runs"]) == 2
    with pytest.raises(AccessDenied):
        await desk.http("GET", "boss/runs", query={"threadId": "T"}, caller=user("bo"))
    with pytest.raises(InvalidInput):
        await desk.http("GET", "boss/runs")
    with pytest.raises(NotFound):
        await desk.http("GET", "boss/runs", query={"threadId": "none"})
    assert (await desk.http("GET", "boss/runs", query={"threadId": "none"}, caller=user("U")))[1] == {"runs": []}


async def test_a_run_that_nothing_drives_any_more_is_found_to_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(in_rounds("the end"))
    run_id = await desk.begin()
    desk.executions.over[run_id] = "ABORTED"
    assert (await desk.view(run_id))["state"] == "running", "it is young"
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + 61_000)
    view = await desk.view(run_id)
    assert (view["state"], view["error"]["name"]) == ("failed", "ExecutionEnded")
    desk.error = {"Error": "States.Timeout", "Cause": ""}
    assert await desk.drive(run_id, redriven=True) == "SUCCEEDED"
    assert (await desk.view(run_id))["result"]["text"] == "the end"


async def test_a_run_id_that_is_used_again_after_its_run_is_gone_says_that_nothing_drives_it() -> None:
    """The execution of the first run keeps the name."""
    desk = Desk(in_rounds("the end"))
    run_id = await desk.begin(runId="r1")
    await desk.store.forget_run(run_id)
    desk.executions.over[run_id] = "SUCCEEDED"
    assert await desk.begin(runId="r1") == run_id
    view = await desk.view(run_id)
    assert (view["state"], view["error"]["name"]) == ("failed", "ExecutionEnded")


async def test_a_run_that_is_begun_again_while_it_goes_on_goes_on() -> None:
    desk = Desk(in_rounds("the end"))
    assert await desk.begin(runId="r1") == await desk.begin(runId="r1")
    assert (await desk.view("r1"))["state"] == "running"


async def test_a_deleted_threads_runs_are_gone_and_their_tasks_end() -> None:
    desk = Desk(in_rounds(delegates("A"), "the end"))
    run_id = await desk.begin()
    state = await desk._step({"runId": run_id, "outcomes": []}, 900)  # pyright: ignore[reportPrivateUsage]
    await desk.store.delete_thread("T", resource_id="U")
    await desk.store.purge_thread("T")
    assert (await desk._step(state | {"outcomes": []}, 900))["next"] == "over"  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(NotFound):
        await desk.view(run_id)


@pytest.mark.parametrize("answer", [1, 2])
async def test_nothing_stays_of_a_run_whose_thread_was_deleted_while_a_model_answered(answer: int) -> None:
    """Before it delegates, and before it ends."""
    desk = Desk(in_rounds(delegates("A"), "the end"))
    run_id = await desk.begin()
    await desk.store.create_thread(NewThread("T", "U"))
    own = desk.boss_model.generate

    async def deleting(request: ModelRequest) -> ModelResponse:
        if len(desk.boss_model.requests) == answer - 1:
            await desk.store.delete_thread("T", resource_id="U")
            await desk.store.purge_thread("T")
        return await own(request)

    desk.boss_model.generate = deleting  # type: ignore[method-assign]
    assert await desk.drive(run_id) == "SUCCEEDED"
    assert await desk.store.get_run(run_id) is None
    assert await desk.store.list_entries(run_id, "") == ()


async def test_an_unforeseen_error_is_not_explained() -> None:
    def broken(request: Any) -> Any:
        raise KeyError("internal detail")

    desk = Desk(broken)
    view = await desk.run()
    assert view["error"] == {"name": "InternalError", "message": "Internal error"}
