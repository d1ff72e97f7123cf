"""Client-side tools, structured output and tool routes on the deployed application (H07, H12, H33)."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.application import Application

ARGS: dict[str, Any] = {"i": 3, "f": 0.1, "neg": -2.5, "big": 12345678901234567890, "e": 1e-07, "n": None, "o": {}}
PICK = {"pickColor": {"id": "pickColor", "description": "picks", "inputSchema": {"type": "object"}}}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "n": {"type": "number"}},
    "required": ["city", "n"],
}


def ask(application: Application, thread: str, owner: str) -> Any:
    """A turn that ends in a call of the client's tool, beside a call of the agent's own."""
    script = f"@call current_time {{}} && pickColor {json.dumps(ARGS)}\n@say teal it is"
    return application.say(script, thread, owner, clientTools=PICK)


def answer(application: Application, reply: Any, result: Any, thread: str, owner: str) -> httpx.Response:
    """What client-js sends after it ran the tool."""
    call = reply["toolCalls"][1]["payload"]
    done = {"type": "tool-result", "toolCallId": call["toolCallId"], "toolName": call["toolName"], "result": result}
    messages = [*reply["response"]["messages"], {"role": "tool", "content": []}, {"role": "tool", "content": [done]}]
    body = {"messages": messages, "clientTools": PICK, "memory": {"thread": thread, "resource": owner}}
    return application.http.post(f"/api/agents/{application.agent}/generate", json=body)


def rows(application: Application, thread: str) -> list[Any]:
    return application.http.get(f"/api/memory/threads/{thread}/messages?perPage=false").json()["messages"]


def invocations(row: Any) -> list[Any]:
    return [part["toolInvocation"] for part in row["content"]["parts"] if part["type"] == "tool-invocation"]


def test_a_client_tool_is_called_answered_and_stored_once(application: Application, thread: str, owner: str) -> None:
    reply = ask(application, thread, owner)
    assert reply["finishReason"] == "tool-calls"
    own, picked = invocations(rows(application, thread)[1])
    assert (own["state"], picked["state"]) == ("result", "call")
    assert json.dumps(picked["args"]) == json.dumps(ARGS)

    second = answer(application, reply, ARGS, thread, owner)
    assert (second.status_code, second.json()["text"]) == (200, "teal it is")
    stored = rows(application, thread)
    assert [row["role"] for row in stored] == ["user", "assistant", "assistant"]
    picked = invocations(stored[1])[1]
    assert picked["state"] == "result"
    assert json.dumps([picked["args"], picked["result"]]) == json.dumps([ARGS, ARGS])

    prompt = json.loads(application.say("@dump", thread, owner)["text"])
    assert prompt["roles"][-5:] == ["assistant", "tool", "tool", "assistant", "user"]


def test_of_results_that_race_for_one_call_one_is_stored(application: Application, thread: str, owner: str) -> None:
    reply = ask(application, thread, owner)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: answer(application, reply, {"n": n}, thread, owner), range(4)))
    assert sorted(a.status_code for a in answers)[0] == 200
    assert all(a.status_code in (400, 409) for a in answers if a.status_code != 200)
    assert [a.status_code for a in answers].count(200) == 1
    stored = rows(application, thread)
    assert [row["role"] for row in stored] == ["user", "assistant", "assistant"]
    winner = next(n for n, a in enumerate(answers) if a.status_code == 200)
    assert invocations(stored[1])[1]["result"] == {"n": winner}


def test_h07_a_call_that_nobody_answers_does_not_block_the_thread(
    application: Application, thread: str, owner: str
) -> None:
    ask(application, thread, owner)
    before = rows(application, thread)
    assert application.say("are you there?", thread, owner)["text"] == "You said: are you there?"
    assert rows(application, thread)[:2] == before


def test_without_memory_the_conversation_comes_along(application: Application) -> None:
    def post(messages: Any) -> Any:
        body = {"messages": messages, "clientTools": PICK}
        return application.http.post(f"/api/agents/{application.agent}/generate", json=body).json()

    question = {"role": "user", "content": "@call pickColor {}\n@say teal it is"}
    reply = post([question])
    call = reply["toolCalls"][0]["payload"]
    done = {"type": "tool-result", "toolCallId": call["toolCallId"], "toolName": "pickColor", "result": "teal"}
    reply = post([question, *reply["response"]["messages"], {"role": "tool", "content": [done]}])
    assert (reply["text"], reply["finishReason"]) == ("teal it is", "stop")


def test_loop11_structured_output(application: Application, thread: str, owner: str) -> None:
    wanted = {"schema": SCHEMA}
    reply = application.say('@call current_time {}\n@say {"city":"Rome","n":3}', thread, owner, structuredOutput=wanted)
    assert reply["object"] == {"city": "Rome", "n": 3}
    assert rows(application, thread)[1]["content"]["metadata"]["structuredOutput"] == {"city": "Rome", "n": 3}
    refused = application.say('@say {"city":"Rome"}', thread, owner, structuredOutput=wanted, status=424)
    assert '- root: "n" is a required property' in refused["error"]
    assert len(rows(application, thread)) == 2
    wanted |= {"errorStrategy": "fallback", "fallbackValue": {"city": "?", "n": 0}}
    reply = application.say("@say Rome", thread, owner, structuredOutput=wanted)
    assert (reply["object"], reply["usedFallbackValue"]) == ({"city": "?", "n": 0}, True)


@pytest.mark.parametrize("path", ["/api/agents/assistant/tools/current_time", "/api/tools/current_time"])
def test_tools_are_listed_and_executed(application: Application, path: str) -> None:
    http = application.http
    assert http.get(path).json() == http.get("/api/tools").json()["current_time"]
    done = http.post(f"{path}/execute", json={"data": {"time_zone": "Europe/Paris"}})
    assert done.status_code == 200 and "CE" in done.json()
    invalid = http.post(f"{path}/execute", json={"data": {"time_zone": 5}})
    assert (invalid.status_code, list(invalid.json()["validationErrors"]["fields"])) == (200, ["time_zone"])
    assert http.post(f"{path}/execute", json={}).json()["issues"][0]["field"] == "data"
    assert http.get(f"{path}x").status_code == http.post(f"{path}x/execute", json={"data": {}}).status_code == 404
