"""Orders and reports: what they carry, and the turn that an order asks for."""

from dataclasses import replace

import pytest

from tests.unit.fakes import FakeModel
from threadkeep import Agent, RequestContext, clock, jsontext
from threadkeep.errors import ConfigurationError, Conflict, DeadlineExceeded, ThreadGone
from threadkeep.models.port import Usage
from threadkeep.models.registry import Models
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.turn.delegation.orders import Order, Report, Said
from threadkeep.turn.delegation.sub_turn import failure_of, request_of, run_order
from threadkeep.turn.request import Services
from threadkeep.turn.run import run_turn

ORDER = Order(
    id="o-1",
    path=("boss", "sub"),
    call_id="c",
    run_id="r",
    prompt="find X",
    owner="U",
    thread_id="T",
    instructions="be brief",
    said=(Said("user", ({"type": "text", "text": "hello"},)),),
    deadline=5,
    delegations=3,
    depth=2,
    tokens=100,
    within="durable",
    context=RequestContext({"lang": "de"}),
)


def test_orders_and_reports_come_out_of_json_as_they_went_in():
    read = Order.read(jsontext.loads(jsontext.dumps(ORDER.to_json())))
    assert replace(read, context=ORDER.context) == ORDER and dict(read.context) == {"lang": "de"}
    results = ({"toolName": "t", "toolCallId": "c", "result": None},)
    report = Report("o-1", "text", "stop", "T-1", "U-sub", results, Usage(1, 2, 3, 4), 2, "timeout", "why", 7)
    assert Report.read(jsontext.loads(jsontext.dumps(report.to_json()))) == report


def test_what_json_cannot_say_of_a_context_stays_behind():
    order = replace(ORDER, context=RequestContext({"lang": "de", "call": lambda: 1}))
    assert dict(Order.read(jsontext.loads(jsontext.dumps(order.to_json()))).context) == {"lang": "de"}


@pytest.fixture
async def boss():
    sub = Agent(id="helper", instructions="SUB", model=FakeModel("found"), max_steps=4)
    return await Agent(id="boss", agents={"sub": sub}).resolve(RequestContext())


async def test_the_turn_of_an_order(boss, monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: 1_000)
    sub = await boss.agents["sub"].resolve(RequestContext())
    order = replace(ORDER, deadline=31_000, asked_steps=9)
    request = request_of(sub, order, RequestContext())
    assert (request.run_id, request.within, request.path) == ("o-1", "durable", ("boss", "sub"))
    assert (request.deadline, request.max_steps, request.instructions) == (30.0, 4, "SUB\n\nbe brief")
    limits = request.limits
    assert limits and (limits.delegations, limits.depth, limits.tokens, limits.seconds) == (3, 2, 100, 30.0)
    assert request.repeat is not None and request.repeat.waits and request.repeat.lasts
    bare = request_of(sub, replace(order, deadline=None, instructions=None, tokens=0), RequestContext())
    assert (bare.deadline, bare.instructions) == (None, None)
    assert bare.limits and (bare.limits.tokens, bare.limits.seconds) == (1, 3_600.0)


async def test_an_order_whose_time_is_over_does_not_begin(boss, monkeypatch):
    services = Services(InMemoryStorage(), Models())
    monkeypatch.setattr(clock, "now", lambda: 5)
    with pytest.raises(DeadlineExceeded, match="No time is left"):
        await run_order(boss, ORDER, services, run_turn)


async def test_an_order_for_nobody(boss):
    with pytest.raises(ConfigurationError, match="Agent boss has no sub-agent other"):
        await run_order(boss, replace(ORDER, path=("boss", "other")), Services(InMemoryStorage(), Models()), run_turn)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (DeadlineExceeded("x"), "timeout"),
        (TimeoutError("x"), "timeout"),
        (Conflict("x"), "conflict"),
        (ThreadGone("T"), "conflict"),
        (ValueError("x"), "failed"),
    ],
)
def test_what_an_error_is_to_a_supervisor(error, failure):
    report = failure_of(ORDER, error)
    assert (report.id, report.failure) == ("o-1", failure) and type(error).__name__ in report.reason
