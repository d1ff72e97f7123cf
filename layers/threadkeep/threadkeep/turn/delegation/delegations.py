"""The delegations of one run: its tools, its hooks, its limits, and what comes of each call (DEL-1 to DEL-27)."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from threadkeep import clock, ids, jsontext
from threadkeep.clock import Millis
from threadkeep.errors import ConfigurationError
from threadkeep.jsontext import Json
from threadkeep.memory.history import DELEGATES
from threadkeep.models.port import ModelChunk, ModelRequest, ModelResponse, ToolCall, ToolResult, Usage
from threadkeep.models.streams import chunks_of
from threadkeep.turn.delegation import arguments, forwarding
from threadkeep.turn.delegation.arguments import CitingArguments
from threadkeep.turn.delegation.hooks import HookFailed, Hooks
from threadkeep.turn.delegation.options import (
    DelegationCall,
    DelegationCompletion,
    DelegationOutcome,
    DelegationResult,
    DelegationStart,
    LimitReached,
    Limits,
    MessageFilter,
)
from threadkeep.turn.delegation.orders import Delegator, Failure, Order, Report, Team
from threadkeep.turn.delegation.references import References
from threadkeep.turn.delegation.room import Room
from threadkeep.turn.delegation.sub_turn import RunTurn, run_order
from threadkeep.turn.events import Event
from threadkeep.turn.message_list import RunMessage
from threadkeep.turn.request import Services, SubAgent, TurnAgent, TurnRequest
from threadkeep.turn.tools import (
    CallOutcome,
    Tool,
    ToolContext,
    ToolInputInvalid,
    ToolRefused,
    failed,
    validation_result,
)

REJECTED = "[Delegation Rejected]"
_MARGIN: Millis = 5_000  # what a level keeps of its time for itself (DESIGN 6)
_WHY: dict[Failure, str] = {"timeout": ": it took too long", "cancelled": ": it was cancelled"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A call after its hooks: an order to run, or the outcome that it has already."""

    call: ToolCall
    outcome: CallOutcome | None = None
    order: Order | None = None
    told: DelegationCall | None = None


