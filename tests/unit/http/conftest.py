import pytest

from tests.unit.http.house import House


@pytest.fixture
def house() -> House:
    return House()
