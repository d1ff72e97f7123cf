"""`Client` and `AsyncClient`: the same calls, over two transports."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from functools import update_wrapper, wraps
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload

import httpx

from threadkeep_client import calls
from threadkeep_client.errors import ThreadkeepError, UnreadableReply, refusal, translated
from threadkeep_client.models import RunView
from threadkeep_client.request import Request
from threadkeep_client.retries import USUAL, Retries
from threadkeep_client.stream import Chunk, Decoder

P = ParamSpec("P")
T = TypeVar("T")


class _Call(Generic[P, T]):
    """A call of both clients: on `Client` it answers with the reply, on `AsyncClient` with its coroutine.

    On the class itself it is the function of `calls` that describes the request.
    """

    def __init__(self, describe: Callable[P, Request[T]]):
        self._describe = describe
        update_wrapper(cast(Any, self), describe)

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Request[T]]: ...
    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: "Client | AsyncClient | None", owner: type) -> Callable[P, Any]:
        return self._describe if client is None else _bound(self._describe, client.send)


class _Stream(Generic[P]):
    """As `_Call`, for calls whose answer comes in pieces."""

    def __init__(self, describe: Callable[P, Request[Any]]):
        self._describe = describe
        update_wrapper(cast(Any, self), describe)

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Request[Any]]: ...
    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, "Stream"]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: type) -> Callable[P, "AsyncStream"]: ...
    def __get__(self, client: "Client | AsyncClient | None", owner: type) -> Callable[P, Any]:
        return self._describe if client is None else _bound(self._describe, client.open)


def _bound(describe: Callable[P, Request[Any]], send: Callable[[Request[Any]], Any]) -> Callable[P, Any]:
    @wraps(describe)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        return send(describe(*args, **kwargs))

    return call


class _Calls:
    """What both clients can do. Each call is described in `threadkeep_client.calls`."""

    health = _Call(calls.health)

    list_agents = _Call(calls.list_agents)
    get_agent = _Call(calls.get_agent)
    execute_tool = _Call(calls.execute_tool)

    generate = _Call(calls.generate)
    stream = _Stream(calls.stream)

    start_run = _Call(calls.start_run)
    get_run = _Call(calls.get_run)
    list_runs = _Call(calls.list_runs)
    cancel_run = _Call(calls.cancel_run)

    create_thread = _Call(calls.create_thread)
    get_thread = _Call(calls.get_thread)
    list_threads = _Call(calls.list_threads)
    update_thread = _Call(calls.update_thread)
    delete_thread = _Call(calls.delete_thread)
    clone_thread = _Call(calls.clone_thread)
    transfer_thread = _Call(calls.transfer_thread)

    list_messages = _Call(calls.list_messages)
    save_messages = _Call(calls.save_messages)
    delete_messages = _Call(calls.delete_messages)

    get_memory_status = _Call(calls.get_memory_status)
    get_memory_config = _Call(calls.get_memory_config)
    get_working_memory = _Call(calls.get_working_memory)
    update_working_memory = _Call(calls.update_working_memory)
    get_resource_memory = _Call(calls.get_resource_memory)
    replace_resource_memory = _Call(calls.replace_resource_memory)
    patch_resource_memory = _Call(calls.patch_resource_memory)


class Client(_Calls):
    """A blocking client. Close it, or use it in a `with` statement.

    `base_url` is that of the API without `/api`, `api_key` the service key or a user's token. `timeout` is in
    seconds and counts for connecting and for each wait for bytes. Threads may share a client.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: Retries = USUAL,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ):
        self._retries = retries
        self._http = httpx.Client(
            base_url=_checked(base_url), headers=_headers(api_key, headers), timeout=timeout, transport=transport
        )

    def send(self, request: Request[T]) -> T:
        """Send a request, again where that is safe and may help. Raises `ThreadkeepError`."""
        return request.result(self._answer(request, stream=False))

    def open(self, request: Request[Any]) -> "Stream":
        """The answer to a request piece by piece. It is sent when the stream is first read or entered."""
        return Stream(lambda: self._answer(request, stream=True))

    def wait_for_run(
        self, agent_id: str, run_id: str, *, resource_id: str | None = None, seconds: float = 3_600.0
    ) -> RunView:
        """A durable run once it is over. Raises `TimeoutError` if that takes longer than `seconds`."""
        ends, pauses = time.monotonic() + seconds, _pauses()
        while True:
            run = self.get_run(agent_id, run_id, resource_id=resource_id)
            if run.state != "running":
                return run
            time.sleep(_pause(ends, next(pauses), run_id))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, request: Request[Any], *, stream: bool) -> httpx.Response:
        attempt = 1
        while True:
            try:
                return self._once(request, stream)
            except ThreadkeepError as error:
                pause = self._retries.pause(request.repeat, attempt, error)
                if pause is None:
                    raise
            attempt += 1
            time.sleep(pause)

    def _once(self, request: Request[Any], stream: bool) -> httpx.Response:
        with translated():
            response = self._http.send(self._http.build_request(**request.arguments()), stream=stream)
            if not response.is_success:
                response.read()
                raise refusal(response)
            return response


