"""Reading messages over HTTP: filters, neighbours, reminders (M-RC-5 to M-RC-8; H31)."""

import asyncio
import json
from typing import Any

import pytest

from tests.unit.http.house import House, user
from threadkeep.storage.port import NewMessage, NewThread, TurnCommit

MESSAGES = "/api/memory/threads/{threadId}/messages"
AGENT = {"agentId": "assistant"}
START = 1_795_974_273_000


@pytest.fixture
def talk(house: House) -> House:
    """Ten messages, a second apart; odd ones are the assistant's, every fourth has a tag, the last is a reminder."""

    async def add() -> None:
        house.store.clock = lambda: START
        thread = await house.store.create_thread(NewThread("thr-1", "user-ada"))
        for n in range(10):
            metadata = {"metadata": {"tag": n, "kind": "x"}} if n % 4 == 0 else {}
            content = {"format": 2, "parts": [{"type": "text", "text": f"{n}"}]} | metadata
            if n == 9:
                content["parts"] = [{"type": "text", "text": "<system-reminder>x</system-reminder>"}]
            role = "assistant" if n % 2 and n < 9 else "user"
            await house.store.commit_turn(TurnCommit(thread, (NewMessage(f"m{n}", role, content, START + n * 1000),)))

    asyncio.run(add())
    return house


def page(house: House, **query: Any) -> tuple[list[int], int]:
    """The numbers of the messages on the page, and the total."""
    status, body = house.call("GET", MESSAGES, path={"threadId": "thr-1"}, query=AGENT | query)
    assert status == 200, body
    return [int(m["id"][1:]) for m in body["messages"]], body["total"]


def at(n: int) -> str:
    return f"2026-11-29T17:44:{33 + n}.000Z"


def text(**filters: Any) -> str:
    return json.dumps(filters)


