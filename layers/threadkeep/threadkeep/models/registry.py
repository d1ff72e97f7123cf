"""From `provider/model` strings to adapters. Importing this loads neither `openai` nor `boto3`."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from threadkeep.config import Settings
from threadkeep.config import settings as process_settings
from threadkeep.errors import ConfigurationError, ModelUnavailable
from threadkeep.jsontext import as_object
from threadkeep.models.openai import OPENAI_URL, OpenAIModel, ReadKey
from threadkeep.models.port import Model

_KEYLESS = "none"  # the client insists on a key; servers of one's own mostly need none


class _Closable(Protocol):
    async def close(self) -> None: ...


class Models:
    """The models of this process, one adapter for each provider, made when first asked for.

    `adapters` adds providers, or replaces built-in ones, for instance with a fake in a test.
    """

    def __init__(self, settings: Settings | None = None, adapters: Mapping[str, Model] | None = None):
        self._settings = settings or process_settings()
        self._adapters: dict[str, Model] = dict(adapters or {})
        self._makers: dict[str, Callable[[], Model]] = {
            "bedrock": self._bedrock,
            "openai": self._openai,
            "scripted": self._scripted,
        }

    @property
    def providers(self) -> tuple[str, ...]:
        """The known providers in alphabetical order."""
        return tuple(sorted({*self._makers, *self._adapters}))

    def resolve(self, name: str) -> tuple[Model, str]:
        """The adapter for `provider/model` and the model's name, which may itself hold slashes.

        Raises `ConfigurationError` for a string of another form, an unknown provider or a missing API key.
        """
        provider, _, model = name.partition("/")
        if not model or provider not in self.providers:
            known = ", ".join(self.providers)
            raise ConfigurationError(f"Unknown model {name!r}: expected provider/model, provider one of {known}")
        if provider not in self._adapters:
            self._adapters[provider] = self._makers[provider]()
        return self._adapters[provider], model

    async def close(self) -> None:
        """Close the connections that belong to the running event loop; the models stay usable."""
        for adapter in self._adapters.values():
            if hasattr(adapter, "close"):
                await cast(_Closable, adapter).close()

    def _bedrock(self) -> Model:
        from threadkeep.models.bedrock import BedrockModel

        return BedrockModel()

    def _openai(self) -> Model:
        base_url = self._settings.openai_base_url.rstrip("/")
        return OpenAIModel(base_url, self._openai_key(own_server=base_url not in ("", OPENAI_URL)))

    def _openai_key(self, own_server: bool) -> ReadKey:
        if key := os.environ.get("OPENAI_API_KEY"):
            return _constant(key)
        if self._settings.model_key_secret:
            return SecretKey(self._settings.model_key_secret)
        if own_server:
            return _constant(_KEYLESS)
        raise ConfigurationError(
            "Models openai/... need an API key: set OPENAI_API_KEY, or MODEL_KEY_SECRET to the secret that holds it, "
            "or OPENAI_BASE_URL to a server that needs none"
        )

    def _scripted(self) -> Model:
        return OpenAIModel(self._settings.scripted_base_url, _constant(_KEYLESS))


class SecretKey:
    """An API key in Secrets Manager, read once: plain text, or a JSON object whose one value is the key."""

    def __init__(self, secret_id: str):
        self._secret_id = secret_id
        self._reading = threading.Lock()
        self._key = ""

    async def __call__(self) -> str:
        """The key. Raises `ConfigurationError` if there is none, `ModelUnavailable` if AWS is busy."""
        return self._key or await asyncio.to_thread(self._read)

    def _read(self) -> str:
        with self._reading:
            self._key = self._key or _api_key(self._fetch(), self._secret_id)
            return self._key

    def _fetch(self) -> str:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            client = cast(Any, boto3).client("secretsmanager", config=Config(retries={"mode": "standard"}))
            return client.get_secret_value(SecretId=self._secret_id).get("SecretString", "")
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500 or "Throttling" in code:
                raise ModelUnavailable(f"the secret with the model's API key cannot be read now: {code}") from error
            raise ConfigurationError(f"The secret {self._secret_id} named by MODEL_KEY_SECRET: {code}") from error
        except BotoCoreError as error:
            raise ModelUnavailable(f"the secret with the model's API key cannot be read: {error}") from error


def _api_key(secret: str, secret_id: str) -> str:
    try:
        fields = as_object(json.loads(secret))
    except ValueError:
        fields = None
    values = list(fields.values()) if fields is not None else [secret.strip()]
    if len(values) != 1 or not isinstance(values[0], str) or not values[0]:
        raise ConfigurationError(f"The secret {secret_id} named by MODEL_KEY_SECRET must hold one API key")
    return values[0]


def _constant(key: str) -> ReadKey:
    async def read() -> str:
        return key

    return read
