"""The model that the local stack last got, so that `make up` and `make status` know it after a restart.

Keys stay in the environment: the file says only that one was given.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.models import choose
from local.models.choose import SWITCH, Choice, Sources
from local.models.fetch import Say
from local.models.process import STATE

CHOICE_RECORD = STATE / "choice.json"
_NAMING = ("DEFAULT_MODEL", "OPENAI_BASE_URL", "BEDROCK_MODEL_ID")  # with one of them the environment has its say
_NO_KEY = "none"  # what a server without keys is sent


@dataclass(frozen=True, slots=True)
class Remembered:
    """`kind` and `model` as in `Choice`; `base_url` is empty for a provider's own; `with_key`: it had a key."""

    kind: str
    model: str
    base_url: str
    with_key: bool


def remember(choice: Choice, record: Path = CHOICE_RECORD) -> None:
    """Keep what `recall` needs."""
    key = choice.environment.get("OPENAI_API_KEY", _NO_KEY)
    base_url = choice.environment.get("OPENAI_BASE_URL", "")
    kept = {"kind": choice.kind, "model": choice.model, "base_url": base_url, "with_key": key != _NO_KEY}
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(kept))


def remembered(record: Path = CHOICE_RECORD) -> Remembered | None:
    """What was kept; None if there is nothing that can be read."""
    try:
        kept: Any = json.loads(record.read_text())
        return Remembered(**kept) if kept["kind"] in choose.KINDS else None
    except (OSError, ValueError, TypeError, LookupError):
        return None


def model_for_up(
    env: Mapping[str, str], say: Say, record: Path = CHOICE_RECORD, sources: Sources | None = None
) -> Choice | None:
    """The model of `make up`: the one that the environment names, else the one of the last time, ready to answer.

    None if there is neither, or if `DEFAULT_MODEL` names one that needs nothing from here. Raises `NoModel`.
    """
    sources = sources or Sources()
    if env.get(SWITCH):
        return choose.choose(env, say, sources)
    last = None if any(env.get(name) for name in _NAMING) else remembered(record)
    if last is None:
        return choose.from_environment(env, sources.probe, say)
    if last.kind in ("packaged", "script"):
        return choose.choose({**env, SWITCH: last.kind}, say, sources)
    return _recalled(last, env, sources)


def _recalled(last: Remembered, env: Mapping[str, str], sources: Sources) -> Choice:
    """Even if the model cannot be reached now, which `about` says: what is stored can be read without it."""
    provider, _, name = last.model.partition("/")
    if provider == "bedrock":
        missing = f"{name} on Amazon Bedrock, but there are no AWS credentials now, so turns fail"
        return choose.bedrock_choice(name) or Choice(last.kind, last.model, missing)
    key = env.get("OPENAI_API_KEY") or _NO_KEY
    about = f"{name} at {last.base_url or 'OpenAI'}, as the last time"
    if last.with_key and key == _NO_KEY:
        about += ", but OPENAI_API_KEY is not set now, so turns fail"
    elif last.base_url and name not in sources.probe(last.base_url, key if last.with_key else ""):
        about += ", but it is not served there now, so turns fail"
    return choose.openai_choice(last.kind, name, last.base_url, key if last.with_key else _NO_KEY, about)
