"""Turns without HTTP, for tests and for programs that bring their own store: what `Agent.generate` and `stream` do."""

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from threadkeep import ids
from threadkeep.agents.speakers import Speaker
from threadkeep.errors import InvalidInput, Issue, ModelUnavailable
from threadkeep.jsontext import Json
from threadkeep.memory.options import MemoryOptions, in_camel_case, merged
from threadkeep.models.port import Model, ModelSettings
from threadkeep.models.registry import Models
from threadkeep.storage.memory import InMemoryStorage
from threadkeep.storage.port import Storage
from threadkeep.turn.after import finish_turn
from threadkeep.turn.approvals import Decision, decide, suspended_run
from threadkeep.turn.context import SPEAKER_KEY, RequestContext
from threadkeep.turn.delegation.in_process import InProcess
from threadkeep.turn.delegation.options import Delegation, Limits, OnIteration
from threadkeep.turn.events import Event, Sink
from threadkeep.turn.input import input_messages
from threadkeep.turn.plan import own_context, planned
from threadkeep.turn.request import Conversation, InputMessage, Services, TurnAgent, TurnRequest
from threadkeep.turn.result import TurnResult
from threadkeep.turn.run import run_turn
from threadkeep.turn.structured import StructuredOutput
from threadkeep.turn.suspension import context_of, request_of
from threadkeep.turn.tools import Tool
from threadkeep.turn.watch import watched

if TYPE_CHECKING:
    from threadkeep.agents.agent import Agent

Said = str | Sequence[str | dict[str, Any]]
ThreadArgument = str | Mapping[str, Any]
Hook = Callable[[Any], Awaitable[None] | None]
Run = Callable[[TurnAgent, TurnRequest, Services], Awaitable[TurnResult]]

_log = logging.getLogger(__name__)


