"""Executions of the state machine `supervisor`, which drive durable runs (DESIGN 6)."""

import asyncio
import hashlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from threadkeep import jsontext
from threadkeep.errors import StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_stepfunctions import SFNClient

_NAME = re.compile(r"(?![0-9a-f]{64}\Z)[A-Za-z0-9_-]{1,80}")


def execution_name(run_id: str) -> str:
    """The name of a run's execution: the run's id, or its SHA-256 in hex where that is no name.

    Nor is an id that looks like such a hash: nobody else's run may have the name of this one's.
    """
    return run_id if _NAME.fullmatch(run_id) else hashlib.sha256(run_id.encode()).hexdigest()


class Executions:
    """Executions of one machine, by its ARN. `client` is called when the first is needed, and caches.

    Every method raises `StoreUnavailable` where Step Functions cannot be reached.
    """

    def __init__(self, client: Callable[[], "SFNClient"], machine: str):
        self._client = client
        self._machine = machine

    async def start(self, run_id: str) -> bool:
        """Have a run driven. One that is driven already, or was, stays as it is: then False."""
        named = {"stateMachineArn": self._machine, "name": execution_name(run_id)}
        given = jsontext.dumps({"runId": run_id, "outcomes": []})
        return await asyncio.to_thread(self._do, "start_execution", {**named, "input": given}) is not None

    async def stop(self, run_id: str) -> None:
        """Drive a run no longer; one that is not driven stays as it is."""
        await asyncio.to_thread(self._do, "stop_execution", {"executionArn": self._arn(run_id), "error": "Cancelled"})

    async def ended(self, run_id: str) -> str | None:
        """The status in which a run's execution ended; None while it goes on. One that never began is `NOT_FOUND`."""
        found = await asyncio.to_thread(self._do, "describe_execution", {"executionArn": self._arn(run_id)})
        status: str = found["status"] if found else "NOT_FOUND"
        return None if status in ("RUNNING", "PENDING_REDRIVE") else status

    def _arn(self, run_id: str) -> str:
        return f"{self._machine.replace(':stateMachine:', ':execution:')}:{execution_name(run_id)}"

    def _do(self, operation: str, arguments: dict[str, str]) -> dict[str, Any] | None:
        """The answer; None where there is no such execution, or there is one already."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._client(), operation)(**arguments)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("ExecutionAlreadyExists", "ExecutionDoesNotExist"):
                return None
            raise StoreUnavailable(f"Step Functions does not answer: {type(error).__name__}") from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"Step Functions does not answer: {type(error).__name__}") from error
