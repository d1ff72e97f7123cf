"""What Studio asks for at start: the answers of a Mastra server that has nothing configured (spec-http 2.1, 2.6)."""

from typing import Any

import pytest

from tests.unit.http.house import House, user

PAGING = {"total": 0, "page": 0, "perPage": 10, "hasMore": False}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("auth/permission-patterns", {"patterns": ["*"]}),
        ("workflows", {}),
        ("processors", {}),
        ("scores/scorers", {}),
        ("mcp/v0/servers", {"servers": [], "total_count": 0, "next": None}),
        ("workspaces", {"workspaces": []}),
        ("channels/platforms", []),
        ("experiments/review-summary", {"counts": []}),
        ("editor/builder/settings", {"enabled": False, "modelPolicy": {"active": False}}),
        ("editor/builder/models/available", {"providers": []}),
        ("datasets", {"datasets": [], "pagination": PAGING}),
        ("experiments", {"experiments": [], "pagination": PAGING}),
        ("stored/prompt-blocks", {"promptBlocks": [], **PAGING}),
        ("observability/feedback", {"feedback": [], "pagination": PAGING}),
    ],
)
def test_features_that_are_not_there_are_empty(house: House, path: str, answer: Any) -> None:
    assert house.call("GET", f"/api/{path}", query={"requestContext": "e30="}) == (200, answer)


def test_empty_lists_tell_the_page_that_was_asked_for(house: House) -> None:
    query: dict[str, Any] = {"reviewStatus": "needs-review", "page": "2", "perPage": "1"}
    _, reply = house.call("GET", "/api/observability/feedback", query=query)
    assert reply["pagination"] == {"total": 0, "page": 2, "perPage": 1, "hasMore": False}
    status, reply = house.call("GET", "/api/datasets", query={"page": "x"})
    assert (status, reply["issues"][0]["field"]) == (400, "page")


def test_studio_starts_without_a_credential_and_finds_no_page_to_sign_in_on(house: House) -> None:
    reply = house.call("GET", "/api/auth/capabilities", caller=None)
    assert reply == (200, {"enabled": False, "login": None})


def test_a_token_is_its_owner_and_the_service_key_is_nobody(house: House) -> None:
    assert house.call("GET", "/api/auth/me", caller=user("user-ada")) == (200, {"id": "user-ada"})
    assert house.call("GET", "/api/auth/me") == (200, None)
    assert house.call("GET", "/api/auth/me", caller=None)[0] == 401


def test_switches_turn_off_what_is_not_there(house: House) -> None:
    _, installed = house.call("GET", "/api/system/packages")
    assert installed == {
        "packages": [],
        "isDev": False,
        "cmsEnabled": False,
        "liveKitConnectionRouteEnabled": False,
        "observabilityEnabled": False,
        "storageType": "DynamoDB",
    }
