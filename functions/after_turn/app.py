"""The queue of what is due after a turn or a delete: titles, and removing what deleted threads left."""

import asyncio
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.batch import (
    SqsFifoPartialProcessor,
    process_partial_response,  # pyright: ignore[reportUnknownVariableType]
)
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from threadkeep.bootstrap import services
from threadkeep.outbox import perform

_processor = SqsFifoPartialProcessor(skip_group_on_error=True)


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def _record(record: SQSRecord) -> None:
    _runner().run(perform(services(), record.body))


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """One failing task holds back only its own thread's; the rest of the batch is done."""
    return dict(process_partial_response(event, record_handler=_record, processor=_processor))
