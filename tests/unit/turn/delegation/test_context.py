"""What a sub-agent sees of its supervisor's conversation (DEL-12 to DEL-15)."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.fakes import calls
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Delegation, DelegationStart, Memory, Processor, ToolContext, tool
from threadkeep.ids import sub_resource
from threadkeep.models.port import FilePart, TextPart
from threadkeep.turn.context import RequestContext
from threadkeep.turn.message_list import RunMessage


@tool
def now() -> str:
    """Tell the time"""
    return "noon"


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


async def test_del12_texts_are_forwarded_without_calls_results_and_the_step_that_delegates(desk):
    boss = (calls(("now", {}), text="first the time"), asks("researcher", text="now I delegate"), "done")
    d = desk(boss, on_boss={"tools": [now]})
    await d.turn()
    assert d.sub_model.prompt == [
        ("system", "SUB INSTR"),
        ("user", "hello first"),
        ("assistant", "first the time"),
        ("user", "find X"),
    ]


async def test_del12_the_window_of_the_supervisor_is_what_is_forwarded(desk):
    """What a delegation costs does not grow with the thread."""
    d = desk(("a",) * 30 + (asks("researcher"), "done") * 2, on_boss={"memory": Memory(last_messages=4)})
    for n in range(6):
        await d.turn(f"question {n}")
    d.boss_model.answers = [asks("researcher"), "done"]
    await d.turn("delegate")
    early = d.sub_model.prompt
    d.boss_model.answers = ["a"] * 20
    for n in range(20):
        await d.turn(f"question {n + 6}")
    d.boss_model.answers = [asks("researcher"), "done"]
    await d.turn("delegate")
    assert len(d.sub_model.prompt) == len(early) == 1 + 4 + 2
    assert d.sub_model.prompt[-4:] == [
        ("user", "question 25"),
        ("assistant", "a"),
        ("user", "delegate"),
        ("user", "find X"),
    ]


async def test_del12_ddisc19_system_texts_are_not_forwarded(desk):
    memory = Memory(working_memory=True)
    d = desk(
        (calls(("updateWorkingMemory", {"memory": "likes tea"})), asks("researcher"), "done"),
        on_boss={"memory": memory},
    )
    await d.turn(system="of the call")
    shown = str(d.sub_model.prompt)
    assert "SUP INSTR" not in shown and "likes tea" not in shown and "of the call" not in shown
    assert "likes tea" in str(d.boss_model.prompt)


@pytest.mark.parametrize("system_texts", [False, True])
async def test_del12_ddisc19_states_that_signals_tell_the_supervisor_are_its_own(desk, system_texts):
    """They stand among the messages of users, in this run and in the history."""
    writes = calls(("setWorkingMemory", {"memory": "likes tea"}))
    memory = Memory(working_memory={"enabled": True, "use_state_signals": True})
    own = {"memory": memory, "delegation": Delegation(system_texts=system_texts)}
    d = desk((writes, asks("researcher"), "done", asks("researcher"), "done"), ("a1", "a2"), own)
    for text in ("hello first", "and again"):
        await d.turn(text)
        assert "likes tea" in str(d.boss_model.prompt)
        assert "likes tea" not in str(d.sub_model.prompt) and ("user", text) in d.sub_model.prompt


async def test_del12_ddisc19_unless_they_are_asked_for(desk):
    d = desk((asks("researcher"), "done"), on_boss={"delegation": Delegation(system_texts=True)})
    await d.turn(system="of the call")
    assert d.sub_model.prompt == [
        ("system", "SUB INSTR"),
        ("system", "SUP INSTR"),
        ("system", "of the call"),
        ("user", "hello first"),
        ("user", "find X"),
    ]


@pytest.mark.parametrize("system_texts", [False, True])
async def test_del12_nested_levels_add_up(nest, system_texts):
    own = Delegation(system_texts=system_texts)
    n = nest(on_boss={"delegation": own}, on_mid={"delegation": own})
    await n.desk.turn()
    said = [("user", "hello first"), ("user", "mid task"), ("user", "leaf task")]
    systems = ["LEAF", "MID", "SUP"] if system_texts else ["LEAF"]
    assert n.leaf_model.prompt == [*(("system", s) for s in systems), *said]


async def test_del12_a_message_that_is_a_period_is_forwarded(desk):
    d = desk((asks("researcher"), "done"))
    await d.turn(".")
    assert ("user", ".") in d.sub_model.prompt


async def test_del12_loop14_a_forwarded_answer_is_opened_by_a_user(desk):
    d = desk(("a", asks("researcher"), "done"), on_boss={"memory": Memory(last_messages=1)})
    await d.turn("first")
    await d.turn("second")
    assert [role for role, _ in d.sub_model.prompt] == ["system", "user", "assistant", "user", "user"]
    assert d.sub_model.prompt[1:3] == [("user", "."), ("assistant", "a")]


async def test_del12_files_are_forwarded_and_not_stored_below(desk):
    d = desk((asks("researcher"), "done"))
    image = {"type": "file", "data": "aGVsbG8=", "mediaType": "image/png"}
    await d.turn([{"role": "user", "content": [{"type": "text", "text": "what is this?"}, image]}])
    (shown,) = [m for m in d.sub_model.requests[0].messages if m.text == "what is this?"]
    assert shown.parts == (TextPart("what is this?"), FilePart("aGVsbG8=", "image/png"))
    (sub,) = await d.sub_threads()
    assert "aGVsbG8=" not in str([m.content for m in await d.stored(sub.id)])


class Mask(Processor):
    id = "mask"

    async def process_input(self, messages, call):
        return replace(
            messages, messages=tuple(m.with_text(lambda t: t.replace("4711", "***")) for m in messages.messages)
        )


async def test_h27_a_sub_agent_sees_what_filters_left_for_the_supervisor(desk):
    d = desk((asks("researcher"), "done"), on_boss={"input_processors": [Mask()]})
    await d.turn("my pin is 4711")
    assert ("user", "my pin is ***") in d.sub_model.prompt and "4711" not in str(d.sub_model.prompt)


async def test_del13_a_filter_chooses_what_is_forwarded_and_knows_the_prompt(desk):
    seen: list[Any] = []

    async def chosen(call):
        seen.append(call)
        return [RunMessage.saying("in short: hello"), *call.messages[1:]]

    own = Delegation(on_start=lambda call: DelegationStart(prompt="find Y"), message_filter=chosen)
    d = desk((asks("researcher"), "done"), on_boss={"delegation": own})
    await d.turn()
    assert d.sub_model.prompt[1:] == [("user", "in short: hello"), ("user", "find Y")]
    (call,) = seen
    assert (call.key, call.agent_id, call.parent_id, call.parent_name) == ("researcher", "researcher", "boss", "Boss")
    assert (call.prompt, call.iteration, call.thread_id, call.resource_id) == (
        "find Y",
        1,
        "T",
        "U",
    )  # as on_start left it
    assert call.call_id == "call-agent-researcher-0" and [m.text for m in call.messages] == ["hello first"]


async def test_del13_an_empty_list_isolates(desk):
    d = desk((asks("researcher"), "done"), on_boss={"delegation": Delegation(message_filter=lambda call: [])})
    await d.turn()
    assert d.sub_model.prompt == [("system", "SUB INSTR"), ("user", "find X")]


@pytest.mark.parametrize("returned", [None, "hello", ["hello"], 7])
async def test_del13_del20_a_filter_that_fails_forwards_all(desk, returned):
    def broken(call):
        if returned is None:
            raise ValueError("no filter")
        return returned

    d = desk((asks("researcher"), "done"), on_boss={"delegation": Delegation(message_filter=broken)})
    result = await d.turn()
    assert ("user", "hello first") in d.sub_model.prompt
    assert [e["hook"] for e in result.hook_errors] == ["messageFilter"]


async def test_del13_ddisc19_a_filter_may_add_a_system_text_of_its_own(desk):
    """What a deployer's filter returns is asked for; nothing else makes a system text."""

    def with_system(call):
        return [RunMessage.saying("House rules", "system"), *call.messages]

    d = desk((asks("researcher"), "done"), on_boss={"delegation": Delegation(message_filter=with_system)})
    await d.turn()
    assert d.sub_model.prompt[:2] == [("system", "SUB INSTR"), ("system", "House rules")]


async def test_del14_tools_of_the_sub_agent_have_the_request_context_too(desk):
    @tool
    def language(context: ToolContext) -> str:
        """Tell the language"""
        return f"{context.request_context['lang']} {context.resource_id == sub_resource('U', 'researcher')}"

    d = desk((asks("researcher"), "done"), (calls(("language", {})), "ok"), on_sub={"tools": [language]})
    (told,) = results_of(await d.turn(request_context={"lang": "de"}))
    assert told["subAgentToolResults"][0]["result"] == "de True"


async def test_del14_the_request_context_goes_along_without_what_is_the_runs_own(desk):
    seen: list[RequestContext] = []

    def instructions(context: RequestContext) -> str:
        seen.append(context)
        context["mine"] = "changed below"
        return "SUB"

    d = desk((asks("researcher"), asks("researcher", prompt="again"), "done"), on_sub={"instructions": instructions})
    await d.turn(request_context={"lang": "de", "mastra__resourceId": "U2", "mastra__threadId": "T2"})
    assert [dict(c) for c in seen] == [{"lang": "de", "mine": "changed below"}] * 2
    (told,) = {t.resource_id for t in await d.sub_threads("U2")}
    assert await d.sub_threads("U") == () and told  # the server's resource is whom they work for
