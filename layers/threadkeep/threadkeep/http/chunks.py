"""The events of a run in the words of the wire (spec-http 3): one JSON object each, in an order that clients know.

What a sub-agent says is told by a writer of its own: each of its chunks is the `output` of a `tool-output` of the call
that it answers, at any depth. Only data that tools tell come up as they are (DEL-26).
"""

from collections.abc import Iterable
from functools import reduce

from threadkeep import clock
from threadkeep.clock import Millis
from threadkeep.errors import ThreadkeepError, ToolFailed
from threadkeep.http import errors, reply
from threadkeep.jsontext import Json
from threadkeep.models.port import Usage
from threadkeep.turn import events
from threadkeep.turn.events import Event
from threadkeep.turn.result import Step, TurnResult
from threadkeep.turn.suspension import RESUME_SCHEMA
from threadkeep.turn.tools import CallOutcome

Chunk = dict[str, Json]


class Chunks:
    """Writes one run. Text and reasoning come in blocks that are opened and closed here."""

    def __init__(self, run_id: str):
        self.is_running = False
        self._run_id = run_id
        self._message_id = ""
        self._open: str | None = None  # the kind of block that is open: text or reasoning
        self._blocks = 0
        self._names: dict[str, str] = {}  # of the calls
        self._below: dict[str, Chunks] = {}  # of the sub-agents that answer calls
        self._steps: list[Step] = []

    def of(self, event: Event) -> list[Chunk]:
        """The chunks that tell an event; what it ends is closed first."""
        match event:
            case events.TextDelta(text):
                return self._in_block("text", text)
            case events.ReasoningDelta(text):
                return self._in_block("reasoning", text)
            case _:
                return [*self._closed(), *self._plain(event)]

    def failed(self, error: Exception) -> list[Chunk]:
        """A run that ends in an error after it has begun: the status is 200 by then."""
        foreseen = isinstance(error, ThreadkeepError)
        _, body = errors.reply(error) if foreseen else (500, {"error": "Internal error"})
        told: Json = {"message": body["error"], "name": type(error).__name__ if foreseen else "Error"}
        return [
            *self._closed(),
            self._chunk("error", {"error": told}),
            self._chunk("step-finish", self._end("error", continued=False)),
            self._chunk("finish", self._end("error", continued=False)),
        ]

    def _plain(self, event: Event) -> list[Chunk]:
        match event:
            case events.RunStarted():
                self._run_id, self._message_id, self.is_running = event.run_id, event.message_id, True
                return [self._chunk("start", {"id": event.agent_id, "messageId": event.message_id})]
            case events.RunResumed():
                self._run_id, self._message_id = event.run_id, event.message_id
                return []
            case events.StepStarted():
                return [self._chunk("step-start", self._step(event.at))]
            case events.CallStarted():
                self._names[event.call_id] = event.name
                return [self._chunk("tool-call-input-streaming-start", _call(event.call_id, event.name))]
            case events.CallDelta():
                payload = _call(event.call_id, self._names[event.call_id]) | {"argsTextDelta": event.text}
                return [self._chunk("tool-call-delta", payload)]
            case events.CallEnded():
                return [self._chunk("tool-call-input-streaming-end", {"toolCallId": event.call_id})]
            case events.CallMade():
                self._names[event.call.id] = event.call.name
                payload = _call(event.call.id, event.call.name) | {"args": event.call.args}
                return [self._chunk("tool-call", payload)]
            case events.Delegated():
                below = self._below.setdefault(event.call_id, Chunks(""))
                return self._output(event.call_id, below.of(event.event))
            case events.DataTold():
                return [{"type": event.type, "runId": self._run_id, "data": event.data}]
            case events.CallFinished():
                return [*self._cut_below(event.outcome), self._outcome(event.outcome)]
            case events.StepFinished():
                self._steps.append(event.step)
                end = self._end(event.step.response.finish_reason, continued=event.continues, steps=(event.step,))
                return [self._chunk("step-finish", end)]
            case events.TitleGiven():
                data: Json = {"threadId": event.thread_id, "title": event.title}
                return [{"type": "data-thread-title", "runId": self._run_id, "data": data, "transient": True}]
            case events.ApprovalNeeded():
                payload = _call(event.call.id, event.call.name) | {"args": event.call.args}
                return [self._chunk("tool-call-approval", payload | {"resumeSchema": RESUME_SCHEMA})]
            case events.RunFinished():
                return [] if event.result.suspended is not None else self._finished(event.result)
            case _:
                raise AssertionError(event)

    def _output(self, call_id: str, chunks: Iterable[Chunk]) -> list[Chunk]:
        return [self._come_up(call_id, chunk) for chunk in chunks]

    def _come_up(self, call_id: str, chunk: Chunk) -> Chunk:
        """What a sub-agent told, as its supervisor's stream tells it."""
        if chunk["type"].startswith("data-") and not chunk.get("transient"):
            return {**chunk, "runId": self._run_id}
        payload = _call(call_id, self._names.get(call_id, "")) | {"output": chunk}
        return {**self._chunk("tool-output", payload), "from": "USER"}

    def _cut_below(self, done: CallOutcome) -> list[Chunk]:
        """The end of a sub-agent's stream that failed half-way: what its supervisor is told, not its cause (DEL-23)."""
        below = self._below.pop(done.call.id, None)
        if below is None or not below.is_running:
            return []
        return self._output(done.call.id, below.failed(ToolFailed(done.error or "The sub-agent failed")))

    def _finished(self, result: TurnResult) -> list[Chunk]:
        self.is_running = False
        if result.tripwire is not None:
            tripwire = self._chunk("tripwire", reply.tripwire(result.tripwire))
            return [tripwire, self._chunk("finish", self._end("other", continued=False))]
        shaped = result.structured
        told = [] if shaped is None or not shaped.exists else [self._bare("object-result", shaped.value)]
        return [*told, self._chunk("finish", self._end(result.finish_reason, continued=False, steps=result.all_steps))]

    def _step(self, at: Millis) -> Chunk:
        return {"messageId": self._message_id, "startedAt": at, "warnings": [], "request": {}}

    def _outcome(self, done: CallOutcome) -> Chunk:
        payload = _call(done.call.id, done.call.name) | {"args": done.call.args}
        if done.denial is not None:
            return self._chunk("tool-output-denied", payload | {"approval": done.denial})
        if done.error is not None:
            return self._chunk("tool-error", payload | {"error": {"message": done.error, "name": "Error"}})
        return self._chunk("tool-result", payload | {"result": done.result})

    def _in_block(self, kind: str, text: str) -> list[Chunk]:
        opened: list[Chunk] = []
        if self._open != kind:
            opened = self._closed()
            self._open, self._blocks = kind, self._blocks + 1
            opened.append(self._chunk(f"{kind}-start", {"id": self._block}))
        return [*opened, self._chunk(f"{kind}-delta", {"id": self._block, "text": text})]

    def _closed(self) -> list[Chunk]:
        kind, self._open = self._open, None
        return [] if kind is None else [self._chunk(f"{kind}-end", {"id": self._block})]

    @property
    def _block(self) -> str:
        return f"txt-{self._blocks - 1}"

    def _end(self, reason: str, *, continued: bool, steps: Iterable[Step] | None = None) -> Chunk:
        told = tuple(self._steps if steps is None else steps)
        usage = reduce(Usage.__add__, (s.response.usage for s in told), Usage())
        last = told[-1] if told else None
        return {
            "messageId": self._message_id,
            "stepResult": {"reason": reason, "isContinued": continued, "warnings": []},
            "output": {
                "text": "".join(s.response.text for s in told),
                "toolCalls": [_call(c.id, c.name) | {"args": c.args} for s in told for c in s.response.tool_calls],
                "usage": reply.usage(usage),
                "steps": [],
            },
            "metadata": {"modelId": last.response.model, "timestamp": clock.iso(last.ended)} if last else {},
            "messages": {"all": [], "user": [], "nonUser": []},
        }

    def _chunk(self, type: str, payload: Chunk) -> Chunk:
        return {"type": type, "runId": self._run_id, "from": "AGENT", "payload": payload}

    def _bare(self, type: str, value: Json) -> Chunk:
        return {"type": type, "runId": self._run_id, "from": "AGENT", "object": value}


def _call(call_id: str, name: str) -> Chunk:
    return {"toolCallId": call_id, "toolName": name}
