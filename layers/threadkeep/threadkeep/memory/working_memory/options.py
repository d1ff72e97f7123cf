"""The options of working memory, and how a call changes them (WM-1, CFG-5, CFG-7, CFG-8, M-DISC-12)."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from threadkeep import jsontext
from threadkeep.jsontext import Json
from threadkeep.memory.base import Options
from threadkeep.memory.working_memory import schema as schema_of
from threadkeep.storage.port import MemoryScope

MAX_TEMPLATE_BYTES = 32_768
DEFAULT_BYTES, LARGEST_BYTES = 32_768, 262_144


def _schema(value: Any) -> Any:
    return None if value is None else schema_of.usable(value)


def _template(value: Any) -> Any:
    if isinstance(value, str) and (size := len(jsontext.valid(value).encode())) > MAX_TEMPLATE_BYTES:
        raise ValueError(f"may have at most {MAX_TEMPLATE_BYTES} bytes, received {size}")
    return value


class WorkingMemoryOptions(Options):
    """`enabled` False: no text in the prompt, no tool, nothing to read or write (WM-1).

    `scope`: whose memory it is; the two never see each other. `template` is Markdown that tells the model what
    to keep; None or blank means the default one. `json_schema`, on the wire and as a keyword `schema`, is a
    pydantic model or a JSON Schema instead: then the memory is a JSON object and updates are merged. One of
    the two, never both (M-DISC-12). `version` "vnext" lets the model append and replace passages of a Markdown
    memory. `use_state_signals` shows the memory as a signal after the input. `agent_managed` False: the model
    reads it and has no tool. `max_bytes` limits the text, in UTF-8, on every way in (case H27).
    """

    enabled: bool = Field(default=False, strict=True)
    scope: MemoryScope = "resource"
    template: Annotated[str | None, BeforeValidator(_template)] = None
    json_schema: Annotated[dict[str, Any] | None, BeforeValidator(_schema)] = Field(default=None, alias="schema")
    version: Literal["stable", "vnext"] = "stable"
    use_state_signals: bool = Field(default=False, strict=True)
    agent_managed: bool = Field(default=True, strict=True)
    max_bytes: int = Field(default=DEFAULT_BYTES, ge=1, le=LARGEST_BYTES, strict=True)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.template is not None and self.json_schema is not None:
            raise ValueError("give template or schema, not both")
        if self.vnext and self.json_schema is not None:
            raise ValueError("version vnext works with a template, not with a schema")
        if self.vnext and self.use_state_signals:
            raise ValueError("version vnext and useStateSignals do not work together")
        return self

    @property
    def vnext(self) -> bool:
        return self.version == "vnext"


def switched(value: Any) -> Any:
    """The options that a mere switch stands for: true, false, or null for false."""
    return {"enabled": bool(value)} if value is None or isinstance(value, bool) else value


def of_call(base: Json, call: Json) -> Json:
    """The options of one call over those of the Memory, both as JSON (CFG-7, CFG-8).

    Each option replaces, a schema as a whole; one of `template` and `schema` puts the other out.
    """
    kept, change = jsontext.as_object(base) or {}, jsontext.as_object(switched(call))
    if change is None:
        return call
    put_out = {o for one, o in (("template", "schema"), ("schema", "template")) if change.get(one) is not None}
    return {key: value for key, value in kept.items() if key not in put_out} | change
