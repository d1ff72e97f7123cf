"""The middle of a turn: from what it loaded to what it will store, with the processors around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from threadkeep import clock
from threadkeep.errors import TooLarge
from threadkeep.jsontext import Json
from threadkeep.memory import budget, signals
from threadkeep.memory.messages import Content, with_metadata
from threadkeep.memory.working_memory import stripping
from threadkeep.models.port import Model, ModelRequest
from threadkeep.storage import rules
from threadkeep.storage.port import Message, MessageUpdate, NewMessage, TurnState
from threadkeep.turn import client_results, structured
from threadkeep.turn.course import Course
from threadkeep.turn.delegation import forwarding
from threadkeep.turn.delegation.delegations import Delegations
from threadkeep.turn.events import DataTold
from threadkeep.turn.live import Live
from threadkeep.turn.loop import Loop, answer_message
from threadkeep.turn.message_list import MessageList, RunMessage, messages_of
from threadkeep.turn.plan import Plan
from threadkeep.turn.processors.base import Aborted, Processor, RunFacts
from threadkeep.turn.processors.model import ProcessedModel
from threadkeep.turn.processors.pipeline import Pipeline
from threadkeep.turn.request import TurnAgent, TurnRequest
from threadkeep.turn.result import Step, TurnResult, as_edited
from threadkeep.turn.signals import StateSignals, stored_only
from threadkeep.turn.structured import Structured
from threadkeep.turn.tools import Tool, ToolContext
from threadkeep.turn.working_memory import RunMemory

_MODEL_TIMEOUT = 120.0  # seconds for one model call where the turn has no deadline


@dataclass(frozen=True, slots=True)
class Answered:
    """What a run made: its steps as the caller sees them, what it stores, and the history that the model saw."""

    steps: tuple[Step, ...]
    messages: tuple[NewMessage, ...]
    remembered: tuple[Message, ...]
    structured: Structured | None
    updates: tuple[MessageUpdate, ...]
    course: Course


class Run:
    """One run of an agent on what its turn loaded. `updates` are stored calls for which the caller brings results:
    they belong to this run as its input does, so no limit lets them go."""

    def __init__(
        self,
        agent: TurnAgent,
        request: TurnRequest,
        plan: Plan,
        state: TurnState,
        model: Model,
        tools: Mapping[str, Tool],
        live: Live,
        delegations: Delegations,
        updates: Sequence[MessageUpdate] = (),
        memory: RunMemory | None = None,
    ):
        self._agent = agent
        self._request = request
        self._plan = plan
        self._state = state
        self._tools = tools
        self._updates = updates
        self._memory = memory
        self._limiter = plan.limiter(state.thread)
        self._drawn = self._limiter.boundary if self._limiter else None
        self._live = live
        self._steps: list[Step] = []
        self._pipeline = Pipeline(self._inputs(), plan.outputs, self._facts(), agent.max_processor_retries)
        self._states = _states(plan, state)
        self._model = ProcessedModel(
            model,
            self._pipeline,
            live,
            keep_pending=not request.options.filter_incomplete_tool_calls,
            states=self._states,
            is_gone=self._limiter.is_gone if self._limiter else None,
        )
        self._course = Course(agent, request, delegations)
        delegations.shown = self._shown
        live.withhold(plan.outputs)

    async def answer(self, opening: MessageList, name: str, provider: str) -> Answered:
        """Ask the model until it is done. Raises `Aborted` where a processor stops the run."""
        self._updates = await self.finished_updates()
        resumed = self._request.resumes.messages if self._request.resumes else ()
        behind = (*map(_behind, resumed), *map(_answered_call, self._updates))
        opening = await self._pipeline.input(opening.plus(*behind, *self._course.resumed()))
        check_fits(opening, self._updates)
        self._model.messages = opening
        await self._run_steps(opening, name)
        shown, after = await self._edited(tuple(self._steps), provider)
        shaped = self._structured(shown)
        return self._answered(shown, _with_object(after, shaped), shaped)

    async def finished_updates(self) -> tuple[MessageUpdate, ...]:
        """The updates with what the caller brings as the processors leave it."""
        return tuple([await client_results.finished(u, self._pipeline.tool_result) for u in self._updates])

    async def cut(self, provider: str) -> Answered | None:
        """What a run that was stopped half-way is stored as: its input and what a watcher saw of its answer, marked
        `aborted`; None if nothing of the answer was seen yet."""
        if not self._live.spoke:
            return None
        last = self._live.cut_step(clock.now())
        steps = (*self._steps, last) if last else tuple(self._steps)
        shown, after = await self._edited(steps, provider) if steps else ((), ())
        marked = tuple(replace(m, content=with_metadata(m.content, {"aborted": True})) for m in after)
        return self._answered(shown, marked, None)

    def _answered(self, steps: tuple[Step, ...], answer: Sequence[RunMessage], shaped: Structured | None) -> Answered:
        new = (*self._model.messages.of("input"), *answer, *self._model.told, *self._course.said)
        room = rules.MAX_TURN_MESSAGES - len(self._updates)
        stored = _to_store(new, room)
        return Answered(steps, stored, self._remembered(), shaped, tuple(self._updates), self._course)

    async def _edited(self, steps: tuple[Step, ...], provider: str) -> tuple[tuple[Step, ...], tuple[RunMessage, ...]]:
        """The steps and the answer as the output processors leave them (PR-3)."""
        name = next((s.response.model for s in reversed(steps) if s.response.model), "")
        answer = answer_message(self._live.message_id, steps, name, provider)
        before = (RunMessage.new(answer, "response"),) if answer else ()
        after = await self._pipeline.output(before)
        return steps if after == before else as_edited(steps, after), after

    def stopped(self, aborted: Aborted, provider: str) -> TurnResult:
        """What is left of a run that a processor stopped (PR-7)."""
        return TurnResult(
            self._request.run_id,
            self._agent.id,
            provider,
            (),
            (),
            self._state.thread,
            tripwire=aborted.tripwire,
            refused=self._model.usage,
        )

    @property
    def thread_metadata(self) -> dict[str, Json] | None:
        """What the thread is to remember of this run: where its history begins, if that moved (PR-14), and which
        states were told (SIG-6)."""
        limiter, found = self._limiter, dict(self._states.thread_metadata) if self._states else {}
        if limiter is not None and limiter.boundary is not None and limiter.boundary != self._drawn:
            found |= budget.as_metadata(limiter.boundary, limiter.limits)
        return found or None

    def _inputs(self) -> tuple[Processor, ...]:
        return (self._limiter, *self._plan.inputs) if self._limiter else self._plan.inputs

    def _facts(self) -> RunFacts:
        conversation, state = self._request.conversation, self._state
        answered = {update.message.id for update in self._updates}
        return RunFacts(
            self._request.run_id,
            self._agent.id,
            conversation.thread_id if conversation else None,
            conversation.resource_id if conversation else None,
            self._request.request_context,
            state.thread,
            tuple(RunMessage.stored(m) for m in state.history if m.id not in answered),
            self._memory,
        )

    async def _run_steps(self, opening: MessageList, name: str) -> None:
        agent, request, tools = self._agent, self._request, self._tools
        first = ModelRequest(
            model=name,
            messages=messages_of(opening.prompt()),
            tools=tuple(t.spec for t in tools.values()),
            tool_choice=request.tool_choice,
            settings=request.settings or agent.settings,
            timeout=request.deadline or _MODEL_TIMEOUT,
            response_schema=request.structured_output.schema if request.structured_output else None,
        )
        loop = Loop(
            self._model,
            tools,
            self._tool_context,
            self._pipeline.tool_result,
            self._live,
            self._course,
            self._steps,
            request.on_step,
            request.stopped,
        )
        await loop.run(first)

    def _shown(self) -> tuple[RunMessage, ...]:
        """What a sub-agent may see of the conversation: not the states that signals tell, which are the run's own."""
        told = frozenset(m.id for m in (*self._model.messages.messages, *self._model.told) if m.role == signals.ROLE)
        wanted = self._agent.delegation.system_texts
        return forwarding.conversation(self._model.shown, told, system_texts=wanted)

    def _structured(self, steps: tuple[Step, ...]) -> Structured | None:
        """The object that the request asked for; None while the run has not come to its answer (LOOP-11)."""
        wanted, last = self._request.structured_output, steps[-1].response
        return None if wanted is None or last.tool_calls else structured.read(wanted, last.text)

    def _tool_context(self, call_id: str) -> ToolContext:
        async def told(part: Content) -> None:
            await self._live.tell(DataTold(call_id, part["type"], part["data"]))

        facts = self._pipeline.facts
        return ToolContext(
            facts.agent_id,
            facts.run_id,
            call_id,
            facts.thread_id,
            facts.resource_id,
            facts.request_context,
            watcher=told,
        )

    def _remembered(self) -> tuple[Message, ...]:
        """The history that was shown, as it was shown (CTX-7)."""
        seen = {m.id: m for m in self._model.messages.of("memory", "context")}
        boundary = self._limiter.boundary if self._limiter else None
        return tuple(
            replace(m, content=seen[m.id].content)
            for m in self._state.history
            if m.id in seen and not (boundary and boundary.holds(m.created_at, m.id))
        )


