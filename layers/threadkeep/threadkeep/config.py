"""Typed settings, read from the environment once."""

import os
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Settings:
    """What `template.yaml` hands to the functions; the names are the environment variables in lower case."""

    stage: str = "local"
    table_name: str = "threadkeep"
    bucket_name: str = ""  # for bodies that are too big for the table; empty: they are refused
    agents_module: str = "agents"
    default_model: str = ""  # `provider/model` for agents that name none
    turn_deadline_seconds: float = 27.0  # for buffered runs; below the gateway's 29 s
    stream_deadline_seconds: float = 840.0  # for streamed runs; below the function's 15 minutes
    after_turn_queue_url: str = ""
    delegation_machine: str = ""  # ARN of the machine that runs sub-agents of buffered runs; empty: in the same process
    supervisor_machine: str = ""  # ARN of the machine that drives durable runs; empty: there are none
    work_function: str = ""  # runs what is sent to threads; empty: nothing can be sent, and nobody can subscribe
    service_key_secret: str = ""  # name or ARN of the secret that holds the service key
    jwt_issuer: str = ""  # empty: only the service key opens the door
    jwt_audience: str = ""
    jwt_resource_claim: str = "sub"
    model_key_secret: str = ""  # optional secret with the API key of an OpenAI-compatible model
    openai_base_url: str = ""
    scripted_base_url: str = "http://127.0.0.1:4299/v1"


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process. Raises `ValueError` if a number does not parse."""
    values: dict[str, str | float] = {}
    for name, default in ((f, getattr(Settings(), f)) for f in Settings.__dataclass_fields__):
        text = os.environ.get(name.upper())
        if text:
            values[name] = float(text) if isinstance(default, float) else text
    return Settings(**values)  # type: ignore[arg-type]
