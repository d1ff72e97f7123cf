"""The state machine `delegation`, started by its name and waited for (`statemachines/delegation.asl.json`)."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from threadkeep import jsontext
from threadkeep.jsontext import Json

if TYPE_CHECKING:
    from mypy_boto3_stepfunctions import SFNClient

Ending = Literal["SUCCEEDED", "FAILED", "TIMED_OUT"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Execution:
    """How an execution ended, and its output if it succeeded."""

    ending: Ending
    output: Json = None


class Machine:
    """One Express state machine, by its ARN. `client` is called when it is first run, and caches."""

    def __init__(self, client: Callable[[], "SFNClient"], arn: str):
        self._client = client
        self._arn = arn

    async def run(self, given: Json, seconds: float) -> Execution:
        """Run it to its end, or until `seconds` are over: it then goes on alone. Raises nothing."""
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._run, jsontext.dumps(given)), seconds)
        except TimeoutError:
            return Execution("TIMED_OUT")

    def _run(self, given: str) -> Execution:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            done = self._client().start_sync_execution(stateMachineArn=self._arn, input=given)
        except (BotoCoreError, ClientError):
            _log.warning("the state machine cannot be run", exc_info=True)
            return Execution("FAILED")
        if done["status"] != "SUCCEEDED":
            _log.warning("execution %s: %s %s", done["executionArn"], done["status"], done.get("error", ""))
            return Execution(done["status"])
        return Execution("SUCCEEDED", jsontext.loads(done.get("output", "null")))
