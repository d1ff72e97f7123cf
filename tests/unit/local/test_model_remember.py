"""What `make up` makes of the model of the last time."""

import json
from pathlib import Path

import pytest

from local.models.choose import Choice, NoModel, Sources
from local.models.process import Server
from local.models.remember import model_for_up, remember, remembered

SERVED = "http://127.0.0.1:9999/v1"
PACKAGED = Choice("packaged", "openai/small", "a small model", {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": SERVED})
OPENAI = Choice("environment", "openai/gpt-x", "gpt-x at OpenAI", {"OPENAI_API_KEY": "sk-secret"})
SERVER = Choice("server", "openai/llama", "llama", {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": SERVED})
BEDROCK = Choice("environment", "bedrock/claude", "claude", {"AWS_BEARER_TOKEN_BEDROCK": "token-secret"})


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "choice.json"


def up(record: Path, env: dict[str, str], listed: tuple[str, ...] = ("llama",)) -> Choice | None:
    sources = Sources(
        probe=lambda base_url, key: list(listed),
        ensure_packaged=lambda say: Server(1, 7777, "small"),
        ensure_script=lambda say: Server(1, 6666, "model"),
        megabytes=lambda: 0,
        supported=lambda: True,
        agrees=lambda question: False,
    )
    return model_for_up(env, lambda line: None, record, sources)


def test_without_a_last_time_and_without_a_named_model_there_is_none(record: Path):
    assert up(record, {}) is None


def test_a_key_in_the_environment_is_enough_the_first_time(record: Path):
    choice = up(record, {"OPENAI_API_KEY": "sk-1"})
    assert choice and (choice.kind, choice.environment["OPENAI_API_KEY"]) == ("environment", "sk-1")


def test_a_packaged_model_is_started_again_wherever_it_listens_now(record: Path):
    remember(PACKAGED, record)
    choice = up(record, {"OPENAI_API_KEY": "sk-of-something-else"})
    assert choice and (choice.kind, choice.model) == ("packaged", "openai/small")
    assert choice.environment["OPENAI_BASE_URL"] == "http://127.0.0.1:7777/v1"
    assert choice.environment["OPENAI_API_KEY"] == "none"


def test_a_script_is_started_again(record: Path):
    remember(Choice("script", "scripted/demo", "a script", {"SCRIPTED_BASE_URL": "http://127.0.0.1:1/v1"}), record)
    choice = up(record, {})
    assert choice and choice.is_script
    assert choice.environment["SCRIPTED_BASE_URL"] == "http://127.0.0.1:6666/v1"


@pytest.mark.parametrize("choice", [OPENAI, BEDROCK])
def test_no_secret_is_written(record: Path, choice: Choice):
    remember(choice, record)
    assert "secret" not in record.read_text()


def test_a_key_is_read_from_the_environment_again(record: Path):
    remember(OPENAI, record)
    choice = up(record, {"OPENAI_API_KEY": "sk-2"})
    assert choice and choice.model == "openai/gpt-x"
    assert choice.environment == {"DEFAULT_MODEL": "openai/gpt-x", "OPENAI_API_KEY": "sk-2"}
    assert "not set" not in choice.about


def test_a_missing_key_is_said(record: Path):
    remember(OPENAI, record)
    choice = up(record, {})
    assert choice and choice.model == "openai/gpt-x"
    assert "OPENAI_API_KEY is not set now, so turns fail" in choice.about


def test_missing_credentials_for_bedrock_are_said(record: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("local.models.choose.bedrock_choice", lambda model: None)
    remember(BEDROCK, record)
    choice = up(record, {})
    assert choice and choice.model == "bedrock/claude" and "no AWS credentials now" in choice.about


def test_a_server_is_kept_and_its_absence_said(record: Path):
    remember(SERVER, record)
    choice = up(record, {"OPENAI_API_KEY": "sk-for-another"})
    assert choice and choice.environment == dict(SERVER.environment) | {"DEFAULT_MODEL": "openai/llama"}
    assert "not served" not in choice.about
    gone = up(record, {}, listed=())
    assert gone and gone.model == choice.model and "not served there now, so turns fail" in gone.about


@pytest.mark.parametrize(
    ("env", "model"),
    [
        ({"THREADKEEP_MODEL": "script"}, "scripted/demo"),
        ({"DEFAULT_MODEL": "openai/y", "OPENAI_API_KEY": "k"}, "openai/y"),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "openai/llama"),
    ],
)
def test_what_the_environment_names_goes_before_the_last_time(record: Path, env: dict[str, str], model: str):
    remember(PACKAGED, record)
    choice = up(record, env)
    assert choice and choice.model == model


def test_a_named_model_that_needs_nothing_from_here_is_left_to_the_template(record: Path):
    remember(PACKAGED, record)
    assert up(record, {"DEFAULT_MODEL": "scripted/model"}) is None


def test_a_model_that_cannot_be_had_is_one_sentence(record: Path):
    with pytest.raises(NoModel, match="lists no model"):
        up(record, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, listed=())


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"kind": "packaged"}', json.dumps({"kind": "other"})])
def test_a_broken_file_is_no_last_time(record: Path, content: str):
    record.write_text(content)
    assert remembered(record) is None
