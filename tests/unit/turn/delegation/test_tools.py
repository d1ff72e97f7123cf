"""The tools by which a supervisor's model delegates, and what it reads of the results (DEL-1 to DEL-4)."""

import json

import pytest

from tests.unit.fakes import FakeModel, calls
from tests.unit.turn.delegation.conftest import asks, results_of
from threadkeep import Agent, Delegation, Memory, Processor, tool
from threadkeep.errors import ConfigurationError
from threadkeep.memory.history import NO_TEXT
from threadkeep.models.port import ModelResponse, ToolCall, Usage
from threadkeep.turn.tools import CallOutcome


@tool
def look_up(word: str) -> dict[str, str]:
    """Look a word up"""
    return {"found": word}


def specs(model: FakeModel):
    return {spec.name: spec for spec in model.requests[0].tools}


async def test_del1_a_tool_is_named_after_the_key_not_the_agent(desk):
    found = Agent(id="finder", description="Finds things", model=FakeModel("found"))
    plain = Agent(id="plain", model=FakeModel())
    d = desk((asks("my-finder_2"), "done"), on_boss={"agents": {"my-finder_2": found, "plain": plain}})
    (result,) = results_of(await d.turn())
    assert result["text"] == "found" and result["subAgentResourceId"] == "U-my-finder_2"
    assert {n: s.description for n, s in specs(d.boss_model).items()} == {
        "agent-my-finder_2": "Finds things",
        "agent-plain": "Agent: plain",
    }


@pytest.mark.parametrize("keys", [["a"], ["b"]])
async def test_del1_drc4_the_sub_agents_of_a_function_are_those_of_the_request(desk, keys):
    def chosen(context):
        return {key: Agent(id=key, model=FakeModel(f"{key} answers")) for key in context["keys"]}

    d = desk((asks(*keys), "done"), on_boss={"agents": chosen})
    result = await d.turn(request_context={"keys": keys})
    assert [r["text"] for r in results_of(result)] == [f"{key} answers" for key in keys]
    assert list(specs(d.boss_model)) == [f"agent-{key}" for key in keys]


def test_del1_a_key_must_fit_into_the_name_of_a_tool():
    with pytest.raises(ConfigurationError, match=r"key must match .*, received 'a b'"):
        Agent(id="boss", agents={"a b": Agent(id="a")})


@pytest.mark.parametrize("wrong", [[Agent(id="a")], {"a": "a"}, None])
async def test_del1_sub_agents_are_a_map_of_agents(desk, wrong):
    with pytest.raises(ConfigurationError, match="Agent boss: agents must be a map from keys to agents"):
        Agent(id="boss", agents=wrong)
    d = desk(("done",), on_boss={"agents": lambda context: wrong})
    with pytest.raises(ConfigurationError, match="must be a map"):
        await d.turn()


async def test_del1_a_tool_of_the_agent_may_not_take_the_name(desk):
    d = desk(("done",), on_boss={"tools": [tool(lambda: "x", name="agent-researcher", description="No")]})
    with pytest.raises(ConfigurationError, match="agent-researcher belong to the agent's sub-agents"):
        await d.turn()


@pytest.mark.parametrize("references", [False, True])
async def test_del2_what_the_model_may_say_to_a_sub_agent(desk, references):
    d = desk(("done",), on_boss={"delegation": Delegation(references=references)})
    await d.turn()
    schema = specs(d.boss_model)["agent-researcher"].parameters
    own = {"prompt", "threadId", "resourceId", "instructions", "maxSteps"}
    assert set(schema["properties"]) == own | ({"contextFromRefs"} if references else set())
    assert schema["required"] == ["prompt"]
    assert {"type": "null"} in schema["properties"]["maxSteps"]["anyOf"]


async def test_del2_h17_ids_that_the_model_gives_are_stored_and_ignored(desk):
    d = desk((asks("researcher", threadId="V-thread", resourceId="V"), "done"))
    result = await d.turn()
    (sub,) = await d.sub_threads()
    assert results_of(result)[0]["subAgentThreadId"] == sub.id and sub.id.startswith("T-")
    assert await d.sub_threads("V") == await d.threads("V") == ()
    (_, answer) = await d.stored("T")
    args = answer.content["parts"][0]["toolInvocation"]["args"]
    assert args == {"prompt": "find X", "threadId": "V-thread", "resourceId": "V"}


