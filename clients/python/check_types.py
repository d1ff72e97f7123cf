"""What type checkers make of the calls: both clients have the same ones, with the types that each answers with."""

from collections.abc import Coroutine
from typing import Any, assert_type

from threadkeep_client import AsyncClient, AsyncStream, Client, Stream
from threadkeep_client.models import AgentView, Generated, Thread


def check_types(client: Client, other: AsyncClient) -> None:
    """Never run: pyright reads it."""
    assert_type(client.get_thread("t", resource_id="ada"), Thread)
    assert_type(client.list_agents(), dict[str, AgentView])
    assert_type(client.generate("assistant", "Hi", thread="t", max_steps=3), Generated)
    assert_type(client.stream("assistant", ["Hi"]), Stream)
    _ = assert_type(other.get_thread("t", resource_id="ada"), Coroutine[Any, Any, Thread])
    _ = assert_type(other.generate("assistant", "Hi", max_steps=3), Coroutine[Any, Any, Generated])
    assert_type(other.stream("assistant", "Hi"), AsyncStream)
    client.generate("assistant", "Hi", max_step=3)  # pyright: ignore[reportCallIssue]
    client.get_thread(3)  # pyright: ignore[reportArgumentType]
