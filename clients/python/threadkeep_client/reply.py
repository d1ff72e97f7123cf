"""What all replies have in common."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Reply(BaseModel):
    """Base of the generated models: snake_case here, camelCase on the wire.

    A field that this version does not know is kept, in `model_extra`, so that newer servers can be used.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="allow", protected_namespaces=()
    )
