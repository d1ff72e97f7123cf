"""Structured output: an answer that is JSON of a given schema (LOOP-11)."""

import logging
import re
from dataclasses import dataclass
from typing import Literal

from threadkeep import jsontext, schemas
from threadkeep.errors import InvalidInput, Issue, OutputInvalid
from threadkeep.jsontext import Json

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What the answer must look like, and what happens if it does not.

    `strict` fails the run, `warn` gives no object and says why, `fallback` gives `fallback_value`.
    `instructions` are shown to the model. Raises `InvalidInput` for a schema that cannot be used.
    """

    schema: dict[str, Json]
    instructions: str | None = None
    error_strategy: Literal["strict", "warn", "fallback"] = "strict"
    fallback_value: Json = None

    def __post_init__(self) -> None:
        if reason := schemas.unusable(self.schema):
            raise InvalidInput(Issue("structuredOutput.schema", f"is no usable JSON Schema: {reason}"))


@dataclass(frozen=True, slots=True)
class Structured:
    """The object of an answer. `problem` says why there is none of the model's own."""

    value: Json = None
    is_fallback: bool = False
    problem: str = ""

    @property
    def exists(self) -> bool:
        return self.is_fallback or not self.problem


def read(wanted: StructuredOutput, text: str) -> Structured:
    """The object in an answer. Raises `OutputInvalid` with strategy `strict`."""
    value, wrong = _checked(wanted.schema, text)
    if not wrong:
        return Structured(value)
    problem = "\n".join(f"- {path}: {reason}" for path, reason in wrong.items())
    if wanted.error_strategy == "strict":
        raise OutputInvalid(problem)
    _log.warning("the answer breaks its schema:\n%s", problem)
    if wanted.error_strategy == "fallback":
        return Structured(wanted.fallback_value, is_fallback=True, problem=problem)
    return Structured(problem=problem)


def _checked(schema: dict[str, Json], text: str) -> tuple[Json, dict[str, str]]:
    fenced = _FENCED.fullmatch(text)  # models without a JSON mode like to add a code fence
    try:
        value = jsontext.loads(fenced[1] if fenced else text)
    except ValueError as error:
        return None, {"root": f"is not JSON: {error}" if text.strip() else "the answer is empty"}
    return value, schemas.problems(schema, value)
