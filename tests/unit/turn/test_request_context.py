"""The request context in a run (RX-1 to RX-3, D-RC-1, D-RC-5, D-DISC-20) and options per request (CFG-7)."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from tests.unit.fakes import calls
from threadkeep import Agent, Memory, RequestContext, ToolContext, tool
from threadkeep.errors import AccessDenied, ConfigurationError, InvalidInput
from threadkeep.memory.options import MemoryOptions
from threadkeep.turn.request import Conversation


@tool
def mark(context: ToolContext) -> list[Any]:
    """Change the context and tell what is in it."""
    seen = context.request_context.to_json()
    context.request_context["marked"] = True
    return [context.thread_id, context.resource_id, seen]


async def test_ddisc20_drc6_rx3_a_run_works_on_a_copy_of_the_context(house):
    h = house(calls(("mark", {})), "done", tools=[mark])
    context = RequestContext({"a": 1})
    result = await h.turn("go", request_context=context, options=MemoryOptions(last_messages=3))
    assert dict(context) == {"a": 1}
    thread, owner, seen = result.steps[0].outcomes[0].result
    assert (thread, owner, seen["a"]) == ("t", "ana", 1)
    memory = seen["MastraMemory"]  # RX-3
    assert (memory["thread"], memory["resourceId"]) == ({"id": "t"}, "ana")
    assert memory["memoryConfig"]["lastMessages"] == 3


async def test_rx3_the_runs_key_is_json_whatever_the_options_hold(house):
    titles = {"instructions": lambda context: "Short.", "minMessages": 99}
    h = house(calls(("mark", {})), "done", tools=[mark], memory=Memory(last_messages=4, generate_title=titles))
    result = await h.turn("go")
    memory = result.steps[0].outcomes[0].result[2]["MastraMemory"]
    assert memory == {
        "thread": {"id": "t"},
        "resourceId": "ana",
        "memoryConfig": {
            "lastMessages": 4,
            "generateTitle": {"instructions": None, "minMessages": 99, "emitEvent": False},
            "readOnly": False,
            "workingMemory": {
                "enabled": False,
                "scope": "resource",
                "version": "stable",
                "useStateSignals": False,
                "agentManaged": True,
                "maxBytes": 32768,
            },
            "filterIncompleteToolCalls": True,
            "retainFullInput": False,
        },
    }


async def test_rx2_drc3_what_the_server_set_overrides_the_call(house):
    h = house(calls(("mark", {})), "done", tools=[mark])
    context = RequestContext({"mastra__resourceId": "bo", "mastra__threadId": "own"})
    given = Conversation("t", "ana", "Title", {"k": 1})
    result = await h.turn("go", request_context=context, conversation=given)
    assert result.steps[0].outcomes[0].result[:2] == ["own", "bo"]
    thread = await h.storage.get_thread("own")
    assert (thread.resource_id, thread.title, thread.metadata) == ("bo", "Title", {"k": 1})
    assert await h.storage.get_thread("t") is None


async def test_rx2_the_two_keys_suffice_and_one_does_not(house):
    h = house()
    await h.turn("go", thread=None, request_context=RequestContext({"mastra__resourceId": "bo"}))
    assert (await h.storage.list_threads(None)).total == 0
    await h.turn("go", thread=None, request_context=RequestContext({"mastra__threadId": "own"}))
    assert (await h.storage.list_threads(None)).total == 0
    both = RequestContext({"mastra__resourceId": "bo", "mastra__threadId": "own"})
    await h.turn("go", thread=None, request_context=both)
    assert len(await h.stored("own")) == 2


async def test_rx2_drc3_ownership_is_checked_with_the_overriding_owner(house):
    h = house()
    await h.turn("mine")
    with pytest.raises(AccessDenied):
        await h.turn("hers", request_context=RequestContext({"mastra__resourceId": "eve"}))
    assert len(h.model.requests) == 1


async def test_rx2_a_reserved_key_that_is_no_text_is_a_configuration_error(house):
    with pytest.raises(ConfigurationError, match="mastra__threadId must be a text"):
        await house().turn("go", request_context=RequestContext({"mastra__threadId": 7}))


async def test_rx1_the_memory_may_depend_on_the_request(house):
    async def memory(context: RequestContext) -> Memory:
        return Memory(last_messages=0 if context.get("tier") == "free" else 10)

    agent = Agent(id="a", memory=memory)
    resolved = await agent.resolve(RequestContext({"tier": "free"}))
    assert resolved.memory is not None and resolved.memory.options.window == 0
    assert (await agent.resolve(RequestContext())).memory.options.window == 10  # type: ignore[union-attr]


def test_drc1_a_context_is_a_map_and_tells_its_json():
    context = RequestContext({"a": 1})
    context["f"] = print
    context["nan"] = float("nan")
    assert ("f" in context, len(context), list(context), context.get("x")) == (True, 3, ["a", "f", "nan"], None)
    assert context.to_json() == {"a": 1}
    del context["f"]
    assert "f" not in context


def test_drc2_the_runs_own_key_cannot_come_from_a_client():
    given = {"MastraMemory": {}, "mastra__threadId": "t", "organizationId": 1, "ok": 2}
    assert dict(RequestContext.from_client(given)) == {"ok": 2}


class Tenant(BaseModel):
    tenant: str
    seats: int = Field(default=1, ge=1)


@pytest.mark.parametrize(
    ("values", "fields"),
    [({}, ["requestContext.tenant"]), ({"tenant": 1, "seats": 0}, ["requestContext.tenant", "requestContext.seats"])],
)
async def test_drc5_a_context_that_breaks_the_agents_schema_is_named_before_anything_runs(values, fields):
    asked: list[str] = []
    agent = Agent(id="a", instructions=lambda context: asked.append("x") or "", request_context_schema=Tenant)
    with pytest.raises(InvalidInput, match="Request context validation failed") as caught:
        await agent.resolve(RequestContext(values))
    assert [issue.field for issue in caught.value.issues] == fields and not asked
    assert (await agent.resolve(RequestContext({"tenant": "x"}))).id == "a"


async def test_drc5_a_tool_tells_what_is_wrong_and_does_not_run(house):
    ran: list[str] = []

    @tool(request_context_schema=Tenant)
    async def bill() -> str:
        """Bill."""
        ran.append("ran")
        return "billed"

    h = house(calls(("bill", {})), "done", calls(("bill", {})), "done", tools=[bill])
    result = await h.turn("go", request_context=RequestContext({"seats": 3}))
    outcome = result.steps[0].outcomes[0].result
    assert outcome["error"] is True and "- tenant: " in outcome["message"] and not ran
    result = await h.turn("go", request_context=RequestContext({"tenant": "x"}))
    assert result.steps[0].outcomes[0].result == "billed"


async def test_instructions_model_and_memory_are_those_of_the_request(house):
    h = house()
    h.agent = replace(h.agent, instructions=lambda context: f"Speak {context.get('language', 'English')}.")
    await h.turn("go")
    assert h.model.prompt[0] == ("system", "Speak English.")
