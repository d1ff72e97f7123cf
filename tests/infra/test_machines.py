"""The state machines: what Step Functions would refuse, what may be tried again, how long it takes, who may do what."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local.machines import MACHINES, problems
from local.stack import ROOT
from tests.template import resources, template
from threadkeep import errors

DELEGATION = json.loads((MACHINES / "delegation.asl.json").read_text())
STEP = DELEGATION["States"]["Delegations"]
TASKS = STEP["ItemProcessor"]["States"]
TASK = TASKS["Delegate"]
FUNCTIONS = resources("AWS::Serverless::Function")
OURS = {"ModelUnavailable", "StoreUnavailable"}
LAMBDAS = {
    "Lambda.ServiceException", "Lambda.AWSLambdaException", "Lambda.SdkClientException", "Lambda.Unknown",
    "Lambda.ClientExecutionTimeoutException", "Lambda.TooManyRequestsException", "Runtime.ExitError",
}  # fmt: skip


def test_the_definitions_are_valid() -> None:
    found = {path.name.split(".")[0].title(): json.loads(path.read_text()) for path in MACHINES.glob("*.asl.json")}
    assert "Delegation" in found
    assert problems(found) == []


def misspell(task: Any) -> None:
    task["Timeout"] = task.pop("TimeoutSecondsPath")


def lead_nowhere(task: Any) -> None:
    task["Catch"][0]["Next"] = "Nowhere"


def leave_open(task: Any) -> None:
    del task["End"]


def mistype(task: Any) -> None:
    task["Retry"][0]["MaxAttempts"] = "two"


@pytest.mark.parametrize("spoil", [misspell, lead_nowhere, leave_open, mistype])
def test_a_broken_definition_does_not_pass(spoil: Callable[[Any], None]) -> None:
    broken = copy.deepcopy(DELEGATION)
    spoil(broken["States"]["Delegations"]["ItemProcessor"]["States"]["Delegate"])
    assert problems({"Broken": broken})


def test_ten_tasks_run_side_by_side_and_keep_their_order() -> None:
    from threadkeep.turn.tools import CONCURRENCY

    assert STEP["MaxConcurrency"] == CONCURRENCY == 10
    assert STEP["Type"] == "Map" and STEP["ItemProcessor"]["ProcessorConfig"] == {"Mode": "INLINE"}


def test_only_what_time_may_mend_is_tried_again() -> None:
    """Our own errors are those that are 503; the names of Lambda's are of failures of the service, not of the code."""
    retried = {name for retry in TASK["Retry"] for name in retry["ErrorEquals"]}
    assert retried == OURS | LAMBDAS
    assert {name for name in vars(errors) if getattr(getattr(errors, name), "status", 0) == 503} == OURS
    for retry in TASK["Retry"]:
        assert retry["JitterStrategy"] == "FULL" and retry["BackoffRate"] > 1 and 1 <= retry["MaxAttempts"] <= 3


def test_whatever_a_task_does_the_step_goes_on() -> None:
    assert TASK["Catch"][-1]["ErrorEquals"] == ["States.ALL"]
    told = {name: catch["Next"] for catch in TASK["Catch"] for name in catch["ErrorEquals"]}
    assert (told["States.Timeout"], told["Runtime.ExitError"]) == ("TimedOut", "Died")
    failures = {TASKS[state]["Parameters"]["failure"] for state in told.values()}
    assert failures == {"timeout", "died", "failed"}


def test_a_task_ends_before_its_function_and_that_before_the_execution() -> None:
    from threadkeep.bootstrap import _EXECUTION_SECONDS  # pyright: ignore[reportPrivateUsage]
    from threadkeep.flows.ledger import LONGEST

    assert TASK["TimeoutSecondsPath"] == "$.order.seconds"
    assert LONGEST + 5 <= FUNCTIONS["DelegateFunction"]["Properties"]["Timeout"] <= 300 < _EXECUTION_SECONDS


def test_only_ids_travel() -> None:
    """The input of 44 orders is far below the 256 KB of a state's input; a task gets and returns what is in it."""
    from threadkeep.flows.ledger import Item, Placed

    longest = Item(id="x" * 64, said="said." + "x" * 64, seconds=290, deadline=1_795_974_274_000)
    given = json.dumps(Placed("x" * 64, (longest,) * 44).to_json())
    assert len(given) < 256 * 1024 // 10
    assert TASK["Parameters"]["Payload"] == {
        "journal.$": "$.journal", "order.$": "$.order", "attempt.$": "$$.State.RetryCount",
    }  # fmt: skip
    returned = json.dumps([{"id": "x" * 64, "failure": "conflict"}] * 44)
    assert len(returned) < 256 * 1024 // 10


def statements(function: str) -> list[dict[str, Any]]:
    return [s for policy in FUNCTIONS[function]["Properties"].get("Policies", []) for s in policy["Statement"]]


