"""What must not change in `template.yaml`, and what CloudFormation would find out only at deploy time."""

import json
from typing import Any

import pytest

from local.stack import ROOT
from tests.template import resources, template

FUNCTIONS = resources("AWS::Serverless::Function")
API = template()["Resources"]["Api"]["Properties"]


def test_key_schema_and_indexes_are_frozen() -> None:
    """After the first customer these cannot change any more (DESIGN 3)."""
    table = template()["Resources"]["Table"]["Properties"]
    assert table["KeySchema"] == keys("pk", "sk")
    assert table["GlobalSecondaryIndexes"] == [
        {
            "IndexName": f"{name}-index",
            "KeySchema": keys(f"{name}pk", f"{name}sk"),
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
        for name in ("g1", "g2", "g3")
    ]
    assert {a["AttributeType"] for a in table["AttributeDefinitions"]} == {"S"}
    assert "LocalSecondaryIndexes" not in table
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["TimeToLiveSpecification"] == {"AttributeName": "expiresAt", "Enabled": True}
    assert table["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}


def keys(partition: str, sort: str) -> list[dict[str, str]]:
    return [{"AttributeName": partition, "KeyType": "HASH"}, {"AttributeName": sort, "KeyType": "RANGE"}]


def test_the_table_outlives_the_stack() -> None:
    table = template()["Resources"]["Table"]
    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Retain", "Retain")
    properties = table["Properties"]
    assert properties["DeletionProtectionEnabled"] == {"Fn::If": ["IsLocal", False, True]}
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert properties["SSESpecification"] == {"SSEEnabled": True}


def test_the_bucket_is_private_encrypted_and_outlives_the_stack() -> None:
    bucket = template()["Resources"]["Bodies"]
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")
    properties = bucket["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(properties["PublicAccessBlockConfiguration"]) == 4
    assert properties["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    assert properties["BucketEncryption"]
    [statement] = template()["Resources"]["BodiesPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": False}})


def routes() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (event["Properties"]["Method"], event["Properties"]["Path"], event["Properties"])
        for function in FUNCTIONS.values()
        for event in function["Properties"].get("Events", {}).values()
        if event["Type"] == "Api"
    ]


def test_routes_are_those_of_the_route_table() -> None:
    from threadkeep.http.routes import ROUTES

    declared = [(method, path) for method, path, _ in routes()]
    assert len(declared) == len(set(declared))
    assert set(declared) == {(route.method, route.path) for route in ROUTES}


def test_only_the_health_check_and_the_answer_how_to_sign_in_are_open() -> None:
    assert {path for _, path, event in routes() if "Auth" in event} == {"/health", "/api/auth/capabilities"}
    assert API["Auth"]["DefaultAuthorizer"] == "CallerAuthorizer"
    assert API["Auth"]["Authorizers"]["CallerAuthorizer"]["Identity"] == {
        "Headers": ["Authorization"],
        "ReauthorizeEvery": 60,
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_stay_below_the_size_of_a_resource_policy(name: str) -> None:
    """SAM writes one permission of some 350 bytes per route; Lambda allows 20 KB of them per function."""
    events = FUNCTIONS[name]["Properties"].get("Events", {}).values()
    assert 350 * sum(event["Type"] == "Api" for event in events) < 20_000


def test_browsers_may_send_what_the_routes_take() -> None:
    methods = set(API["Cors"]["AllowMethods"].strip("'").split(","))
    assert methods == {method for method, _, _ in routes()} | {"OPTIONS"}
    headers = set(API["Cors"]["AllowHeaders"].strip("'").split(","))
    assert headers >= {"Authorization", "Content-Type", "Idempotency-Key", "If-Match"}


def test_the_function_of_working_memory_reads_and_writes_rows_only() -> None:
    [policy] = FUNCTIONS["WorkingMemoryFunction"]["Properties"]["Policies"]
    [statement] = policy["Statement"]
    assert statement["Resource"] == {"Fn::GetAtt": ["Table", "Arn"]}
    assert {action.partition(":")[2] for action in statement["Action"]} == {
        "GetItem", "BatchGetItem", "PutItem", "ConditionCheckItem",
    }  # fmt: skip


def test_every_error_of_the_gateway_is_json() -> None:
    responses = API["GatewayResponses"]
    assert responses.keys() >= {"DEFAULT_4XX", "DEFAULT_5XX"}
    for name, response in responses.items():
        [(kind, body)] = response["ResponseTemplates"].items()
        assert kind == "application/json", name
        assert list(json.loads(body.replace("$context.error.messageString", '"x"'))) == ["error"], name
        assert response["ResponseParameters"]["Headers"]["Access-Control-Allow-Origin"] == "'*'", name


@pytest.mark.parametrize(
    ("name", "status"),
    [("MISSING_AUTHENTICATION_TOKEN", 404), ("UNAUTHORIZED", 401), ("ACCESS_DENIED", 403), ("REQUEST_TOO_LARGE", 413)],
)
def test_gateway_errors_have_the_documented_status(name: str, status: int) -> None:
    assert API["GatewayResponses"][name]["StatusCode"] == status


def test_the_gateway_answers_before_it_gives_up() -> None:
    """A buffered run ends by its own deadline: neither Lambda nor API Gateway (29 s) cuts it off."""
    deadline = template()["Parameters"]["TurnDeadlineSeconds"]
    generate = FUNCTIONS["GenerateFunction"]["Properties"]
    assert deadline["Default"] < deadline["MaxValue"] < 29 <= generate["Timeout"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_logs_that_end_and_names_that_do_not_collide(name: str) -> None:
    properties = FUNCTIONS[name]["Properties"]
    assert "FunctionName" not in properties
    group = properties["LoggingConfig"]["LogGroup"]["Ref"]
    assert template()["Resources"][group]["Properties"] == {"RetentionInDays": {"Ref": "LogRetentionDays"}}
    others = [f["Properties"]["LoggingConfig"]["LogGroup"]["Ref"] for n, f in FUNCTIONS.items() if n != name]
    assert group not in others


def test_work_after_a_turn_is_never_lost_silently() -> None:
    stream = FUNCTIONS["OutboxFunction"]["Properties"]["Events"]["Stream"]["Properties"]
    assert stream["DestinationConfig"]["OnFailure"]["Destination"] == {"Fn::GetAtt": ["OutboxDeadLetters", "Arn"]}
    assert stream["MaximumRetryAttempts"] == 5
    assert stream["BisectBatchOnFunctionError"] is True
    assert stream["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    queue = template()["Resources"]["AfterTurnQueue"]["Properties"]
    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == {"Fn::GetAtt": ["AfterTurnDeadLetters", "Arn"]}
    assert queue["VisibilityTimeout"] >= 6 * FUNCTIONS["AfterTurnFunction"]["Properties"]["Timeout"]
    event = FUNCTIONS["AfterTurnFunction"]["Properties"]["Events"]["Queue"]["Properties"]
    assert event["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    invoked = FUNCTIONS["WorkFunction"]["Properties"]["EventInvokeConfig"]
    assert invoked["DestinationConfig"]["OnFailure"]["Destination"] == {"Fn::GetAtt": ["WorkDeadLetters", "Arn"]}
    assert invoked["MaximumRetryAttempts"] == 2
    for name in ("AfterTurnDeadLetters", "OutboxDeadLetters", "WorkDeadLetters"):
        assert template()["Resources"][name]["Properties"]["MessageRetentionPeriod"] == 14 * 24 * 3600


def test_only_who_accepts_messages_may_start_a_worker() -> None:
    allowed = {
        name: statement["Resource"]
        for name, function in FUNCTIONS.items()
        for policy in function["Properties"].get("Policies", [])
        for statement in policy["Statement"]
        if statement.get("Action") == "lambda:InvokeFunction"
    }
    worker = {"Fn::GetAtt": ["WorkFunction", "Arn"]}
    assert allowed == {"GenerateFunction": worker}
    again = template()["Resources"]["WorkAgainPolicy"]["Properties"]
    (statement,) = again["PolicyDocument"]["Statement"]
    assert again["Roles"] == [{"Ref": "WorkFunctionRole"}]
    assert statement == {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": worker}


def test_no_name_that_cloudformation_may_shorten_is_guessed() -> None:
    """Of a long stack name the functions' generated names have only the beginning."""
    assert ":function:${AWS::StackName}" not in (ROOT / "template.yaml").read_text()


def test_subscriptions_are_turned_off_by_a_parameter() -> None:
    assert template()["Parameters"]["Subscriptions"]["AllowedValues"] == ["on", "off"]
    for name in ("GenerateFunction", "StreamFunction"):
        condition, there, off = FUNCTIONS[name]["Properties"]["Environment"]["Variables"]["WORK_FUNCTION"]["Fn::If"]
        assert (condition, there, off) == ("HasSubscriptions", {"Ref": "WorkFunction"}, "")


def test_a_worker_has_time_for_the_longest_run() -> None:
    from threadkeep.config import Settings
    from threadkeep.http import work

    seconds = FUNCTIONS["WorkFunction"]["Properties"]["Timeout"]
    assert Settings().stream_deadline_seconds + work.ENDING + work.LEASE / 1000 <= seconds
    assert work.RENEWAL_SECONDS * 3000 < work.LEASE


def test_no_policy_allows_everything() -> None:
    for name, function in FUNCTIONS.items():
        for policy in function["Properties"].get("Policies", []):
            for statement in policy["Statement"]:
                if "Fn::If" in statement:
                    statement = statement["Fn::If"][1]
                actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
                assert not [action for action in actions if "*" in action], name
                assert statement["Resource"] != "*", name


def test_environment_variables_are_settings() -> None:
    """Every variable is read by `config.Settings`, or by Powertools."""
    from threadkeep.config import Settings

    known = {name.upper() for name in Settings.__dataclass_fields__}
    given = set(template()["Globals"]["Function"]["Environment"]["Variables"])
    for function in FUNCTIONS.values():
        given |= set(function["Properties"].get("Environment", {}).get("Variables", {}))
    assert {name for name in given - known if not name.startswith(("POWERTOOLS_", "AWS_"))} == set()
