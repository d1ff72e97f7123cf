"""Starting the function `work`, which runs what is sent to threads, without waiting for it (DESIGN 7)."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from threadkeep import jsontext
from threadkeep.errors import StoreUnavailable
from threadkeep.storage.live import Channel

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient


class Workers:
    """Workers of one function, by its name. `client` is called when the first is started, and caches."""

    def __init__(self, client: Callable[[], "LambdaClient"], function: str):
        self._client = client
        self._function = function

    async def start(self, channel: Channel) -> None:
        """Have a worker take up the runs of a thread. One too many does no harm. Raises `StoreUnavailable`."""
        payload = jsontext.dumps({"resourceId": channel.resource_id, "threadId": channel.thread_id})
        await asyncio.to_thread(self._invoke, payload.encode())

    def _invoke(self, payload: bytes) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client().invoke(FunctionName=self._function, InvocationType="Event", Payload=payload)
        except (BotoCoreError, ClientError) as error:
            raise StoreUnavailable(f"No worker could be started: {type(error).__name__}") from error
