"""What tests of several folders share: the scripted model, the emulated AWS, the deployed application."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from local.stack import ROOT, Stack
from tests.oidc import AUDIENCE, Issuer
from tests.scripted.server import ScriptedModel
from tests.template import create_table


@pytest.fixture(scope="session")
def scripted() -> Iterator[ScriptedModel]:
    """The model that answers what the last user message directs, for the whole session."""
    with ScriptedModel() as model:
        yield model


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The emulated AWS services with nothing in them; `endpoint` is their URL, `client(service)` a boto3 client."""
    stack = Stack(tmp_path_factory.mktemp("emulator"))
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture
def table(emulator: Stack) -> str:
    """The name of a fresh table in `emulator`, with the template's keys and indexes."""
    return create_table(emulator.client("dynamodb"))


@pytest.fixture(scope="session")
def deploy(tmp_path_factory: pytest.TempPathFactory, scripted: ScriptedModel) -> Iterator[Callable[..., Stack]]:
    """Deploys one more stack, for tests that need other settings; the arguments are those of `Stack`.

    Agents that name no model get the scripted one.
    """
    started: list[Stack] = []

    def deployed(**settings: object) -> Stack:
        parameters = {"DefaultModel": "scripted/model"} | dict(settings.pop("parameters", {}))  # type: ignore[call-overload]
        environment = {"SCRIPTED_BASE_URL": scripted.url} | dict(settings.pop("environment", {}))  # type: ignore[call-overload]
        stack = Stack(tmp_path_factory.mktemp("stack"), parameters=parameters, environment=environment, **settings)  # type: ignore[arg-type]
        started.append(stack)
        stack.start()
        stack.deploy()
        stack.serve()
        return stack

    yield deployed
    for stack in started:
        stack.stop()


@pytest.fixture(scope="session")
def issuer() -> Iterator[Issuer]:
    """The OIDC issuer whose tokens `stack` accepts."""
    with Issuer() as running:
        yield running


@pytest.fixture(scope="session")
def stack(deploy: Callable[..., Stack], issuer: Issuer) -> Stack:
    """The application, deployed once per session; each test takes ids of its own."""
    return deploy(parameters={"JwtIssuer": issuer.url, "JwtAudience": AUDIENCE})


@pytest.fixture(scope="session")
def agents_stack(deploy: Callable[..., Stack], issuer: Issuer) -> Stack:
    """The application with the agents of `tests/fixtures/agents`, for tests of clients; deployed once per session."""
    settings = {"JwtIssuer": issuer.url, "JwtAudience": AUDIENCE}
    return deploy(agents=ROOT / "tests/fixtures/agents", parameters=settings)


@pytest.fixture
def api(stack: Stack) -> Iterator[httpx.Client]:
    """An HTTP client of `stack` that carries the service key."""
    with client_of(stack) as client:
        yield client


def client_of(stack: Stack) -> httpx.Client:
    """An HTTP client of a deployed stack that carries the service key."""
    credential = {"Authorization": f"Bearer {stack.service_key()}"}
    return httpx.Client(base_url=stack.base_url, headers=credential, timeout=60, trust_env=False)
