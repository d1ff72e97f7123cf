"""The application under its own IAM policies: the emulator enforces them, as AWS does."""

import io
import json
import time
import uuid
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from local.stack import Stack
from tests.conftest import client_of

WRITER = """
import boto3, os
def handler(event, context):
    try:
        boto3.client("dynamodb").put_item(TableName=event["table"], Item={"pk": {"S": "x"}, "sk": {"S": "x"}})
    except Exception as error:
        return type(error).__name__ + " " + str(error)
"""


@pytest.fixture(scope="module")
def guarded(deploy: Callable[..., Stack]) -> Stack:
    return deploy(auth=True)


def eventually(check: Callable[[], Any], seconds: float = 60) -> Any:
    """The first truthy value of `check`; its last one if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := check()) and time.monotonic() < deadline:
        time.sleep(0.25)
    return value


def bodies(stack: Stack) -> list[str]:
    """The objects in the bucket of big bodies."""
    found = stack.client("s3").list_objects_v2(Bucket=stack.outputs["BucketName"])
    return [content["Key"] for content in found.get("Contents", [])]


def function(stack: Stack, name: str) -> str:
    listed = stack.client("lambda").list_functions()["Functions"]
    return next(found["FunctionName"] for found in listed if name in found["FunctionName"])


def test_a_conversation_needs_no_more_than_the_policies_allow(guarded: Stack) -> None:
    """Turn, lists, title and clean-up: every function and both queues take part."""
    thread, owner = uuid.uuid4().hex, uuid.uuid4().hex
    here = f"/api/memory/threads/{thread}?resourceId={owner}&agentId=assistant"
    with client_of(guarded) as client:
        assert client.get("/api/agents/assistant").status_code == 200
        memory = {"thread": thread, "resource": owner}
        said = client.post("/api/agents/assistant/generate", json={"messages": "@say Blue.", "memory": memory})
        assert (said.status_code, said.json()["text"]) == (200, "Blue.")
        listed = client.get(f"/api/memory/threads?resourceId={owner}&agentId=assistant").json()
        assert [found["id"] for found in listed["threads"]] == [thread]
        assert eventually(lambda: client.get(here).json()["title"])
        said = client.post(
            "/api/agents/assistant/generate", json={"messages": "@say Long.\n" + "x" * 1_500_000, "memory": memory}
        )
        assert said.status_code == 200, said.text[:500]
        assert said.json()["text"] == "Long."
        answer = client.get(f"/api/memory/threads/{thread}/messages?resourceId={owner}&agentId=assistant&perPage=2")
        assert len(answer.json()["messages"][0]["content"]["parts"][0]["text"]) == 1_500_011
        assert len(bodies(guarded)) == 1
        assert client.delete(here).status_code == 200
        assert client.get(here).status_code == 404
    table = guarded.client("dynamodb")

    def left() -> list[str]:
        rows = table.scan(TableName=guarded.outputs["TableName"], ConsistentRead=True)["Items"]
        return [row["pk"]["S"] for row in rows if thread in row["pk"]["S"]]

    eventually(lambda: not left() and not bodies(guarded))
    assert (left(), bodies(guarded)) == ([], [])
    swept = guarded.client("lambda").invoke(FunctionName=function(guarded, "SweepFunction"))
    assert json.loads(swept["Payload"].read()) == {"resumed": 0, "removed": 0}
    assert "AccessDenied" not in (guarded.home / "emulator.log").read_text()


def test_a_message_that_is_sent_is_run_by_a_worker_of_its_own(guarded: Stack) -> None:
    thread = {"threadId": uuid.uuid4().hex, "resourceId": uuid.uuid4().hex}
    with client_of(guarded) as client:
        sent = client.post("/api/agents/assistant/send-message", json={"message": "@say Sent.", **thread})
        assert sent.status_code == 200, sent.text
        path = f"/api/memory/threads/{thread['threadId']}/messages"
        assert eventually(lambda: len(client.get(path).json().get("messages", [])) == 2)
        assert client.get(path).json()["messages"][1]["content"]["content"] == "Sent."


def test_a_function_may_not_do_what_its_policy_does_not_name(guarded: Stack) -> None:
    """Without this the test above would also pass on an emulator that enforces nothing."""
    functions = guarded.client("lambda")
    [agents] = [f for f in functions.list_functions()["Functions"] if "AgentsFunction" in f["FunctionName"]]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("app.py", WRITER)
    functions.create_function(
        FunctionName="writer",
        Runtime="python3.13",
        Handler="app.handler",
        Role=agents["Role"],
        Code={"ZipFile": archive.getvalue()},
        Timeout=20,
    )
    answer = functions.invoke(
        FunctionName="writer", Payload=json.dumps({"table": guarded.outputs["TableName"]}).encode()
    )
    assert "is not authorized to perform: dynamodb:PutItem" in json.loads(answer["Payload"].read())
