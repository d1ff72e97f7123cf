"""What a turn costs in round trips to the table and in bytes read, counted where botocore sends (DESIGN 4)."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from local.stack import Stack
from tests.counting import Counter, Request, depth
from tests.unit.fakes import FakeModel, calls, says
from threadkeep import Agent, Memory, RequestContext, tool
from threadkeep.agents import Registry
from threadkeep.flows.delegator import StepFunctionsDelegator
from threadkeep.flows.machine import Execution
from threadkeep.flows.task import Task, perform
from threadkeep.http import gateway, generate
from threadkeep.http.app import App
from threadkeep.ids import new_id
from threadkeep.models.registry import Models
from threadkeep.storage.dynamodb import DynamoDBStorage
from threadkeep.storage.port import NewMessage, NewThread, TurnCommit
from threadkeep.turn.request import Conversation, InputMessage, Services, TurnRequest
from threadkeep.turn.run import run_turn

LENGTHS = (0, 20, 2_000)
TEXT = "The same text in every message of the thread, so that threads differ in nothing but their length."


@tool
def current_time() -> str:
    """Tell the time"""
    return "noon"


@tool(require_approval=True)
def erase(path: str) -> str:
    """Erase a file"""
    return f"{path} is gone"


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def client(emulator: Stack, counter: Counter) -> Iterator[Any]:
    client = boto3.client(
        "dynamodb", endpoint_url=emulator.endpoint, region_name="us-east-1", aws_access_key_id="test",
        aws_secret_access_key="test",
    )  # fmt: skip
    yield client
    client.close()


def said(role: str) -> NewMessage:
    content = {"format": 2, "parts": [{"type": "text", "text": TEXT}], "content": TEXT}
    return NewMessage(new_id(), role, content, at=0)


async def fill(storage: DynamoDBStorage, thread_id: str, messages: int) -> None:
    """Create a thread and store that many messages in it."""
    thread = await storage.create_thread(NewThread(thread_id, "ana"))
    for start in range(0, messages, 40):
        roles = ("user", "assistant") * (min(40, messages - start) // 2)
        thread = (await storage.commit_turn(TurnCommit(thread, tuple(map(said, roles))))).thread


@pytest.fixture
def threads(client: Any, table: str, counter: Counter) -> dict[int, str]:
    """A thread of each length, by its length. Counting starts afterwards."""
    storage = DynamoDBStorage(table, client)
    asyncio.run(_fill_all(storage))
    counter.register(client)
    return {length: f"thread-{length}" for length in LENGTHS}


async def _fill_all(storage: DynamoDBStorage) -> None:
    for length in LENGTHS:
        await fill(storage, f"thread-{length}", length)


@pytest.fixture
def turn(client: Any, table: str) -> Callable[..., None]:
    """Runs one turn of an agent on the table."""

    def run(thread: str, *answers: Any, metadata: dict[str, Any] | None = None, **options: Any) -> None:
        asyncio.run(_turn(Conversation(thread, "ana", metadata=metadata), answers, options))

    async def _turn(conversation: Conversation, answers: tuple[Any, ...], options: dict[str, Any]) -> None:
        memory = Memory(last_messages=20, generate_title=True, **options)
        agent = await Agent(id="agent", model="fake/one", memory=memory, tools=[current_time]).resolve(RequestContext())
        message = InputMessage("user", ({"type": "text", "text": TEXT},), id=new_id())
        request = TurnRequest(messages=(message,), run_id=new_id(), conversation=conversation, options=memory.options)
        services = Services(DynamoDBStorage(table, client), Models(adapters={"fake": FakeModel(*answers)}))
        await run_turn(agent, request, services)

    return run


def test_a_turn_on_an_existing_thread_makes_two_round_trips(
    threads: dict[int, str], turn: Callable[..., None], counter: Counter
) -> None:
    read: dict[int, int] = {}
    for length, thread in threads.items():
        counter.clear()
        turn(thread, says("ok"))
        assert counter.operations == ["BatchGetItem", "Query", "TransactWriteItems"]
        assert counter.round_trips == 2
        read[length] = counter.bytes_read
    assert read[0] < read[20]
    assert read[2_000] == pytest.approx(read[20], rel=0.01)  # the thread's own counters have more digits


def test_tool_calls_cost_no_round_trip(threads: dict[int, str], turn: Callable[..., None], counter: Counter) -> None:
    turn(threads[20], calls(("current_time", {}), ("current_time", {})), calls(("current_time", {})), says("ok"))
    assert counter.round_trips == 2


def test_a_turn_that_suspends_costs_what_any_turn_does_and_a_decision_seven(
    threads: dict[int, str], client: Any, table: str, counter: Counter
) -> None:
    """Seven, of which two are the rest of the run: the record, the answer in two, the claim, and the outcome."""
    agent = Agent(
        id="agent", memory=Memory(), tools=[erase], model=FakeModel(calls(("erase", {"path": "/x"})), says("ok"))
    )
    storage = DynamoDBStorage(table, client)
    for length, thread in threads.items():
        agent.model.answers = [calls(("erase", {"path": "/x"})), says("ok")]  # type: ignore[union-attr]
        counter.clear()
        asked = asyncio.run(agent.generate("go", thread=thread, resource="ana", storage=_Quiet(storage)))
        assert asked.suspended is not None
        assert counter.round_trips == 2, (length, counter.operations)
        counter.clear()
        call = asked.suspended.waiting[0].id
        done = asyncio.run(agent.resume(asked.run_id, call, approved=True, storage=_Quiet(storage)))
        assert done.text == "ok"
        assert counter.round_trips == 7, (length, counter.operations)


@pytest.mark.parametrize("delegations", [1, 2])
def test_a_delegation_costs_three_round_trips_however_long_the_thread_is_and_others_of_its_step_none_more(
    delegations: int, threads: dict[int, str], client: Any, table: str, counter: Counter
) -> None:
    """Of the sub-agent: its thread is looked for and its receipt claimed, the thread is created, its turn stored."""
    sub = Agent(id="sub", model=FakeModel())
    boss = Agent(id="boss", memory=Memory(last_messages=20), agents={"sub": sub}, model=FakeModel())
    read: dict[int, int] = {}
    for length, thread in threads.items():
        asked = [("agent-sub", {"prompt": f"task {n}"}) for n in range(delegations)]
        boss.model.answers = [calls(*asked), says("ok")]  # type: ignore[union-attr]
        counter.clear()
        asyncio.run(boss.generate(TEXT, thread=thread, resource="ana", storage=_Quiet(DynamoDBStorage(table, client))))
        below = ["BatchGetItem", "PutItem", "TransactWriteItems", "TransactWriteItems"]  # a new thread has no messages
        known = [o for o in counter.operations if o != "Query"]
        assert known == sorted(["BatchGetItem", "TransactWriteItems", *below * delegations]), counter.operations
        assert counter.round_trips == 2 + 3, (length, counter.operations)
        read[length] = counter.bytes_read
    assert read[2_000] == pytest.approx(read[20], rel=0.02)


class _Quiet(DynamoDBStorage):
    """The store without what the library does after a turn, which a function of its own does when deployed."""

    def __init__(self, storage: DynamoDBStorage):
        self.__dict__ = storage.__dict__

    async def get_job(self, thread_id: str, run_id: str) -> None:
        return None

    async def get_thread(self, thread_id: str) -> None:
        return None


REMEMBER = ("updateWorkingMemory", {"memory": "# Ana likes otters"})


@pytest.mark.parametrize("scope", ["resource", "thread"])
def test_a_turn_that_reads_working_memory_costs_no_round_trip_more(
    scope: str, threads: dict[int, str], turn: Callable[..., None], counter: Counter
) -> None:
    turn(threads[20], says("ok"), working_memory={"enabled": True, "scope": scope})
    assert counter.operations == ["BatchGetItem", "Query", "TransactWriteItems"]
    assert counter.round_trips == 2


@pytest.mark.parametrize("scope", ["resource", "thread"])
def test_a_turn_that_writes_working_memory_once_makes_three(
    scope: str, threads: dict[int, str], turn: Callable[..., None], counter: Counter
) -> None:
    """However long the thread is, and however often the memory was written before."""
    for length, thread in threads.items():
        counter.clear()
        write = calls(("updateWorkingMemory", {"memory": f"# Ana had {length} messages"}))
        turn(thread, write, calls(("current_time", {})), says("ok"), working_memory={"enabled": True, "scope": scope})
        assert counter.operations == ["BatchGetItem", "Query", "TransactWriteItems", "TransactWriteItems"]
        assert counter.round_trips == 3


def test_a_write_that_changes_nothing_costs_a_read_and_no_write(
    threads: dict[int, str], turn: Callable[..., None], counter: Counter
) -> None:
    turn(threads[20], calls(REMEMBER), says("ok"), working_memory=True)
    counter.clear()
    turn(threads[20], calls(REMEMBER), says("ok"), working_memory=True)
    assert counter.operations == ["BatchGetItem", "GetItem", "Query", "TransactWriteItems"]
    assert counter.round_trips == 3


def test_state_signals_cost_a_read_where_one_lies_among_the_loaded_messages(
    threads: dict[int, str], turn: Callable[..., None], counter: Counter
) -> None:
    signals = {"enabled": True, "use_state_signals": True}
    turn(threads[20], calls(("setWorkingMemory", REMEMBER[1])), says("ok"), working_memory=signals)
    assert counter.round_trips == 3
    counter.clear()
    turn(threads[20], says("ok"), working_memory=signals)
    assert counter.operations == ["BatchGetItem", "Query", "Query", "TransactWriteItems"]
    assert counter.round_trips == 3


def test_a_seed_costs_one_round_trip_where_the_turn_creates_the_thread(
    threads: dict[int, str], turn: Callable[..., None], counter: Counter
) -> None:
    turn("seeded", says("ok"), metadata={"workingMemory": "# Ana"}, working_memory=True)
    assert counter.round_trips == 4
    counter.clear()
    turn("seeded", says("ok"), metadata={"workingMemory": "# Ana"}, working_memory=True)
    assert counter.round_trips == 2


def test_the_turn_that_creates_the_thread_makes_three(
    threads: dict[int, str], turn: Callable[..., None], counter: Counter
) -> None:
    turn("a-new-thread", says("ok"))
    assert counter.operations == ["BatchGetItem", "Query", "TransactWriteItems", "TransactWriteItems"]
    assert counter.round_trips == 3


def test_a_request_over_http_adds_no_round_trip(
    threads: dict[int, str], client: Any, table: str, counter: Counter
) -> None:
    """From the gateway's event to its response, as the function `generate` does it."""
    agent = Agent(id="agent", model="fake/one", memory=Memory(last_messages=20))
    app = App(DynamoDBStorage(table, client), Registry([agent]), Models(adapters={"fake": FakeModel(says("ok"))}))
    event = {
        "httpMethod": "POST",
        "resource": "/api/agents/{agentId}/generate",
        "pathParameters": {"agentId": "agent"},
        "headers": {"content-type": "application/json"},
        "requestContext": {"authorizer": {"kind": "service"}},
        "body": json.dumps({"messages": TEXT, "memory": {"thread": threads[2_000], "resource": "ana"}}),
    }
    response = gateway.handler(generate.ROUTES, lambda: app)(event, None)
    assert response["statusCode"] == 200, response
    assert len(json.loads(response["body"])["rememberedMessages"]) == 20
    assert sorted(counter.operations) == ["BatchGetItem", "PutItem", "Query", "TransactWriteItems"]  # with its receipt
    assert counter.round_trips == 2


