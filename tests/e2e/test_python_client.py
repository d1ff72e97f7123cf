"""The Python client and its command line against the deployed application."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import httpx
import pytest

from local.stack import Stack
from tests.e2e.application import Application, eventually
from tests.e2e.test_repeats import asked
from tests.scripted.server import ScriptedModel
from threadkeep_client import AsyncClient, Client, NotFound
from threadkeep_client.cli import main


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.base_url, stack.service_key()) as client:
        yield client


class Impatient(httpx.HTTPTransport):
    """Gives up on the first answer after a second, as a connection does that breaks."""

    gave_up = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self.gave_up:
            self.gave_up = True
            request.extensions["timeout"] |= {"read": 1.0}
        return super().handle_request(request)


def test_a_conversation_and_its_thread(client: Client, thread: str, owner: str) -> None:
    done = client.generate("assistant", "Hi\n@say Hello", thread={"id": thread, "title": "T"}, resource=owner)
    assert (done.text, len(done.messages)) == ("Hello", 2)
    assert client.get_thread(thread, resource_id=owner).title == "T"
    assert [t.id for t in client.list_threads(resource_id=owner).threads] == [thread]
    cloned = client.clone_thread(thread)
    assert client.list_messages(cloned.thread.id).total == 2
    assert client.delete_thread(thread, resource_id=owner).result
    with pytest.raises(NotFound):
        client.get_thread(thread)


def test_a_turn_is_streamed(client: Client, thread: str, owner: str) -> None:
    with client.stream("assistant", "Hi\n@say Hello there", thread=thread, resource=owner) as chunks:
        found = list(chunks)
    assert "".join(chunk.text for chunk in found) == "Hello there"
    assert found[-1].type == "finish" and client.list_messages(thread).total == 2


async def test_the_async_client_talks_to_it_too(stack: Stack, thread: str, owner: str) -> None:
    async with AsyncClient(stack.base_url, stack.service_key()) as client:
        done = await client.generate("assistant", "Hi\n@say Hello", thread=thread, resource=owner)
        assert done.text == "Hello" and (await client.list_messages(thread)).total == 2


def test_h12_a_turn_whose_answer_was_lost_is_one_turn(
    stack: Stack, application: Application, scripted: ScriptedModel, hold: str, thread: str, owner: str,
    aside: Callable[..., Future[None]],
) -> None:  # fmt: skip
    transport = Impatient(trust_env=False)

    def let_go() -> None:
        eventually(lambda: hold in scripted.held and transport.gave_up)
        scripted.release(hold)

    released = aside(let_go)
    with Client(stack.base_url, stack.service_key(), transport=transport) as client:
        text = f"Lost {thread}\n@hold {hold}\n@say Found"
        done = client.generate("assistant", text, thread=thread, resource=owner)
    released.result()
    assert done.text == "Found" and transport.gave_up
    assert [role for role, _ in application.texts(thread)] == ["user", "assistant"]
    assert asked(scripted, f"Lost {thread}") == 1


def test_the_command_line(
    stack: Stack, thread: str, owner: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THREADKEEP_URL", stack.base_url)
    monkeypatch.setenv("THREADKEEP_API_KEY", stack.service_key())
    assert main(["chat", "assistant", "--thread", thread, "--resource", owner, "-m", "Hi\n@say Hello"]) == 0
    assert capsys.readouterr().out == "Hello\n"
    assert main(["threads", "list", "--resource", owner]) == 0
    assert thread in capsys.readouterr().out
    assert main(["threads", "show", thread, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 2
    assert main(["memory", "set", "--resource", owner, '{"name": "Ada"}']) == 0
    assert main(["memory", "patch", "--resource", owner, '{"city": "Oslo"}', "--if-version", "1"]) == 0
    assert main(["memory", "patch", "--resource", owner, '{"city": "Rome"}', "--if-version", "1"]) == 4
    assert "version 2 is stored now" in capsys.readouterr().err
    assert main(["memory", "show", "--resource", owner]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "Ada", "city": "Oslo"}
    assert main(["threads", "delete", thread, "--yes"]) == 0
    assert main(["threads", "show", thread]) == 1
    assert capsys.readouterr().err == "threadkeep: Thread not found (404)\n"
