"""Entity tags and If-Match (RFC 9110), and replies that carry headers."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.http.house import House
from threadkeep.errors import InvalidInput, PreconditionFailed, VersionMismatch
from threadkeep.http import gateway, versions
from threadkeep.http.route import Answer, Call
from threadkeep.http.routes import ROUTES

LIST = "/api/memory/threads"


@pytest.mark.parametrize(
    "given,stored,may_replace",
    [
        (None, 3, None),
        ("*", 3, None),
        (" * ", 1, None),
        ('"3"', 3, 3),
        ('"2", "3"', 3, 3),
        ('"2","3" ,', 3, 3),
        (', "x,y", "3"', 3, 3),
        ('"0"', 0, 0),
    ],
)
def test_a_version_that_is_named_may_be_replaced(given: str | None, stored: int, may_replace: int | None) -> None:
    headers = {} if given is None else {"if-match": given}
    assert versions.check(headers, stored) == may_replace


@pytest.mark.parametrize(
    "given,stored", [("*", 0), ('"2"', 3), ('""', 3), ('"03"', 3), ('"2", "4"', 3), ('"abc"', 3), ('"1,3"', 3)]
)
def test_another_version_is_412_with_the_stored_one(given: str, stored: int) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        versions.check({"if-match": given}, stored)
    assert (caught.value.version, caught.value.status) == (stored, 412)


@pytest.mark.parametrize(
    "given", ["", "3", 'W/"3"', '"3" W/"3"', '"3', '"3" "4"', '*, "3"', "'3'", '"ü"', ",", '"a b"']
)
def test_what_is_no_list_of_strong_tags_is_400_naming_the_header(given: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        versions.check({"if-match": given}, 3)
    assert (caught.value.issues[0].field, caught.value.where) == ("If-Match", "headers")


def answered(house: House, operation: Any) -> tuple[int, Any, dict[str, str]]:
    """The reply of the list route if this were its operation."""
    routes = tuple(
        replace(route, operation=operation, reply=object)
        for route in ROUTES
        if (route.method, route.path) == ("GET", LIST)
    )
    house.handler = gateway.handler(routes, lambda: house.app)
    status, body = house.call("GET", LIST)
    return status, body, house.headers


def test_an_operation_may_send_headers_with_its_answer(house: House) -> None:
    async def operation(call: Call[Any, Any]) -> Answer[Any]:
        await asyncio.sleep(0)
        return Answer({"text": "x"}, {"etag": versions.tag(7)})

    status, body, headers = answered(house, operation)
    assert (status, body, headers["etag"]) == (200, {"text": "x"}, '"7"')


@pytest.mark.parametrize("error,status", [(VersionMismatch(7), 409), (PreconditionFailed(7), 412)])
def test_a_mismatch_tells_the_stored_version_in_body_and_header(house: House, error: Exception, status: int) -> None:
    async def operation(call: Call[Any, Any]) -> Any:
        raise error

    found, body, headers = answered(house, operation)
    assert (found, body["version"], headers["etag"]) == (status, 7, '"7"')
    assert json.dumps(body) == json.dumps({"error": "Another version is stored: 7", "version": 7})
