"""Processors around a turn: what they see, change and refuse (PR-1 to PR-9, case H27)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.fakes import Gate, calls, says
from tests.unit.turn.conftest import assistant, system, user
from threadkeep import (
    Agent,
    Memory,
    MessageHistory,
    MessageList,
    Processor,
    ProcessorCall,
    RunMessage,
    SystemText,
    tool,
)
from threadkeep.errors import (
    ConfigurationError,
    DeadlineExceeded,
    InvalidInput,
    ModelRejected,
    ModelUnavailable,
    ProcessorFailed,
    TooLarge,
)
from threadkeep.memory.options import MemoryOptions
from threadkeep.models.port import ModelResponse, PromptMessage, TextPart, Usage
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.turn.message_list import PromptItem


@tool
def look(n: int) -> str:
    """Look."""
    return f"seen {n} of 77"


class Probe(Processor):
    """Writes down which method was called, with what."""

    def __init__(self, id: str = "probe", log: list[Any] | None = None):
        self.id = id
        self.log: list[Any] = [] if log is None else log

    def note(self, method: str, subject: Any = None) -> None:
        self.log.append((self.id, method, subject))

    def process_input(self, messages: MessageList, call: ProcessorCall) -> None:
        self.note("input", [(m.source, m.text) for m in messages.messages])

    async def process_input_step(self, messages: MessageList, call: ProcessorCall) -> None:
        self.note(f"step {call.step}", [m.role for m in call.said])

    def process_llm_request(self, prompt: tuple[PromptItem, ...], call: ProcessorCall) -> None:
        self.note("request", [i.message.role for i in prompt])

    def process_llm_response(self, response: ModelResponse, call: ProcessorCall) -> None:
        self.note("response", response.text)

    async def process_output_step(self, response: ModelResponse, call: ProcessorCall) -> None:
        self.note("output step", response.text)

    def process_tool_result(self, outcome: Any, call: ProcessorCall) -> None:
        self.note("tool", outcome.result)

    def process_output_result(self, messages: tuple[RunMessage, ...], call: ProcessorCall) -> None:
        self.note("output", [(m.source, m.text) for m in messages])


async def test_pr1_each_method_is_called_in_its_place(house):
    probe = Probe()
    h = house("hi", calls(("look", {"n": 3}), text="wait"), "done", tools=[look])
    await h.turn("one")
    h.agent = replace(h.agent, input_processors=[probe], output_processors=[probe])
    await h.turn("two", context=(user("page"),))
    assert probe.log == [
        ("probe", "input", [("memory", "one"), ("memory", "hi"), ("context", "page"), ("input", "two")]),
        ("probe", "step 0", []),
        ("probe", "request", ["system", "user", "assistant", "user", "user"]),
        ("probe", "response", "wait"),
        ("probe", "output step", "wait"),
        ("probe", "tool", "seen 3 of 77"),
        ("probe", "step 1", ["assistant", "tool"]),
        ("probe", "request", ["system", "user", "assistant", "user", "user", "assistant", "tool"]),
        ("probe", "response", "done"),
        ("probe", "output step", "done"),
        ("probe", "output", [("response", "wait\ndone")]),
    ]
    assert [text for _, text in await h.texts()] == ["one", "hi", "two", "done"]


async def test_a_processor_that_overrides_nothing_changes_nothing(house):
    class Idle(Processor):
        id = "idle"

    h = house(calls(("look", {"n": 1})), "done", tools=[look], input_processors=[Idle()], output_processors=[Idle()])
    result = await h.turn("go")
    assert (result.text, result.tripwire) == ("done", None)
    assert Idle().display_name == "idle" and MessageHistory().display_name == "MessageHistory"


async def test_pr4_input_and_output_processors_run_in_their_own_order(house):
    log: list[Any] = []
    one, two = Probe("one", log), Probe("two", log)
    h = house(input_processors=[one, two], output_processors=[two, one])
    await h.turn("go")
    assert [(i, m) for i, m, _ in log if m in ("input", "output")] == [
        ("one", "input"),
        ("two", "input"),
        ("two", "output"),
        ("one", "output"),
    ]


class Mask(Processor):
    """Masks all digits, on the way in and on the way out."""

    id = "mask"

    @staticmethod
    def masked(text: str) -> str:
        return "".join("#" if c.isdigit() else c for c in text)

    async def process_input(self, messages: MessageList, call: ProcessorCall) -> MessageList:
        texts = [replace(t, text=self.masked(t.text)) for t in messages.system]
        return MessageList().plus(*(m.with_text(self.masked) for m in messages.messages)).plus_system(*texts)

    def process_tool_result(self, outcome: Any, call: ProcessorCall) -> Any:
        return outcome.with_result(self.masked(outcome.result))

    def process_output_result(self, messages: tuple[RunMessage, ...], call: ProcessorCall) -> list[RunMessage]:
        return [m.with_text(self.masked) for m in messages]


async def test_h27_one_pipeline_masks_everything_that_enters_the_prompt(house):
    h = house("old 1", calls(("look", {"n": 3})), "done", tools=[look], instructions="rule 9")
    await h.turn("question 2")
    h.agent = replace(h.agent, input_processors=[Mask()], output_processors=[Mask()])
    await h.turn(system("input 4"), user("new 5"), context=(user("page 6"), system("context 7")), system="call 8")
    prompt = str(h.model.requests[-1].messages)
    texts = [text for _, text in h.model.prompt]
    assert texts[:-2] == ["rule #", "context #", "input #", "call #", "question #", "old #", "page #", "new #"]
    assert "seen # of ##" in prompt and "seen 3" not in prompt


async def test_pr2_pr3_edits_of_input_and_output_are_what_is_stored_and_returned(house):
    h = house(
        calls(("look", {"n": 3}), text="first 1. "),
        says("then 22"),
        tools=[look],
        input_processors=[Mask()],
        output_processors=[Mask()],
    )
    result = await h.turn("my PIN is 1234")
    assert [text for _, text in await h.texts()] == ["my PIN is ####", "then ##"]
    assert result.text == "first #. then ##"
    assert [s.response.text for s in result.steps] == ["first #. ", "then ##"]
    assert result.steps[0].outcomes[0].result == "seen # of ##"
    stored = str([m.content["parts"] for m in await h.stored()])
    assert "1234" not in stored and "seen 3" not in stored and "seen # of ##" in stored
    assert [m.content for m in result.messages] == [m.content for m in await h.stored()]


@pytest.mark.parametrize("drop", ["text", "step-start", "tool-invocation"])
async def test_pr3_nothing_that_an_output_processor_took_out_is_returned(house, drop):
    class Drop(Processor):
        id = "drop"

        def process_output_result(self, messages: tuple[RunMessage, ...], call: ProcessorCall) -> list[RunMessage]:
            parts = [p for p in messages[0].content["parts"] if p["type"] != drop]
            return [replace(messages[0], content={"format": 2, "parts": parts})]

    h = house(calls(("look", {"n": 3}), text="one "), "two", tools=[look], output_processors=[Drop()])
    result = await h.turn("go")
    stored = (await h.stored())[1].content["parts"]
    assert drop not in [p["type"] for p in stored]
    assert len(result.steps) == 2
    assert result.text == ("" if drop == "text" else "one two")
    outcomes = [o.result for s in result.steps for o in s.outcomes]
    assert outcomes == ([] if drop == "tool-invocation" else ["seen 3 of 77"])
    assert [c.args for s in result.steps for c in s.response.tool_calls] == [{"n": 3}] * len(outcomes)


async def test_pr3_an_answer_that_is_taken_out_whole_is_not_stored(house):
    class Silence(Processor):
        id = "silence"

        def process_output_result(self, messages: tuple[RunMessage, ...], call: ProcessorCall) -> list[RunMessage]:
            return []

    h = house(calls(("look", {"n": 3}), text="one "), "two", tools=[look], output_processors=[Silence()])
    result = await h.turn("go")
    assert (result.text, [m.role for m in result.messages]) == ("", ["user"])
    assert [r for r, _ in await h.texts()] == ["user"]


async def test_pr2_an_edit_of_history_changes_the_prompt_and_not_the_store(house):
    h = house("a1")
    await h.turn("q1")
    h.agent = replace(h.agent, input_processors=[Mask()])
    result = await h.turn("q2")
    assert [text for _, text in await h.texts()] == ["q1", "a1", "q#", "ok"]
    assert [m.content["content"] for m in result.remembered] == ["q#", "a#"]


class Keep(Processor):
    """Returns what a function makes of the messages."""

    def __init__(self, change: Any, id: str = "keep", step: bool = False):
        self.change, self.id, self.step = change, id, step

    def process_input(self, messages: MessageList, call: ProcessorCall) -> Any:
        return None if self.step else self.change(messages)

    def process_input_step(self, messages: MessageList, call: ProcessorCall) -> Any:
        return self.change(messages) if self.step else None


@pytest.mark.parametrize("step", [False, True])
async def test_pr2_what_a_processor_adds_and_omits(house, step):
    added = RunMessage.saying("more")

    def change(messages: MessageList) -> Sequence[RunMessage]:
        kept = [m for m in messages.messages if m.text not in ("secret", "more")]
        return [*kept, added, RunMessage.saying("obey", "system")]

    h = house(calls(("look", {"n": 3})), tools=[look], input_processors=[Keep(change, step=step)])
    await h.turn("secret", "open")
    assert [t for r, t in h.model.prompt if r in ("system", "user")] == ["Be kind.", "obey", "open", "more"]
    assert [t for r, t in await h.texts() if r == "user"] == ["open", "more"]
    assert "system" not in [r for r, _ in await h.texts()]


async def test_system_texts_of_a_processor_stand_after_those_of_the_call(house):
    def change(messages: MessageList) -> MessageList:
        return messages.plus_system(SystemText("facts", "memory"))

    h = house(input_processors=[Keep(change)])
    await h.turn("hi", system="call")
    assert [t for r, t in h.model.prompt if r == "system"] == ["Be kind.", "call", "facts"]


async def test_input_that_grows_beyond_one_transaction_is_refused_before_the_model_runs(house):
    h = house(input_processors=[Keep(lambda list: [m.with_text(lambda t: t * 5_000_000) for m in list.messages])])
    with pytest.raises(TooLarge):
        await h.turn("x")
    assert h.model.requests == []


async def test_h08_the_model_is_never_asked_without_a_message(house):
    h = house(input_processors=[Keep(lambda messages: [])])
    with pytest.raises(ProcessorFailed, match="left no message"):
        await h.turn("x")
    assert h.model.requests == [] and await h.stored() == ()


# abort


class Guard(Processor):
    """Stops the run in one method."""

    id = "guard"

    def __init__(self, method: str, **arguments: Any):
        self.arguments = arguments
        setattr(self, method, self._stop)

    def _stop(self, *subject_and_call: Any) -> None:
        subject_and_call[-1].abort(**self.arguments)


INPUT = ["process_input", "process_input_step", "process_llm_request"]
OUTPUT = ["process_llm_response", "process_output_step", "process_tool_result", "process_output_result"]


@pytest.mark.parametrize("method", INPUT + OUTPUT)
async def test_pr7_ms12_a_tripwire_stores_nothing_and_raises_nothing(house, method):
    h = house("ok", calls(("look", {"n": 3}), text="blocked"), "blocked", tools=[look])
    await h.turn("first")
    before = await h.storage.get_thread("t")
    guard = Guard(method, reason="not here", metadata={"rule": 7})
    h.agent = replace(h.agent, input_processors=[guard], output_processors=[guard])
    result = await h.turn("second")
    assert result.tripwire is not None
    assert (result.tripwire.reason, result.tripwire.processor_id) == ("not here", "guard")
    assert (result.tripwire.retry, result.tripwire.metadata) == (False, {"rule": 7})
    assert (result.finish_reason, result.text, result.messages) == ("other", "", ())
    assert len(h.model.requests) == (1 if method in INPUT else 3 if method == "process_output_result" else 2)
    assert await h.storage.get_thread("t") == before
    used = {1: 0, 2: 10, 3: 20}[len(h.model.requests)]
    assert result.usage.input_tokens == used  # what was spent is told


async def test_pr7_th16_an_aborted_first_turn_leaves_the_empty_thread(house):
    h = house(input_processors=[Guard("process_input")])
    result = await h.turn("first")
    assert result.tripwire is not None and "guard" in result.tripwire.reason
    thread = await h.storage.get_thread("t")
    assert thread is not None and thread.message_count == 0


class Refuse(Processor):
    """Refuses answers that hold a word, with `retry`."""

    id = "refuse"

    def __init__(self, word: str, method: str = "process_output_step"):
        self.word = word
        self.counts: list[int] = []
        setattr(self, method, self._judge)

    async def _judge(self, response: ModelResponse, call: ProcessorCall) -> None:
        self.counts.append(call.retry_count)
        if self.word in response.text:
            call.abort(f"do not say {self.word}", retry=True)


@pytest.mark.parametrize("method", ["process_output_step", "process_llm_response"])
async def test_pr7_retry_lets_the_model_answer_again(house, method):
    refuse = Refuse("bad", method)
    h = house("bad one", says(""), "good", output_processors=[refuse, Refuse("zzz")][:1], max_processor_retries=3)
    h.model.answers = [says("bad one"), says("bad two"), says("good")]
    result = await h.turn("go")
    assert (result.text, result.tripwire, refuse.counts) == ("good", None, [0, 1, 2])
    assert h.model.prompt[2:] == [
        ("assistant", "bad one"),
        ("user", "Your answer was not accepted: do not say bad\nAnswer again with this in mind."),
        ("assistant", "bad two"),
        ("user", "Your answer was not accepted: do not say bad\nAnswer again with this in mind."),
    ]
    assert [text for _, text in await h.texts()] == ["go", "good"]
    assert result.usage == Usage(30, 15)  # refused answers were paid for


async def test_pr7_refused_calls_do_not_run(house):
    class NoTools(Processor):
        id = "no-tools"

        def process_output_step(self, response: ModelResponse, call: ProcessorCall) -> None:
            if response.tool_calls:
                call.abort("no tools", retry=True)

    h = house(calls(("look", {"n": 1})), "fine", tools=[look], output_processors=[NoTools()], max_processor_retries=1)
    result = await h.turn("go")
    assert [len(s.outcomes) for s in result.steps] == [0]
    assert h.model.prompt[-1][1].startswith("Your answer was not accepted: no tools")


@pytest.mark.parametrize("allowed", [0, 2])
async def test_pr7_without_retries_left_the_run_stops(house, allowed):
    h = house(*["bad"] * 5, output_processors=[Refuse("bad")], max_processor_retries=allowed)
    result = await h.turn("go")
    assert result.tripwire is not None and result.tripwire.retry
    assert len(h.model.requests) == allowed + 1
    assert await h.stored() == ()


# errors


class Broken(Processor):
    id = "broken"

    def __init__(self, method: str, error: Exception):
        self.error = error
        setattr(self, method, self._fail)

    def _fail(self, *_: Any) -> None:
        raise self.error


@pytest.mark.parametrize("method", INPUT + OUTPUT)
async def test_pr8_an_exception_is_one_clear_error_and_stores_nothing(house, method):
    broken = Broken(method, RuntimeError("password is 1234"))
    h = house(calls(("look", {"n": 3})), tools=[look], input_processors=[broken], output_processors=[broken])
    with pytest.raises(ProcessorFailed) as caught:
        await h.turn("go")
    assert str(caught.value) == "Processor broken failed"
    assert caught.value.status == 424 and isinstance(caught.value.__cause__, RuntimeError)
    assert await h.stored() == ()


async def test_pr8_errors_of_the_library_keep_their_status(house):
    h = house(input_processors=[Broken("process_input", InvalidInput())])
    with pytest.raises(InvalidInput):
        await h.turn("go")


async def test_a_processor_that_waits_too_long_meets_the_deadline(house):
    class Slow(Processor):
        id = "slow"

        async def process_input(self, messages: MessageList, call: ProcessorCall) -> None:
            await asyncio.sleep(30)

    h = house(input_processors=[Slow()])
    with pytest.raises(DeadlineExceeded):
        await h.turn("go", deadline=0.05)


class Mend(Processor):
    id = "mend"

    def process_api_error(
        self, error: Exception, prompt: tuple[PromptItem, ...], call: ProcessorCall
    ) -> Sequence[PromptItem] | None:
        if "too long" not in str(error):
            return None
        return [*prompt[:-1], PromptItem(PromptMessage("user", (TextPart("short"),)), "input")]


async def test_pr1_an_api_error_may_be_mended_with_another_prompt(house):
    h = house(ModelRejected("too long"), "fine", input_processors=[Mend()], max_processor_retries=1)
    result = await h.turn("a very long question")
    assert (result.text, h.model.prompt[-1]) == ("fine", ("user", "short"))
    assert [text for _, text in await h.texts()] == ["a very long question", "fine"]


@pytest.mark.parametrize(
    ("errors", "allowed", "asked"),
    [
        ([ModelRejected("too long")] * 3, 0, 1),
        ([ModelRejected("too long")] * 3, 2, 3),
        ([ModelUnavailable("busy")], 2, 1),
    ],
)
async def test_pr1_an_api_error_that_nobody_mends_is_raised(house, errors, allowed, asked):
    mend = Mend()
    h = house(*errors, input_processors=[mend], output_processors=[mend], max_processor_retries=allowed)
    with pytest.raises((ModelRejected, ModelUnavailable)):
        await h.turn("go")
    assert len(h.model.requests) == asked


# state


async def test_state_belongs_to_one_run_and_is_shared_by_the_methods_of_one_id(house):
    seen: list[Any] = []

    class Counter(Processor):
        id = "counter"

        async def process_input(self, messages: MessageList, call: ProcessorCall) -> None:
            call.state["said"] = messages.messages[-1].text
            await asyncio.sleep(0)

        def process_output_result(self, messages: tuple[RunMessage, ...], call: ProcessorCall) -> None:
            seen.append((call.state["said"], call.facts.thread_id, call.facts.resource_id, call.facts.agent_id))

    counter = Counter()
    gate = Gate(says("a"))
    h = house(gate, "b", input_processors=[counter], output_processors=[counter])
    first = asyncio.create_task(h.turn("one", thread="t1"))
    await gate.reached.wait()
    await h.turn("two", thread="t2", resource="bo")
    gate.opened.set()
    await first
    assert seen == [("two", "t2", "bo", "agent"), ("one", "t1", "ana", "agent")]


# ids


@pytest.mark.parametrize("direction", ["input_processors", "output_processors"])
def test_pr5_two_processors_of_one_id_are_a_configuration_error(direction):
    with pytest.raises(ConfigurationError, match="have the id mask"):
        Agent(id="a", **{direction: [Mask(), Mask()]})
    with pytest.raises(ConfigurationError, match="Processor has no id"):
        Agent(id="a", **{direction: [Processor()]})
    with pytest.raises(ConfigurationError, match="max_processor_retries"):
        Agent(id="a", max_processor_retries=-1)


async def test_drc4_processors_may_depend_on_the_request(house):
    h = house(
        input_processors=lambda context: [Mask()],
        output_processors=lambda context: [] if context else [Mask()],
    )
    result = await h.turn("1")
    assert (result.text, h.model.prompt[-1]) == ("ok", ("user", "#"))
    h.agent = replace(h.agent, input_processors=lambda context: [Mask(), Mask()])
    with pytest.raises(ConfigurationError):
        await h.turn("1")


# MessageHistory


async def test_pr5_an_own_history_processor_takes_the_memorys_place_in_one_direction(house):
    probe = Probe()
    h = house("a1", "a2", memory=Memory(last_messages=1), input_processors=[probe, MessageHistory(last_messages=3)])
    await h.turn("q1")
    await h.turn("q2")
    await h.turn("q3")
    assert [e for e in probe.log if e[1] == "input"][-1][2] == [("input", "q3")]  # it stands before the history
    assert [t for _, t in h.model.prompt] == ["Be kind.", ".", "a1", "q2", "a2", "q3"]
    assert len(await h.stored()) == 6


async def test_pr5_another_processor_of_that_id_suppresses_the_automatic_one(house):
    class Own(Processor):
        id = "message-history"

    h = house("a1")
    await h.turn("q1")
    h.agent = replace(h.agent, input_processors=[Own()])
    await h.turn("q2")
    assert [t for _, t in h.model.prompt] == ["Be kind.", "q2"]
    h.agent = replace(h.agent, input_processors=[], output_processors=[Own()])
    await h.turn("q3")
    assert [t for _, t in h.model.prompt] == ["Be kind.", "q1", "a1", "q2", "ok", "q3"]
    assert len(await h.stored()) == 4  # storing is now Own's business


async def test_pr9_history_without_a_memory(house):
    own = InMemoryStorage()
    history = MessageHistory(storage=own)
    h = house(*(f"a{n}" for n in range(30)), input_processors=[history], output_processors=[history])
    h.agent = replace(h.agent, memory=None)
    for n in range(30):
        await h.turn(f"q{n}")
    assert len(h.model.prompt) == 1 + 29 * 2 + 1  # M-DISC-5: all of them
    assert (await own.get_thread("t")).message_count == 60 and await h.storage.get_thread("t") is None
    await h.turn("alone", thread=None)
    assert len(h.model.prompt) == 2


async def test_pr9_loading_and_storing_are_switched_on_one_by_one(house):
    h = house()
    h.agent = replace(h.agent, memory=None, output_processors=[MessageHistory()])
    await h.turn("stored")
    await h.turn("again")
    assert len(h.model.prompt) == 2 and len(await h.stored()) == 4
    h.agent = replace(h.agent, input_processors=[MessageHistory(last_messages=1)], output_processors=[])
    result = await h.turn("unstored")
    assert [t for _, t in h.model.prompt] == ["Be kind.", ".", "ok", "unstored"]
    assert len(await h.stored()) == 4 and len(result.remembered) == 1


@pytest.mark.parametrize(("given", "shown"), [(None, 5), (False, 5), (0, 1), (2, 3)])
async def test_pr9_last_messages(house, given, shown):
    h = house()
    await h.turn("1")
    await h.turn("2")
    h.agent = replace(h.agent, input_processors=[MessageHistory(last_messages=given)])
    await h.turn("3")
    assert len([r for r, t in h.model.prompt if r != "system" and t != "."]) == shown


@pytest.mark.parametrize("bad", [-1, True])
def test_pr9_a_bad_number_is_a_configuration_error(bad):
    with pytest.raises(ConfigurationError, match="last_messages"):
        MessageHistory(last_messages=bad)


# MS-16, PR-6


async def test_pr6_without_history_the_callers_transcript_is_shown_and_not_stored_again(house):
    h = house("a1", "a2", memory=Memory(last_messages=0))
    await h.turn(user("u1"))
    await h.turn(user("u1"), assistant("a1"), user("u2"))
    assert [t for _, t in h.model.prompt] == ["Be kind.", "u1", "a1", "u2"]
    assert [t for _, t in await h.texts()] == ["u1", "a1", "u2", "a2"]


async def test_ms16_retain_full_input_takes_everything(house):
    h = house("a1", "a2", memory=Memory(retain_full_input=True))
    await h.turn("u1")
    await h.turn(user("u1"), assistant("a1"), user("u1"))
    assert [t for _, t in await h.texts()] == ["u1", "a1", "u1", "a1", "u1", "a2"]


async def test_ctx3_context_and_input_follow_the_newest_message_each_a_millisecond_later(house):
    h = house()
    await h.turn("1")
    last = (await h.stored())[-1].created_at
    probe: list[int] = []

    class Times(Processor):
        id = "times"

        def process_input(self, messages: MessageList, call: ProcessorCall) -> None:
            probe.extend(m.created_at for m in messages.messages[2:])

    h.agent = replace(h.agent, input_processors=[Times()])
    await h.turn("2", "3", context=(user("c"),))
    assert probe[0] > last and probe == [probe[0], probe[0] + 1, probe[0] + 2]


async def test_h14_a_read_only_run_passes_its_processors_and_stores_nothing(house):
    h = house(input_processors=[Mask()], output_processors=[Mask()])
    result = await h.turn("1", options=MemoryOptions(read_only=True))
    assert [m.content["content"] for m in result.messages] == ["#", "ok"]
    assert await h.storage.get_thread("t") is None