def test_the_machine_may_invoke_its_function_only() -> None:
    machine = template()["Resources"]["DelegationMachine"]["Properties"]
    assert machine["Role"] == {"Fn::GetAtt": ["DelegationRole", "Arn"]}
    [policy] = template()["Resources"]["DelegationRole"]["Properties"]["Policies"]
    invoke, logs = policy["PolicyDocument"]["Statement"]
    function = {"Fn::GetAtt": ["DelegateFunction", "Arn"]}
    assert invoke == {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": function}
    assert {action.partition(":")[0] for action in logs["Action"]} == {"logs"}
    assert machine["DefinitionSubstitutions"] == {"DelegateFunction": function}


def test_only_who_delegates_may_start_the_machine_and_nothing_else() -> None:
    machine = template()["Resources"]["DelegationMachine"]["Properties"]
    parts, names = FUNCTIONS["DelegateFunction"]["Properties"]["Environment"]["Variables"]["DELEGATION_MACHINE"][
        "Fn::Sub"
    ]
    assert machine["Type"] == "EXPRESS"
    assert parts.rpartition(":")[2] == machine["Name"]["Fn::Sub"][0] and names == machine["Name"]["Fn::Sub"][1]
    allowed = {
        name: statement["Resource"]
        for name in FUNCTIONS
        for statement in statements(name)
        if "states:StartSyncExecution" in json.dumps(statement)
    }
    assert allowed == dict.fromkeys(("GenerateFunction", "DelegateFunction"), {"Fn::Sub": [parts, names]})
    told = {
        n
        for n, f in FUNCTIONS.items()
        if "DELEGATION_MACHINE" in f["Properties"].get("Environment", {}).get("Variables", {})
    }
    assert told == allowed.keys()


@pytest.mark.parametrize("machine", ["Delegation", "Supervisor"])
def test_executions_log_errors_without_what_was_said(machine: str) -> None:
    logging = template()["Resources"][f"{machine}Machine"]["Properties"]["Logging"]
    assert (logging["Level"], logging["IncludeExecutionData"]) == ("ERROR", False)
    logs = template()["Resources"][f"{machine}Logs"]["Properties"]
    assert logs["RetentionInDays"] == {"Ref": "LogRetentionDays"}


# --- Durable runs --------------------------------------------------------------------------------

SUPERVISOR = json.loads((MACHINES / "supervisor.asl.json").read_text())
STATES = SUPERVISOR["States"]


def test_a_durable_run_delegates_as_a_buffered_one_does() -> None:
    ours = STATES["Delegations"]
    assert ours["ItemProcessor"] == STEP["ItemProcessor"]
    assert ours["MaxConcurrency"] == STEP["MaxConcurrency"]
    assert ours["ItemSelector"].keys() == STEP["ItemSelector"].keys()
    assert ours["ResultPath"] == "$.outcomes", "the next step is told which tasks failed"


def test_steps_are_tried_again_and_whatever_they_do_is_noted() -> None:
    cut_off = {"States.Timeout", "Sandbox.Timedout"}
    retried = {name for retry in STATES["Step"]["Retry"] for name in retry["ErrorEquals"]}
    assert retried == OURS | LAMBDAS | cut_off
    for state in ("Step", "Delegations"):
        assert STATES[state]["Catch"] == [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.error", "Next": "Mark"}]
    noted = {name for retry in STATES["Mark"]["Retry"] for name in retry["ErrorEquals"]}
    assert noted == LAMBDAS | {"StoreUnavailable", "States.Timeout"}
    assert "Catch" not in STATES["Mark"], "it fails the execution, which can be redriven there"
    for state in ("Step", "Mark"):
        assert STATES[state]["OutputPath"] == "$.Payload"
        assert all(retry["JitterStrategy"] == "FULL" for retry in STATES[state]["Retry"])


def test_the_tasks_of_a_run_get_what_their_function_takes() -> None:
    from threadkeep.flows.supervise import Next

    payloads = [STATES[state]["Parameters"]["Payload"] for state in ("Step", "Mark")]
    assert payloads == [
        {"task": "step", "runId.$": "$.runId", "outcomes.$": "$.outcomes"},
        {"task": "mark", "runId.$": "$.runId", "error.$": "$.error"},
    ]
    assert Next.__annotations__.keys() == {"runId", "next", "orders"}
    choices = {choice["StringEquals"]: choice["Next"] for choice in STATES["Next"]["Choices"]}
    assert choices == {"delegate": "Delegations", "again": "Again"}
    assert STATES["Again"]["Parameters"] == {"runId.$": "$.runId", "outcomes": []}


def test_a_step_has_the_time_of_its_function() -> None:
    from threadkeep.flows.supervise import SHORTEST

    timeout = FUNCTIONS["SuperviseFunction"]["Properties"]["Timeout"]
    assert SHORTEST < STATES["Step"]["TimeoutSeconds"] == timeout == 900


def test_who_may_do_what_with_durable_runs() -> None:
    machine = template()["Resources"]["SupervisorMachine"]["Properties"]
    [policy] = template()["Resources"]["SupervisorRole"]["Properties"]["Policies"]
    invoke, logs = policy["PolicyDocument"]["Statement"]
    functions = [{"Fn::GetAtt": [f"{name}Function", "Arn"]} for name in ("Supervise", "Delegate")]
    assert machine["Type"] == "STANDARD"
    assert machine["Role"] == {"Fn::GetAtt": ["SupervisorRole", "Arn"]}
    assert invoke == {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": functions}
    assert {action.partition(":")[0] for action in logs["Action"]} == {"logs"}
    assert list(machine["DefinitionSubstitutions"].values()) == functions
    allowed = [(n, s) for n in FUNCTIONS for s in statements(n) if "SupervisorMachine" in json.dumps(s)]
    assert [name for name, _ in allowed] == ["GenerateFunction"] * 2
    start, look = (statement for _, statement in allowed)
    assert (start["Action"], start["Resource"]) == ("states:StartExecution", {"Ref": "SupervisorMachine"})
    assert look["Action"] == ["states:DescribeExecution", "states:StopExecution"]
    assert look["Resource"]["Fn::Sub"].endswith(":execution:${SupervisorMachine.Name}:*")


@pytest.mark.parametrize("event", sorted((ROOT / "events/supervise").glob("*.json")), ids=lambda path: path.stem)
def test_the_events_of_the_tasks_are_what_the_machine_sends(event: Path) -> None:
    given = json.loads(event.read_text())
    wanted = STATES[given["task"].title()]["Parameters"]["Payload"]
    assert given.keys() == {name.removesuffix(".$") for name in wanted}
