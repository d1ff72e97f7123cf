"""The storage contract on each adapter that ships."""

from collections.abc import Iterator

import pytest

from local.stack import Stack
from tests.template import create_bucket
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.dynamodb.bucket import Bucket
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Storage
from threadkeep.testing.storage_contract import StorageContract


class TestInMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return InMemoryStorage()


class TestDynamoDBStorage(StorageContract):
    """On the emulated DynamoDB, over its wire protocol, in a table with the template's keys and indexes."""

    machine_examples = 5

    @pytest.fixture
    def storage(self, emulator: Stack, table: str) -> Iterator[Storage]:
        client = emulator.client("dynamodb")
        s3 = emulator.client("s3")
        yield DynamoDBStorage(table, client, Bucket(lambda: s3, create_bucket(s3)))
        client.close()
        s3.close()
