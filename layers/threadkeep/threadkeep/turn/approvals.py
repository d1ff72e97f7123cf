"""Decisions on the calls of a suspended run, and going on with it (MS-14).

A decision is stored in two transactions. The first holds its effect: whoever claims the call runs its tool,
and stores the outcome in the answer together with the run's record. The second is the rest of the run, an
ordinary turn that begins behind that answer, once no call waits. A repeat finds what is done in the record: it
never runs a tool again, and joins or takes up the rest. A process that dies while a tool runs leaves its claim
until the deadline; only then a repeat may run the tool once more, with the same call id.
"""

import asyncio
from dataclasses import dataclass, replace

from threadkeep import clock
from threadkeep.errors import AccessDenied, Conflict, DeadlineExceeded, NotFound, ThreadGone, ThreadkeepError
from threadkeep.memory import history, signals
from threadkeep.memory.messages import Content
from threadkeep.models.port import ToolCall
from threadkeep.storage.port import (
    Include,
    Message,
    MessageUpdate,
    Storage,
    SuspendedCall,
    SuspendedRun,
    Thread,
    TurnCommit,
)
from threadkeep.turn import events, receipts, suspension
from threadkeep.turn.delegation import forwarding
from threadkeep.turn.delegation.delegations import Delegations
from threadkeep.turn.events import Event
from threadkeep.turn.live import outcome_told, shown_always, shows_delegated
from threadkeep.turn.message_list import MessageList, RunMessage
from threadkeep.turn.plan import Plan, own_context, planned
from threadkeep.turn.processors.base import Aborted, RunFacts
from threadkeep.turn.processors.pipeline import Pipeline
from threadkeep.turn.receipts import Hold
from threadkeep.turn.request import Repeatable, Resumed, Services, TurnAgent, TurnRequest
from threadkeep.turn.result import TurnResult
from threadkeep.turn.run import delegator_of, run_turn
from threadkeep.turn.stored_steps import before_last_step, metadata_of, stored_steps
from threadkeep.turn.tools import CallOutcome, ToolContext, failed, run_call, unknown
from threadkeep.turn.whole import whole

_FORWARDED = 10  # messages that a sub-agent sees where the run itself loads none
_ATTEMPTS = 8  # other writers of the same answer or thread that may come first
_HELD_BACK = "The tool ran, but what it returned was held back"
_NOT_FORWARDED = "The conversation was held back from the agent; it did not run"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about a call. The model reads the reason where the call is declined."""

    call_id: str
    approved: bool
    reason: str | None = None


async def suspended_run(storage: Storage, run_id: str, agent_id: str, resource_id: str | None) -> SuspendedRun:
    """The record of an agent's run.

    Raises `NotFound`, `AccessDenied` if `resource_id` is given and is not the owner.
    """
    run = await storage.get_suspended_run(run_id)
    if run is None or run.agent_id != agent_id:
        raise NotFound(f"No suspended run {run_id} of agent {agent_id}")
    if resource_id not in (None, run.resource_id):
        raise AccessDenied("Access denied: the run belongs to a different resource")
    return run


async def decide(
    agent: TurnAgent, request: TurnRequest, run: SuspendedRun, decision: Decision, services: Services
) -> TurnResult:
    """Decide a call of `run`, a record just read, and go on with the run unless another call waits.

    `request` is `suspension.request_of` the run. The result has the step of the call in `resumed`; it is
    suspended while calls wait. A decision that was taken before gets the same answer again. Raises `NotFound`
    if the run has no such call, or its thread or answer is gone, `Conflict` if the call was decided otherwise, or
    the agent may not write to the thread any more, and what `run_turn` raises. What the tool did is stored even
    if the rest of the run fails; repeating the decision then goes on with it.
    """
    own = own_context(agent, request)
    plan = planned(agent, own, services)
    if not plan.stores:
        raise Conflict("The agent stores nothing any more, so that no call of it can be decided")
    began = asyncio.get_running_loop().time()
    decided = await whole(_Decided(agent, own, plan, decision, services).in_time(run))
    resumed, stopped = decided.resumed, decided.stopped
    if isinstance(stopped, Aborted):
        return await _told(own, replace(decided.result, tripwire=stopped.tripwire, suspended=None))
    if stopped is not None:
        raise stopped
    rest = _rest(resumed.run, decided.call)
    if resumed.run.waiting or (not resumed.run.open and await plan.storage.get_receipt(rest.key) is None):
        return await _ended(own, decided)
    left = _left(request.deadline, asyncio.get_running_loop().time() - began)
    limits = suspension.limits_of(resumed.run)
    going_on = replace(request, resumes=resumed, repeat=rest, deadline=left, limits=limits)
    return await run_turn(agent, going_on, services)


def _left(deadline: float | None, spent: float) -> float | None:
    """Seconds that the rest of the run has. Raises `DeadlineExceeded` if there are none."""
    if deadline is not None and spent >= deadline:
        text = f"The decision took {spent:.3g} s of {deadline:g} s, which leaves no time for the rest of the run"
        raise DeadlineExceeded(f"{text}; the decision is stored, and sending it again goes on from there")
    return None if deadline is None else deadline - spent


async def let_go(storage: Storage, run: SuspendedRun) -> None:
    """Have the rest of a run begun again whose process is known to be dead.

    A call that it was at stays its own until its deadline: nobody knows whether the tool ran.
    """
    for call in run.calls:
        await receipts.let_go(storage, _rest(run, call))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A decided call, as it is stored. `stopped` is what a processor raised over its result."""

    call: SuspendedCall
    resumed: Resumed
    thread: Thread
    stopped: Aborted | ThreadkeepError | None = None

    @property
    def result(self) -> TurnResult:
        run, answer = self.resumed.run, next(m for m in self.resumed.messages if m.id == self.call.message_id)
        return TurnResult(
            run.run_id,
            run.agent_id,
            str(metadata_of(answer).get("provider", "")),
            (),
            (),
            self.thread,
            suspended=run if run.waiting else None,
            resumed=self.resumed.step,
        )


