"""The Bedrock adapter: the exact Converse request, the parsed answer, the errors."""

import asyncio
import json
import threading
import time
from types import SimpleNamespace

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, NoRegionError, ReadTimeoutError
from botocore.stub import Stubber

from threadkeep.errors import ConfigurationError, ModelRejected, ModelUnavailable
from threadkeep.models import bedrock
from threadkeep.models.bedrock import BedrockModel, converse_body
from threadkeep.models.port import (
    FilePart,
    ModelRequest,
    ModelSettings,
    PromptMessage,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
WEATHER = ToolSpec("weather", "Tells the weather", {"type": "object"})
ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hello"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5},
    "metrics": {"latencyMs": 1},
}


@pytest.fixture(scope="module")
def client():
    return boto3.client(
        "bedrock-runtime",
        region_name="eu-central-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(retries={"total_max_attempts": 1, "mode": "standard"}),
    )


@pytest.fixture
def stub(client):
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


def converse(client, request: ModelRequest):
    return asyncio.run(BedrockModel(lambda _: client).generate(request))


def says(role, *parts) -> PromptMessage:
    return PromptMessage(role, tuple(TextPart(p) if isinstance(p, str) else p for p in parts))


def request(*messages, **more) -> ModelRequest:
    return ModelRequest(MODEL, messages, **more)


def turns(*messages, **more):
    return converse_body(request(*messages, **more))["messages"]