class AsyncClient(_Calls):
    """The client for `asyncio`, with the arguments of `Client`. Close it with `aclose`, or use `async with`."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: Retries = USUAL,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        self._retries = retries
        self._http = httpx.AsyncClient(
            base_url=_checked(base_url), headers=_headers(api_key, headers), timeout=timeout, transport=transport
        )

    async def send(self, request: Request[T]) -> T:
        """Send a request, again where that is safe and may help. Raises `ThreadkeepError`."""
        return request.result(await self._answer(request, stream=False))

    def open(self, request: Request[Any]) -> "AsyncStream":
        """The answer to a request piece by piece. It is sent when the stream is first read or entered."""
        return AsyncStream(lambda: self._answer(request, stream=True))

    async def wait_for_run(
        self, agent_id: str, run_id: str, *, resource_id: str | None = None, seconds: float = 3_600.0
    ) -> RunView:
        """A durable run once it is over. Raises `TimeoutError` if that takes longer than `seconds`."""
        ends, pauses = time.monotonic() + seconds, _pauses()
        while True:
            run = await self.get_run(agent_id, run_id, resource_id=resource_id)
            if run.state != "running":
                return run
            await asyncio.sleep(_pause(ends, next(pauses), run_id))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _answer(self, request: Request[Any], *, stream: bool) -> httpx.Response:
        attempt = 1
        while True:
            try:
                return await self._once(request, stream)
            except ThreadkeepError as error:
                pause = self._retries.pause(request.repeat, attempt, error)
                if pause is None:
                    raise
            attempt += 1
            await asyncio.sleep(pause)

    async def _once(self, request: Request[Any], stream: bool) -> httpx.Response:
        with translated():
            response = await self._http.send(self._http.build_request(**request.arguments()), stream=stream)
            if not response.is_success:
                await response.aread()
                raise refusal(response)
            return response


class Stream:
    """The chunks of a run, as they come: iterate over it, in a `with` statement.

    Leaving the `with` statement, or dropping the stream, closes the connection: the server then ends the run.
    """

    def __init__(self, connect: Callable[[], httpx.Response]):
        self._line = _Line(connect)
        self._chunks = _chunks(self._line)  # holds the line and not the stream, so that dropping the stream hangs up

    def __iter__(self) -> Generator[Chunk]:
        return self._chunks

    def __enter__(self) -> Self:
        self._line.response()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._line.close()


class AsyncStream:
    """As `Stream`, with `async with` and `async for`."""

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, httpx.Response]]):
        self._line = _AsyncLine(connect)
        self._chunks = _async_chunks(self._line)

    def __aiter__(self) -> AsyncGenerator[Chunk]:
        return self._chunks

    async def __aenter__(self) -> Self:
        await self._line.response()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Hang up."""
        await self._line.aclose()


class _Line:
    """A connection that is made when it is first needed."""

    def __init__(self, connect: Callable[[], httpx.Response]):
        self._connect = connect
        self._response: httpx.Response | None = None

    def response(self) -> httpx.Response:
        if self._response is None:
            self._response = self._connect()
        return self._response

    def close(self) -> None:
        if self._response is not None:
            self._response.close()


class _AsyncLine:
    def __init__(self, connect: Callable[[], Coroutine[Any, Any, httpx.Response]]):
        self._connect = connect
        self._response: httpx.Response | None = None

    async def response(self) -> httpx.Response:
        if self._response is None:
            self._response = await self._connect()
        return self._response

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()


def _chunks(line: _Line) -> Generator[Chunk]:
    decoder = Decoder()
    try:
        with translated():
            for received in _eventful(line.response()).iter_bytes():
                yield from decoder.feed(received)
                if decoder.done:
                    return
        yield from decoder.end()
    finally:
        line.close()


async def _async_chunks(line: _AsyncLine) -> AsyncGenerator[Chunk]:
    decoder = Decoder()
    try:
        with translated():
            async for received in _eventful(await line.response()).aiter_bytes():
                for chunk in decoder.feed(received):
                    yield chunk
                if decoder.done:
                    return
        for chunk in decoder.end():
            yield chunk
    finally:
        await line.aclose()


def _eventful(response: httpx.Response) -> httpx.Response:
    kind = str(response.headers.get("content-type", "none"))
    if not kind.startswith("text/event-stream"):
        raise UnreadableReply(f"The server should answer with a stream of events, its content type is {kind}")
    return response


def _pauses() -> Generator[float]:
    """Seconds between looks at a run: close together while it is young."""
    pause = 0.2
    while True:
        yield pause
        pause = min(pause * 1.5, 5.0)


def _pause(ends: float, pause: float, run_id: str) -> float:
    if (left := ends - time.monotonic()) <= 0:
        raise TimeoutError(f"Run {run_id} goes on; nobody waits for it any more")
    return min(pause, left)


def _checked(base_url: str) -> str:
    if not base_url.startswith(("http://", "https://")):
        raise ValueError(f"The base URL must begin with http:// or https://, received {base_url!r}")
    return base_url


def _headers(api_key: str | None, more: Mapping[str, str] | None) -> dict[str, str]:
    credential = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    return {"Accept": "application/json, text/event-stream", **credential, **(more or {})}