class Delegations:
    """What a run delegates. `tools` are those by which its model does.

    `shown` is the conversation to forward, `step` the number of the step, `used` the tokens of the run itself: the run
    keeps them up to date. `reached` is the limit that refused a call, `bailed` whether a hook ended the run, `usage`
    what the sub-agents used, `count` how many delegations there were, those below them included. `feedback` is what
    hooks have to say to the model, `hooks` calls them.
    """

    def __init__(
        self,
        agent: TurnAgent,
        request: TurnRequest,
        services: Services,
        delegator: Delegator,
        run: RunTurn,
        *,
        is_stored: bool,
        tell: Callable[[str, Event], Awaitable[None]] | None = None,
    ):
        self.shown: Callable[[], tuple[RunMessage, ...]] = tuple
        self.step = 0
        self.used = 0
        self.reached: LimitReached | None = None
        self.bailed = False
        self.usage = Usage()
        self.count = 0
        self.feedback: list[str] = []
        self.limits: Limits = agent.limits.within(request.limits) if request.limits else agent.limits
        self._agent = agent
        self._request = request
        self._delegator = delegator
        self._run = run
        self._is_stored = is_stored
        self._began = clock.now()
        # a run of nobody is named by nobody: an id that its caller chose may be another's, too
        self._run_id = request.run_id if request.conversation or request.within else ids.new_id()
        self.hooks = Hooks(request.run_id, request.request_context, agent.delegation.hook_errors)
        self._references = References()
        self._room = Room()
        self._team = Team(agent, services, tell, request.stopped)
        self.tools: Mapping[str, Tool] = {DELEGATES + key: self._tool(key, sub) for key, sub in agent.agents.items()}
        if taken := self.tools.keys() & agent.tools.keys():
            raise ConfigurationError(f"The tool names {', '.join(sorted(taken))} belong to the agent's sub-agents")

    @property
    def ends(self) -> Millis:
        """When the run has to be over."""
        request = self._request
        ends = request.began + int(self.limits.seconds * 1000)
        return ends if request.deadline is None else min(ends, self._began + int(request.deadline * 1000))

    @property
    def spent(self) -> int:
        """The tokens that the run and its sub-agents have read and written."""
        return self.used + self.usage.total_tokens

    @property
    def left(self) -> Limits:
        """How far the run may still go, for one that waits now and goes on later."""
        limits, seconds = self.limits, (clock.now() - self._request.began) / 1000
        return Limits(
            max(limits.delegations - self.count, 0),
            limits.depth,
            max(limits.tokens - self.spent, 1),
            max(limits.seconds - seconds, 1.0),
        )

    async def run(self, calls: Sequence[ToolCall]) -> tuple[CallOutcome, ...]:
        """Run the delegations of one step together; the outcomes keep the order of the calls."""
        begun = await asyncio.gather(*[self._begun(call, *self._admitted(call)) for call in calls])
        orders = self._shared([b.order for b in begun if b.order is not None])
        reports = await self._delegator.delegate(self._team, orders) if orders else ()
        by_id = {report.id: report for report in reports}
        outcomes: list[CallOutcome] = []
        for b in begun:  # one after the other, so that results are named in the order of the calls
            if b.order is not None and b.told is not None:
                report = by_id[b.order.id]
                outcomes.append(replace(await self._ended(b.call, b.order, b.told, report), told=report.told))
            elif b.outcome is not None:
                outcomes.append(b.outcome)
        return tuple(outcomes)

    def _shared(self, orders: Sequence[Order]) -> Sequence[Order]:
        """The orders with equal shares of what is left, so that together they keep within the limits."""
        left, parts = self.limits, len(orders) or 1
        delegations, tokens = max(left.delegations - self.count, 0), max(left.tokens - self.spent, 0)
        return [replace(order, delegations=delegations // parts, tokens=tokens // parts) for order in orders]

    def _tool(self, key: str, sub: SubAgent) -> Tool:
        name = DELEGATES + key

        async def alone(args: dict[str, Json], context: ToolContext) -> Json:
            (outcome,) = await self.run([ToolCall(context.call_id, name, args)])
            context.told.extend(outcome.told)
            if outcome.error is not None:
                raise ToolRefused(outcome.error)
            return outcome.result

        parameters = arguments.schema(references=self._agent.delegation.references)
        return Tool(name, name, sub.description or f"Agent: {key}", parameters, alone, delegates=True)

    def _admitted(self, call: ToolCall) -> tuple[CitingArguments | None, CallOutcome | None]:
        """The arguments of a call that may go on, or the outcome of one that may not. Calls are counted in order."""
        try:
            asked = arguments.read(call.args)
        except ToolInputInvalid as invalid:  # the model reads what is wrong (D-DISC-16)
            return None, CallOutcome.done(call, validation_result(call, invalid.problems))
        limits = self.limits
        if limits.depth < 1:
            self.reached = "max-depth"
            return None, failed(call, "This run may not delegate: it stands at the deepest level that is allowed")
        if self.count >= limits.delegations:
            self.reached = "max-delegations"
            return None, failed(call, f"This run may delegate at most {limits.delegations} times")
        self.count += 1
        return asked, None

    async def _begun(self, call: ToolCall, asked: CitingArguments | None, refused: CallOutcome | None) -> _Begun:
        if asked is None:
            return _Begun(call, refused)
        delegation = self._agent.delegation
        told = self._told(call, asked)
        try:
            start = await self.hooks.ask("onDelegationStart", delegation.on_start, told, DelegationStart, told)
            start = start or DelegationStart()
            told = replace(told, prompt=told.prompt if start.prompt is None else start.prompt)
            if not start.proceed:
                return _Begun(call, await self._rejected(call, told, start))
            kept = await self.hooks.ask("messageFilter", _messages_by(delegation.message_filter), told, Sequence, told)
        except HookFailed as error:
            return _Begun(call, failed(call, str(error)))
        told = told if kept is None else replace(told, messages=tuple(kept))
        prompt = self._references.cited(told.prompt, asked.references)
        return _Begun(call, None, self._order(call, replace(told, prompt=prompt), start), told)

    def _told(self, call: ToolCall, asked: CitingArguments) -> DelegationCall:
        agent, request, key = self._agent, self._request, call.name.removeprefix(DELEGATES)
        conversation, shown = request.conversation, self.shown()
        return DelegationCall(
            key=key,
            agent_id=agent.agents[key].id,
            prompt=asked.prompt,
            instructions=asked.instructions,
            max_steps=asked.max_steps,
            iteration=max(1, sum(m.role == "assistant" for m in shown)),
            run_id=request.run_id,
            call_id=call.id,
            thread_id=conversation.thread_id if conversation else None,
            resource_id=conversation.resource_id if conversation else None,
            parent_id=agent.id,
            parent_name=agent.name or agent.id,
            messages=shown,
            request_context=request.request_context,
        )

    def _order(self, call: ToolCall, told: DelegationCall, start: DelegationStart) -> Order:
        request, key = self._request, told.key
        conversation = request.conversation
        now = clock.now()
        left = max(self.ends - now, 0)
        return Order(
            id=self._named(call),
            path=(*(request.path or (self._agent.id,)), key),
            call_id=call.id,
            run_id=request.run_id,
            prompt=told.prompt,
            owner=conversation.resource_id if conversation else ids.nobodys_resource(self._agent.id, self._run_id),
            thread_id=conversation.thread_id if conversation else None,
            is_stored=self._is_stored,
            instructions=told.instructions if start.instructions is None else start.instructions,
            max_steps=start.max_steps,
            asked_steps=told.max_steps,
            said=forwarding.said(told.messages),
            deadline=now + left - min(_MARGIN, left // 5),
            depth=self.limits.depth - 1,
            inherits=not self._agent.inherits,
            read_only=request.options.read_only,
            within=request.within,
            context=request.request_context.copy(),
        )

    def _named(self, call: ToolCall) -> str:
        """The id of a call's order: the same for a repeat of the run, and for no other run, whoever chose its id."""
        request, conversation = self._request, self._request.conversation
        owner = [conversation.resource_id, conversation.thread_id] if conversation else []
        repeat = request.repeat.key if request.repeat else ""
        named: Json = [*owner, self._run_id, repeat, self.step, call.id, call.name, call.args["prompt"]]
        return str(uuid5(NAMESPACE_OID, jsontext.dumps(named)))

    async def _rejected(self, call: ToolCall, told: DelegationCall, start: DelegationStart) -> CallOutcome:
        """A delegation that a hook refused: prompt and refusal are stored as the sub-thread's turn (DEL-17)."""
        text = f"{REJECTED} {start.rejection}".strip()
        order = self._order(call, replace(told, messages=()), start)
        try:
            report = await run_order(self._agent, order, self._team.services, self._run, model=_Saying(text))
        except Exception:  # whatever a sub-agent does, its supervisor goes on (DEL-23)
            _log.warning("the rejection of delegation %s is not stored", order.id, exc_info=True)
            report = Report(order.id)
        return CallOutcome.done(call, _result(report, text, self._room))

    async def _ended(self, call: ToolCall, order: Order, told: DelegationCall, report: Report) -> CallOutcome:
        delegation = self._agent.delegation
        self.usage += report.usage
        self.count += report.delegations
        error = self._error(order, report) if report.failure else None
        completion = DelegationCompletion(told, _told_result(report), report.duration, report.failure is None, error)
        try:
            decided = await self.hooks.ask(
                "onDelegationComplete", delegation.on_complete, completion, DelegationOutcome, told
            )
        except HookFailed as failure:
            return failed(call, str(failure))
        decided = decided or DelegationOutcome()
        self.bailed = self.bailed or completion.bailed
        if decided.feedback:
            self.feedback.append(decided.feedback)
        if error is not None and decided.text is None:
            return failed(call, error)
        text = self._room.text(report.text if decided.text is None else decided.text)
        ref = self._references.add(order.key, text) if delegation.references and error is None else None
        result = _result(report, text, self._room) | ({} if ref is None else {"ref": ref})
        outcome = CallOutcome.done(call, result)
        if not delegation.whole_results:
            return outcome
        return replace(outcome, answer=ToolResult(call.id, call.name, jsontext.dumps(result)))

    def _error(self, order: Order, report: Report) -> str:
        """What the model reads of a failure: not its cause (DEL-23)."""
        name, why = self._agent.name or self._agent.id, _WHY.get(report.failure or "failed", "")
        return f"[Agent:{name}] - Failed agent tool execution for {order.key}{why}"


def _messages_by(
    chosen: MessageFilter | None,
) -> Callable[[DelegationCall], Awaitable[Sequence[RunMessage]]] | None:
    """The filter, whose answer is checked as long as its errors can be told."""
    if chosen is None:
        return None

    async def messages(call: DelegationCall) -> Sequence[RunMessage]:
        kept: Any = chosen(call)
        kept = tuple(await kept if inspect.isawaitable(kept) else kept)
        if not all(isinstance(m, RunMessage) for m in kept):
            raise TypeError("messageFilter must return messages")
        return kept

    return messages


def _result(report: Report, text: str, room: Room) -> dict[str, Json]:
    """The result of the tool, as it is stored and returned (DEL-3)."""
    given = {"subAgentThreadId": report.thread_id, "subAgentResourceId": report.resource_id}
    named = {name: value for name, value in given.items() if value is not None}
    return {"text": text, **named, "subAgentToolResults": room.results(report.tool_results)}


def _told_result(report: Report) -> DelegationResult:
    return DelegationResult(
        report.text, report.finish_reason, report.thread_id, report.resource_id, report.tool_results, report.usage
    )


@dataclass(frozen=True, slots=True)
class _Saying:
    """A model that says one thing."""

    text: str

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse(self.text, (), "stop", Usage(), "none")

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        for chunk in chunks_of(await self.generate(request)):
            yield chunk
