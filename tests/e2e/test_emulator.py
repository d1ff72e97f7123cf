"""Each fault of the emulator that `local/emulator.py` closes stays closed, and the template's edge is as declared."""

import io
import json
import socket
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from local.stack import Stack
from tests.conftest import client_of
from tests.e2e.application import Application, eventually, new_id

FAILING = """
import os, time
class NoSuchOrder(Exception): ...
if "DIES_AT_START" in os.environ:
    os.kill(os.getpid(), 9)
def handler(event, context):
    time.sleep(event.get("sleep", 0))
    if event.get("die"):
        os.kill(os.getpid(), 9)
    if event.get("raise"):
        raise NoSuchOrder("order 7")
    return os.getpid()
"""


@pytest.fixture(scope="module")
def failing(stack: Stack) -> Iterator[str]:
    """A function that fails on demand and else tells its process."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("app.py", FAILING)
    name = f"failing-{uuid.uuid4().hex[:8]}"
    functions = stack.client("lambda")
    functions.create_function(
        FunctionName=name, Runtime="python3.13", Handler="app.handler", Role="arn:aws:iam::000000000000:role/none",
        Code={"ZipFile": archive.getvalue()},
    )  # fmt: skip
    yield name
    functions.delete_function(FunctionName=name)


def invoke(stack: Stack, function: str, event: dict[str, Any]) -> Any:
    answer = stack.client("lambda").invoke(FunctionName=function, Payload=json.dumps(event))
    return json.loads(answer["Payload"].read())


def test_exceptions_keep_their_names_and_the_worker_stays(stack: Stack, failing: str) -> None:
    before = invoke(stack, failing, {})
    assert invoke(stack, failing, {"raise": True})["errorType"] == "NoSuchOrder"
    assert invoke(stack, failing, {}) == before


def test_a_function_that_dies_has_failed_with_an_exit_error(stack: Stack, failing: str) -> None:
    assert invoke(stack, failing, {"die": True})["errorType"] == "Runtime.ExitError"
    assert isinstance(invoke(stack, failing, {}), int)


def test_a_function_that_dies_while_it_starts_has_failed_with_an_exit_error(stack: Stack, failing: str) -> None:
    functions = stack.client("lambda")
    functions.update_function_configuration(FunctionName=failing, Environment={"Variables": {"DIES_AT_START": "1"}})
    assert invoke(stack, failing, {})["errorType"] == "Runtime.ExitError"
    functions.update_function_configuration(FunctionName=failing, Environment={"Variables": {}})
    assert isinstance(invoke(stack, failing, {}), int)


@pytest.fixture
def machine(stack: Stack, failing: str) -> Callable[..., str]:
    """Creates a state machine of one task, the failing function, and returns its ARN."""
    arn = stack.client("lambda").get_function_configuration(FunctionName=failing)["FunctionArn"]

    def created(kind: str, **task: Any) -> str:
        call = {"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "OutputPath": "$.Payload", "End": True}
        call |= {"Parameters": {"FunctionName": arn, "Payload.$": "$"}} | task
        definition = {"StartAt": "First", "States": {"First": {"Type": "Pass", "Next": "Call"}, "Call": call}}
        role = "arn:aws:iam::000000000000:role/none"
        made = stack.client("stepfunctions").create_state_machine(
            name=f"machine-{uuid.uuid4().hex[:8]}", definition=json.dumps(definition), roleArn=role, type=kind
        )
        return made["stateMachineArn"]

    return created


def ended(stack: Stack, execution: str) -> Any:
    """An execution once it has come to its end."""

    def look() -> Any:
        found = stack.client("stepfunctions").describe_execution(executionArn=execution)
        return found if found["status"] != "RUNNING" else None

    return eventually(look)


def test_an_execution_begins_at_once_and_is_forgotten(stack: Stack, machine: Callable[..., str]) -> None:
    machines, arn = stack.client("stepfunctions"), machine("EXPRESS")
    taken: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        done = machines.start_sync_execution(stateMachineArn=arn, input="{}")
        taken.append(time.perf_counter() - began)
        assert done["status"] == "SUCCEEDED"
        with pytest.raises(machines.exceptions.ExecutionDoesNotExist):
            machines.describe_execution(executionArn=done["executionArn"])
    assert min(taken) < 0.14  # the stock wait alone is 150 ms


@pytest.mark.parametrize("language", ["JSONPath", "JSONata"])
def test_a_task_has_the_time_that_its_input_says(
    stack: Stack, failing: str, machine: Callable[..., str], language: str
) -> None:
    limits = {
        "JSONPath": {"TimeoutSecondsPath": "$.seconds"},
        "JSONata": {"TimeoutSeconds": "{% $states.input.seconds %}"},
    }
    payload = {"FunctionName": failing, "Payload": "{% $states.input %}"}
    arn = machine("EXPRESS", QueryLanguage=language, Arguments=payload, **limits[language])
    given = json.dumps({"seconds": 1, "sleep": 5})
    done = stack.client("stepfunctions").start_sync_execution(stateMachineArn=arn, input=given)
    assert (done["status"], done["error"]) == ("FAILED", "States.Timeout")


def test_a_stopped_execution_stays_stopped(stack: Stack, machine: Callable[..., str]) -> None:
    machines, given = stack.client("stepfunctions"), json.dumps({"sleep": 1, "raise": True})
    execution = machines.start_execution(stateMachineArn=machine("STANDARD"), input=given)["executionArn"]
    machines.stop_execution(executionArn=execution, error="Cancelled")
    time.sleep(1.5)
    assert ended(stack, execution)["status"] == "ABORTED"


def test_a_failed_execution_goes_on_where_it_failed(stack: Stack, failing: str, machine: Callable[..., str]) -> None:
    machines, functions = stack.client("stepfunctions"), stack.client("lambda")
    execution = machines.start_execution(stateMachineArn=machine("STANDARD"), input="{}")["executionArn"]
    with pytest.raises(machines.exceptions.ClientError, match="ExecutionNotRedrivable"):
        machines.redrive_execution(executionArn=ended(stack, execution)["executionArn"])
    functions.update_function_configuration(FunctionName=failing, Handler="app.gone")
    execution = machines.start_execution(stateMachineArn=machine("STANDARD"), input="{}")["executionArn"]
    assert ended(stack, execution)["status"] == "FAILED"
    functions.update_function_configuration(FunctionName=failing, Handler="app.handler")
    machines.redrive_execution(executionArn=execution)
    assert ended(stack, execution)["status"] == "SUCCEEDED"
    events = machines.get_execution_history(executionArn=execution)["events"]
    assert [event["type"] for event in events].count("PassStateEntered") == 1


def test_a_silent_call_does_not_wait_for_log_lines(stack: Stack, failing: str) -> None:
    invoke(stack, failing, {})
    taken: list[float] = []
    for _ in range(10):
        began = time.perf_counter()
        invoke(stack, failing, {})
        taken.append(time.perf_counter() - began)
    assert min(taken) < 0.045  # the stock wait alone is 50 ms


def test_archives_are_unpacked_once(stack: Stack, api: httpx.Client) -> None:
    assert api.get("/health").status_code == 200
    layers = list((stack.home / "tmp").glob("ministack-lambda-*/layer_0"))
    assert layers
    assert not list((stack.home / "tmp").glob("ministack-lambda-*/*.zip"))
    assert all(layer.is_symlink() for layer in layers)
    assert len({layer.resolve() for layer in layers}) == 1


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/nothing"), ("PUT", "/api/agents"), ("GET", "/api"), ("GET", "/api/agents/a/b")]
)
def test_unknown_routes_are_404_in_json(api: httpx.Client, method: str, path: str) -> None:
    answer = api.request(method, path)
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("credential", [None, "", "Bearer wrong", "Basic d3Jvbmc=", "Bearer a.b.c"])
def test_wrong_credentials_are_401_in_json(stack: Stack, credential: str | None) -> None:
    headers = {} if credential is None else {"Authorization": credential}
    answer = httpx.get(f"{stack.base_url}/api/agents", headers=headers, timeout=60)
    assert (answer.status_code, answer.json()) == (401, {"error": "Invalid or expired token"})
    assert answer.headers["access-control-allow-origin"] == "*"


def test_preflight_names_what_browsers_may_send(stack: Stack) -> None:
    answer = httpx.options(f"{stack.base_url}/api/agents", headers={"Origin": "https://app.example"}, timeout=60)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    assert "DELETE" in answer.headers["access-control-allow-methods"]


def test_a_body_over_the_limit_of_lambda_is_413_in_json(api: httpx.Client) -> None:
    answer = api.post("/api/memory/threads", content=b" " * (6 * 1024 * 1024 + 1))
    assert (answer.status_code, answer.json()) == (413, {"error": "Request body too large"})


def test_a_failed_function_is_502_without_its_reason(stack: Stack, api: httpx.Client) -> None:
    """The threads function loses its handler for one call."""
    functions = stack.client("lambda")
    [name] = [
        f["FunctionName"] for f in functions.list_functions()["Functions"] if "ThreadsFunction" in f["FunctionName"]
    ]
    handler = functions.get_function_configuration(FunctionName=name)["Handler"]
    functions.update_function_configuration(FunctionName=name, Handler="app.gone")
    try:
        answer = api.get("/api/memory/threads?resourceId=r")
    finally:
        functions.update_function_configuration(FunctionName=name, Handler=handler)
    assert (answer.status_code, answer.json()) == (502, {"error": "Internal server error"})
    assert api.get("/api/memory/threads?resourceId=r").status_code == 200


def test_expiry_and_service_key_are_as_declared(stack: Stack) -> None:
    described = stack.client("dynamodb").describe_time_to_live(TableName=stack.outputs["TableName"])
    assert described["TimeToLiveDescription"] == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expiresAt"}
    assert stack.service_key().isalnum()
    assert len(stack.service_key()) == 48


def mapping(stack: Stack, source: str) -> str:
    """The id of the event source mapping that reads from `sqs` or `dynamodb`."""
    mappings = stack.client("lambda").list_event_source_mappings()["EventSourceMappings"]
    [uuid] = [m["UUID"] for m in mappings if m["EventSourceArn"].split(":")[2] == source]
    return uuid


def switch(stack: Stack, source: str, on: bool) -> None:
    stack.client("lambda").update_event_source_mapping(UUID=mapping(stack, source), Enabled=on)


def restarted(stack: Stack, *, other_port: bool) -> None:
    """Stop and start again what persists; with `other_port` somebody has taken the emulator's port in between."""
    stack.stop()
    with socket.socket() as taken:
        if other_port:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", stack.record["emulator_port"]))
            taken.listen()
        stack.start()
    stack.deploy()
    stack.serve()


