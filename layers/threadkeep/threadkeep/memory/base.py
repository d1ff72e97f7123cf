"""What the options of a Memory have in common."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Options(BaseModel):
    """Snake case in Python, camel case on the wire; both spellings are read."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")
