"""Wires adapters to ports, once per process. The only module that knows which adapter is behind a port."""

from functools import cache
from typing import TYPE_CHECKING, Any

from threadkeep.agents import Registry
from threadkeep.config import settings
from threadkeep.http.app import App
from threadkeep.http.workers import Workers
from threadkeep.models.registry import Models
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.dynamodb.bucket import Bucket
from threadkeep.turn.request import Services

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_sqs import SQSClient

_CONNECTIONS = 50


@cache
def app() -> App:
    """What HTTP operations need: storage, models and the deployer's agents."""
    own = services()
    function = settings().work_function
    return App(
        storage=own.storage,
        registry=Registry.load(settings().agents_module),
        models=own.models,
        workers=workers(function) if function else None,
    )


def workers(function: str) -> Workers:
    """What starts a function that does what was sent to threads."""
    return Workers(cache(lambda: _client("lambda")), function)


@cache
def services() -> Services:
    """What turns need: storage and models."""
    return Services(storage(), Models())


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


def _client(service: str) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": 5}
    config = Config(retries=retries, connect_timeout=2, read_timeout=5, max_pool_connections=_CONNECTIONS)  # type: ignore[arg-type]
    client: Any = boto3.client  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return client(service, config=config)
