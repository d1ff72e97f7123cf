"""Processors and the request context over HTTP (PR-7, PR-8, D-RC-5, CFG-4)."""

import base64
from typing import Any

from pydantic import BaseModel

from tests.unit.http.house import House
from threadkeep import Agent, Memory, MessageList, Processor, ProcessorCall, TokenLimiter

GENERATE = "/api/agents/{agentId}/generate"
HI = {"messages": "hi", "memory": {"thread": "thr-1", "resource": "user-ada"}}


class Stop(Processor):
    id = "stop"
    name = "Stop sign"

    def process_input(self, messages: MessageList, call: ProcessorCall) -> None:
        how = call.request_context.get("how")
        if how == "raise":
            raise ValueError("secret")
        if how:
            call.abort("enough", **how)


class Tenant(BaseModel):
    tenant: str


def house() -> House:
    guarded = Agent(id="guarded", model="fake/m", memory=Memory(), input_processors=[Stop(), TokenLimiter(500)])
    return House(agents=[guarded, Agent(id="strict", model="fake/m", request_context_schema=Tenant)])


def generate(h: House, agent: str = "guarded", **body: Any) -> tuple[int, Any]:
    return h.call("POST", GENERATE, path={"agentId": agent}, body=HI | body)


def test_pr7_a_tripwire_is_answered_with_200() -> None:
    h = house()
    status, reply = generate(h, requestContext={"how": {"metadata": {"rule": 7}, "retry": True}})
    assert status == 200
    assert reply["tripwire"] == {"reason": "enough", "processorId": "stop", "retry": True, "metadata": {"rule": 7}}
    assert (reply["finishReason"], reply["text"], reply["messages"], reply["steps"]) == ("other", "", [], [])
    assert reply["response"]["dbMessages"] == [] and reply["usage"]["totalTokens"] == 0
    assert h.model.calls == 0
    assert h.call("GET", "/api/memory/threads/{threadId}/messages", path={"threadId": "thr-1"})[1]["messages"] == []
    assert generate(h, requestContext={"how": {"retry": False}})[1]["tripwire"] == {
        "reason": "enough",
        "processorId": "stop",
    }


def test_a_run_that_nobody_stopped_has_no_tripwire() -> None:
    status, reply = generate(house())
    assert (status, reply["text"]) == (200, "Hello") and "tripwire" not in reply


def test_pr8_a_processor_that_raises_is_424_and_tells_nothing_else() -> None:
    status, reply = generate(house(), requestContext={"how": "raise"})
    assert (status, reply) == (424, {"error": "Processor stop failed"})


def test_agents_show_their_processors() -> None:
    agent = house().call("GET", "/api/agents/{agentId}", path={"agentId": "guarded"})[1]
    assert agent["inputProcessors"] == [
        {"id": "stop", "name": "Stop sign"},
        {"id": "token-limiter", "name": "TokenLimiter"},
    ]
    assert agent["outputProcessors"] == []


def test_drc5_a_context_that_breaks_the_schema_is_400_naming_the_field() -> None:
    h = house()
    status, reply = generate(h, "strict")
    assert status == 400 and [i["field"] for i in reply["issues"]] == ["requestContext.tenant"]
    assert generate(h, "strict", requestContext={"tenant": "x"})[0] == 200
    assert h.model.calls == 1


def test_cfg4_a_call_may_budget_the_history() -> None:
    h = house()
    h.add_thread(messages=30)
    budget = HI["memory"] | {"options": {"messageHistory": {"maxTokens": 100, "atMaxRemoveTokens": 10}}}
    status, reply = generate(h, memory=budget)
    assert status == 200 and 0 < len(reply["rememberedMessages"]) < 10
    thread = h.call("GET", "/api/memory/threads/{threadId}", path={"threadId": "thr-1"})[1]
    assert thread["metadata"]["memoryTokenLimiter"]["maxTokens"] == 100
    bad = HI["memory"] | {"options": {"messageHistory": {"maxTokens": -1}}}
    status, reply = generate(h, memory=bad)
    assert status == 400 and reply["issues"][0]["field"] == "memory.options.messageHistory.maxTokens"


def test_drc2_values_of_the_query_win_over_those_of_the_body() -> None:
    h = house()
    query = {"requestContext": base64.b64encode(b'{"tenant": "x"}').decode()}
    body = HI | {"requestContext": {"tenant": 7}}
    assert h.call("POST", GENERATE, path={"agentId": "strict"}, body=body, query=query)[0] == 200
    assert h.call("POST", GENERATE, path={"agentId": "strict"}, body=body)[0] == 400