class _Machine:
    """Runs the tasks side by side, as the state machine does; counts how often it was started."""

    def __init__(self, registry: Registry, storage: DynamoDBStorage):
        self.registry, self.services, self.started = registry, Services(storage, Models()), 0

    async def run(self, given: Any, seconds: float) -> Execution:
        self.started += 1
        tasks = [Task.read({"journal": given["journal"], "order": o, "attempt": 0}, 300_000) for o in given["orders"]]
        outcomes = await asyncio.gather(*[perform(task, self.registry, self.services) for task in tasks])
        return Execution("SUCCEEDED", [dict(outcome) for outcome in outcomes])


@pytest.mark.parametrize("count", [1, 8])
def test_a_step_of_delegations_costs_two_round_trips_one_execution_and_five_of_the_tasks(
    count: int, threads: dict[int, str], client: Any, table: str, counter: Counter
) -> None:
    """Of the supervisor: orders and reports. Of each task: its order, a turn that creates its thread, its report."""
    asked = calls(*[("agent-sub", {"prompt": f"find {n}"}) for n in range(count)])
    sub = Agent(id="sub", model=FakeModel())
    boss = Agent(id="boss", model=FakeModel(asked, says("ok")), memory=Memory(), agents={"sub": sub})
    storage = DynamoDBStorage(table, client)
    machine = _Machine(Registry([boss]), storage)
    services = Services(storage, Models(), StepFunctionsDelegator(machine))
    message = InputMessage("user", ({"type": "text", "text": TEXT},), id=new_id())
    request = TurnRequest((message,), new_id(), Conversation(threads[20], "ana"), deadline=60)
    counter.clear()
    result = asyncio.run(_run(boss, request, services))
    assert (result.text, machine.started) == ("ok", 1)
    own = ["BatchGetItem", "Query", "TransactWriteItems"]  # the supervisor's turn
    step = ["TransactWriteItems", "BatchGetItem"]
    turn = [
        "BatchGetItem",
        "PutItem",
        "TransactWriteItems",
        "TransactWriteItems",
    ]  # with its receipt and its new thread
    task = ["BatchGetItem", *turn, "PutItem"]
    assert counter.operations == sorted(own + step + task * count)
    if count == 1:  # deployed, each task has a process and its connections for itself
        assert counter.round_trips == 2 + 2 + 5


