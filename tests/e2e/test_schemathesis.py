"""Requests made from docs/openapi.json, legal and illegal ones: no 5xx, and no status or body that is not described."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from local.stack import ROOT, Stack
from tests.conftest import client_of
from tests.e2e.application import THREADS, new_id

EXAMPLES = 12  # of each kind for each operation
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = schemathesis.openapi.from_dict(json.loads((ROOT / "docs/openapi.json").read_text()))
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]


@pytest.fixture(scope="module")
def known(stack: Stack) -> Iterator[dict[str, str]]:
    """Parameters that name something which exists, for requests that shall get beyond a 404."""
    names = {"threadId": new_id("thread"), "agentId": "assistant", "resourceId": new_id("owner")}
    names["requestContext"] = "e30="
    with client_of(stack) as http:
        http.post(f"{THREADS}?agentId=assistant", json={k: names[k] for k in ("threadId", "resourceId")})
        yield names


def aimed(parameters: dict[str, Any] | None, known: dict[str, str]) -> None:
    """Let every other legal id name something that exists."""
    for name, value in (parameters or {}).items():
        if name in known and isinstance(value, str) and len(value) % 2 == 0:
            parameters[name] = known[name]  # type: ignore[index]


def takes_input(operation: Any) -> bool:
    """Whether anything about a request can be wrong."""
    return any((operation.path_parameters, operation.query, operation.body))


CASES = [
    pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
    for operation in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or takes_input(operation)
]


@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_every_answer_is_described(stack: Stack, known: dict[str, str], operation: Any, mode: GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {stack.service_key()}"}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if operation.method != "delete":
            aimed(case.path_parameters, known)
        aimed(case.query, known)
        response = case.call(base_url=stack.base_url, headers=headers)
        case.validate_response(response, checks=CHECKS)

    ask()
