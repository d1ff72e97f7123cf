"""The storage contract on each adapter that ships."""

import pytest

from tests.contract.storage_contract import StorageContract
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Storage


class TestInMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return InMemoryStorage()