def test_the_whole_request_and_the_answer(client, stub):
    call = ToolCall("call_1", "weather", {"city": "Bern", "days": 3, "min": 0.5})
    asked = request(
        says("system", "Be brief."),
        says("user", "Weather?"),
        says("assistant", "Let me see.", call),
        PromptMessage("tool", (ToolResult("call_1", "weather", "sunny"),)),
        says("system", "Today is Monday."),
        says("user", "And tomorrow?"),
        tools=(WEATHER,),
        settings=ModelSettings(0.0, 0.9, 500, ("END",)),
    )
    stub.add_response(
        "converse",
        ANSWER,
        {
            "modelId": MODEL,
            "system": [{"text": "Be brief."}, {"text": "Today is Monday."}],
            "messages": [
                {"role": "user", "content": [{"text": "Weather?"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"text": "Let me see."},
                        {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": call.args}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"toolResult": {"toolUseId": "call_1", "content": [{"text": "sunny"}]}},
                        {"text": "And tomorrow?"},
                    ],
                },
            ],
            "toolConfig": {
                "tools": [
                    {
                        "toolSpec": {
                            "name": "weather",
                            "description": "Tells the weather",
                            "inputSchema": {"json": {"type": "object"}},
                        }
                    }
                ]
            },
            "inferenceConfig": {"maxTokens": 500, "temperature": 0.0, "topP": 0.9, "stopSequences": ["END"]},
        },
    )
    answer = converse(client, asked)
    assert (answer.text, answer.finish_reason, answer.tool_calls) == ("Hello", "stop", ())
    assert answer.usage == Usage(3, 2)
    assert answer.model == MODEL


def test_a_plain_request_holds_nothing_more():
    assert converse_body(request(says("user", "hi"))) == {
        "modelId": MODEL,
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
    }


def test_a_response_schema_is_the_last_system_text():
    schema = {"type": "object", "properties": {"n": {"type": "number"}}}
    body = converse_body(
        request(says("system", TextPart("Be kind.")), says("user", TextPart("hi")), response_schema=schema)
    )
    first, last = body["system"]
    assert first == {"text": "Be kind."}
    assert last["text"].endswith(json.dumps(schema, separators=(",", ":")))


def test_same_roles_merge_and_blank_texts_vanish():
    assert turns(
        says("user", "a", " \n"), says("user", ""), says("user", "b"), says("assistant", " "), says("user", "c")
    ) == [{"role": "user", "content": [{"text": "a"}, {"text": "b"}, {"text": "c"}]}]
    assert "system" not in converse_body(request(says("system", " "), says("user", "a")))


def test_the_first_turn_is_the_users():
    first, second, third = turns(says("assistant", "as I said"), says("user", "go on"))
    assert (first["role"], second["role"], third["role"]) == ("user", "assistant", "user")
    assert first["content"][0]["text"].strip()


@pytest.mark.parametrize(
    ("choice", "config"), [("required", {"any": {}}), ("weather", {"tool": {"name": "weather"}}), ("auto", None)]
)
def test_tool_choice(choice, config):
    body = converse_body(request(says("user", "a"), tools=(WEATHER,), tool_choice=choice))
    assert body["toolConfig"].get("toolChoice") == config


@pytest.mark.parametrize("more", [{}, {"tools": (WEATHER,), "tool_choice": "none"}])
def test_without_tools_past_calls_become_text(more):
    body = converse_body(
        request(
            says("user", "q"),
            says("assistant", ToolCall("c", "weather", {"city": "Bern"})),
            PromptMessage("tool", (ToolResult("c", "weather", "sunny"),)),
            **more,
        )
    )
    assert "toolConfig" not in body
    assert [turn["content"] for turn in body["messages"][1:]] == [
        [{"text": '[called weather with {"city":"Bern"}]'}],
        [{"text": "[weather returned: sunny]"}],
    ]


def test_a_tool_without_description_sends_none():
    body = converse_body(request(says("user", "a"), tools=(ToolSpec("t", "", {"type": "object"}),)))
    assert body["toolConfig"]["tools"] == [{"toolSpec": {"name": "t", "inputSchema": {"json": {"type": "object"}}}}]


@pytest.mark.parametrize(("model", "status"), [(MODEL, "error"), ("mistral.mistral-large-2407-v1:0", None)])
def test_failed_and_empty_results(model, status):
    results = PromptMessage("tool", (ToolResult("c", "weather", "", is_error=True),))
    body = converse_body(ModelRequest(model, (says("user", "q"), results), (WEATHER,)))
    result = body["messages"][0]["content"][1]["toolResult"]
    assert result.get("status") == status
    assert result["content"] == [{"text": "(empty)"}]


def test_foreign_call_ids_become_legal_and_stay_paired():
    ids = ["call:1/ü", "x" * 65]
    calls = says("assistant", *[ToolCall(i, "weather", {}) for i in ids])
    results = PromptMessage("tool", tuple(ToolResult(i, "weather", "r") for i in ids))
    _, called, answered = turns(says("user", "q"), calls, results, tools=(WEATHER,))
    sent = [block["toolUse"]["toolUseId"] for block in called["content"]]
    assert sent == [block["toolResult"]["toolUseId"] for block in answered["content"]]
    assert len(set(sent)) == 2
    assert all(len(i) == 64 and i.isalnum() for i in sent)


def test_files():
    content = turns(
        says(
            "user",
            FilePart("QUJD", "image/jpg"),
            FilePart("data:application/pdf;base64,QUJD", "application/pdf"),
            FilePart("s3://bucket/notes.md", "text/markdown; charset=utf-8"),
        )
    )[0]["content"]
    assert content[:3] == [
        {"image": {"format": "jpeg", "source": {"bytes": b"ABC"}}},
        {"document": {"format": "pdf", "name": "document-1", "source": {"bytes": b"ABC"}}},
        {"document": {"format": "md", "name": "document-2", "source": {"s3Location": {"uri": "s3://bucket/notes.md"}}}},
    ]
    assert content[3]["text"]  # a document needs one


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (FilePart("https://example.com/a.png", "image/png"), "inline or from s3"),
        (FilePart("%%%", "image/png"), "not base64"),
        (FilePart("QUJD", "application/zip"), "application/zip"),
    ],
)
def test_files_that_bedrock_cannot_take(part, complaint):
    with pytest.raises(ModelRejected, match=complaint):
        converse_body(request(says("user", "a", part)))


