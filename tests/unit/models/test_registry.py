"""From `provider/model` strings to adapters."""

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from threadkeep.config import Settings
from threadkeep.errors import ConfigurationError, ModelUnavailable
from threadkeep.models.openai import OpenAIModel
from threadkeep.models.registry import Models, SecretKey


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def key_of(model):
    return asyncio.run(model._read_key())


class FakeSecrets:
    """Stands in for `boto3.client`: answers with a secret, or raises."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.reads = []

    def __call__(self, service, **_):
        assert service == "secretsmanager"
        return self

    def get_secret_value(self, SecretId):
        self.reads.append(SecretId)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return {"SecretString": self.outcome}


@pytest.mark.parametrize("name", ["", "gpt-5", "openai/", "/gpt-5", "nobody/gpt-5"])
def test_other_strings_are_refused_naming_the_string_and_the_providers(name):
    with pytest.raises(ConfigurationError) as caught:
        Models(Settings()).resolve(name)
    assert repr(name) in str(caught.value)
    assert "bedrock, openai, scripted" in str(caught.value)


def test_an_adapter_is_made_once_and_names_may_hold_slashes():
    models = Models(Settings(openai_base_url="http://127.0.0.1:1/v1"))
    first, name = models.resolve("openai/org/model:7b")
    assert name == "org/model:7b"
    assert models.resolve("openai/other")[0] is first
    assert models.resolve("bedrock/eu.amazon.nova-lite-v1:0")[1] == "eu.amazon.nova-lite-v1:0"


def test_scripted_answers_from_its_own_base_url(scripted, ask):
    models = Models(Settings(scripted_base_url=scripted.url))
    model, name = models.resolve("scripted/any")

    async def turn():
        answer = await model.generate(ask("@say from the script"))
        await models.close()
        return answer.text

    assert (asyncio.run(turn()), name) == ("from the script", "any")


def test_own_adapters_join_and_replace():
    class Mine:
        async def generate(self, request):
            raise NotImplementedError

    mine = Mine()
    models = Models(Settings(), {"mine": mine, "bedrock": mine})
    assert models.providers == ("bedrock", "mine", "openai", "scripted")
    assert models.resolve("mine/x") == models.resolve("bedrock/x") == (mine, "x")
    asyncio.run(models.close())


@pytest.mark.parametrize("base_url", ["", "https://api.openai.com/v1/"])
def test_openai_itself_needs_a_key(base_url):
    with pytest.raises(ConfigurationError, match=r"OPENAI_API_KEY.*MODEL_KEY_SECRET.*OPENAI_BASE_URL"):
        Models(Settings(openai_base_url=base_url)).resolve("openai/gpt-5")


def test_where_the_key_comes_from(monkeypatch):
    own = Settings(openai_base_url="http://127.0.0.1:1/v1")
    assert key_of(Models(own).resolve("openai/x")[0])  # the client wants one, the server does not
    monkeypatch.setattr(boto3, "client", FakeSecrets("from-secret"))
    secret = Settings(model_key_secret="name")
    assert key_of(Models(secret).resolve("openai/x")[0]) == "from-secret"
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert key_of(Models(secret).resolve("openai/x")[0]) == "from-environment"


def test_max_tokens_has_the_name_that_the_server_knows(ask):
    async def key():
        return "k"

    from threadkeep.models.port import ModelSettings

    asked = ask("hi", settings=ModelSettings(max_output_tokens=5))
    assert OpenAIModel("", key)._body(asked)["max_completion_tokens"] == 5
    assert OpenAIModel("http://127.0.0.1:1/v1", key)._body(asked)["max_tokens"] == 5


def test_a_secret_is_read_once_though_many_ask(monkeypatch):
    secrets = FakeSecrets(" sk-1\n")
    monkeypatch.setattr(boto3, "client", secrets)
    key = SecretKey("name")
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: asyncio.run(key()), range(16)))
    assert keys == {"sk-1"}
    assert secrets.reads == ["name"]


def test_a_secret_may_be_an_object_of_one_value(monkeypatch):
    monkeypatch.setattr(boto3, "client", FakeSecrets(json.dumps({"OPENAI_API_KEY": "sk-2"})))
    assert asyncio.run(SecretKey("name")()) == "sk-2"


@pytest.mark.parametrize("secret", ["", " ", "{}", '{"a": "1", "b": "2"}', '{"a": 1}'])
def test_a_secret_without_a_key_is_refused_and_not_shown(monkeypatch, secret):
    monkeypatch.setattr(boto3, "client", FakeSecrets(secret))
    with pytest.raises(ConfigurationError, match="The secret name named by MODEL_KEY_SECRET must hold one API key"):
        asyncio.run(SecretKey("name")())


def refused(code, status):
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetSecretValue")


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (refused("ResourceNotFoundException", 400), ConfigurationError),
        (refused("AccessDeniedException", 400), ConfigurationError),
        (refused("ThrottlingException", 400), ModelUnavailable),
        (refused("InternalServiceError", 500), ModelUnavailable),
        (NoCredentialsError(), ModelUnavailable),
    ],
)
def test_a_secret_that_cannot_be_read(monkeypatch, failure, error):
    monkeypatch.setattr(boto3, "client", FakeSecrets(failure))
    with pytest.raises(error):
        asyncio.run(SecretKey("name")())


def test_importing_the_registry_loads_nothing_heavy():
    heavy = ("openai", "boto3", "botocore", "httpx", "pydantic", "aws_lambda_powertools")
    code = f"import sys, threadkeep.models.registry; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "[]"
