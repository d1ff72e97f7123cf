"""The tool `agent-<key>`: what a supervisor's model may say to it (DEL-2, DEL-4, DEL-27)."""

from functools import cache

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from threadkeep.jsontext import Json
from threadkeep.turn.tools import ToolInputInvalid

LEAST_STEPS = 3


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")


class Reference(_Model):
    """An earlier result of the same run, by its name."""

    ref: str
    as_: str | None = Field(default=None, alias="as")
    note: str | None = None


class Arguments(_Model):
    """What the model asks of a sub-agent. Ids are taken and ignored: whose memory is used is not the model's to say."""

    prompt: str = Field(pattern=r"\S", description="The task for the agent, complete in itself")
    thread_id: str | None = Field(default=None, description="Ignored; every delegation has a thread of its own")
    resource_id: str | None = Field(default=None, description="Ignored; the agent works for the same user")
    instructions: str | None = Field(default=None, description="Further instructions for the agent")
    max_steps: int | None = Field(default=None, ge=LEAST_STEPS, description="How many steps the agent may take")


class CitingArguments(Arguments):
    context_from_refs: list[str | Reference] | None = Field(
        default=None, description="Earlier results to hand to the agent, by the names in [ref: ...]"
    )

    @property
    def references(self) -> list[Reference]:
        return [Reference(ref=r) if isinstance(r, str) else r for r in self.context_from_refs or ()]


@cache
def schema(*, references: bool) -> dict[str, Json]:
    """The JSON Schema that the model sees."""
    return (CitingArguments if references else Arguments).model_json_schema()


def read(args: dict[str, Json]) -> CitingArguments:
    """The arguments; numbers may come as text (DEL-22). Raises `ToolInputInvalid` for the model to read (D-DISC-16)."""
    try:
        return CitingArguments.model_validate(args)
    except ValidationError as error:
        raise ToolInputInvalid.of(error) from error