def test_calls_reasoning_and_cached_tokens(client, stub):
    content = [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
        {"text": "Let me "},
        {"text": "see."},
        {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Bern", "n": 3, "x": 0.1}}},
        {"toolUse": {"toolUseId": "t2", "name": "weather", "input": "Bern"}},
    ]
    usage = {
        "inputTokens": 3,
        "outputTokens": 2,
        "totalTokens": 65,
        "cacheReadInputTokens": 40,
        "cacheWriteInputTokens": 20,
    }
    reply = {**ANSWER, "output": {"message": {"role": "assistant", "content": content}}, "usage": usage}
    stub.add_response("converse", {**reply, "stopReason": "tool_use"})
    answer = converse(client, request(says("user", "q"), tools=(WEATHER,)))
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Let me see.", "Hm.", "tool-calls")
    assert answer.tool_calls == (
        ToolCall("t1", "weather", {"city": "Bern", "n": 3, "x": 0.1}),
        ToolCall("t2", "weather", {}, invalid='"Bern"'),
    )
    assert json.dumps(answer.tool_calls[0].args) == '{"city": "Bern", "n": 3, "x": 0.1}'
    assert answer.usage == Usage(63, 2, 0, 40)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "content-filter"),
        ("content_filtered", "content-filter"),
        ("malformed_tool_use", "error"),
        ("something_new", "other"),
    ],
)
def test_finish_reasons(client, stub, stop, reason):
    stub.add_response("converse", {**ANSWER, "stopReason": stop})
    assert converse(client, request(says("user", "q"))).finish_reason == reason


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("ValidationException", 400, ModelRejected),
        ("AccessDeniedException", 403, ModelRejected),
        ("ResourceNotFoundException", 404, ModelRejected),
        ("ThrottlingException", 429, ModelUnavailable),
        ("ModelNotReadyException", 429, ModelUnavailable),
        ("ModelTimeoutException", 408, ModelUnavailable),
        ("ModelErrorException", 424, ModelUnavailable),
        ("ServiceQuotaExceededException", 400, ModelUnavailable),
        ("InternalServerException", 500, ModelUnavailable),
        ("ServiceUnavailableException", 503, ModelUnavailable),
    ],
)
def test_errors_of_the_service(client, stub, code, status, error):
    stub.add_client_error("converse", code, "Because. " * 100, status)
    with pytest.raises(error) as caught:
        converse(client, request(says("user", "q")))
    assert str(caught.value).startswith("Because. ")
    assert len(str(caught.value)) <= 500


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (NoCredentialsError(), ConfigurationError),
        (NoRegionError(), ConfigurationError),
        (EndpointConnectionError(endpoint_url="https://x"), ModelUnavailable),
        (ReadTimeoutError(endpoint_url="https://x"), ModelUnavailable),
    ],
)
def test_errors_before_an_answer(failure, error):
    def make_client(_):
        raise failure

    with pytest.raises(error):
        asyncio.run(BedrockModel(make_client).generate(request(says("user", "q"))))


def test_parameters_that_botocore_refuses(client):
    with pytest.raises(ModelRejected, match="name"):
        converse(client, request(says("user", "q"), tools=(ToolSpec("", "d", {}),)))


def test_the_deadline_holds_though_the_thread_is_stuck():
    released = threading.Event()

    class Stuck:
        def converse(self, **_):
            released.wait(10)

    started = time.monotonic()
    with pytest.raises(ModelUnavailable, match=r"within 0\.2 s"):
        asyncio.run(BedrockModel(lambda _: Stuck()).generate(request(says("user", "q"), timeout=0.2)))
    took = time.monotonic() - started
    released.set()
    assert took < 1


def test_the_real_client_reads_no_longer_than_the_deadline_and_repeats_in_standard_mode(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    config = bedrock._client(26).meta.config
    assert (config.read_timeout, config.retries) == (26, {"mode": "standard", "total_max_attempts": 2})
    assert bedrock._client(26) is bedrock._client(26)


def test_no_attempt_starts_after_the_deadline(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setattr(bedrock, "time", SimpleNamespace(monotonic=iter([0.0, 99.0]).__next__))
    sent = []
    boto_client = boto3.client("bedrock-runtime", region_name="eu-central-1")
    boto_client.meta.events.register("before-send.bedrock-runtime", bedrock.stop_when_late)
    boto_client.meta.events.register("before-send.bedrock-runtime", lambda **_: sent.append(1))
    with pytest.raises(ModelUnavailable, match="too late"):
        BedrockModel(lambda _: boto_client)._converse(converse_body(request(says("user", "q"))), 5.0)
    assert sent == []
