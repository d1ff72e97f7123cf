from collections.abc import Iterator

import pytest

from tests.unit.client.door import KEY, Door
from threadkeep_client import Client


@pytest.fixture(scope="session")
def running_door() -> Iterator[Door]:
    with Door() as door:
        yield door


@pytest.fixture
def door(running_door: Door) -> Door:
    """The server, with a house of its own for each test."""
    running_door.reset()
    return running_door


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    with Client(door.url, KEY) as client:
        yield client
