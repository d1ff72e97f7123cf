"""The agents that tests of working memory deploy: both scopes, a schema, one that is read-only."""

from pydantic import BaseModel

from threadkeep import Agent, Memory

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


agents = [
    _agent("template-agent", template=TEMPLATE),
    _agent("thread-agent", template=TEMPLATE, scope="thread"),
    _agent("schema-agent", schema=Person),
    _agent("reader", read_only=True, template=TEMPLATE),
]
