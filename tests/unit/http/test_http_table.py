"""The route table, what is made of it, the example events, and what a cold start loads."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents import agents
from tests.unit.http.house import EVENTS, House
from threadkeep.agents import Registry
from threadkeep.http import openapi
from threadkeep.http.routes import ROUTES

ROOT = Path(__file__).parents[3]

EXPECTED = {
    "agents/health": 200,
    "agents/list": 200,
    "agents/list-partial": 200,
    "agents/get": 200,
    "agents/get-unknown": 404,
    "agents/get-tool": 200,
    "agents/get-tool-unknown": 404,
    "agents/providers": 200,
    "agents/speakers": 200,
    "agents/listener": 200,
    "agents/browser-session": 200,
    "agents/studio-capabilities": 200,
    "agents/studio-current-user": 200,
    "agents/studio-permissions": 200,
    "agents/studio-packages": 200,
    "agents/studio-builder-settings": 200,
    "agents/studio-workflows": 200,
    "agents/studio-processors": 200,
    "agents/studio-scorers": 200,
    "agents/studio-mcp-servers": 200,
    "agents/studio-workspaces": 200,
    "agents/studio-channels": 200,
    "agents/studio-experiments": 200,
    "agents/studio-builder-models": 200,
    "agents/studio-datasets": 200,
    "agents/studio-feedback": 200,
    "agents/studio-experiment-list": 200,
    "agents/studio-prompt-blocks": 200,
    "generate/generate": 200,
    "generate/generate-new-thread": 200,
    "generate/generate-vnext": 200,
    "generate/generate-unknown-agent": 404,
    "generate/generate-empty": 400,
    "generate/generate-foreign": 403,
    "generate/send-message": 200,
    "generate/send-message-text": 200,
    "generate/send-message-none": 400,
    "generate/send-message-foreign": 403,
    "generate/queue-message": 200,
    "generate/signals": 200,
    "generate/signals-reactive": 400,
    "generate/abort": 200,
    "generate/send-tool-approval-unknown": 404,
    "generate/send-tool-results": 200,
    "threads/create": 200,
    "threads/create-minimal": 200,
    "threads/create-as-user": 200,
    "threads/create-taken": 403,
    "threads/create-bad-json": 400,
    "threads/create-bad-types": 400,
    "threads/create-no-agent": 400,
    "threads/create-unknown-agent": 404,
    "threads/list": 200,
    "threads/list-ordered": 200,
    "threads/list-metadata": 200,
    "threads/list-bad-page": 400,
    "threads/get": 200,
    "agents/list-tools": 200,
    "agents/get-any-tool": 200,
    "generate/execute-agent-tool": 200,
    "generate/execute-agent-tool-invalid": 200,
    "generate/execute-agent-tool-no-data": 400,
    "generate/execute-tool": 200,
    "generate/generate-client-tool": 200,
    "generate/generate-structured": 424,  # the model of this test does not answer in JSON
    "generate/approve": 404,  # the store of this test holds no suspended run
    "generate/approve-no-call": 400,
    "generate/decline": 404,
    "generate/suspended-runs": 200,
    "generate/start-run": 202,
    "generate/start-run-foreign": 403,
    "generate/start-run-bad-limits": 400,
    "generate/list-runs": 200,
    "generate/list-runs-no-thread": 400,
    "generate/get-run-unknown": 404,
    "generate/cancel-run-unknown": 404,
    "threads/get-foreign": 403,
    "threads/get-missing": 404,
    "threads/get-bad-id": 400,
    "threads/delete": 200,
    "threads/delete-foreign": 403,
    "threads/delete-missing": 404,
    "threads/messages": 200,
    "threads/messages-bad-per-page": 400,
    "threads/messages-missing": 404,
    "threads/messages-filter": 200,
    "threads/messages-filter-bracketed": 200,
    "threads/messages-include": 200,
    "threads/messages-bad-filter": 400,
    "threads/status": 200,
    "threads/status-no-agent": 400,
    "threads/config": 200,
    "threads/observational-memory": 400,
    "threads/observational-memory-unknown-agent": 404,
    "threads/buffer-status": 400,
    "threads/update": 200,
    "threads/update-title-only": 200,
    "threads/update-foreign": 403,
    "threads/update-missing": 404,
    "threads/update-bad-types": 400,
    "threads/transfer": 200,
    "threads/transfer-as-user": 403,
    "threads/clone": 200,
    "threads/clone-default": 200,
    "threads/clone-existing": 409,
    "threads/clone-missing": 404,
    "threads/clone-bad-dates": 400,
    "threads/save": 200,
    "threads/save-text": 200,
    "threads/save-foreign": 403,
    "threads/save-missing": 404,
    "threads/save-no-thread": 400,
    "threads/save-not-array": 400,
    "threads/delete-messages": 200,
    "threads/delete-messages-one": 200,
    "threads/delete-messages-foreign": 403,
    "threads/delete-messages-bad": 400,
    "threads/network-save": 200,
    "threads/network-delete-messages": 200,
    "threads/network-status": 200,
    "threads/network-list": 200,
    "threads/network-create": 200,
    "threads/network-get": 200,
    "threads/network-update": 200,
    "threads/network-delete": 200,
    "threads/network-messages": 200,
    "working_memory/get": 200,
    "working_memory/get-thread-scope": 200,
    "working_memory/get-missing-thread": 200,
    "working_memory/get-as-user": 200,
    "working_memory/get-foreign": 403,
    "working_memory/get-no-agent": 400,
    "working_memory/update": 200,
    "working_memory/update-thread-scope": 200,
    "working_memory/update-schema": 200,
    "working_memory/update-empty": 400,
    "working_memory/update-not-text": 400,
    "working_memory/update-no-resource": 400,
    "working_memory/update-missing-thread": 404,
    "working_memory/update-foreign": 403,
    "working_memory/update-stale": 409,
    "working_memory/update-if-match": 412,
    "working_memory/get-resource": 200,
    "working_memory/get-resource-foreign": 403,
    "working_memory/replace-resource": 200,
    "working_memory/replace-resource-any": 200,
    "working_memory/replace-resource-if-match": 412,
    "working_memory/clear-resource": 200,
    "working_memory/patch-resource": 200,
    "working_memory/patch-resource-any": 200,
    "working_memory/patch-resource-markdown": 400,
    "working_memory/patch-resource-not-object": 400,
}


def events() -> dict[str, dict[str, Any]]:
    functions = {route.function for route in ROUTES}
    found = (file for function in sorted(functions) for file in sorted((EVENTS / function).glob("*.json")))
    return {f"{file.parent.name}/{file.stem}": json.loads(file.read_text()) for file in found}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_events_get_the_status_that_they_are_named_for(house: House, name: str) -> None:
    shipped = [replace(agent, model="fake/m") for agent in agents]
    house.app = replace(house.app, registry=Registry(shipped))
    house.add_thread("thr-1", "user-ada", messages=2)
    status, reply = house.send(events()[name])
    assert status == EXPECTED[name], reply


def test_every_event_is_expected_and_every_route_has_one() -> None:
    assert events().keys() == EXPECTED.keys()
    covered = {(e["httpMethod"], e["resource"]) for e in events().values()}
    buffered = {(route.method, route.path) for route in ROUTES if not route.streams}  # streams reach no handler
    assert covered == buffered


def test_no_two_routes_share_method_and_path() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


def test_openapi_json_has_not_drifted() -> None:
    assert (ROOT / "docs/openapi.json").read_text() == openapi.text(), "run `make openapi`"


def test_openapi_check_notices_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert openapi.main(["--check"]) == 1
    assert openapi.main([]) == 0
    assert openapi.main(["--check"]) == 0
    Path("docs/openapi.json").write_text("{}")
    assert openapi.main(["--check"]) == 1


def test_openapi_is_whole() -> None:
    described = openapi.document(ROUTES)
    operations = [o for path in described["paths"].values() for o in path.values()]
    assert len(operations) == len(ROUTES) == len({o["operationId"] for o in operations})
    text = json.dumps(described)
    referred = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert referred <= described["components"]["schemas"].keys()
    assert described["paths"]["/health"]["get"]["security"] == []


class _Template(yaml.SafeLoader):
    """Reads CloudFormation's short tags as plain values."""


