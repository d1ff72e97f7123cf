"""What a durable run has done, so that a process that begins the run again does none of it twice (DESIGN 6).

A durable run is a turn that is begun again in each process that works on it. Model answers and outcomes of tools are
entries of the run's journal, written before anything follows from them; a run that meets its own entry takes that.
Entries are told apart by the step and by the call, so that the same run asks for the same ones. What happens between a
tool and its entry can happen twice: then the tool is called again with the same run id and call id.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from threadkeep import jsontext
from threadkeep.errors import RunEnded, TooLarge
from threadkeep.ids import new_id
from threadkeep.jsontext import Json
from threadkeep.models.port import Model, ModelChunk, ModelRequest, ModelResponse, ToolCall, Usage
from threadkeep.models.streams import Generates, chunks_of
from threadkeep.storage.port import Storage
from threadkeep.storage.rules import MAX_TURN_MESSAGES, chunks
from threadkeep.storage.runs import Entry
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.tools import Tool, ToolContext, ToolInputInvalid, ToolRefused, why

REQUEST = "request"  # the entry that holds what the run was asked for
SHOWN = "shown."  # entries of what a caller may see
_READ = ("did.", "report.", SHOWN)


@dataclass
class RunJournal:
    """The journal of one run in the hands of one process.

    `show_step` and `show_end` make what a caller may see of a step and of the result. `is_over` tells whether the run
    was ended meanwhile: it is asked before tools run. `step` counts the steps that are
    done, `is_new` tells whether this process has added one.
    """

    storage: Storage
    run_id: str
    entries: dict[str, Json]
    show_step: Callable[[Step], Json] = lambda step: None
    show_end: Callable[[TurnResult], Json] = lambda result: None
    is_over: Callable[[], Awaitable[bool]] | None = None
    step: int = 0
    is_new: bool = False
    end: str = field(default_factory=lambda: f"end.{new_id()}")
    _answers: int = 0  # of the model in this step
    _lost: Exception | None = None

    @classmethod
    async def opened(cls, storage: Storage, run_id: str) -> "RunJournal":
        """The journal with all that is in it, read once."""
        listed = asyncio.gather(*(storage.list_entries(run_id, prefix) for prefix in _READ))
        request, lists = await asyncio.gather(storage.read_entries(run_id, [REQUEST]), listed)
        return cls(storage, run_id, request | {entry.name: entry.body for entries in lists for entry in entries})

    @property
    def ahead(self) -> bool:
        """Whether the next step was begun before: limits of time do not end a run that is told again."""
        return self._answer(0) in self.entries

    @property
    def ending(self) -> dict[str, Json]:
        """What the run's record keeps of its result: where that is."""
        return {"end": self.end}

    async def keep(self, entries: Mapping[str, Json]) -> None:
        """Write those of these entries that are not there yet. Of two writers the first one counts."""
        new = [Entry(name, body) for name, body in entries.items() if name not in self.entries]
        for chunk in chunks(new, MAX_TURN_MESSAGES):
            written = await self.storage.write_entries(self.run_id, chunk, thread_id=None)
            self.entries |= {entry.name: entry.body for entry in written}

    def model(self, model: Model | Generates) -> Model:
        """The model, asked only for answers that are not in the journal."""
        return _Recorded(model, self)

    def tools(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """The tools, run only for calls that have no outcome yet; those of sub-agents as they are."""
        return {name: self._recorded(tool) for name, tool in tools.items()}

    async def answered(self, ask: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        """The next answer of the model. One that fails is not kept. Raises `RunEnded` rather than let tools run."""
        name = self._answer(self._answers)
        if name not in self.entries:
            response = await ask()
            await self.keep({name: asdict(response)})
            if response.tool_calls and self.is_over is not None and await self.is_over():
                raise RunEnded
        self._answers += 1
        return _response(self.entries[name])

    async def step_finished(self, step: Step) -> None:
        """Go on to the next step. Raises what kept the outcome of a tool from being written."""
        if self._lost is not None:
            raise self._lost
        name = f"{SHOWN}{self.step + 1:04}"
        self.is_new = self.is_new or name not in self.entries
        await self.keep({name: self.show_step(step)})
        self.step, self._answers = self.step + 1, 0

    async def ended(self, result: TurnResult) -> None:
        """Keep the result, before the commit that makes it count."""
        await self.keep({self.end: self.show_end(result)})

    def _answer(self, number: int) -> str:
        return f"did.{self.step:04}.model.{number:02}"

    def _recorded(self, tool: Tool) -> Tool:
        own = tool.run
        if own is None or tool.delegates:
            return tool

        async def run(args: dict[str, Json], context: ToolContext) -> Json:
            called = hashlib.sha256(jsontext.dumps([context.call_id, tool.name, args]).encode()).hexdigest()
            name = f"did.{self.step:04}.call.{called}"
            try:
                known = name in self.entries
                outcome = self.entries[name] if known else await self._kept(name, await _outcome(own, args, context))
            except Exception as error:
                self._lost = error  # the run may not go on as if the tool had failed
                raise
            context.told[:] = outcome.get("told", ())
            return _read(outcome)

        return replace(tool, run=run)

    async def _kept(self, name: str, outcome: Json) -> dict[str, Json]:
        """The outcome of a call as it stands; one that cannot be kept is an error that the model reads."""
        try:
            await self.keep({name: outcome})
        except (TooLarge, TypeError, ValueError) as error:
            await self.keep({name: {"error": why(error)}})
        return self.entries[name]


async def _outcome(
    run: Callable[[dict[str, Json], ToolContext], Awaitable[Json]], args: dict[str, Json], context: ToolContext
) -> Json:
    """What a tool did, as an entry, with the data that it told if it told any."""
    try:
        done: dict[str, Json] = {"result": await run(args, context)}
    except ToolInputInvalid as invalid:
        done = {"problems": invalid.problems}
    except Exception as error:  # a tool may raise anything
        done = {"error": why(error)}
    return {**done, "told": list(context.told)} if context.told else done


def _read(outcome: dict[str, Json]) -> Json:
    """What comes of a call whose entry this is, as the tool itself returned or raised it."""
    if "problems" in outcome:
        raise ToolInputInvalid(outcome["problems"])
    if "error" in outcome:
        raise ToolRefused(outcome["error"])
    return outcome["result"]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A model whose answers are entries of a journal."""

    own: Model | Generates
    journal: RunJournal

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return await self.journal.answered(lambda: self.own.generate(request))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        for chunk in chunks_of(await self.generate(request)):
            yield chunk


def _response(body: dict[str, Any]) -> ModelResponse:
    read: dict[str, Any] = {
        "tool_calls": tuple(ToolCall(**call) for call in body["tool_calls"]),
        "usage": Usage(**body["usage"]),
    }
    return ModelResponse(**{**body, **read})
