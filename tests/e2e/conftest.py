import httpx
import pytest

from local.stack import Stack
from tests.e2e.application import Application, new_id


@pytest.fixture
def application(stack: Stack, api: httpx.Client) -> Application:
    return Application(stack, api)


@pytest.fixture
def thread() -> str:
    """A thread id that no other test uses."""
    return new_id("thread")


@pytest.fixture
def owner() -> str:
    """A resource id that no other test uses."""
    return new_id("owner")
