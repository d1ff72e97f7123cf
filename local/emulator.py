"""Starts MiniStack with the faults closed that `template.yaml` meets. Runs in the emulator's own environment.

Each `close_*` function closes one fault for this process and fails loudly if the place it replaces is gone;
`tests/e2e/test_emulator.py` proves each of them. They are written for exactly one version.
"""

import contextvars
import copy
import hashlib
import importlib.metadata
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ministack.core.iam_actions as iam_actions  # type: ignore[import-not-found]
import ministack.core.lambda_runtime as runtime  # type: ignore[import-not-found]
import ministack.services.apigateway_v1 as api  # type: ignore[import-not-found]
import ministack.services.cloudformation.provisioners as provisioners  # type: ignore[import-not-found]
import ministack.services.dynamodb as dynamodb  # type: ignore[import-not-found]
import ministack.services.lambda_svc as functions  # type: ignore[import-not-found]
import ministack.services.secretsmanager as secretsmanager  # type: ignore[import-not-found]
import ministack.services.sqs as sqs  # type: ignore[import-not-found]
import ministack.services.stepfunctions as machines  # type: ignore[import-not-found]

VERSION = "1.5.33"
LAMBDA_REQUEST_BYTES = 6 * 1024 * 1024
UNPACKED_KEPT = 16  # archives; a deployment has 8, and each update leaves some behind