@pytest.mark.parametrize(
    "given,found",
    [
        ({"start": at(2), "end": at(4)}, [2, 3, 4]),
        ({"start": START + 2000, "end": START + 4000}, [2, 3, 4]),
        ({"start": at(2), "startExclusive": True, "end": at(4)}, [3, 4]),
        ({"start": at(2), "end": at(4), "endExclusive": True}, [2, 3]),
        ({"end": "2026-11-29T19:44:34+02:00"}, [0, 1]),
        ({"start": "2026-11-30"}, []),
        ({"start": at(4), "end": at(2)}, []),
        ({}, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_m_rc_5_dates(talk: House, given: Any, found: list[int]) -> None:
    assert page(talk, filter=text(dateRange=given))[0] == found
    brackets = {f"filter[dateRange][{key}]": str(value).replace("True", "true") for key, value in given.items()}
    assert page(talk, **brackets)[0] == found


@pytest.mark.parametrize(
    "spelling",
    [
        {"filter": text(roles=["assistant"])},
        {"filter": text(roles="assistant")},
        {"filter[roles]": "assistant"},
        {"filter[roles][]": ["assistant"]},
        {"filter[roles][0]": "assistant"},
    ],
)
def test_h31_roles_in_every_spelling(talk: House, spelling: dict[str, Any]) -> None:
    assert page(talk, **spelling) == ([1, 3, 5, 7], 4)


def test_several_roles_and_none(talk: House) -> None:
    both = {"filter[roles][]": ["assistant", "signal"]}
    assert page(talk, **both)[0] == [1, 3, 5, 7]
    assert page(talk, filter=text(roles=[]))[1] == 10


@pytest.mark.parametrize(
    "wanted,found",
    [
        ({"tag": 4}, [4]),
        ({"tag": "4"}, []),
        ({"tag": 0, "kind": "x"}, [0]),
        ({"kind": "x"}, [0, 4, 8]),
        ({"no": None}, []),
    ],
)
def test_m_rc_6_metadata(talk: House, wanted: Any, found: list[int]) -> None:
    assert page(talk, filter=text(metadata=wanted)) == (found, len(found))


def test_conditions_hold_together_and_pages_are_cut_from_what_passes(talk: House) -> None:
    both = text(roles=["assistant"], dateRange={"start": at(2)})
    assert page(talk, filter=both) == ([3, 5, 7], 3)
    assert page(talk, filter=both, perPage="2") == ([5, 7], 3)
    assert page(talk, filter=both, perPage="2", page="1") == ([3], 3)
    assert page(talk, filter=both, perPage="2", **{"orderBy[direction]": "ASC"}) == ([3, 5], 3)
    assert page(talk, filter=both, perPage="false") == ([3, 5, 7], 3)


def test_m_rc_7_m_disc_2_neighbours_are_added_once_and_in_order(talk: House) -> None:
    include = json.dumps([{"id": "m4", "withPreviousMessages": 1, "withNextMessages": 2, "threadId": "ignored"}])
    assert page(talk, perPage="0", include=include) == ([3, 4, 5, 6], 10)
    assert page(talk, perPage="5", include=include) == ([3, 4, 5, 6, 7, 8], 10)
    assert page(talk, perPage="0", include='[{"id":"m0"},{"id":"none"}]') == ([0], 10)
    brackets = {"include[0][id]": "m4", "include[0][withPreviousMessages]": "1", "include[1][id]": "m0"}
    assert page(talk, perPage="0", **brackets) == ([0, 3, 4], 10)


def test_m_rc_7_other_owners_messages_stay_hidden(talk: House) -> None:
    talk.add_thread("thr-2", "user-ada", messages=1)
    talk.add_thread("thr-3", "user-eve", messages=1)
    include = json.dumps([{"id": "thr-2-m0"}, {"id": "thr-3-m0"}])
    query: Any = {"perPage": "0", "include": include}
    for caller in ({"kind": "service"}, user("user-ada")):
        _, body = talk.call("GET", MESSAGES, path={"threadId": "thr-1"}, query=query, caller=caller)
        shown = [(m["id"], m["threadId"], m["resourceId"]) for m in body["messages"]]
        assert shown == [("thr-2-m0", "thr-2", "user-ada")]


def test_m_rc_8_reminders_are_hidden_after_paging_unless_asked_for(talk: House) -> None:
    assert page(talk, perPage="2") == ([8], 10)
    assert page(talk, perPage="2", includeSystemReminders="true") == ([8, 9], 10)
    assert page(talk, perPage="2", includeSystemReminders="false") == ([8], 10)


@pytest.mark.parametrize(
    "query,field,rule",
    [
        ({"filter": "{broken"}, "filter", "is not JSON"),
        ({"filter": "text"}, "filter", "expected object, received string"),
        ({"filter": "[]"}, "filter", "expected object, received array"),
        ({"filter": text(dateRange="x")}, "filter.dateRange", "expected object"),
        ({"filter": text(dateRange={"start": "yesterday"})}, "filter.dateRange.start", "ISO 8601 text"),
        ({"filter": text(dateRange={"end": True})}, "filter.dateRange.end", "received boolean"),
        ({"filter[dateRange][end]": "2026-02-30"}, "filter.dateRange.end", "received 2026-02-30"),
        ({"filter": text(dateRange={"startExclusive": "maybe"})}, "filter.dateRange.startExclusive", "boolean"),
        ({"filter": text(roles=5)}, "filter.roles", "expected array, received number"),
        ({"filter": text(roles=["user", 5])}, "filter.roles.1", "expected string, received number"),
        ({"filter": text(metadata=[1])}, "filter.metadata", "expected object, received array"),
        ({"filter": text(metadata={"a.b": 1})}, "filter.metadata", "invalid metadata key 'a.b'"),
        ({"filter": text(metadata={"a": {"b": 1}})}, "filter.metadata", "a is object"),
        ({"filter": text(metadata={"a": [1]})}, "filter.metadata", "a is array"),
        ({"include": "m1"}, "include", "expected array, received string"),
        ({"include": '{"id":"m1"}'}, "include", "expected array, received object"),
        ({"include": "[{}]"}, "include.0.id", "required"),
        ({"include": '[{"id":5}]'}, "include.0.id", "expected string, received number"),
        ({"include": '[{"id":""}]'}, "include.0.id", "1 to 256 bytes"),
        ({"include": '["m1"]'}, "include.0", "expected object, received string"),
        ({"include": '[{"id":"m","withNextMessages":-1}]'}, "include.0.withNextMessages", "at least 0"),
        ({"include": '[{"id":"m","withPreviousMessages":101}]'}, "include.0.withPreviousMessages", "at most 100"),
        ({"include": json.dumps([{"id": "m"}] * 101)}, "include", "length of at most 100, received 101"),
        ({"includeSystemReminders": "perhaps"}, "includeSystemReminders", "expected boolean"),
    ],
)
def test_bad_queries_name_their_field(talk: House, query: Any, field: str, rule: str) -> None:
    status, body = talk.call("GET", MESSAGES, path={"threadId": "thr-1"}, query=query)
    assert (status, body["error"]) == (400, "Invalid query parameters")
    assert [issue["field"] for issue in body["issues"]] == [field]
    assert rule in body["issues"][0]["message"]
