"""How a provider's failure becomes `ModelRejected` or `ModelUnavailable`, the same for every adapter."""

import re

from threadkeep.errors import ModelRejected, ModelUnavailable

MAX_MESSAGE = 500

_REPEATABLE = {408, 409, 425, 429}
_KEY_LIKE = re.compile(r"\b(sk-|Bearer\s+)[^\s\"',}]+")


def from_status(status: int, message: str, *, secret: str = "") -> ModelRejected | ModelUnavailable:
    """The error for an HTTP status: 5xx and 408, 409, 425, 429 may pass on a repeat, the rest cannot."""
    text = clean(message, secret) or f"the model's server answered HTTP {status}"
    return ModelUnavailable(text) if status >= 500 or status in _REPEATABLE else ModelRejected(text)


def timed_out(seconds: float) -> ModelUnavailable:
    return ModelUnavailable(f"the model did not answer within {seconds:g} s")


def cut_off() -> ModelUnavailable:
    return ModelUnavailable("the model's answer was cut off before its end")


def clean(message: str, secret: str = "") -> str:
    """Provider text without keys (some providers quote the key they refuse), cut at `MAX_MESSAGE` characters."""
    if secret:
        message = message.replace(secret, "***")
    return _KEY_LIKE.sub(r"\1***", message).strip()[:MAX_MESSAGE]