@dataclass(frozen=True, slots=True)
class _Decided:
    """One decision on its way into the store."""

    agent: TurnAgent
    request: TurnRequest
    plan: Plan
    decision: Decision
    services: Services

    async def in_time(self, run: SuspendedRun) -> _Outcome:
        try:
            async with asyncio.timeout(self.request.deadline):
                return await self._settled(run)
        except TimeoutError as error:
            text = f"The decision took longer than {self.request.deadline:g} s, and the tool may have done its work"
            raise DeadlineExceeded(f"{text}; sending it again goes on from what is stored of it") from error

    async def _settled(self, run: SuspendedRun) -> _Outcome:
        """The call with its outcome, whoever decides it."""
        while True:
            call = self._call(run)
            thread, messages = await self._messages(run, call)
            if call.approved is not None:
                return await self._known(run, call, thread, messages)
            repeat = Repeatable(_key(run, call, "call"), "", waits=True, lasts=True, arrived=0)
            async with receipts.held(self.plan.storage, replace(self.request, repeat=repeat)) as hold:
                claimed = await self.plan.storage.load_turn(run.thread_id, last_messages=0, claim=hold.receipt)
                if claimed.claimed is None:
                    return await self._taken(run, call, thread, messages, hold)
            await receipts.outcome(self.plan.storage, repeat, claimed.claimed, receipts.patience(self.request.deadline))
            run = await self._read_again(run)

    async def _known(
        self, run: SuspendedRun, call: SuspendedCall, thread: Thread, messages: tuple[Message, ...]
    ) -> _Outcome:
        """A call that was decided before."""
        if call.approved != self.decision.approved:
            raise Conflict(f"The call was {'approved' if call.approved else 'declined'} already")
        resumed = _resumed(run, call, messages)
        await self._tell_call(call, resumed.step.response.tool_calls)
        await self._tell(*(e for o in resumed.step.outcomes if o.call.id == call.id for e in outcome_told(o)))
        return _Outcome(call, resumed, thread)

    async def _taken(
        self, run: SuspendedRun, call: SuspendedCall, thread: Thread, messages: tuple[Message, ...], hold: Hold
    ) -> _Outcome:
        """Run or decline a call that is ours alone, and store its outcome."""
        await self._tell_call(call, (ToolCall(call.id, call.name, call.args),))
        delegations = self._delegations(run, call)
        outcome, stopped = await self._outcome(call, thread, delegations)
        for _ in range(_ATTEMPTS):
            after, update = self._after(run, call, messages, outcome, delegations)
            receipt = receipts.finished(hold.receipt) if hold.receipt else None
            try:
                commit = TurnCommit(thread, (), updates=(update,), receipt=receipt, suspended=after)
                stored = await whole(self.plan.storage.commit_turn(commit))
            except ThreadGone:
                raise
            except Conflict:
                run = await self._read_again(run)
                call = self._call(run)
                if call.approved is not None:
                    raise
                thread, messages = await self._messages(run, call)
                continue
            hold.needed = True
            if stopped is None:
                await self._tell(events.CallFinished(outcome))
            now = {m.id: m for m in (*messages, *stored.updated)}
            return _Outcome(call, _resumed(after, call, tuple(now.values())), stored.thread, stopped)
        raise Conflict("The outcome of the call is not stored: others kept changing its answer")

    async def _outcome(
        self, waiting: SuspendedCall, thread: Thread, delegations: Delegations | None
    ) -> tuple[CallOutcome, Aborted | ThreadkeepError | None]:
        """What became of the call. A result that a processor refuses is not kept, but that the tool ran is."""
        call = ToolCall(waiting.id, waiting.name, waiting.args)
        if not self.decision.approved:
            return CallOutcome.declined(call, self.decision.reason), None
        tools = {**self.agent.tools, **(delegations.tools if delegations else {})}
        context = self._context(call, thread)
        if delegations is not None:
            try:
                forwarded = await self._forwarded(waiting, thread)
            except Aborted as aborted:
                return failed(call, _NOT_FORWARDED), aborted
            delegations.shown = lambda: forwarded
        done = await run_call(tools[call.name], call, context) if call.name in tools else None
        try:
            return await self._pipeline(thread).tool_result(done or unknown(call, tools)), None
        except (Aborted, ThreadkeepError) as error:
            return failed(call, _HELD_BACK), error

    def _context(self, call: ToolCall, thread: Thread) -> ToolContext:
        async def told(part: Content) -> None:
            await self._tell(events.DataTold(call.id, part["type"], part["data"]))

        run_id, context = self.request.run_id, self.request.request_context
        return ToolContext(self.agent.id, run_id, call.id, thread.id, thread.resource_id, context, watcher=told)

    def _pipeline(self, thread: Thread) -> Pipeline:
        agent, request = self.agent, self.request
        facts = RunFacts(request.run_id, agent.id, thread.id, thread.resource_id, request.request_context, thread)
        return Pipeline(self.plan.inputs, self.plan.outputs, facts, agent.max_processor_retries)

    def _delegations(self, run: SuspendedRun, call: SuspendedCall) -> Delegations | None:
        """What delegates, if the call is approved and does."""
        delegates = call.name in (history.DELEGATES + key for key in self.agent.agents)
        if not delegates or not self.decision.approved:
            return None
        repeat = Repeatable(_key(run, call, "call"), "", waits=True, lasts=True, arrived=0)
        request = replace(self.request, began=clock.now(), repeat=repeat)
        delegator = delegator_of(self.services)
        tell = self._tell_delegated if request.watcher is not None else None
        return Delegations(self.agent, request, self.services, delegator, run_turn, is_stored=True, tell=tell)

    async def _forwarded(self, call: SuspendedCall, thread: Thread) -> tuple[RunMessage, ...]:
        """What the sub-agent sees: the thread as it is stored, up to the step of the call, behind the filters."""
        loaded = await self.plan.storage.load_turn(thread.id, last_messages=self.plan.window or _FORWARDED)
        answer, rows = call.message_id, loaded.history
        said = (replace(m, content=before_last_step(m.content)) if m.id == answer else m for m in rows)
        pipeline = self._pipeline(thread)
        entered = await pipeline.input(MessageList().plus(*map(RunMessage.stored, said)))
        shown = await pipeline.request(entered.prompt())
        hidden = frozenset(m.id for m in rows if m.role == signals.ROLE)
        return forwarding.conversation(shown, hidden, system_texts=self.agent.delegation.system_texts)

    def _after(
        self,
        run: SuspendedRun,
        call: SuspendedCall,
        messages: tuple[Message, ...],
        outcome: CallOutcome,
        delegations: Delegations | None,
    ) -> tuple[SuspendedRun, MessageUpdate]:
        """The record and the answer once the outcome is stored. A run that cannot go on by itself is over then."""
        answer = next(m for m in messages if m.id == call.message_id)
        content = suspension.answered(answer.content, call.id, outcome)
        decided = tuple(replace(c, approved=self.decision.approved) if c == call else c for c in run.calls)
        after = replace(run, calls=decided, revision=run.revision + 1)
        if delegations is not None:
            after = suspension.having_delegated(after, delegations.left, delegations.feedback)
        over = suspension.steps_left(run) == 0 or (delegations is not None and delegations.bailed)
        if not after.waiting and (suspension.waits_for_caller(content) or over):
            after = replace(suspension.ended(after), revision=after.revision)
        return after, MessageUpdate(answer, content)

    def _call(self, run: SuspendedRun) -> SuspendedCall:
        """The call of this id; that which waits, if the model used the id again."""
        named = [call for call in run.calls if call.id == self.decision.call_id]
        if not named:
            raise NotFound(f"No call {self.decision.call_id} waits in run {run.run_id}")
        return next((call for call in named if call.approved is None), named[-1])

    async def _messages(self, run: SuspendedRun, call: SuspendedCall) -> tuple[Thread, tuple[Message, ...]]:
        """The thread, and what the run has stored in it. Raises `NotFound` if thread or answer are gone."""
        wanted = [Include(message_id) for message_id in run.message_ids]
        found = await self.plan.storage.list_messages(
            run.thread_id, resource_id=run.resource_id, per_page=0, include=wanted
        )
        rows = tuple(m for m in found.page.items if m.thread_id == run.thread_id)
        if all(m.id != call.message_id for m in rows):
            raise NotFound("The answer with the call was deleted")
        return found.thread, rows

    async def _read_again(self, run: SuspendedRun) -> SuspendedRun:
        return await suspended_run(self.plan.storage, run.run_id, run.agent_id, run.resource_id)

    async def _tell_call(self, call: SuspendedCall, made: tuple[ToolCall, ...]) -> None:
        await self._tell(events.RunResumed(self.request.run_id, self.agent.id, call.message_id))
        await self._tell(*(events.CallMade(m) for m in made if m.id == call.id))

    async def _tell_delegated(self, call_id: str, event: Event) -> None:
        told = events.Delegated(call_id, event)
        if shows_delegated(self.plan.outputs) or shown_always(told):
            await self._tell(told)

    async def _tell(self, *told: Event) -> None:
        if self.request.watcher is not None:
            for event in told:
                await self.request.watcher(event)


