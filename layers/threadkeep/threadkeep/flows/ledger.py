"""Orders and reports as entries of a journal, so that only ids travel through a state machine (DESIGN 6).

The conversation that a step forwards is the same for all its orders as a rule, so it is an entry of its own, named by
its content. The time that an order has travels with the order's id: a repeat of a step finds the entries of the first
and has a time of its own.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict

from threadkeep import clock, jsontext
from threadkeep.clock import Millis
from threadkeep.jsontext import Json
from threadkeep.storage.port import Storage
from threadkeep.storage.rules import MAX_TURN_MESSAGES, chunks
from threadkeep.storage.runs import Entry
from threadkeep.turn.delegation.orders import Failure, Order, Report
from threadkeep.turn.receipts import key_of

LONGEST = 290.0  # seconds that one task may take at most, below the 300 of its function and of an Express execution
LEAST = 1.0  # seconds below which a sub-agent is not begun any more


class Item(TypedDict):
    """One order as it travels: its id, the name of its conversation, how many whole seconds its task may take, and the
    moment when it is too late. A task may have to wait for its turn before its seconds begin."""

    id: str
    said: str
    seconds: int
    deadline: Millis


class Outcome(TypedDict):
    """What a task returns. Without `failure` the journal has a report."""

    id: str
    failure: NotRequired[Failure]


@dataclass(frozen=True, slots=True)
class Placed:
    """The orders of a step that are in a journal, ready to be run."""

    journal: str
    items: tuple[Item, ...]

    def to_json(self) -> dict[str, Json]:
        """The input of the machine."""
        return {"journal": self.journal, "orders": [dict(item) for item in self.items]}

    @property
    def seconds(self) -> float:
        """How long it may take until all are done, from now on."""
        return max((item["deadline"] - clock.now()) / 1000 for item in self.items)


def journal_of(order: Order) -> str:
    """The journal of a run's orders: that of the durable run, or one that nobody else's run can name."""
    return order.within or key_of("delegations", order.owner, order.thread_id or "", order.run_id)


def order_name(order_id: str) -> str:
    return f"order.{order_id}"


def report_name(order_id: str) -> str:
    return f"report.{order_id}"


def is_late(deadline: Millis) -> bool:
    """Whether so little time is left that a sub-agent need not begin."""
    return deadline - clock.now() < LEAST * 1000


async def place(storage: Storage, orders: Sequence[Order], *, is_home: bool = True) -> Placed:
    """Write the orders of one step of one run. Raises `ThreadGone` if the supervisor's thread is deleted.

    `is_home` tells whether that thread is in this store, if it is stored at all.
    """
    first = orders[0]
    entries: dict[str, Entry] = {}
    items: list[Item] = []
    for order in orders:
        body = order.to_json()
        said = body.pop("said")
        name = "said." + hashlib.sha256(jsontext.dumps(said).encode()).hexdigest()
        entries[name] = Entry(name, said)
        entries[order_name(order.id)] = Entry(order_name(order.id), body)
        items.append(_item(order, name))
    keeper = first.thread_id if first.is_stored and is_home else None  # the journal is forgotten with it
    for chunk in chunks(list(entries.values()), MAX_TURN_MESSAGES):
        await storage.write_entries(journal_of(first), chunk, thread_id=keeper)
    return Placed(journal_of(first), tuple(items))


def _item(order: Order, said: str) -> Item:
    now = clock.now()
    deadline = now + int(LONGEST * 1000) if order.deadline is None else order.deadline
    seconds = math.ceil(min((deadline - now) / 1000, LONGEST))
    return Item(id=order.id, said=said, seconds=max(1, seconds), deadline=deadline)


def read_order(item: Item, found: Mapping[str, Json]) -> Order | None:
    """The order of an item among a journal's entries, with the item's time; None if the journal is forgotten."""
    body, said = found.get(order_name(item["id"])), found.get(item["said"])
    if body is None or said is None:
        return None
    return replace(Order.read(body | {"said": said}), deadline=item["deadline"])


async def collect(
    storage: Storage, placed: Placed, failures: Mapping[str, Failure], otherwise: Failure
) -> tuple[Report, ...]:
    """The reports of the orders, in their order. One that has none failed as `failures` say, else `otherwise`."""
    names = [report_name(item["id"]) for item in placed.items]
    found = await storage.read_entries(placed.journal, names)
    return tuple(
        Report.read(found[name]) if name in found else _missing(item["id"], failures.get(item["id"], otherwise))
        for name, item in zip(names, placed.items, strict=True)
    )


def _missing(order_id: str, failure: Failure) -> Report:
    return Report(order_id, failure=failure, reason="the task left no report")