async def test_del2_null_arguments_are_as_absent(desk):
    d = desk((asks("researcher", threadId=None, resourceId=None, instructions=None, maxSteps=None), "done"))
    assert [r["text"] for r in results_of(await d.turn())] == ["sub answer"]


async def test_del3_the_result_holds_more_than_the_model_reads(desk):
    sub = (calls(("look_up", {"word": "w"}), ("look_up", {}), text="pre "), "post")
    d = desk((asks("researcher"), "done"), sub, on_sub={"tools": [look_up]})
    result = await d.turn()
    (told,) = results_of(result)
    (thread,) = await d.sub_threads()
    assert told["text"] == "pre post"  # all steps, as in LOOP-3
    assert told["subAgentThreadId"] == thread.id and told["subAgentResourceId"] == "U-researcher"
    good, bad = told["subAgentToolResults"]
    assert good == {
        "toolName": "look_up",
        "toolCallId": "call-look_up-0",
        "result": {"found": "w"},
        "args": {"word": "w"},
    }
    assert bad["toolCallId"] == "call-look_up-1" and "validation" in json.dumps(bad["result"])
    assert d.told == ["pre post"]
    (_, answer) = await d.stored("T")
    assert answer.content["parts"][0]["toolInvocation"]["result"] == told


async def test_del3_texts_of_megabytes_are_cut_and_the_answer_can_be_stored(desk):
    texts = [letter * 4_900_000 for letter in "äbc"[1:]] + ["short"]
    d = desk((asks(*["researcher"] * 3), "done"), tuple(texts))
    told = results_of(await d.turn())
    for result, whole in zip(told, texts, strict=True):
        assert result["text"] == whole or (
            result["text"].startswith(whole[:900_000]) and result["text"].endswith(f" of {len(whole)} characters]")
        )
        assert (await d.texts(result["subAgentThreadId"]))[1][0] == "assistant"
        assert whole in str((await d.stored(result["subAgentThreadId"]))[1].content)
    assert told[-1]["text"] == "short"


async def test_del3_results_that_are_too_big_for_the_supervisors_answer_stay_in_the_sub_thread(desk):
    """50 delegations with huge results still make an answer that can be stored."""

    @tool
    def read(pages: int) -> str:
        """Read"""
        return "x" * pages

    asked = calls(("read", {"pages": 30_000}), ("read", {"pages": 900_000}), ("read", {"pages": 9}))
    d = desk((asks("researcher"), "done"), (asked, "read"), on_sub={"tools": [read]})
    (told,) = results_of(await d.turn())
    small, big, last = told["subAgentToolResults"]
    assert small["result"] == "x" * 30_000 and last["result"] == "x" * 9
    assert big["result"].startswith("Left out: 9000") and big["toolCallId"] == "call-read-1"
    (_, answer) = await d.stored(told["subAgentThreadId"])
    assert "x" * 900_000 in str(answer.content)


async def test_del3_a_failed_tool_of_the_sub_agent_is_marked(desk):
    @tool
    def broken() -> str:
        """Break"""
        raise OSError("disk on fire")

    d = desk((asks("researcher"), "done"), (calls(("broken", {})), "sorry"), on_sub={"tools": [broken]})
    (told,) = results_of(await d.turn())
    assert told["subAgentToolResults"] == [
        {
            "toolName": "broken",
            "toolCallId": "call-broken-0",
            "result": "OSError: disk on fire",
            "args": {},
            "isError": True,
        }
    ]


async def test_del3_whole_results_are_read_as_json(desk):
    d = desk((asks("researcher"), "done"), on_boss={"delegation": Delegation(whole_results=True)})
    result = await d.turn()
    assert json.loads(d.told[0]) == results_of(result)[0]


async def test_del3_later_turns_read_the_text_alone(desk):
    d = desk((asks("researcher"), "done", "later"))
    await d.turn()
    await d.turn("and now?")
    assert d.told == ["sub answer"]