def _resumed(run: SuspendedRun, call: SuspendedCall, messages: tuple[Message, ...]) -> Resumed:
    return Resumed(run, messages, stored_steps(next(m for m in messages if m.id == call.message_id))[-1])


def _rest(run: SuspendedRun, call: SuspendedCall) -> Repeatable:
    """How the rest of the run behind the answer with this call is recognised."""
    return Repeatable(_key(run, call, "rest"), "", waits=True, lasts=True, arrived=0)


def _key(run: SuspendedRun, call: SuspendedCall, of: str) -> str:
    named = (call.id,) if of == "call" else ()
    return receipts.key_of("approval", of, run.run_id, call.message_id, *named)


async def _ended(request: TurnRequest, decided: _Outcome) -> TurnResult:
    """A decision after which the model is not asked: others wait, the caller has to run tools, or no step is left."""
    step, sink = decided.resumed.step, request.watcher
    if sink is not None and not decided.resumed.run.waiting:
        for call in step.pending:
            await sink(events.CallMade(call))
        await sink(events.StepFinished(step, continues=False))
    return await _told(request, decided.result)


async def _told(request: TurnRequest, result: TurnResult) -> TurnResult:
    if request.watcher is not None:
        for call in result.suspended.waiting if result.suspended else ():
            await request.watcher(events.ApprovalNeeded(ToolCall(call.id, call.name, call.args)))
        await request.watcher(events.RunFinished(result))
    return result
