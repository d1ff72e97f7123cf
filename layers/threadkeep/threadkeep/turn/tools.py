"""Tools: what a model may call, and how one call runs.

A client-side tool has no function here: a call of it ends the run, the caller runs it and comes back
with its result (`threadkeep.turn.client_results`). A call that needs a person's approval suspends the run
(`threadkeep.turn.approvals`).
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic_core import ValidationError, to_jsonable_python

from threadkeep import ids, jsontext
from threadkeep.errors import ConfigurationError, InvalidInput, Issue
from threadkeep.jsontext import Json
from threadkeep.memory.history import DECLINED, result_text, tool_text
from threadkeep.memory.messages import Content, data_part
from threadkeep.models.port import ToolCall, ToolResult, ToolSpec
from threadkeep.turn.context import RequestContext

CONCURRENCY = 10  # calls of one step that run at the same time (LOOP-12)
_EXCERPT = 200
_MAX_DATA = 50_000  # characters of JSON
_DATA = re.compile(r"data-(?!user-message$|thread-title$|om-)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Who calls a tool: handed to every tool that asks for it.

    `resource_id` is whose memory the agent uses; in a sub-agent that is the pair of its supervisor's and its key, which
    is for keys and nobody's eyes. `told` is what the tool has told so far.
    """

    agent_id: str
    run_id: str
    call_id: str
    thread_id: str | None
    resource_id: str | None
    request_context: RequestContext
    told: list[Content] = field(default_factory=list[Content])
    watcher: Callable[[Content], Awaitable[None]] | None = None

    @property
    def owner(self) -> str | None:
        """The resource for which the run works, of a sub-agent that of the first supervisor. None without an owner."""
        return None if self.resource_id is None else ids.owner_of(self.resource_id)

    async def tell(self, type: str, data: Json) -> None:
        """Tell user interfaces some data while the tool runs: a chunk of the stream, and a part of the stored answer.

        What a sub-agent's tool tells stands in the answers of all agents above it, too (DEL-26); no model sees it.
        `type` is `data-` and a name of yours. Raises `ValueError` for another type, for one that the house uses
        itself, for data that JSON cannot say, and for more than 50,000 characters of JSON.
        """
        if not _DATA.fullmatch(type):
            raise ValueError(f"a tool tells data of a type such as data-progress, of its own, not {type!r}")
        text = jsontext.dumps(to_jsonable_python(data))
        if len(text) > _MAX_DATA:
            raise ValueError(f"a tool tells at most {_MAX_DATA:,} characters of JSON at once, not {len(text):,}")
        part = data_part(type, jsontext.loads(text))
        self.told.append(part)
        if self.watcher is not None:
            await self.watcher(part)


class ToolInputInvalid(Exception):
    """Arguments that break the tool's schema; `problems` maps a dotted path to what is wrong there."""

    def __init__(self, problems: Mapping[str, str]):
        super().__init__("; ".join(f"{path}: {text}" for path, text in problems.items()))
        self.problems = dict(problems)

    @classmethod
    def of(cls, error: ValidationError) -> "ToolInputInvalid":
        """What a pydantic model found wrong with the arguments."""
        return cls({".".join(map(str, e["loc"])) or "root": e["msg"] for e in error.errors()})


