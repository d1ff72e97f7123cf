"""The demonstration's own judgement: what it sends, what counts as remembered, what it says when it is not."""

import json
from typing import Any

import httpx
import pytest

from local.demo import (
    KEEPER,
    Api,
    DemoFailed,
    Exchange,
    Place,
    across_threads,
    check,
    check_elsewhere,
    conversation,
    converse,
    how_to_go_on,
    kept,
    tell_elsewhere,
)
from local.models.choose import Choice

Message = dict[str, Any]
HERE = Place("assistant", "t1", "r1")


class Application:
    """The application behind the API: stores what is said, answers what the test wants."""

    def __init__(self, *answers: str | tuple[int, str]):
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.stored: list[Message] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.method == "GET":
            return httpx.Response(200, json={"messages": self.stored})
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            return httpx.Response(answer[0], json={"error": answer[1]})
        for role, text in (("user", json.loads(request.content)["messages"]), ("assistant", answer)):
            self.stored.append({"role": role, "content": {"format": 2, "parts": [{"type": "text", "text": text}]}})
        return httpx.Response(200, json={"text": answer})

    @property
    def api(self) -> Api:
        return Api("http://stack", "the-key", httpx.MockTransport(self))


def talk(application: Application, scripted: bool = False, said: list[str] | None = None) -> list[Exchange]:
    lines = said if said is not None else []
    return converse(application.api, HERE, conversation("Comet"), scripted, lines.append)


def test_only_the_first_request_tells_the_fact():
    first, *others = conversation("Comet")
    assert "Comet" in first.text and "?" in others[-1].text
    assert not any("Comet" in turn.text + turn.script for turn in others)


def test_every_request_goes_to_the_same_thread_with_the_key():
    application = Application("Hi Ada.", "366.", "Comet.")
    talk(application)
    bodies = [json.loads(request.content) for request in application.requests]
    assert [body["memory"] for body in bodies] == [{"thread": "t1", "resource": "r1"}] * 3
    assert {request.headers["authorization"] for request in application.requests} == {"Bearer the-key"}
    assert {str(request.url) for request in application.requests} == {"http://stack/api/agents/assistant/generate"}


def test_what_was_remembered_is_said():
    application = Application("Hi Ada.", "366.", "Your dog is COMET.")
    exchanges = talk(application)
    assert "Comet" in check(exchanges, application.api.stored(HERE), "Comet", scripted=False)


def test_an_answer_without_the_fact_fails():
    application = Application("Hi Ada and Comet.", "366.", "I do not know.")
    exchanges = talk(application)
    with pytest.raises(DemoFailed, match="does not name Comet"):
        check(exchanges, application.api.stored(HERE), "Comet", scripted=False)


def test_a_thread_that_does_not_hold_the_conversation_fails():
    application = Application("Hi Ada.", "366.", "Comet.")
    exchanges = talk(application)
    with pytest.raises(DemoFailed, match="should hold the 6 messages"):
        check(exchanges, application.api.stored(HERE)[:-1], "Comet", scripted=False)


def dump(*user: str) -> str:
    return json.dumps({"user": user})


def test_a_script_is_sent_its_directives_and_judged_by_its_prompt():
    application = Application("Hello Ada!", "366", dump("… my dog is called Comet.", "leap", "What is my dog called?"))
    exchanges = talk(application, scripted=True)
    assert json.loads(application.requests[0].content)["messages"].endswith("@say Hello Ada! I will remember Comet.")
    assert "out of the store" in check(exchanges, application.api.stored(HERE), "Comet", scripted=True)


@pytest.mark.parametrize("answer", [dump("What is my dog called, Comet?"), dump("Hi", "What?"), "Comet", "[]"])
def test_a_prompt_without_the_earlier_message_fails(answer: str):
    application = Application("Hello Ada!", "366", answer)
    exchanges = talk(application, scripted=True)
    with pytest.raises(DemoFailed):
        check(exchanges, application.api.stored(HERE), "Comet", scripted=True)


def test_a_turn_that_was_too_slow_is_asked_again_and_said():
    said: list[str] = []
    talk(Application((409, "too slow"), "Hi.", "366.", "Comet."), said=said)
    assert len(said) == 1 and "too slow" in said[0]


@pytest.mark.parametrize(("failures", "status"), [([(409, "slow")] * 3, 409), ([(424, "bad key")], 424)])
def test_a_failure_is_one_sentence_with_the_reason(failures: list[tuple[int, str]], status: int):
    application = Application(*failures)
    with pytest.raises(DemoFailed, match=f"{status}: {failures[0][1]}"):
        talk(application)
    assert application.answers == []


def test_an_application_that_is_not_there_is_a_sentence():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(DemoFailed, match="got no answer: refused"):
        Api("http://stack", "k", httpx.MockTransport(refuse)).stored(HERE)


def test_the_way_on_names_the_address_the_key_the_thread_and_how_to_stop():
    text = how_to_go_on("http://127.0.0.1:4111", "the-key", "t1", "r1", Choice("packaged", "openai/x", "a model"))
    assert ".venv/bin/threadkeep chat assistant --thread t1 --resource r1\n" in text
    assert all(part in text for part in ("http://127.0.0.1:4111", "the-key", "t1", "curl", "client-js", "make down"))
    assert "script" not in text


