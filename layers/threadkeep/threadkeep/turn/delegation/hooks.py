"""Calling a deployer's hooks, and what happens when one of them raises (DEL-20)."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from threadkeep.jsontext import Json
from threadkeep.turn.context import RequestContext
from threadkeep.turn.delegation.options import HOOK_ERRORS_KEY, DelegationCall

S = TypeVar("S")
A = TypeVar("A")

_log = logging.getLogger(__name__)


class HookFailed(Exception):
    """A hook raised and its errors are not passed over; the text is the hook's own."""


@dataclass
class Hooks:
    """The hooks of one run, and the errors that they raised: `{"hook", "primitiveId"?, "toolCallId"?, "runId", "name",
    "message"}` each, which stand in the run's request context, too."""

    run_id: str
    context: RequestContext
    strategy: Literal["warn", "throw"]
    errors: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])

    async def ask(
        self,
        name: str,
        hook: Callable[[S], A | None | Awaitable[A | None]] | None,
        subject: S,
        answer: type[A],
        call: DelegationCall | None = None,
    ) -> A | None:
        """What a hook answers; None without one, and for one that raised or whose answer is of another type.

        Raises `HookFailed` where the strategy is "throw".
        """
        if hook is None:
            return None
        try:
            given: Any = hook(subject)
            given = await given if inspect.isawaitable(given) else given
            if given is not None and not isinstance(given, answer):
                raise TypeError(f"{name} must return {answer.__name__} or None, returned {type(given).__name__}")
            return given
        except Exception as error:  # a hook may raise anything
            _log.warning("hook %s failed", name, exc_info=True)
            self._note(name, call, error)
            if self.strategy == "throw":
                raise HookFailed(str(error) or type(error).__name__) from error
            return None

    def _note(self, hook: str, call: DelegationCall | None, error: Exception) -> None:
        place = {"primitiveId": call.agent_id, "toolCallId": call.call_id} if call else {}
        told = {"runId": self.run_id, "name": type(error).__name__, "message": str(error)}
        self.errors.append({"hook": hook, **place, **told})
        self.context[HOOK_ERRORS_KEY] = list(self.errors)
