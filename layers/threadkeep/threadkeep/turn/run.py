"""One turn: load → prompt → model loop → commit (DESIGN 4).

On an existing thread it makes two sequential storage round trips, whatever the thread's length; one
more where it creates the thread, and one more for each step in which the model writes working memory.
It stores all its messages in one transaction at the end, or none; what the model wrote to working memory
stays (`threadkeep.turn.working_memory`).
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.errors import (
    AccessDenied,
    ConfigurationError,
    DeadlineExceeded,
    InvalidInput,
    Issue,
    NotFound,
    ThreadGone,
    ThreadkeepError,
)
from threadkeep.ids import new_id
from threadkeep.memory import titles
from threadkeep.models.port import Model
from threadkeep.storage.port import (
    Job,
    MessageUpdate,
    NewMessage,
    NewThread,
    Receipt,
    Storage,
    TurnCommit,
    TurnState,
    WorkingMemory,
)
from threadkeep.storage.runs import RunGuard
from threadkeep.turn import client_results, prompt, receipts, suspension
from threadkeep.turn.after import titled
from threadkeep.turn.answer import Answered, Run, check_fits
from threadkeep.turn.context import value_of
from threadkeep.turn.delegation.delegations import Delegations
from threadkeep.turn.delegation.in_process import InProcess
from threadkeep.turn.delegation.orders import Delegator
from threadkeep.turn.events import Delegated, Event, TitleGiven
from threadkeep.turn.live import Live
from threadkeep.turn.loop import Stopped
from threadkeep.turn.message_list import MessageList
from threadkeep.turn.plan import Plan, own_context, planned
from threadkeep.turn.processors.base import Aborted
from threadkeep.turn.receipts import Hold
from threadkeep.turn.request import Conversation, Services, TurnAgent, TurnRequest
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.tools import Tool, offered
from threadkeep.turn.whole import whole
from threadkeep.turn.working_memory import RunMemory

_log = logging.getLogger(__name__)


async def run_turn(agent: TurnAgent, request: TurnRequest, services: Services) -> TurnResult:
    """Run one turn and store it.

    Raises `AccessDenied` before any model or tool call if another resource owns the thread (TH-12),
    `ThreadGone` if it is deleted before the turn is stored, `Conflict` if a call that this turn brings the
    result of got one meanwhile, `DeadlineExceeded`, `ModelRejected`, `ModelUnavailable`, `ProcessorFailed`,
    `OutputInvalid`, `KeyReused` or `StillRunning`; after each of these the thread is as it was. A request
    that had its turn already gets the result of that turn (DESIGN 4). A run that a processor stops returns
    a result with a tripwire and stores nothing either (PR-7). One that calls a tool which needs a person's
    approval is stored as it stands and goes on with `approvals.decide`, if it is stored at all (MS-14).
    """
    request = own_context(agent, request)
    request = replace(request, began=request.began or clock.now())
    plan = planned(agent, request, services)
    live = Live(request.watcher, new_id())
    delegations = _delegations(agent, request, plan, services, live)
    memory = RunMemory(plan.memory, plan.storage, request.run_id) if plan.memory else None
    tools = offered(
        {**agent.tools, **delegations.tools},
        request.client_tools,
        request.active_tools,
        ask_first=request.ask_first,
        suspends=plan.stores and not request.path,  # a sub-agent's run has nobody to wait for
        has_caller=not request.path,
        memory=memory.tool if memory else None,
    )
    model, name, provider = _model(agent, services)
    if request.journal is not None:
        model, tools = request.journal.model(model), request.journal.tools(tools)
    async with receipts.held(plan.storage, request if plan.stores else replace(request, repeat=None)) as hold:
        turn = _Turn(agent, request, plan, model, name, provider, tools, memory, hold, live, delegations)
        ready = await turn.in_time()
        if request.journal is not None:
            await request.journal.ended(ready.result)
        result = await whole(_stored(plan.storage, ready, hold))
        if ready.title is not None:
            await _tell_title(live, Services(plan.storage, services.models), ready.title)
        await live.finished(result)
        return result


async def _stored(storage: Storage, ready: "_Ready", hold: Hold) -> TurnResult:
    """The result of a run once it is stored. A caller that goes away now waits for this."""
    if ready.commit is None:
        return ready.result
    committed = await storage.commit_turn(ready.commit)
    hold.needed = True
    return replace(ready.result, thread=committed.thread, messages=committed.messages)


async def _tell_title(live: Live, services: Services, job: Job) -> None:
    """Give the thread its title now and tell it (TT-5). Where that fails, a later turn tries again (TT-2)."""
    try:
        title = await titled(services, job)
    except ThreadkeepError:
        _log.warning("no title for thread %s yet", job.thread_id, exc_info=True)
        return
    if title:
        await live.tell(TitleGiven(job.thread_id, title))


@dataclass(frozen=True, slots=True)
class _Ready:
    """A finished run: its result, and what is to be stored of it, if anything. `title` is due before its end."""

    result: TurnResult
    commit: TurnCommit | None = None
    title: Job | None = None


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn up to its commit. `model_name` and `provider` are those of `model`."""

    agent: TurnAgent
    request: TurnRequest
    plan: Plan
    model: Model
    model_name: str
    provider: str
    tools: Mapping[str, Tool]
    memory: RunMemory | None
    hold: Hold
    live: Live
    delegations: Delegations

    async def in_time(self) -> _Ready:
        """Load and answer within the deadline; a request that had its turn already gets that turn's result."""
        try:
            async with asyncio.timeout(self.request.deadline):
                state, earlier = await self._claimed()
                if earlier is not None and self.plan.conversation:
                    return _Ready(await self._replayed(earlier, self.plan.conversation))
                return await self._answered(state)
        except TimeoutError as error:
            kept = "what was seen of its answer is stored" if self.live.spoke else "it stored nothing"
            kept += "; sub-agents that had finished are stored" if self.delegations.count else ""
            advice = "" if self.live.sink else "; use the stream or runs route for longer work"
            raise DeadlineExceeded(f"The run took longer than {self.request.deadline:g} s, {kept}{advice}") from error

    async def _replayed(self, earlier: Receipt, conversation: Conversation) -> TurnResult:
        result = await receipts.replayed(self.plan.storage, earlier, self.agent.id, conversation)
        self.live.message_id = next((m.id for m in result.messages if m.role == "assistant"), self.live.message_id)
        result = replace(result, resumed=self._resumed)
        await self.live.started(result.run_id, self.agent.id, result.resumed)
        await self.live.replay(result)
        return result

    async def _claimed(self) -> tuple[TurnState, Receipt | None]:
        """What the turn starts from, and the finished receipt of the same request if it had its turn already."""
        repeat, patience = self.request.repeat, receipts.patience(self.request.deadline)
        while True:
            loading = _load(self.plan, self.request, self.hold.receipt)
            state = await whole(loading)  # a claim is given back once it is made
            if state.claimed is None or repeat is None or self.hold.receipt is None:
                return state, None
            earlier = await receipts.outcome(self.plan.storage, repeat, state.claimed, patience)
            if earlier is not None and receipts.is_repeat(repeat, earlier):
                return state, earlier
            if earlier is not None:
                self.hold.receipt = receipts.following(self.hold.receipt, earlier)

    async def _answered(self, state: TurnState) -> _Ready:
        """Have the model answer; nothing is stored yet but the thread, where there was none."""
        plan, now = self.plan, self.request.began
        results = client_results.joined(self.request.messages, state.history, plan.window)
        request, state = replace(self.request, messages=results.messages), replace(state, history=results.history)
        if (waiting := await self._still_waiting(request, state, results.updates)) is not None:
            return waiting
        loaded = state.memory
        opening = _opening(self.agent, request, state, results.updates, now, window=plan.window)
        if plan.conversation and state.thread is None and plan.creates:
            state = await _created(plan, plan.conversation, loaded)
        if self.memory is not None:
            self.memory.begin(state, is_read=state.memory is loaded)
        run = self._run(request, state, results.updates)
        await self.live.started(request.run_id, self.agent.id, self._resumed)
        try:
            answered = await run.answer(opening, self.model_name, self.provider)
        except Aborted as aborted:
            return _Ready(run.stopped(aborted, self.provider))
        except Stopped:
            answered = await run.cut(self.provider)
            if answered is None:
                return _Ready(
                    TurnResult(
                        request.run_id, self.agent.id, self.provider, (), (), state.thread, resumed=self._resumed
                    )
                )
        except BaseException:  # hung up, out of time, or the model failed: what was seen is kept (DESIGN 4)
            await whole(self._keep(run, request, state))
            raise
        return await self._ready(run, request, state, answered)

    @property
    def _resumed(self) -> Step | None:
        return self.request.resumes.step if self.request.resumes else None

    async def _still_waiting(
        self, request: TurnRequest, state: TurnState, updates: tuple[MessageUpdate, ...]
    ) -> "_Ready | None":
        """Where the caller brings results for an answer that waits for approvals too, and says nothing new: they are
        stored, and the run waits on."""
        answer = next((u.content for u in updates if suspension.waits(u.content)), None)
        run_id = suspension.run_id_of(answer) if answer is not None else None
        if run_id is None or state.thread is None or not self.plan.stores or prompt.divided(request, state).new:
            return None
        waiting = await self.plan.storage.get_suspended_run(run_id)
        place = (state.thread.id, state.thread.resource_id)  # the note in the answer may be anybody's
        if waiting is None or not waiting.waiting or (waiting.thread_id, waiting.resource_id) != place:
            return None
        run = self._run(request, state, updates)
        updates = await run.finished_updates()
        await self.live.started(run_id, self.agent.id)
        result = TurnResult(run_id, self.agent.id, self.provider, (), (), state.thread, suspended=waiting)
        receipt = receipts.done(self.hold.receipt, request, result)
        return _Ready(result, TurnCommit(state.thread, (), updates=updates, receipt=receipt))

    def _run(self, request: TurnRequest, state: TurnState, updates: tuple[MessageUpdate, ...]) -> Run:
        live, delegations = self.live, self.delegations
        return Run(
            self.agent, request, self.plan, state, self.model, self.tools, live, delegations, updates, self.memory
        )

    async def _keep(self, run: Run, request: TurnRequest, state: TurnState) -> None:
        """Store a run that is cut off, if a watcher has seen some of its answer."""
        try:
            answered = await run.cut(self.provider) if self.plan.stores else None
            if answered is not None:
                await _stored(self.plan.storage, await self._ready(run, request, state, answered), self.hold)
        except Exception:  # what cut the run off matters more
            _log.warning("a run that was cut off is not stored", exc_info=True)

    async def _ready(self, run: Run, request: TurnRequest, state: TurnState, answered: Answered) -> _Ready:
        result = TurnResult(
            request.run_id,
            self.agent.id,
            self.provider,
            answered.steps,
            answered.messages,
            state.thread,
            answered.remembered,
            structured=answered.structured,
            resumed=self._resumed,
            ended=answered.course.ended,
            delegations=self.delegations.count,
            delegated=self.delegations.usage,
            hook_errors=tuple(self.delegations.hooks.errors),
        )
        if state.thread is None or not self.plan.stores:
            return _Ready(result)
        shown = prompt.divided(request, state).known if self.plan.window == 0 else ()
        kept = replace(request, limits=self.delegations.left)
        record = suspension.record(self.agent, kept, state.thread, answered.steps, answered.messages, shown)
        messages = suspension.marked(answered.messages, record)
        result = replace(result, messages=messages, suspended=record if record and record.waiting else None)
        job = await _job(self.agent, request, state, messages)
        receipt = receipts.done(self.hold.receipt, request, result)
        wanted = request.options.generate_title
        at_once = self.live.sink is not None and wanted is not None and wanted.emit_event
        commit = TurnCommit(
            state.thread,
            messages,
            None if at_once else job,
            thread_metadata=run.thread_metadata,
            updates=answered.updates,
            receipt=receipt,
            suspended=record,
            within=_within(request),
        )
        return _Ready(result, commit, job if at_once else None)


