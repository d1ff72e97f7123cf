from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.stack import Stack
from tests.e2e.application import Application, new_id
from tests.oidc import AUDIENCE, Issuer
from tests.scripted.server import ScriptedModel


@pytest.fixture
def application(stack: Stack, api: httpx.Client) -> Application:
    return Application(stack, api)


@pytest.fixture(scope="session")
def house(deploy: Callable[..., Stack], issuer: Issuer) -> Stack:
    """The application with the agents of `tests/e2e/agents`; the emulator enforces the functions' policies."""
    parameters = {"JwtIssuer": issuer.url, "JwtAudience": AUDIENCE}
    return deploy(agents=Path(__file__).parent / "agents", parameters=parameters, auth=True)


@pytest.fixture
def thread() -> str:
    """A thread id that no other test uses."""
    return new_id("thread")


@pytest.fixture
def owner() -> str:
    """A resource id that no other test uses."""
    return new_id("owner")


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in another thread, as `submit` does."""
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit


@pytest.fixture
def hold(scripted: ScriptedModel, aside: object) -> Iterator[str]:
    """A name to hold model calls at; whoever is still held in the end is let go, before `aside` waits for them."""
    name = new_id("hold")
    yield name
    scripted.release(name)


@pytest.fixture
def impatient(application: Application) -> Iterator[None]:
    """What was taken from the queue and not done comes back after 3 seconds, not after half an hour."""
    sqs, url = application.stack.client("sqs"), application.stack.outputs["AfterTurnQueueUrl"]
    usual = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "3"})
    yield
    sqs.set_queue_attributes(QueueUrl=url, Attributes=usual)