def test_a_script_says_what_it_is_to_the_end():
    about = "a script, not a language model"
    assert about in how_to_go_on("http://x", "k", "t1", "r1", Choice("script", "scripted/demo", about))


class Keeper:
    """The application with an agent that keeps working memory: threads apart, one memory for all of them.

    The model writes what `writes` makes of the question; it answers the second question with `answer`, or with what
    working memory holds, as a script dumps it.
    """

    def __init__(self, writes: str = "", answer: str = "", leaks: str = ""):
        self.writes, self.answer, self.leaks = writes, answer, leaks
        self.memory = ""
        self.threads: dict[str, list[Message]] = {}
        self.posted: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or "null")
        if path.endswith("/generate"):
            return httpx.Response(200, json={"text": self._turn(body["messages"], body["memory"]["thread"])})
        if path.endswith("/working-memory"):
            assert request.url.params["agentId"] == KEEPER
            if request.method == "POST":
                self.posted.append(body)
                self.memory = body["workingMemory"]
                return httpx.Response(200, json={"success": True})
            assert request.url.params["resourceId"] == "r1"
            return httpx.Response(200, json={"workingMemory": self.memory or None})
        return httpx.Response(200, json={"messages": self.threads[path.split("/")[-2]]})

    def _turn(self, text: str, thread: str) -> str:
        messages = self.threads.setdefault(thread, [{"role": "user", "content": self.leaks}] * bool(self.leaks))
        if "live in" in text and "?" not in text:
            self.memory, answer = self.writes.format(text=text), "Welcome."
        elif "@dump" in text:
            answer = json.dumps({"system": ["Be kind.", self.memory], "user": [text]})
        else:
            answer = self.answer.format(memory=self.memory)
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        return answer

    @property
    def api(self) -> Api:
        return Api("http://stack", "the-key", httpx.MockTransport(self))


def tell(keeper: Keeper, scripted: bool = False) -> str:
    return tell_elsewhere(keeper.api, "r1", scripted, lambda line: None)


def test_only_the_first_thread_is_told_the_city():
    told, asked = across_threads("Oslo")
    assert "Oslo" in told.text and "Oslo" in told.script
    assert "Oslo" not in asked.text + asked.script and "?" in asked.text


@pytest.mark.parametrize("scripted", [True, False])
def test_what_another_thread_knew_is_said_and_the_memory_shown(capsys: pytest.CaptureFixture[str], scripted: bool):
    keeper = Keeper(writes="# Profile\n- {text}", answer="By your memory: {memory}")
    known = tell(keeper, scripted)
    assert known.startswith("Known elsewhere") and "not the model" not in known
    assert keeper.posted == [] and len(keeper.threads) == 2
    shown = capsys.readouterr().out
    assert "\n  # Profile\n  - I am Ada and I live in " in shown
    assert f"/working-memory?agentId={KEEPER}&resourceId=r1" in shown


def test_a_model_that_writes_nothing_is_helped_and_that_is_said(capsys: pytest.CaptureFixture[str]):
    keeper = Keeper(writes="- Likes tea", answer="By your memory: {memory}")
    assert tell(keeper).endswith("This program wrote it down, not the model.")
    assert "The model did not call its tool" in capsys.readouterr().out
    [posted] = keeper.posted
    assert posted["workingMemory"].startswith("- Likes tea\n- I am Ada and I live in ")
    assert posted["resourceId"] == "r1"


def test_what_is_kept_and_by_whom():
    place = Place(KEEPER, "t1", "r1")
    keeper = Keeper()
    keeper.memory = "- lives in OSLO"
    assert kept(keeper.api, place, "Oslo", "I live in Oslo.") == ("- lives in OSLO", True)
    assert kept(keeper.api, place, "Quito", "I live in Quito.") == ("- lives in OSLO\n- I live in Quito.", False)


def test_another_thread_that_does_not_know_fails():
    with pytest.raises(DemoFailed, match="On the other thread the answer does not name"):
        tell(Keeper(writes="{text}", answer="I do not know."))


def test_a_thread_that_was_told_otherwise_proves_nothing():
    with pytest.raises(DemoFailed, match="should hold the 2 messages"):
        tell(Keeper(writes="{text}", answer="{memory}", leaks="They live in Oslo."))


def test_a_script_must_have_been_sent_the_memory():
    asked = Exchange("?", json.dumps({"system": ["Be kind."], "user": ["In Oslo?"]}), 0.1)
    with pytest.raises(DemoFailed, match="On the other thread the prompt does not name Oslo"):
        check_elsewhere(asked, [("user", "?"), ("assistant", asked.answered)], "Oslo", scripted=True)


def test_a_memory_that_cannot_be_read_or_written_is_a_sentence():
    broken = Api("http://stack", "k", httpx.MockTransport(lambda request: httpx.Response(404, json={"error": "none"})))
    with pytest.raises(DemoFailed, match="The working memory could not be read: 404: none"):
        broken.working_memory(HERE)
    with pytest.raises(DemoFailed, match="The working memory could not be written: 404: none"):
        broken.keep(HERE, "x")
