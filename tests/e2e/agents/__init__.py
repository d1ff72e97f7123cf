"""The agents that tests of the whole application deploy.

For working memory: both scopes, a schema, one that is read-only. For approvals: one whose tool counts its effects.
For sharing: a researcher and a writer, each with a Memory of its own, and a reviewer that only reads. For delegation:
an editor above the three, and an archivist that works in the memory that the request names. For what goes wrong: a
manager with sub-agents of every kind, among them a deputy with sub-agents of its own, and one who has little time.
"""

import os
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from threadkeep import Agent, DelegatedMemory, Limits, Memory, RequestContext, ToolContext, tool

TEMPLATE = "# User Profile\n- Name:\n- Location:\n- Interests:"


class Preferences(BaseModel):
    color: str | None = None
    size: str | None = None


class Person(BaseModel):
    name: str | None = None
    location: str | None = None
    tags: list[str] = []
    prefs: Preferences = Preferences()


def _agent(name: str, read_only: bool = False, **options: object) -> Agent:
    return Agent(id=name, memory=Memory(working_memory={"enabled": True, **options}, read_only=read_only))


@tool(id="count", require_approval=True)
def count(what: str, context: ToolContext) -> dict[str, str]:
    """Count one more effect in the table: whoever runs this twice is found out."""
    import boto3

    boto3.client("dynamodb").update_item(
        TableName=os.environ["TABLE_NAME"],
        Key={"pk": {"S": f"EFFECTS#{what}"}, "sk": {"S": "@"}},
        UpdateExpression="ADD effects :one",
        ExpressionAttributeValues={":one": {"N": "1"}},
    )
    return {"counted": what, "for": context.resource_id or "nobody"}


def _colleague(name: str, **options: Any) -> Agent:
    working_memory = {"enabled": True, "template": "# Project\n- Findings:\n- Style:"}
    return Agent(id=name, instructions=f"You are the {name}.", memory=Memory(working_memory=working_memory), **options)


researcher, writer, reviewer = _colleague("researcher"), _colleague("writer"), _colleague("reviewer", read_only=True)
archivist = _colleague("archivist")


def staff(context: RequestContext) -> dict[str, Agent]:
    """The editor's sub-agents; `shared` in the context is the memory of the archivist."""
    delegated = DelegatedMemory(**(context.get("shared") or {}))
    shared = replace(archivist, delegated_memory=delegated)
    return {"researcher": researcher, "writer": writer, "reviewer": reviewer, "archivist": shared}


@tool(id="look")
def look(what: str) -> str:
    """Look something up"""
    return f"nothing about {what}"


def no_instructions(context: RequestContext) -> str:
    raise RuntimeError("the instructions are lost")


clerk = Agent(id="clerk", instructions="You are the clerk.", tools=[look], max_steps=2)
broken = Agent(id="broken", instructions=no_instructions)
deputy = Agent(id="deputy", memory=Memory(), agents={"clerk": clerk})
staff_of_manager = {"clerk": clerk, "broken": broken, "deputy": deputy, "writer": writer}

agents = [
    Agent(id="manager", memory=Memory(), agents=staff_of_manager),
    Agent(id="hasty", memory=Memory(), agents=staff_of_manager, limits=Limits(seconds=6)),
    Agent(id="careful", memory=Memory(), tools=[count]),
    _agent("template-agent", template=TEMPLATE),
    _agent("thread-agent", template=TEMPLATE, scope="thread"),
    _agent("schema-agent", schema=Person),
    _agent("reader", read_only=True, template=TEMPLATE),
    researcher,
    writer,
    reviewer,
    _colleague("editor", agents=staff),
]
