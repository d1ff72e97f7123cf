"""Wires adapters to ports, once per process. The only module that knows which adapter is behind a port."""

from functools import cache
from typing import TYPE_CHECKING, Any

from threadkeep.agents import Registry
from threadkeep.config import settings
from threadkeep.http.app import App
from threadkeep.http.executions import Executions
from threadkeep.http.workers import Workers
from threadkeep.models.registry import Models
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.dynamodb.bucket import Bucket
from threadkeep.turn.request import Services

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_sqs import SQSClient

    from threadkeep.turn.delegation.orders import Delegator

_CONNECTIONS = 50
_EXECUTION_SECONDS = 310  # an Express execution ends by itself after 300


@cache
def app() -> App:
    """What HTTP operations need: storage, models and the deployer's agents."""
    own = services()
    function, machine = settings().work_function, settings().supervisor_machine
    return App(
        storage=own.storage,
        registry=registry(),
        models=own.models,
        workers=workers(function) if function else None,
        delegator=own.delegator,
        executions=Executions(cache(lambda: _client("stepfunctions")), machine) if machine else None,
    )


@cache
def registry() -> Registry:
    """The deployer's agents."""
    return Registry.load(settings().agents_module)


def workers(function: str) -> Workers:
    """What starts a function that does what was sent to threads."""
    return Workers(cache(lambda: _client("lambda")), function)


@cache
def services() -> Services:
    """What turns need: storage and models, and what runs sub-agents where that is not this process."""
    return Services(storage(), Models(), delegator())


@cache
def delegator() -> "Delegator | None":
    """What runs sub-agents in functions of their own, for a function that is told of the machine."""
    arn = settings().delegation_machine
    if not arn:
        return None
    from threadkeep.flows.delegator import StepFunctionsDelegator
    from threadkeep.flows.machine import Machine

    return StepFunctionsDelegator(Machine(cache(lambda: _client("stepfunctions", _EXECUTION_SECONDS, attempts=1)), arn))


@cache
def storage() -> DynamoDBStorage:
    return DynamoDBStorage(settings().table_name, _dynamodb(), bucket())


@cache
def bucket() -> Bucket | None:
    """Where big bodies are; the client is made when the first of them is met."""
    name = settings().bucket_name
    return Bucket(lambda: _client("s3"), name) if name else None


@cache
def queue() -> "SQSClient":
    """The client that `threadkeep.outbox` sends with."""
    return _client("sqs")


def _dynamodb() -> "DynamoDBClient":
    return _client("dynamodb")


def _client(service: str, read_timeout: int = 5, attempts: int = 5) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": attempts}
    config = Config(retries=retries, connect_timeout=2, read_timeout=read_timeout, max_pool_connections=_CONNECTIONS)  # type: ignore[arg-type]
    client: Any = boto3.client  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return client(service, config=config)