class ToolRefused(Exception):
    """A call that must not run; the text says why, to the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `parameters` and `output_schema` are JSON Schemas.

    `run` takes the arguments as the model gave them and returns a JSON value; it raises
    `ToolInputInvalid` for arguments that break the schema, and anything else when it fails. None means
    that the caller runs the tool, and checks the arguments. `delegates` tells that a sub-agent answers the call.
    """

    name: str
    id: str
    description: str
    parameters: dict[str, Json]
    run: Callable[[dict[str, Json], ToolContext], Awaitable[Json]] | None
    output_schema: dict[str, Json] | None = None
    require_approval: bool = False
    delegates: bool = False

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.parameters)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """A finished call: `result` for the caller, or `error`; `answer` for the model.

    A call that a person declined did not run: `denial` is then `{"id", "approved": False, "reason"?}`, and
    `error` says so. `told` are the data parts that the tool told, or the tools of the sub-agents below it.
    """

    call: ToolCall
    result: Json
    error: str | None
    answer: ToolResult
    denial: Content | None = None
    told: tuple[Content, ...] = ()

    @classmethod
    def done(cls, call: ToolCall, result: Json) -> "CallOutcome":
        """A call with its result, and what the model reads of it."""
        return cls(call, result, None, ToolResult(call.id, call.name, tool_text(call.name, result)))

    @classmethod
    def read(cls, invocation: Content) -> "CallOutcome":
        """The outcome that a stored call has got."""
        args = jsontext.as_object(invocation.get("args")) or {}
        call = ToolCall(str(invocation.get("toolCallId")), str(invocation.get("toolName")), args)
        if invocation.get("state") == "result":
            return CallOutcome.done(call, invocation.get("result"))
        if invocation.get("state") == "output-denied":
            return _denied(call, jsontext.as_object(invocation.get("approval")) or {})
        return failed(call, str(invocation.get("errorText", "")))

    @classmethod
    def declined(cls, call: ToolCall, reason: str | None) -> "CallOutcome":
        """A call that a person declined; the model reads the reason."""
        return _denied(call, {"id": call.id, "approved": False, **({} if reason is None else {"reason": reason})})

    def with_result(self, result: Json) -> "CallOutcome":
        """The same call, finished with another result; a model that reads the whole of it still does (DEL-3)."""
        done = replace(CallOutcome.done(self.call, result), told=self.told)
        if self.answer.text != result_text(self.result):
            return done
        return replace(done, answer=replace(done.answer, text=result_text(result)))

    @property
    def stored(self) -> Content:
        """The outcome inside a stored tool part (MS-3)."""
        if self.denial is not None:
            return {"state": "output-denied", "approval": self.denial}
        if self.error is not None:
            return {"state": "output-error", "errorText": self.error}
        return {"state": "result", "result": self.result}


async def run_calls(
    calls: Sequence[ToolCall],
    tools: Mapping[str, Tool],
    context: Callable[[str], ToolContext],
    delegate: Callable[[Sequence[ToolCall]], Awaitable[Sequence[CallOutcome]]] | None = None,
) -> tuple[CallOutcome, ...]:
    """Run the calls of one step, at most ten at a time; the outcomes keep the order of the calls.

    Calls that the caller has to answer, and those that a person has to approve, have no outcome. `delegate` runs all
    delegations of the step together; what it raises is raised once the other calls are done.
    """
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(call: ToolCall) -> CallOutcome | None:
        async with gate:
            return await _outcome(call, tools, context(call.id))

    team = [n for n, call in enumerate(calls) if delegate is not None and _delegates(call, tools)]
    rest = [n for n in range(len(calls)) if n not in team]
    others, delegated = asyncio.gather(*(one(calls[n]) for n in rest)), ()
    try:
        if delegate is not None and team:
            delegated = await delegate([calls[n] for n in team])
    except asyncio.CancelledError:
        others.cancel()
        raise
    finally:
        done = await others
    outcomes = {**dict(zip(rest, done, strict=True)), **dict(zip(team, delegated, strict=True))}
    return tuple(outcome for n in range(len(calls)) if (outcome := outcomes[n]) is not None)


def offered(
    own: Mapping[str, Tool],
    client: Sequence[Tool],
    active: frozenset[str] | None,
    *,
    ask_first: bool = False,
    suspends: bool = False,
    has_caller: bool = True,
    memory: Tool | None = None,
) -> Mapping[str, Tool]:
    """The tools of one run by name: the agent's, its memory's and the caller's; only `active` ones if that is given.

    `ask_first`: every tool of the agent needs approval; its memory's never does. In a run that cannot be suspended
    (`suspends` False) a tool that needs approval refuses to run; so does one that the caller has to run where there is
    none (`has_caller` False). Raises `InvalidInput` for a
    client-side tool whose name is taken, `ConfigurationError` if a tool of the agent has the name of its memory's.
    """
    if memory is not None and memory.name in own:
        raise ConfigurationError(f"The tool name {memory.name} belongs to the agent's memory")
    tools = {name: replace(tool, require_approval=tool.require_approval or ask_first) for name, tool in own.items()}
    if not suspends:
        needy = (name for name, tool in tools.items() if tool.run and tool.require_approval)
        tools |= {name: _refusing(tools[name], "needs a person's approval") for name in needy}
    if not has_caller:
        needy = (name for name, tool in tools.items() if tool.run is None)
        tools |= {name: _refusing(tools[name], "needs the caller to run it") for name in needy}
    tools |= {memory.name: memory} if memory else {}
    if taken := [t.name for t in client if t.name in tools]:
        raise InvalidInput(*(Issue(f"clientTools.{name}", "the agent has a tool of this name") for name in taken))
    tools |= {tool.name: tool for tool in client}
    return {name: tool for name, tool in tools.items() if active is None or name in active}


