"""The streaming function on AWS, where no emulator can show it: what SAM makes of the template, and what is packed."""

import json
import os
import subprocess
from functools import cache
from typing import Any

import pytest

from local.stack import ROOT
from tests.template import resources, template

SAM_PYTHON = ROOT / ".local/venvs/sam/bin/python"
STREAM = resources("AWS::Serverless::Function")["StreamFunction"]["Properties"]
_EXPAND = """
import json, sys
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samcli.yamlhelper import yaml_parse
source = yaml_parse(open("template.yaml").read())
for resource in source["Resources"].values():  # as `sam package` leaves them
    for name in {"CodeUri", "ContentUri", "DefinitionUri"} & resource.get("Properties", {}).keys():
        resource["Properties"][name] = "s3://bucket/key"
expanded = Translator(None, Parser()).translate(source, {"Stage": "dev"})
json.dump(expanded, sys.stdout)
"""


@cache
def expanded() -> dict[str, Any]:
    """The template as CloudFormation gets it."""
    environment = os.environ | {"AWS_DEFAULT_REGION": "us-east-1", "SAM_CLI_TELEMETRY": "0"}
    done = subprocess.run(
        [str(SAM_PYTHON), "-c", _EXPAND], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def paths() -> list[str]:
    return [event["Properties"]["Path"] for event in STREAM["Events"].values()]


@pytest.mark.parametrize("path", paths())
def test_the_gateway_streams_what_the_function_sends(path: str) -> None:
    """https://docs.aws.amazon.com/apigateway/latest/developerguide/response-transfer-mode.html"""
    api = next(r for r in expanded()["Resources"].values() if r["Type"] == "AWS::ApiGateway::RestApi")
    integration = api["Properties"]["Body"]["paths"][path]["post"]["x-amazon-apigateway-integration"]
    assert integration["responseTransferMode"] == "STREAM"
    assert "/2021-11-15/functions/" in json.dumps(integration["uri"])
    assert "/response-streaming-invocations" in json.dumps(integration["uri"])
    assert integration["timeoutInMillis"] == 900_000


def test_no_other_route_streams() -> None:
    api = next(r for r in expanded()["Resources"].values() if r["Type"] == "AWS::ApiGateway::RestApi")
    streamed = {
        path
        for path, methods in api["Properties"]["Body"]["paths"].items()
        for method in methods.values()
        if method.get("x-amazon-apigateway-integration", {}).get("responseTransferMode") == "STREAM"
    }
    assert streamed == set(paths())


def test_the_function_runs_the_adapter_with_a_server_behind_it() -> None:
    variables = STREAM["Environment"]["Variables"]
    assert variables["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/bootstrap"
    assert variables["AWS_LWA_INVOKE_MODE"] == "response_stream"
    script = ROOT / "functions/stream/run.sh"
    assert STREAM["Handler"] == script.name
    assert os.access(script, os.X_OK), "Lambda cannot start a script that is not executable"
    assert variables["AWS_LWA_PORT"].isdigit()
    assert '--port "$AWS_LWA_PORT"' in script.read_text()


def test_the_adapter_is_left_out_locally() -> None:
    [layer] = STREAM["Layers"]
    condition, on_aws, local = layer["Fn::If"]
    assert (condition, local) == ("IsOnAws", {"Ref": "AWS::NoValue"})
    assert "LambdaAdapterLayerArm64:${WebAdapterVersion}" in on_aws["Fn::Sub"]


def test_a_streamed_run_ends_before_its_function_does() -> None:
    from threadkeep.config import Settings

    assert Settings().stream_deadline_seconds <= STREAM["Timeout"] - 30
    assert template()["Parameters"]["WebAdapterVersion"]["Type"] == "Number"