def replace(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of `module.name`. Raises `AttributeError` if there is no such place."""
    setattr(module, name, make(getattr(module, name)))


# --- Lambda ------------------------------------------------------------------------------------------


_DEAD_AT_START = "Worker process exited immediately"


def close_lost_deaths() -> None:
    """A function whose process dies, also while it starts, has failed with `Runtime.ExitError`.

    Stock takes it for an error of the code.
    """
    known = [(runtime.Worker.invoke, '"Worker process died"'), (runtime.Worker._spawn, f'"{_DEAD_AT_START}')]
    if any(inspect.getsource(part).count(text) != 1 for part, text in known):
        raise SystemExit("MiniStack tells of dead workers in another way than local/emulator.py knows")

    def execute(original: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            result = original(*args)
            body = result.get("body")
            told = body.get("errorMessage") if isinstance(body, dict) and result.get("error") else None
            if told == "Worker process died" or (told or "").startswith(_DEAD_AT_START):
                text = f"RequestId: {args[2]} Error: Runtime exited with error: signal: killed"
                result["body"] = {"errorMessage": text, "errorType": "Runtime.ExitError"}
            return result

        return wrapper

    replace(functions, "_execute_function_warm", execute)


def close_lost_error_names() -> None:
    """An exception keeps its class name, as retries and catches by name need, and leaves the worker warm.

    Stock reports `Runtime.HandlerError` for all and stops the process, so that the next call starts cold.
    """
    reported = 'json.dumps({"status": "error", "error": str(e), "trace": traceback.format_exc()})'
    if runtime._PYTHON_WORKER_SCRIPT.count(reported) != 1:
        raise SystemExit("MiniStack's Python worker is not the one that local/emulator.py knows")
    runtime._PYTHON_WORKER_SCRIPT = runtime._PYTHON_WORKER_SCRIPT.replace(
        reported,
        'json.dumps({"status": "ok", "result": None, "trace": traceback.format_exc(), "raised": {'
        '"errorMessage": str(e), "errorType": type(e).__name__, "requestId": _ms_ctx.get("request_id", ""), '
        '"stackTrace": traceback.format_tb(e.__traceback__)[1:]}})',
    )
    call = threading.local()  # carries the exception over a frame that knows no place for it

    def invoke(original: Any) -> Any:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            response = original(self, *args, **kwargs)
            call.raised = response.get("raised")
            if call.raised:
                response |= {"status": "error", "error": call.raised["errorMessage"]}
            return response

        return wrapper

    def execute(original: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            call.raised = None
            result = original(*args)
            if call.raised and result.get("error"):
                result["body"] = call.raised
            return result

        return wrapper

    replace(runtime.Worker, "invoke", invoke)
    replace(functions, "_execute_function_warm", execute)


def close_fixed_waits() -> None:
    """A call that logs nothing waits 4 ms for a line, not 50; an execution of a state machine begins at once."""
    drain = runtime.Worker._drain_stderr_bounded
    if drain.__defaults__ != (0.050, 0.005, 0.250):
        raise SystemExit("MiniStack's wait for log lines is not the one that local/emulator.py knows")
    drain.__defaults__ = (0.004, 0.002, 0.250)
    if inspect.getsource(machines._run_execution).count("time.sleep(0.15)") != 1:
        raise SystemExit("MiniStack begins executions in another way than local/emulator.py knows")
    at_once = SimpleNamespace(**vars(time))
    at_once.sleep = lambda seconds: None if seconds == 0.15 else time.sleep(seconds)
    machines.time = at_once


def close_repeated_unpacking(home: Path) -> None:
    """Each archive is unpacked once into `home`, named by its content; every worker links to it.

    Stock unpacks the whole layer for every cold start, and keeps the archive beside it for as long as it runs.
    """
    home.mkdir(parents=True, exist_ok=True)

    def forget_oldest() -> None:
        for old in sorted(home.iterdir(), key=lambda path: path.stat().st_mtime)[:-UNPACKED_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    class Archive(zipfile.ZipFile):
        def extractall(self, path: Any = None, *args: Any, **kwargs: Any) -> None:
            digest = hashlib.sha256(Path(str(self.filename)).read_bytes()).hexdigest()
            shared = home / digest
            if shared.is_dir():
                os.utime(shared)
            else:
                fresh = tempfile.mkdtemp(dir=home)
                super().extractall(fresh, *args, **kwargs)
                try:
                    os.rename(fresh, shared)
                except OSError:  # another worker was faster
                    shutil.rmtree(fresh, ignore_errors=True)
                forget_oldest()
            os.rmdir(path)
            os.symlink(shared, path)
            os.unlink(str(self.filename))

    if runtime.zipfile is not zipfile:
        raise SystemExit("MiniStack unpacks archives in another way than local/emulator.py knows")
    runtime.zipfile = SimpleNamespace(
        ZipFile=Archive, BadZipFile=zipfile.BadZipFile, LargeFileError=zipfile.LargeZipFile
    )


# --- Step Functions ----------------------------------------------------------------------------------


def close_ignored_time_limits() -> None:
    """A task's time limit may come from its input: `TimeoutSecondsPath`, or an expression. Stock knows numbers only."""

    def execute(original: Any) -> Any:
        def wrapper(state: dict[str, Any], given: Any, execution: Any, context: Any) -> Any:
            if "TimeoutSecondsPath" in state:
                limit = machines._resolve_path_or_ctx(state["TimeoutSecondsPath"], given, context)
                state = state | {"TimeoutSeconds": limit}
            elif isinstance(state.get("TimeoutSeconds"), str):
                limit = machines._jsonata_state_field(state, "TimeoutSeconds", "number", given, context)
                state = state | {"TimeoutSeconds": limit}
            return original(state, given, execution, context)

        return wrapper

    replace(machines, "_execute_task", execute)


def close_kept_express_executions() -> None:
    """An execution that was waited for is forgotten once it has ended. Stock keeps, and persists, all of them."""

    def start(original: Any) -> Any:
        def wrapper(request: dict[str, Any]) -> Any:
            answer = original(request)
            machines._executions.pop(json.loads(answer[2]).get("executionArn"), None)
            return answer

        return wrapper

    replace(machines, "_start_sync_execution", start)


def close_failures_after_a_stop() -> None:
    """An execution that was stopped stays so. Stock has it fail when the task that ran then fails."""

    def fail(original: Any) -> Any:
        def wrapper(execution: Any, error: str, cause: str) -> None:
            if execution["status"] == "RUNNING":
                original(execution, error, cause)

        return wrapper

    replace(machines, "_fail_execution", fail)


class Redriven(dict[str, Any]):
    """An execution that goes on at the state in which it failed: machine and input are its own, all else is shared."""

    def __init__(self, execution: dict[str, Any], machine: str, given: str):
        super().__init__(stateMachineArn=machine, input=given)
        self.execution = execution

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) if name in self else self.execution[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.execution[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name) if name in self else self.execution.get(name, default)


def close_missing_redrive() -> None:
    """`RedriveExecution` goes on at the state that failed, with that state's input. Stock knows no such action.

    In contrast to AWS variables are lost, and the context names an execution of its own.
    """

    def redrive(request: dict[str, Any]) -> Any:
        execution = machines._executions.get(request.get("executionArn"))
        if execution is None:
            return machines.error_response_json("ExecutionDoesNotExist", "Execution not found", 400)
        if execution["status"] not in ("FAILED", "ABORTED", "TIMED_OUT"):
            text = f"Execution is {execution['status']} and cannot be redriven"
            return machines.error_response_json("ExecutionNotRedrivable", text, 400)
        at = next(e for e in reversed(execution["events"]) if e["type"].endswith("StateEntered"))
        entered = at["stateEnteredEventDetails"]
        machine = machines._state_machines[execution["stateMachineArn"]]
        definition = json.loads(machine["definition"]) | {"StartAt": entered["name"]}
        hidden = f"{execution['executionArn']}:{uuid.uuid4()}"
        machines._state_machines[hidden] = machine | {"definition": json.dumps(definition)}
        machines._executions[hidden] = Redriven(execution, hidden, entered["input"])
        execution.update(status="RUNNING", stopDate=None, output=None, error=None, cause=None)
        machines._add_event(execution, "ExecutionRedriven")

        def run() -> None:
            try:
                machines._run_execution(hidden)
            finally:
                machines._executions.pop(hidden)
                machines._state_machines.pop(hidden)

        threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
        return machines.json_response({"redriveDate": time.time()})

    def handle_request(original: Any) -> Any:
        async def wrapper(method: Any, path: Any, headers: Any, body: Any, query: Any) -> Any:
            if headers.get("x-amz-target", "").endswith(".RedriveExecution"):
                return redrive(json.loads(body))
            return await original(method, path, headers, body, query)

        return wrapper

    replace(machines, "handle_request", handle_request)


# --- API Gateway -------------------------------------------------------------------------------------


def close_ignored_gateway_responses() -> None:
    """A REST API's OpenAPI body brings its gateway responses along. Stock drops them."""

    def import_rest_api(original: Any) -> Any:
        def wrapper(spec: dict[str, Any], *args: Any) -> Any:
            api_id = original(spec, *args)
            for name, response in spec.get("x-amazon-apigateway-gateway-responses", {}).items():
                answer = api._put_gateway_response(api_id, name, response)
                if answer[0] >= 400:
                    raise ValueError(f"gateway response {name}: {answer[2]!r}")
            return api_id

        return wrapper

    replace(api, "_import_rest_api", import_rest_api)


def close_empty_mock_answers() -> None:
    """A mock integration (the CORS preflight) answers with the headers that it declares. Stock drops them."""

    def import_operation(original: Any) -> Any:
        def wrapper(api_id: str, resource_id: str, method: str, operation: Any, *args: Any) -> Any:
            original(api_id, resource_id, method, operation, *args)
            declared = (operation or {}).get("x-amazon-apigateway-integration") or {}
            if str(declared.get("type")).lower() != "mock":
                return
            integration = {"type": "MOCK", "requestTemplates": declared.get("requestTemplates", {})}
            api._put_integration(api_id, resource_id, method, integration)
            for pattern, response in declared.get("responses", {}).items():
                selection = {"selectionPattern": "" if pattern == "default" else pattern}
                api._put_integration_response(
                    api_id, resource_id, method, str(response["statusCode"]), response | selection
                )

        return wrapper

    replace(api, "_import_operation", import_operation)


class BadGateway(Exception):
    """A function failed, or answered something that is no proxy response."""


def close_leaked_failures() -> None:
    """A failed function is a 502 with the gateway's own body. Stock shows the exception to the caller."""

    def proxy_response(original: Any) -> Any:
        def wrapper(result: dict[str, Any]) -> Any:
            body = result.get("body")
            if not result.get("throttle") and (
                result.get("error") or not (isinstance(body, dict) and "statusCode" in body)
            ):
                raise BadGateway
            return original(result)

        return wrapper

    def invoke_proxy(original: Any) -> Any:
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return await original(*args, **kwargs)
            except BadGateway:
                error = api._gw_error("DEFAULT_5XX", "Internal server error")
                error.status = 502
                return error

        return wrapper

    def error_response(original: Any) -> Any:
        def wrapper(error: Any, request: Any) -> Any:
            status, headers, body = original(error, request)
            return getattr(error, "status", status), headers, body

        return wrapper

    replace(api, "_lambda_proxy_response", proxy_response)
    replace(api, "_invoke_lambda_proxy_v1", invoke_proxy)
    replace(api, "_gateway_error_response", error_response)


def close_missing_size_limit() -> None:
    """A body over Lambda's 6 MB is refused before the function. Stock takes any size."""

    def check(original: Any) -> Any:
        def wrapper(method: Any, api_id: str, request: Any, headers: Any, body: Any, query: Any) -> Any:
            if len(body or b"") > LAMBDA_REQUEST_BYTES:
                return api._gw_error("REQUEST_TOO_LARGE", "Request Too Long")
            return original(method, api_id, request, headers, body, query)

        return wrapper

    replace(api, "_check_request_validation", check)


# --- IAM ---------------------------------------------------------------------------------------------


def close_actions_unknown_to_iam() -> None:
    """A call is checked as the action that AWS checks. Stock asks for some names that no policy can hold."""
    checked_as = {
        "sqs:SendMessageBatch": "sqs:SendMessage",
        "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
        "bedrock:Converse": "bedrock:InvokeModel",
        "bedrock:ConverseStream": "bedrock:InvokeModelWithResponseStream",
    }

    def extract(original: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            action = original(*args, **kwargs)
            return checked_as.get(action, action)

        return wrapper

    replace(iam_actions, "extract_iam_action", extract)


# --- CloudFormation ----------------------------------------------------------------------------------


def close_ignored_time_to_live() -> None:
    """A table's `TimeToLiveSpecification` takes effect. Stock drops it."""
    handler = provisioners._RESOURCE_HANDLERS["AWS::DynamoDB::Table"]
    create = handler["create"]

    def create_table(logical_id: str, properties: dict[str, Any], stack_name: str) -> Any:
        table, attributes = create(logical_id, properties, stack_name)
        if specification := properties.get("TimeToLiveSpecification"):
            answer = dynamodb._update_ttl({"TableName": table, "TimeToLiveSpecification": specification})
            if answer[0] >= 400:
                raise ValueError(f"time to live of {table}: {answer[2]!r}")
        return table, attributes

    handler["create"] = create_table


def close_wild_secrets() -> None:
    """A generated secret obeys `ExcludePunctuation` and its kin. Stock takes any character."""

    def secret_string(original: Any) -> Any:
        def wrapper(properties: dict[str, Any]) -> Any:
            rules = properties.get("GenerateSecretString")
            if not rules or "SecretStringTemplate" in rules:
                return original(properties)
            return json.loads(secretsmanager._get_random_password(rules)[2])["RandomPassword"]

        return wrapper

    replace(provisioners, "_sm_secret_string", secret_string)


# --- Restarts ----------------------------------------------------------------------------------------


def close_forgotten_streams() -> None:
    """Over a restart a table's stream keeps its records, so that the places of its readers stay right.

    Stock keeps the places alone: the stream begins at 0 again, and its readers pass over as many records as it had.
    """
    kept = {"kept_stream_records": dynamodb._stream_records, "kept_stream_trimmed": dynamodb._stream_trimmed}

    def get_state(original: Any) -> Any:
        def wrapper() -> Any:
            return original() | {name: copy.deepcopy(store) for name, store in kept.items()}

        return wrapper

    def load(original: Any) -> Any:
        def wrapper(data: dict[str, Any]) -> None:
            original(data)
            for name, store in kept.items():
                store.update(data.get(name, {}))

        return wrapper

    replace(dynamodb, "get_state", get_state)
    replace(dynamodb, "load_persisted_state", load)


def close_lost_queues() -> None:
    """After a restart every queue is polled, and what a function was at work on when it was stopped is due at once.

    Stock keys a queue by a URL with the port of the process that created it, and polls none that has another port.
    """

    queues, url_of, index_names = sqs._queues, sqs._queue_url_for_account, sqs._rebuild_queue_name_index

    def load(original: Any) -> Any:
        def wrapper(data: dict[str, Any]) -> None:
            original(data)
            for (account, region, url), queue in queues.all_items():
                queues.pop_scoped(account, region, url)
                queue["url"] = url_of(account, queue["name"])
                queues.set_scoped(account, region, queue["url"], queue)
                for message in queue["messages"]:
                    if message["receive_count"]:
                        message["visible_at"] = min(message["visible_at"], time.time())
            index_names()

        return wrapper

    replace(sqs, "load_persisted_state", load)


# --- The process -------------------------------------------------------------------------------------


def end_with(parent: int) -> None:
    """Stop cleanly when the process `parent`, which started this one, is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Environment: MiniStack's own, `UNPACKED_DIR`, and optionally `EMULATOR_PARENT`, a process id.

    The one argument is the folder of the stack's state, by which its process is found.
    """
    del sys.argv[1:]  # MiniStack knows other arguments
    if importlib.metadata.version("ministack") != VERSION:
        raise SystemExit(f"local/emulator.py is written for ministack {VERSION}")
    unpacked = Path(os.environ.pop("UNPACKED_DIR"))
    parent = os.environ.pop("EMULATOR_PARENT", "")
    close_lost_deaths()
    close_lost_error_names()
    close_fixed_waits()
    close_repeated_unpacking(unpacked)
    close_ignored_time_limits()
    close_kept_express_executions()
    close_failures_after_a_stop()
    close_missing_redrive()
    close_ignored_gateway_responses()
    close_empty_mock_answers()
    close_leaked_failures()
    close_missing_size_limit()
    close_actions_unknown_to_iam()
    close_ignored_time_to_live()
    close_wild_secrets()
    close_forgotten_streams()
    close_lost_queues()
    if parent:
        end_with(int(parent))
    from ministack.app import main as run  # type: ignore[import-not-found]

    run()


if __name__ == "__main__":
    main()