class CallOptions(TypedDict, total=False):
    """What a call of an agent may say besides its messages (CALL-1).

    `thread` is an id or `{"id", "title", "metadata"}`; with `resource` it says whose memory is used.
    `options` change the memory's for this call. `storage` None means the memory's own, or one in memory that
    all agents of the process share. `context` is written as messages are. `speaker` is who says the
    messages, for `SpeakerTurns`. `deadline` is in seconds. `delegation` and `on_iteration` take the place of the
    agent's own, `limits` narrow its own. The hooks get a `Step`, the `TurnResult`, and the title of a thread that got
    one; they may be async (LOOP-10).
    """

    thread: ThreadArgument | None
    resource: str | None
    storage: Storage | None
    options: Mapping[str, Any] | None
    context: Said | None
    instructions: str | None
    system: str | None
    max_steps: int | None
    tool_choice: str
    active_tools: Iterable[str] | None
    client_tools: Sequence[Tool]
    structured_output: StructuredOutput | None
    model_settings: ModelSettings | None
    request_context: Mapping[str, Any] | None
    speaker: Speaker | None
    run_id: str | None
    deadline: float | None
    delegation: Delegation | None
    limits: Limits | None
    on_iteration: OnIteration | None
    on_step_finish: Hook | None
    on_finish: Hook | None
    on_title_generated: Hook | None


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions of the caller, plain or async: after each step, after the run, after a title was made."""

    step: Hook | None = None
    finish: Hook | None = None
    title: Hook | None = None


async def prepared(
    agent: "Agent", messages: Said, call: CallOptions
) -> tuple[TurnAgent, TurnRequest, Storage | None, Hooks]:
    """The agent as it is for this call, and the turn that the call asks for. Raises what `Agent.generate` says."""
    if unknown := call.keys() - CallOptions.__annotations__.keys():
        raise TypeError(f"a call of an agent has no option {', '.join(sorted(unknown))}")
    conversation = conversation_of(call.get("thread"), call.get("resource"))
    said = messages_of(messages, "messages")
    context, active, speaker = call.get("context"), call.get("active_tools"), call.get("speaker")
    values = RequestContext(call.get("request_context"))
    if speaker is not None:
        values[SPEAKER_KEY] = speaker.to_json()
    resolved = await agent.resolve(values)
    delegation, iteration = call.get("delegation"), call.get("on_iteration")
    resolved = replace(resolved, delegation=delegation or resolved.delegation)
    resolved = replace(resolved, on_iteration=iteration or resolved.on_iteration)
    request = TurnRequest(
        messages=said,
        run_id=call.get("run_id") or ids.new_id(),
        conversation=conversation,
        options=options_of(resolved, call.get("options")),
        context=messages_of(context, "context") if context else (),
        instructions=call.get("instructions"),
        system=call.get("system"),
        max_steps=call.get("max_steps") or None,
        tool_choice=call.get("tool_choice", "auto"),
        active_tools=None if active is None else frozenset(active),
        settings=call.get("model_settings"),
        deadline=call.get("deadline"),
        request_context=values,
        client_tools=tuple(call.get("client_tools", ())),
        structured_output=call.get("structured_output"),
        memory_options=_json_options(call.get("options")),
        limits=call.get("limits"),
    )
    hooks = Hooks(call.get("on_step_finish"), call.get("on_finish"), call.get("on_title_generated"))
    return resolved, request, call.get("storage"), hooks


async def run_in_process(
    agent: TurnAgent, request: TurnRequest, storage: Storage | None, hooks: Hooks, run: Run = run_turn
) -> TurnResult:
    """Run a turn, then what is due after it and after those of its sub-agents (TT-2), and tell the hooks (LOOP-10).

    `run` is what runs it. `storage` None means the memory's own, or one that this process shares and forgets
    when it ends. A title whose model is down stays due; it does not fail the turn.
    """
    due: list[_Due] = []
    services = Services(storage or _shared_store(), _shared_models(), InProcess(_noting(run_turn, due)))
    if hooks.step is not None:
        request = replace(request, on_step=_awaited(hooks.step))
    result = await _noting(run, due)(agent, request, services)
    for turn in due:
        title, own = await _titled(turn), result.thread is not None and turn.thread_id == result.thread.id
        if own and title and title != turn.title and hooks.title is not None:
            await _awaited(hooks.title)(title)
    if hooks.finish is not None:
        await _awaited(hooks.finish)(result)
    return result


@dataclass(frozen=True, slots=True)
class _Due:
    """What may be due after a turn: the title of its thread, whose title it was then."""

    services: Services
    thread_id: str
    run_id: str
    title: str


def _noting(run: Run, due: list[_Due]) -> Run:
    """`run` for agents with any kind of model; it notes each turn after which something may be due."""

    async def noted(agent: TurnAgent, request: TurnRequest, services: Services) -> TurnResult:
        agent, models = _named_model(agent)
        services = replace(services, models=models)
        result = await run(agent, request, services)
        if result.thread is not None:
            used = planned(agent, own_context(agent, request), services).storage
            due.append(_Due(Services(used, models), result.thread.id, request.run_id, result.thread.title))
        return result

    return noted


async def resume_in_process(
    agent: "Agent",
    run_id: str,
    decision: Decision,
    storage: Storage | None,
    request_context: Mapping[str, Any] | None,
    deadline: float | None,
    hooks: Hooks,
) -> TurnResult:
    """Decide a call of a suspended run and go on with it; otherwise as `run_in_process`."""
    run = await suspended_run(agent.storage_or(storage or _shared_store()), run_id, agent.id, None)
    context = context_of(run, request_context or {})
    resolved = await agent.resolve(context)
    request = replace(request_of(run, resolved, context), deadline=deadline)

    async def decided(agent: TurnAgent, request: TurnRequest, services: Services) -> TurnResult:
        return await decide(agent, request, run, decision, services)

    return await run_in_process(resolved, request, storage, hooks, decided)


async def stream_in_process(
    agent: TurnAgent, request: TurnRequest, storage: Storage | None, hooks: Hooks
) -> AsyncGenerator[Event]:
    """As `run_in_process`, told while it goes on; `RunFinished` is the last event."""

    async def run(sink: Sink) -> None:
        await run_in_process(agent, replace(request, watcher=sink), storage, hooks)

    async with aclosing(watched(run)) as events:
        async for event in events:
            yield event


def conversation_of(thread: ThreadArgument | None, resource: str | None) -> Conversation | None:
    """Whose memory a run uses (CALL-1); None without any.

    Raises `InvalidInput` where only one of thread and resource is given (TH-17, LOOP-5).
    """
    given: dict[str, Any] = {"id": thread} if isinstance(thread, str) else dict(thread or {})
    thread_id = given.get("id")
    if thread_id is None and resource is None:
        return None
    if thread_id is None or resource is None:
        missing = "thread" if thread_id is None else "resource"
        seen = f"thread {thread_id!r}, resource {resource!r}"
        message = f"a thread and a resource must be given together when using memory, received {seen}"
        raise InvalidInput(Issue(missing, message), where="argument")
    ids.check("thread", thread_id)
    ids.check("resource", resource)
    return Conversation(thread_id, resource, given.get("title", ""), given.get("metadata"))


def messages_of(said: Said, field: str) -> tuple[InputMessage, ...]:
    """Messages in the spellings that HTTP takes. Raises `InvalidInput` naming the place of a mistake."""
    if not said:
        raise InvalidInput(Issue(field, "must not be empty"), where="argument")
    return input_messages(said if isinstance(said, str) else list(said), field)


def options_of(agent: TurnAgent, call: Mapping[str, Any] | None) -> MemoryOptions:
    """The memory's options with the call's, in either spelling, merged in (CFG-7)."""
    base = agent.memory.options if agent.memory else MemoryOptions()
    return merged(base, None if call is None else in_camel_case(call))


def _json_options(call: Mapping[str, Any] | None) -> dict[str, Json] | None:
    """The options of a call that JSON can say: those that a run keeps while it is suspended."""
    return None if call is None else RequestContext(in_camel_case(call)).to_json()


def _named_model(agent: TurnAgent) -> tuple[TurnAgent, Models]:
    """The agent with a name for its model, where that is an object: what is due after the turn asks for it by name."""
    if isinstance(agent.model, str):
        return agent, _shared_models()
    provider = type(agent.model).__name__
    adapters: dict[str, Model] = {provider: agent.model}
    return replace(agent, model=f"{provider}/{agent.id}"), Models(adapters=adapters)


async def _titled(turn: _Due) -> str:
    try:
        await finish_turn(turn.services, turn.thread_id, turn.run_id)
    except ModelUnavailable:
        _log.warning("no title for thread %s yet", turn.thread_id, exc_info=True)
    thread = await turn.services.storage.get_thread(turn.thread_id)
    return thread.title if thread else ""


def _awaited(hook: Hook) -> Callable[[Any], Awaitable[None]]:
    async def call(subject: Any) -> None:
        done = hook(subject)
        if inspect.isawaitable(done):
            await done

    return call


@cache
def _shared_store() -> InMemoryStorage:
    return InMemoryStorage()


@cache
def _shared_models() -> Models:
    return Models()