async def test_a_sub_agent_without_text_is_told_so(desk):
    d = desk((asks("researcher"), "done"), ("",))
    (told,) = results_of(await d.turn())
    assert told["text"] == "" and d.told == [NO_TEXT]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"maxSteps": 1}, "maxSteps"),
        ({"maxSteps": 2.5}, "maxSteps"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "  \n"}, "prompt"),
        ({"instructions": ["x"]}, "instructions"),
    ],
)
async def test_del4_ddisc16_invalid_arguments_are_told_to_the_model(desk, args, named):
    d = desk((asks("researcher", **args), asks("researcher"), "done"))
    result = await d.turn()
    assert f"- {named}: " in d.told[0] and d.told[1] == "sub answer"
    assert len(d.sub_model.requests) == 1 == len(await d.sub_threads())
    assert result.delegations == 1 and result.finish_reason == "stop"


async def test_del4_an_unknown_sub_agent_is_told_with_those_that_exist(desk):
    d = desk((asks("writer"), "done"))
    await d.turn()
    assert d.told == ["There is no tool agent-writer. Available tools: agent-researcher"]


async def test_del4_arguments_that_are_no_json_reach_no_sub_agent(desk):
    broken = ModelResponse(
        "", (ToolCall("c", "agent-researcher", {}, invalid='{"prompt": '),), "tool-calls", Usage(), "f"
    )
    d = desk((broken, "done"))
    await d.turn()
    assert "expected a JSON object" in d.told[0] and d.sub_model.requests == []


async def test_active_tools_leave_sub_agents_out(desk):
    d = desk((asks("researcher"), "done"))
    await d.turn(active_tools=[])
    assert d.boss_model.requests[0].tools == () and d.sub_model.requests == []
    assert d.told == ["There is no tool agent-researcher. Available tools: none"]


async def test_a_choice_of_tool_names_the_sub_agent_for_one_step(desk):
    d = desk((asks("researcher"), "done"))
    await d.turn(tool_choice="agent-researcher")
    assert [r.tool_choice for r in d.boss_model.requests] == ["agent-researcher", "auto"]


async def test_one_call_id_for_two_tasks_is_two_delegations(desk):
    same = tuple(ToolCall("c", "agent-researcher", {"prompt": p}) for p in ("one", "two"))
    d = desk((ModelResponse("", same, "tool-calls", Usage(), "f"), "done"), ("first", "second"))
    result = await d.turn()
    assert [r["text"] for r in results_of(result)] == ["first", "second"]
    assert len(await d.sub_threads()) == 2


async def test_one_call_made_twice_in_a_step_is_one_delegation(desk):
    same = ToolCall("c", "agent-researcher", {"prompt": "one"})
    d = desk((ModelResponse("", (same, same), "tool-calls", Usage(), "f"), "done"), ("first", "second"))
    result = await d.turn()
    assert [r["text"] for r in results_of(result)] == ["first", "first"]
    assert len(await d.sub_threads()) == 1 == len(d.sub_model.requests)


class Censor(Processor):
    id = "censor"

    async def process_tool_result(self, outcome: CallOutcome, call):
        return outcome.with_result({**outcome.result, "text": "[censored]"})


@pytest.mark.parametrize("whole", [False, True])
async def test_h27_processors_edit_what_comes_of_a_delegation(desk, whole):
    on_boss = {"output_processors": [Censor()], "delegation": Delegation(whole_results=whole)}
    d = desk((asks("researcher"), "done"), on_boss=on_boss)
    (told,) = results_of(await d.turn())
    assert told["text"] == "[censored]"
    assert json.loads(d.told[0]) == told if whole else d.told == ["[censored]"]
    assert "sub answer" not in json.dumps([m.content for m in await d.stored("T")])


async def test_delegations_and_other_tools_of_a_step_keep_their_order(desk):
    step = calls(("look_up", {"word": "a"}), ("agent-researcher", {"prompt": "p"}), ("look_up", {"word": "b"}))
    d = desk((step, "done"), on_boss={"tools": [look_up]})
    await d.turn()
    assert d.told == ['{"found":"a"}', "sub answer", '{"found":"b"}']


async def test_a_form_for_the_answer_and_delegation_go_together(desk):
    from threadkeep.turn.structured import StructuredOutput

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    d = desk((asks("researcher"), '{"n": 3}'), on_boss={"memory": Memory()})
    result = await d.turn(structured_output=StructuredOutput(schema))
    assert result.structured is not None and result.structured.value == {"n": 3}
    assert d.sub_model.requests[0].response_schema is None
