"""Which model `make run` takes: the order, the switch, what happens when something cannot be had."""

import os
from collections.abc import Callable, Mapping

import pytest

from local.models.choose import SERVERS, SWITCH, NoModel, Sources, ask_yes_no, choose
from local.models.fetch import FetchFailed, Say
from local.models.process import Server, StartFailed


class World:
    """A machine as the choice sees it; nothing is on it unless a test puts it there."""

    def __init__(self) -> None:
        self.listed: Mapping[str, list[str]] = {}
        self.probed: list[tuple[str, str]] = []
        self.megabytes = 1117
        self.supported = True
        self.agrees = True
        self.asked: list[str] = []
        self.packaged: Callable[[Say], Server] = lambda say: Server(1, 5001, "qwen")
        self.script: Callable[[Say], Server] = lambda say: Server(2, 5002, "model")
        self.said: list[str] = []

    def choose(self, **env: str):
        return choose(env, self.said.append, self.sources())

    def sources(self) -> Sources:
        return Sources(
            probe=self._probe,
            ensure_packaged=lambda say: self.packaged(say),
            ensure_script=lambda say: self.script(say),
            megabytes=lambda: self.megabytes,
            supported=lambda: self.supported,
            agrees=self._agrees,
        )

    def _probe(self, base_url: str, key: str) -> list[str]:
        self.probed.append((base_url, key))
        return self.listed.get(base_url, [])

    def _agrees(self, question: str) -> bool:
        self.asked.append(question)
        return self.agrees


@pytest.fixture
def world() -> World:
    return World()


def failing(error: Exception) -> Callable[[Say], Server]:
    def ensure(say: Say) -> Server:
        raise error

    return ensure


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


def test_a_key_comes_first_and_nothing_is_probed(world: World):
    choice = world.choose(OPENAI_API_KEY="sk-1")
    assert choice.model == "openai/gpt-4.1-mini"
    assert dict(choice.environment) == {"DEFAULT_MODEL": choice.model, "OPENAI_API_KEY": "sk-1"}
    assert world.probed == [] and "sk-1" not in choice.about


def test_the_model_may_be_named(world: World):
    assert world.choose(OPENAI_API_KEY="sk-1", DEFAULT_MODEL="openai/other").model == "openai/other"


def test_a_base_url_is_asked_for_its_models_with_the_key(world: World):
    world.listed = {"http://gpu:9000/v1": ["text-embedding-x", "llama"]}
    choice = world.choose(OPENAI_BASE_URL="http://gpu:9000/v1", OPENAI_API_KEY="k")
    assert choice.model == "openai/llama"
    assert choice.environment["OPENAI_BASE_URL"] == "http://gpu:9000/v1"
    assert world.probed == [("http://gpu:9000/v1", "k")]


def test_a_base_url_without_models_is_an_error_that_tells_the_way_out(world: World):
    with pytest.raises(NoModel, match="DEFAULT_MODEL=openai/"):
        world.choose(OPENAI_BASE_URL="http://gpu:9000/v1")


def test_bedrock_gets_a_token_of_its_own_and_no_other_credentials(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-example")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK", raising=False)
    choice = world.choose(BEDROCK_MODEL_ID="eu.some.model-v1:0")
    assert choice.model == "bedrock/eu.some.model-v1:0"
    assert choice.environment["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"] == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert choice.environment["AWS_BEARER_TOKEN_BEDROCK"].startswith("bedrock-api-key-")
    assert "secret-example" not in str(choice)
    assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} & set(choice.environment)


def test_the_first_server_with_a_chat_model_is_taken(world: World):
    world.listed = {url(11434): ["nomic-embed-text"], url(8080): ["llama-3"], url(8000): ["other"]}
    choice = world.choose()
    assert (choice.kind, choice.model) == ("server", "openai/llama-3")
    assert choice.environment["OPENAI_BASE_URL"] == url(8080)
    assert "llama.cpp" in choice.about


def test_every_usual_port_is_probed_before_anything_is_downloaded(world: World):
    assert world.choose().kind == "packaged"
    assert [base_url for base_url, _ in world.probed] == [url(port) for _, port in SERVERS]


def test_the_size_is_told_and_agreed_to_before_the_download(world: World):
    def ensure(say: Say) -> Server:
        assert any("1.12 GB" in line for line in world.said)
        assert world.asked
        return Server(1, 5001, "qwen")

    world.packaged = ensure
    choice = world.choose()
    assert choice.model == "openai/qwen" and choice.environment["OPENAI_BASE_URL"] == url(5001)


def test_nothing_is_asked_when_nothing_must_be_downloaded(world: World):
    world.megabytes = 0
    assert world.choose().kind == "packaged"
    assert world.asked == []


def test_ci_is_never_asked(world: World):
    assert world.choose(CI="true").kind == "packaged"
    assert world.asked == []


def test_a_refusal_leads_to_the_script(world: World):
    world.agrees = False
    world.packaged = failing(AssertionError("must not download"))
    choice = world.choose()
    assert choice.is_script and "not a language model" in choice.about
    assert dict(choice.environment) == {"DEFAULT_MODEL": "scripted/demo", "SCRIPTED_BASE_URL": url(5002)}


@pytest.mark.parametrize("error", [FetchFailed("No network."), StartFailed("It ended.")])
def test_a_failure_leads_to_the_script_with_its_sentence(world: World, error: Exception):
    world.packaged = failing(error)
    assert world.choose().is_script
    assert f"{error} Going on without it." in world.said


def test_a_machine_without_a_runtime_gets_the_script(world: World):
    world.supported = False
    world.packaged = failing(AssertionError("must not download"))
    assert world.choose().is_script


def test_the_switch_forces_the_script_past_a_key(world: World):
    assert world.choose(**{SWITCH: "script", "OPENAI_API_KEY": "sk-1"}).is_script
    assert world.probed == []


def test_a_forced_model_that_fails_is_an_error_not_a_script(world: World):
    world.packaged = failing(FetchFailed("No network."))
    with pytest.raises(NoModel, match="No network"):
        world.choose(**{SWITCH: "packaged"})
    assert world.asked == []


@pytest.mark.parametrize("kind", ["environment", "server"])
def test_a_forced_source_that_has_nothing_is_an_error(world: World, kind: str):
    with pytest.raises(NoModel, match=kind):
        world.choose(**{SWITCH: kind})


def test_an_unknown_switch_names_the_values(world: World):
    with pytest.raises(NoModel, match="packaged"):
        world.choose(**{SWITCH: "gpt"})


def test_without_a_script_there_is_no_model(world: World):
    world.supported = False
    world.script = failing(StartFailed("It ended."))
    with pytest.raises(NoModel, match="It ended"):
        world.choose()


def test_without_a_terminal_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    def wait(*_: object) -> None:
        raise AssertionError("waited")

    monkeypatch.setattr("local.models.choose.select.select", wait)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert ask_yes_no("Download it?")