def test_work_that_waits_and_new_work_is_done_after_a_restart(deploy: Callable[..., Stack]) -> None:
    """One thread waits in the table's stream, one in the queue, one is half done; others come after the restarts."""
    stack, owner = deploy(persist=True), new_id("owner")

    def threads_with_turns(count: int) -> list[str]:
        threads = [new_id() for _ in range(count)]
        with client_of(stack) as http:
            for thread in threads:
                Application(stack, http).say("Hello\n@say Hello", thread, owner)
        return threads

    def all_have_titles(threads: list[str]) -> bool:
        with client_of(stack) as http:
            return all(Application(stack, http).thread(thread)["title"] for thread in threads)

    first = threads_with_turns(1)
    eventually(lambda: all_have_titles(first))
    switch(stack, "sqs", on=False)
    queued = threads_with_turns(2)
    queue = {"QueueUrl": stack.outputs["AfterTurnQueueUrl"]}
    stack.client("sqs").set_queue_attributes(**queue, Attributes={"VisibilityTimeout": "20"})
    taken = eventually(lambda: stack.client("sqs").receive_message(**queue, MaxNumberOfMessages=1).get("Messages"))
    assert len(taken) == 1  # nobody else gets it for 20 seconds
    switch(stack, "dynamodb", on=False)
    streamed = threads_with_turns(1)
    restarted(stack, other_port=False)
    assert not all_have_titles(queued[:1]) and not all_have_titles(streamed)
    switch(stack, "dynamodb", on=True)
    switch(stack, "sqs", on=True)
    new = threads_with_turns(1)
    eventually(lambda: all_have_titles(queued + streamed + new), 90)
    restarted(stack, other_port=True)
    late = threads_with_turns(1)
    eventually(lambda: all_have_titles(late))