def asks(call: ToolCall, tools: Mapping[str, Tool]) -> bool:
    """Whether a person has to approve the call before it runs. What could not run anyway asks nobody."""
    tool = tools.get(call.name)
    return tool is not None and tool.run is not None and tool.require_approval and call.invalid is None


def _delegates(call: ToolCall, tools: Mapping[str, Tool]) -> bool:
    tool = tools.get(call.name)
    return tool is not None and tool.delegates and call.invalid is None and not asks(call, tools)


def unknown(call: ToolCall, tools: Mapping[str, Tool]) -> CallOutcome:
    return failed(call, f"There is no tool {call.name}. Available tools: {', '.join(tools) or 'none'}")


def _refusing(tool: Tool, why: str) -> Tool:
    async def refuse(args: dict[str, Json], context: ToolContext) -> Json:
        raise ToolRefused(f"The tool {tool.name} {why}, which cannot be done here; it did not run")

    return replace(tool, run=refuse, require_approval=False, delegates=False)


async def _outcome(call: ToolCall, tools: Mapping[str, Tool], context: ToolContext) -> CallOutcome | None:
    tool = tools.get(call.name)
    if tool is None:
        return unknown(call, tools)
    return None if asks(call, tools) else await run_call(tool, call, context)


async def run_call(tool: Tool, call: ToolCall, context: ToolContext) -> CallOutcome | None:
    """Run one call of a tool; None if the caller has to."""
    outcome = await _ran(tool, call, context)
    return replace(outcome, told=tuple(context.told)) if outcome and context.told else outcome


async def _ran(tool: Tool, call: ToolCall, context: ToolContext) -> CallOutcome | None:
    if call.invalid is not None:
        return CallOutcome.done(call, validation_result(call, {"root": "expected a JSON object"}))
    if tool.run is None:
        return None
    try:
        return CallOutcome.done(call, await tool.run(call.args, context))
    except ToolInputInvalid as invalid:
        return CallOutcome.done(call, validation_result(call, invalid.problems))
    except ToolRefused as refused:
        return failed(call, str(refused))
    except asyncio.CancelledError:  # of the run, or only of something that the tool waited for
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        _log.warning("tool %s was cancelled", call.name, exc_info=True)
        return failed(call, "The tool was cancelled")
    except Exception as error:  # a tool may raise anything; the model is told and goes on (LOOP-8)
        _log.warning("tool %s failed", call.name, exc_info=True)
        return failed(call, why(error))


def why(error: Exception) -> str:
    """What a model reads of an error that a tool raised."""
    if isinstance(error, ToolRefused):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def validation_result(call: ToolCall, problems: Mapping[str, str]) -> Content:
    """The result of a call with bad arguments, in words that let the model mend it (WM-10)."""
    lines = "\n".join(f"- {path}: {text}" for path, text in problems.items())
    shown = (call.invalid if call.invalid is not None else result_text(call.args))[:_EXCERPT]
    fields: Content = {path: {"errors": [text], "fields": {}} for path, text in problems.items() if path != "root"}
    return {
        "error": True,
        "message": f"Tool input validation failed for {call.name}:\n{lines}\nReceived arguments: {shown}",
        "validationErrors": {"errors": [problems["root"]] if "root" in problems else [], "fields": fields},
    }


def failed(call: ToolCall, error: str) -> CallOutcome:
    """A call whose tool did not bring a result."""
    return CallOutcome(call, None, error, ToolResult(call.id, call.name, error, is_error=True))


def _denied(call: ToolCall, approval: Content) -> CallOutcome:
    reason = str(approval.get("reason") or DECLINED)
    return CallOutcome(call, None, reason, ToolResult(call.id, call.name, reason, is_error=True), approval)
