"""One turn: load → prompt → model loop → commit (DESIGN 4).

On an existing thread it makes two sequential storage round trips, whatever the thread's length; one
more where it creates the thread. It stores everything in one transaction at the end, or nothing.
"""

import asyncio
from dataclasses import replace

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.errors import (
    AccessDenied,
    ConfigurationError,
    DeadlineExceeded,
    InvalidInput,
    Issue,
    ThreadGone,
    TooLarge,
)
from threadkeep.memory import titles
from threadkeep.models.port import Model, ModelRequest
from threadkeep.storage import rules
from threadkeep.storage.port import Job, NewMessage, NewThread, Storage, Thread, TurnCommit, TurnState
from threadkeep.turn import prompt
from threadkeep.turn.context import value_of
from threadkeep.turn.loop import answer_message, run_steps
from threadkeep.turn.request import Conversation, Services, TurnAgent, TurnRequest
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.tools import ToolContext

_MODEL_TIMEOUT = 120.0  # seconds for one model call where the turn has no deadline


async def run_turn(agent: TurnAgent, request: TurnRequest, services: Services) -> TurnResult:
    """Run one turn and store it.

    Raises `AccessDenied` before any model or tool call if another resource owns the thread (TH-12),
    `ThreadGone` if it is deleted before the turn is stored, `DeadlineExceeded`, `ModelRejected` or
    `ModelUnavailable`; after each of these the thread is as it was.
    """
    now = clock.now()
    model, name, provider = _model(agent, services)
    storage = agent.memory.storage or services.storage if agent.memory else services.storage
    conversation = request.conversation if agent.memory else None
    try:
        async with asyncio.timeout(request.deadline):
            state = await _load(storage, conversation, request)
            new = _new_input(request, state, now)
            if conversation and state.thread is None and not request.options.read_only:
                state = TurnState(await _create(storage, conversation))
            steps = await _answer(agent, request, state, new, (model, name), now)
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"The run took longer than {request.deadline:g} s and stored nothing; "
            "use the stream or runs route for longer work"
        ) from error
    answer = answer_message(steps, steps[-1].response.model, provider)
    messages = (*new, *((answer,) if answer else ()))
    result = TurnResult(request.run_id, agent.id, provider, steps, messages, state.thread, state.history)
    if state.thread is None or request.options.read_only:
        return result
    job = await _job(agent, request, state, messages)
    committed = await storage.commit_turn(TurnCommit(state.thread, messages, job))
    return replace(result, thread=committed.thread, messages=committed.messages)


def _model(agent: TurnAgent, services: Services) -> tuple[Model, str, str]:
    if not isinstance(agent.model, str):
        return agent.model, agent.id, type(agent.model).__name__
    if not agent.model:
        raise ConfigurationError(f"Agent {agent.id} names no model and the deployment has no default model")
    model, name = services.models.resolve(agent.model)
    return model, name, agent.model.partition("/")[0]


async def _load(storage: Storage, conversation: Conversation | None, request: TurnRequest) -> TurnState:
    """Read everything in one round and check the owner."""
    if conversation is None:
        return TurnState(thread=None)
    given = [m.id for m in request.messages if m.id is not None]
    state = await storage.load_turn(
        conversation.thread_id, last_messages=request.options.last_messages, message_ids=given
    )
    if state.deleting:
        raise ThreadGone(conversation.thread_id)
    if state.thread is not None and state.thread.resource_id != conversation.resource_id:
        raise AccessDenied
    return state


async def _create(storage: Storage, conversation: Conversation) -> Thread:
    return await storage.create_thread(
        NewThread(conversation.thread_id, conversation.resource_id, conversation.title, conversation.metadata)
    )


def _new_input(request: TurnRequest, state: TurnState, now: Millis) -> tuple[NewMessage, ...]:
    """The new input, known to fit one transaction before anything is created or a model is called."""
    new = prompt.new_input(request, state, now)
    if not new:
        raise InvalidInput(Issue("messages", "holds no message that the thread does not have already"))
    if len(new) >= rules.MAX_TURN_MESSAGES:  # the answer needs a place too
        raise TooLarge(f"One turn may bring {rules.MAX_TURN_MESSAGES - 1} new messages, received {len(new)}")
    rules.turn_bodies(new)
    return new


async def _answer(
    agent: TurnAgent,
    request: TurnRequest,
    state: TurnState,
    new: tuple[NewMessage, ...],
    model: tuple[Model, str],
    now: Millis,
) -> tuple[Step, ...]:
    active = request.active_tools
    tools = {n: t for n, t in agent.tools.items() if active is None or n in active}
    conversation = request.conversation

    def context(call_id: str) -> ToolContext:
        return ToolContext(
            agent.id,
            request.run_id,
            call_id,
            conversation.thread_id if conversation else None,
            conversation.resource_id if conversation else None,
            request.request_context,
        )

    first = ModelRequest(
        model=model[1],
        messages=prompt.assemble(agent, request, state.history, new, now),
        tools=tuple(t.spec for t in tools.values()),
        tool_choice=request.tool_choice,
        settings=request.settings or agent.settings,
        timeout=request.deadline or _MODEL_TIMEOUT,
    )
    return await run_steps(model[0], first, tools, context, request.max_steps or agent.max_steps)


async def _job(
    agent: TurnAgent, request: TurnRequest, state: TurnState, messages: tuple[NewMessage, ...]
) -> Job | None:
    """What is due after the turn: a title, where the thread has none."""
    options, thread = request.options.generate_title, state.thread
    roles = prompt.roles((*state.history, *messages))
    if thread is None or options is None or not titles.is_due(options, thread.title, roles):
        return None
    model = options.model or agent.model
    if not isinstance(model, str):
        return None  # a model object lives in this process only; a job is done in another
    instructions = await value_of(options.instructions, request.request_context)
    body = {"title": {"model": model, "instructions": instructions or None, "messages": len(roles)}}
    return Job(request.run_id, thread.id, agent.id, body)