_Template.add_multi_constructor("!", lambda loader, suffix, node: (suffix, node.value))


def test_the_templates_api_events_are_the_route_table() -> None:
    template = yaml.load((ROOT / "template.yaml").read_text(), _Template)
    deployed = {
        (event["Properties"]["Method"].upper(), event["Properties"]["Path"]): (
            resource["Properties"]["CodeUri"].removeprefix("functions/").rstrip("/"),
            event["Properties"].get("Auth", {}).get("Authorizer") == "NONE",
        )
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::Serverless::Function"
        for event in resource["Properties"].get("Events", {}).values()
        if event["Type"] == "Api"
    }
    assert deployed == {(route.method, route.path): (route.function, route.public) for route in ROUTES}


@pytest.mark.parametrize(
    "function,kept_out",
    [
        ("agents", ("openai", "jwt", "cryptography", "boto3", "threadkeep.http.threads")),
        ("threads", ("openai", "jwt", "cryptography", "boto3", "threadkeep.http.generate", "threadkeep.http.agents")),
        ("generate", ("openai", "jwt", "cryptography", "boto3", "threadkeep.http.threads")),
        (
            "working_memory",
            ("openai", "jwt", "cryptography", "boto3", "threadkeep.http.threads", "threadkeep.http.agents"),
        ),
        ("authorizer", ("openai", "jwt", "cryptography", "boto3", "pydantic", "threadkeep.storage")),
    ],
)
def test_a_cold_start_loads_only_what_its_function_needs(function: str, kept_out: tuple[str, ...]) -> None:
    path = os.pathsep.join(str(ROOT / part) for part in (f"functions/{function}", "layers/threadkeep", "layers/agents"))
    script = f"import app, sys; print([m for m in {kept_out!r} if m in sys.modules])"
    environment = os.environ | {"PYTHONPATH": path, "AWS_DEFAULT_REGION": "eu-central-1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