def _states(plan: Plan, state: TurnState) -> StateSignals | None:
    """A run without thread tells no states (SIG-8)."""
    return StateSignals(plan.conversation.thread_id, state.thread) if plan.conversation else None


def _to_store(messages: Sequence[RunMessage], room: int) -> tuple[NewMessage, ...]:
    """What is stored of these messages: the one place through which a turn's messages pass (MS-5, case H27).

    State signals for which one transaction has no room are left out: the next turn tells the state again.
    """
    over = max(len(messages) - room, 0)
    dropped = {m.id for m in [m for m in messages if m.role == signals.ROLE][::-1][:over]}
    kept = [m for m in stored_only(messages) if m.id not in dropped]
    left = ((m, stripping.stripped(m.content)) for m in kept)
    return tuple(replace(m, content=content).to_store for m, content in left if content is not None)


def _with_object(answer: tuple[RunMessage, ...], shaped: Structured | None) -> tuple[RunMessage, ...]:
    """The answer with its object in the metadata of its last message."""
    if shaped is None or not shaped.exists or not answer:
        return answer
    last = replace(answer[-1], content=with_metadata(answer[-1].content, {"structuredOutput": shaped.value}))
    return (*answer[:-1], last)


def _answered_call(update: MessageUpdate) -> RunMessage:
    """A stored message that got results: shown behind the history, stored as an update."""
    return _behind(replace(update.message, content=update.content))


def _behind(message: Message) -> RunMessage:
    """A stored message, shown behind the history."""
    return replace(RunMessage.stored(message), source="context")


def check_fits(messages: MessageList, updates: Sequence[MessageUpdate] = ()) -> None:
    """Raises `TooLarge` if the new input, with an answer to it, cannot be stored in one transaction."""
    new = [m.to_store for m in messages.of("input")]
    if len(new) + len(updates) >= rules.MAX_TURN_MESSAGES:  # the answer needs a place too
        raise TooLarge(f"One turn may bring {rules.MAX_TURN_MESSAGES - 1} new messages, received {len(new)}")
    rules.turn_bodies(new, updates)
