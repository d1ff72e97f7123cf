"""What all replies have in common."""

import re
from typing import Self

from pydantic import BaseModel, ConfigDict, PrivateAttr
from pydantic.alias_generators import to_camel


class Reply(BaseModel):
    """Base of the generated models: snake_case here, camelCase on the wire.

    A field that this version does not know is kept, in `model_extra`, so that newer servers can be used.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="allow", protected_namespaces=()
    )

    _stored_version: int | None = PrivateAttr(default=None)

    @property
    def stored_version(self) -> int | None:
        """The version that the answer's `ETag` named: of the working memory that was read or written. Else None."""
        return self._stored_version

    def tagged(self, etag: str | None) -> Self:
        """Remember the version that an entity tag such as `"3"` names."""
        found = re.fullmatch(r'(?:W/)?"(\d+)"', etag or "", re.ASCII)
        self._stored_version = int(found[1]) if found else None
        return self
