"""Calling a deployer's hooks, and what happens when one of them raises (DEL-20)."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

from threadkeep.turn.context import RequestContext
from threadkeep.turn.delegation.options import HOOK_ERRORS_KEY, DelegationCall

S = TypeVar("S")
A = TypeVar("A")

_log = logging.getLogger(__name__)


class HookFailed(Exception):
    """A hook raised and its errors are not passed over; the text is the hook's own."""


async def asked(
    name: str,
    hook: Callable[[S], A | Awaitable[A]] | None,
    subject: S,
    call: DelegationCall,
    strategy: Literal["warn", "throw"],
) -> A | None:
    """What a hook answers; None without one, and for one that raised.

    Its error is noted in the run's request context. Raises `HookFailed` where the strategy is "throw".
    """
    if hook is None:
        return None
    try:
        answer: Any = hook(subject)
        return await answer if inspect.isawaitable(answer) else answer
    except Exception as error:  # a hook may raise anything
        _log.warning("hook %s failed", name, exc_info=True)
        _note(call.request_context, name, call, error)
        if strategy == "throw":
            raise HookFailed(str(error) or type(error).__name__) from error
        return None


def _note(context: RequestContext, hook: str, call: DelegationCall, error: Exception) -> None:
    noted = {
        "hook": hook,
        "primitiveId": call.agent_id,
        "toolCallId": call.call_id,
        "runId": call.run_id,
        "name": type(error).__name__,
        "message": str(error),
    }
    context[HOOK_ERRORS_KEY] = [*(context.get(HOOK_ERRORS_KEY) or ()), noted]
