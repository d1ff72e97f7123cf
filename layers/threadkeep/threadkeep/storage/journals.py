"""Rules of durable runs and journals that need no store."""

import re
from collections.abc import Sequence
from dataclasses import replace

from threadkeep import jsontext
from threadkeep.clock import Millis
from threadkeep.errors import Conflict, InvalidInput, Issue, TooLarge
from threadkeep.jsontext import Json
from threadkeep.storage import rules
from threadkeep.storage.runs import JOURNAL_MILLIS, DurableRun, Entry, RunState

MAX_ENTRIES = rules.MAX_TURN_MESSAGES  # in one write
MAX_ENTRY_BYTES = 25_000_000
MAX_RESULT_BYTES = 40_000  # beside a request of 350,000 in an item's 400 KB
POINTER_MILLIS = 2 * JOURNAL_MILLIS  # a run may end a week after it began, and is kept for another one then

_NAME = re.compile(r"[A-Za-z0-9#._-]{1,200}")


def entry_texts(entries: Sequence[Entry]) -> dict[str, str]:
    """The JSON text of each body, by the name of its entry; of two with one name the first counts.

    Raises `InvalidInput` for a name that may not be, `TooLarge` above 44 entries or 25 MB in one body.
    """
    if len(entries) > MAX_ENTRIES:
        raise TooLarge(f"One write may have {MAX_ENTRIES} entries, received {len(entries)}")
    texts: dict[str, str] = {}
    for entry in entries:
        if not _NAME.fullmatch(entry.name):
            issue = Issue("name", "must have 1 to 200 letters, digits and # . - _")
            raise InvalidInput(issue, where="argument")
        if entry.name not in texts:
            texts[entry.name] = rules.within(MAX_ENTRY_BYTES, jsontext.dumps(entry.body))
    return texts


def outcome_text(outcome: dict[str, Json]) -> str:
    """The JSON text of a run's result or error. Raises `TooLarge` above 40 KB of UTF-8."""
    return rules.within(MAX_RESULT_BYTES, jsontext.dumps(outcome))


def known(stored: DurableRun, run: DurableRun) -> DurableRun:
    """The run that has the id of a new one. Raises `Conflict` if it is another agent's or owner's."""
    if (stored.agent_id, stored.resource_id) != (run.agent_id, run.resource_id):
        raise Conflict("Another run has this id")
    return stored


def may_become(before: RunState, after: RunState) -> bool:
    """Whether a run may be brought to a state: a running one to any other, a failed one to run again."""
    return before != after and (before == "running" or (before, after) == ("failed", "running"))


def brief(run: DurableRun) -> DurableRun:
    """The run as lists show it."""
    return replace(run, request={}, result=None)


def ended(
    run: DurableRun, state: RunState, result: dict[str, Json] | None, error: dict[str, Json] | None, now: Millis
) -> DurableRun:
    """The run in its new state; what came of it before is forgotten."""
    return replace(run, state=state, result=result, error=error, updated_at=now)