def _within(request: TurnRequest) -> RunGuard | None:
    """The durable run that the turn is part of; with what its record keeps of the turn, if that is its end."""
    if request.within is None:
        return None
    return RunGuard(request.within, request.journal.ending if request.journal else None)


def _delegations(agent: TurnAgent, request: TurnRequest, plan: Plan, services: Services, live: Live) -> Delegations:
    async def tell(call_id: str, event: Event) -> None:
        await live.tell(Delegated(call_id, event))

    watched = tell if live.sink is not None else None
    delegator = delegator_of(services)
    return Delegations(agent, request, services, delegator, run_turn, is_stored=plan.creates, tell=watched)


def delegator_of(services: Services) -> Delegator:
    """What runs sub-agents: the same process, where nothing else is named."""
    return services.delegator or InProcess(run_turn)


def _model(agent: TurnAgent, services: Services) -> tuple[Model, str, str]:
    if not isinstance(agent.model, str):
        return agent.model, agent.id, type(agent.model).__name__
    if not agent.model:
        raise ConfigurationError(f"Agent {agent.id} names no model and the deployment has no default model")
    model, name = services.models.resolve(agent.model)
    return model, name, agent.model.partition("/")[0]


async def _load(plan: Plan, request: TurnRequest, receipt: Receipt | None) -> TurnState:
    """Read everything in one round and check the owner."""
    conversation = plan.conversation
    if conversation is None:
        return TurnState(thread=None)
    given = [m.id for m in request.messages if m.id is not None]
    window = plan.window
    if client_results.brings_results(request.messages):
        window = max(window, client_results.WINDOW)
    state = await plan.storage.load_turn(
        conversation.thread_id,
        last_messages=window,
        message_ids=given,
        budget=plan.budget,
        claim=receipt,
        memory=plan.memory.target if plan.memory else None,
    )
    if state.deleting:
        raise ThreadGone(conversation.thread_id)
    if state.thread is not None and state.thread.resource_id != conversation.resource_id:
        raise AccessDenied
    if request.resumes is None:
        return state
    if state.thread is None:
        raise NotFound("Thread not found")
    known = {m.id for m in request.resumes.messages}  # they stand behind the history
    return replace(state, history=tuple(m for m in state.history if m.id not in known))


async def _created(plan: Plan, conversation: Conversation, known: WorkingMemory) -> TurnState:
    """The state after creating the thread. What a seed made of its working memory is known by its text alone."""
    thread = await plan.storage.create_thread(
        NewThread(
            conversation.thread_id,
            conversation.resource_id,
            conversation.title,
            conversation.metadata,
            plan.seed,
            conversation.origin,
        )
    )
    if plan.memory is None or thread.memory in (None, known.text):
        return TurnState(thread, memory=known)
    return TurnState(thread, memory=WorkingMemory(thread.memory, known.version + 1))


def _opening(
    agent: TurnAgent,
    request: TurnRequest,
    state: TurnState,
    updates: tuple[MessageUpdate, ...],
    now: Millis,
    *,
    window: int,
) -> MessageList:
    """The list to begin with, its new input known to fit one transaction before anything is created or called."""
    given = prompt.divided(request, state)
    if not given.new and not updates and request.resumes is None:
        message = "holds no message that the thread does not have already, and no result that a call of it waits for"
        raise InvalidInput(Issue("messages", message))
    opening = prompt.opening(agent, request, given, state, now, window=window)
    check_fits(opening, updates)
    return opening


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