async def _run(agent: Agent, request: TurnRequest, services: Services) -> Any:
    return await run_turn(await agent.resolve(RequestContext()), request, services)


# --- the counter itself ---


def request(began: float, ended: float) -> Request:
    return Request("Query", began, ended, 1)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (0.5, 2)], 1),
        ([(0, 1), (1, 2)], 2),
        ([(0, 1), (0, 5), (1, 2), (2, 3)], 3),
        ([(0, 9), (1, 2), (3, 4), (5, 6)], 3),
        ([(2, 3), (0, 1), (1, 2)], 3),
    ],
)
def test_depth_is_the_longest_chain(spans: list[tuple[float, float]], expected: int) -> None:
    assert depth([request(*span) for span in spans]) == expected


def test_the_counter_tells_one_after_another_from_together(client: Any, table: str, counter: Counter) -> None:
    counter.register(client)
    key = {"pk": {"S": "x"}, "sk": {"S": "x"}}

    async def get() -> None:
        await asyncio.to_thread(client.get_item, TableName=table, Key=key)

    async def together() -> None:
        await asyncio.gather(get(), get(), get())

    for _ in range(3):
        client.get_item(TableName=table, Key=key)
    assert (counter.round_trips, len(counter.requests)) == (3, 3)
    counter.clear()
    asyncio.run(together())
    assert (counter.round_trips, len(counter.requests)) == (1, 3)


def test_the_counter_sees_what_was_read_and_what_was_refused(client: Any, table: str, counter: Counter) -> None:
    client.put_item(TableName=table, Item={"pk": {"S": "x"}, "sk": {"S": "x"}, "text": {"S": "y" * 5_000}})
    counter.register(client)
    client.get_item(TableName=table, Key={"pk": {"S": "x"}, "sk": {"S": "x"}})
    assert 5_000 < counter.bytes_read < 5_200
    counter.clear()
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_item(TableName="no-such-table", Key={"pk": {"S": "x"}, "sk": {"S": "x"}})
    assert counter.operations == ["GetItem"]
