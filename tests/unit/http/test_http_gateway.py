"""The gateway adapter: bodies, sizes, credentials, errors that nobody foresaw."""

import base64
import json
import time
from typing import Any

import pytest

from tests.unit.http.house import House, user
from threadkeep.errors import ConfigurationError
from threadkeep.http import gateway
from threadkeep.http.routes import ROUTES
from threadkeep.http.serve import MAX_REQUEST_BYTES

LIST = "/api/memory/threads"
AGENT = {"agentId": "assistant"}
BODY = {"resourceId": "user-ada", "threadId": "thr-1"}
UNAUTHENTICATED = (401, {"error": "Invalid or expired token"})


@pytest.mark.parametrize("text", ["", '{"resourceId":', "resourceId=x", '{"a":NaN}', "[" * 200_000, '{"a":1e999}'])
def test_what_is_not_json_names_the_body(house: House, text: str) -> None:
    status, reply = house.call("POST", LIST, query=AGENT, text=text)
    assert (status, reply["error"]) == (400, "Invalid request body")
    assert [i["field"] for i in reply["issues"]] == ["body"]


@pytest.mark.parametrize("depth", [100, 500, 900, 990, 1_000, 2_000, 5_000, 20_000, 100_000])
def test_no_depth_of_nesting_is_an_internal_error(house: House, depth: int) -> None:
    text = '{"resourceId":"user-ada","metadata":' + '{"a":' * depth + "1" + "}" * depth + "}"
    status, reply = house.call("POST", LIST, query=AGENT, text=text)
    assert (status, [i["field"] for i in reply["issues"]]) == (400, ["body"])
    shallow = '{"resourceId":"user-ada","metadata":' + '{"a":' * 98 + "1" + "}" * 98 + "}"
    assert house.call("POST", LIST, query=AGENT, text=shallow)[0] == 200


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}]
)
def test_other_content_types_are_no_body(house: House, headers: dict[str, str]) -> None:
    status, reply = house.call("POST", LIST, query=AGENT, body=BODY, headers=headers)
    assert (status, reply["issues"][0]["field"]) == (400, "body")
    assert "application/json" in reply["issues"][0]["message"]


def test_a_charset_and_base64_are_fine(house: House) -> None:
    text = base64.b64encode(json.dumps(BODY | {"title": "Grüße"}, ensure_ascii=False).encode()).decode()
    headers = {"CONTENT-TYPE": "Application/JSON; charset=utf-8"}
    status, reply = house.call("POST", LIST, query=AGENT, text=text, headers=headers, isBase64Encoded=True)
    assert (status, reply["title"]) == (200, "Grüße")


@pytest.mark.parametrize("raw", [b"\xff\xfe\xfa", b'{"title":"\xe9"}'])
def test_broken_utf8_and_broken_base64_name_the_body(house: House, raw: bytes) -> None:
    for text in (base64.b64encode(raw).decode(), "not base64!"):
        status, reply = house.call("POST", LIST, query=AGENT, text=text, isBase64Encoded=True)
        assert (status, reply["issues"][0]["field"]) == (400, "body")


@pytest.mark.parametrize("encoded", [False, True])
def test_oversized_bodies_are_413(house: House, encoded: bool) -> None:
    def padded(size: int) -> tuple[int, Any]:
        text = json.dumps(BODY).ljust(size)
        text = base64.b64encode(text.encode()).decode() if encoded else text
        return house.call("POST", LIST, query=AGENT, text=text, isBase64Encoded=encoded)

    assert padded(MAX_REQUEST_BYTES + 1) == (413, {"error": "Request body too large"})
    assert padded(MAX_REQUEST_BYTES + 100_000) == (413, {"error": "Request body too large"})
    assert house.threads() == []
    assert padded(MAX_REQUEST_BYTES)[0] == 200


def test_a_reply_that_would_not_fit_is_413_naming_per_page(house: House) -> None:
    for n in range(20):  # 3.6 MB of JSON, of which Lambda makes 7.2 MB when it escapes it once more
        house.add_thread(f"thr-{n}", metadata={"a": '"' * 90_000})
    status, reply = house.call("GET", LIST, query={"perPage": "false"})
    assert status == 413
    assert "perPage" in reply["error"]
    assert house.call("GET", LIST, query={"perPage": "10"})[0] == 200


@pytest.mark.parametrize(
    "caller",
    [
        None,
        {},
        {"kind": "anonymous"},
        {"kind": "user"},
        {"kind": "user", "resource": "user-ada"},
        {"principalId": "service"},
    ],
)
def test_without_an_identity_nothing_opens(house: House, caller: Any) -> None:
    assert house.call("GET", LIST, caller=caller) == UNAUTHENTICATED
    assert house.call("POST", LIST, query=AGENT, body=BODY, caller=caller) == UNAUTHENTICATED
    assert house.threads() == []


def test_an_expired_token_is_refused_though_the_gateway_still_knows_it(house: House) -> None:
    assert house.call("GET", LIST, caller=user("user-ada", int(time.time()) - 60)) == UNAUTHENTICATED
    assert house.call("GET", LIST, caller=user("user-ada", int(time.time()) + 60))[0] == 200


def test_a_subject_that_is_no_legal_resource_is_told_so(house: House) -> None:
    status, reply = house.call("GET", LIST, caller=user("user ada"))
    assert status == 403
    assert "subject" in reply["error"] and "may only contain" in reply["error"]


def test_health_is_public_and_says_nothing_else(house: House) -> None:
    assert house.call("GET", "/health", caller=None) == (200, {"success": True})


@pytest.mark.parametrize(
    "method,resource", [("PUT", LIST), ("GET", "/api/nothing"), ("DELETE", "/api/agents/{agentId}")]
)
def test_unknown_routes_are_404_in_json(house: House, method: str, resource: str) -> None:
    assert house.call(method, resource) == (404, {"error": "Not Found"})


def test_unforeseen_errors_tell_an_id_and_no_cause(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("table arn:aws:secret")

    monkeypatch.setattr(house.store, "list_threads", broken)
    assert house.call("GET", LIST) == (500, {"error": "Internal error", "requestId": "req-1"})
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["requestId"] == "req-1" and "table arn:aws:secret" in line["exception"]


def test_a_house_that_is_set_up_wrongly_still_answers_in_json() -> None:
    def app() -> Any:
        raise ConfigurationError("the secret is called prod/key")

    response = gateway.handler(ROUTES, app)(
        {"httpMethod": "GET", "resource": LIST, "requestContext": {"authorizer": {"kind": "service"}}}, None
    )
    assert response["statusCode"] == 500
    assert "prod/key" not in response["body"]
    assert json.loads(response["body"])["requestId"]


def test_single_value_queries_and_null_fields_of_other_gateways_are_read(house: House) -> None:
    status, _ = house.call("GET", LIST, multiValueQueryStringParameters=None, queryStringParameters={"page": "-1"})
    assert status == 400
    status, _ = house.call("GET", LIST, multiValueQueryStringParameters=None, queryStringParameters=None, body=None)
    assert status == 200
