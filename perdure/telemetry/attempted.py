"""The attempts of a run, as the history of one of its executions tells them: each once, with its own times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, cast

from temporalio import exceptions
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TimeoutType

from perdure.attempts import LOST, Made, Trail
from perdure.messages import JSON, AssistantMessage, Content, RunResult, ToolResult, Usage
from perdure.policies import AgentSpec
from perdure.reports import CompactReport, ModelTurn, ProbeReport, Spent, ToolReport, UndoReport
from perdure.state import RunState
from perdure.telemetry.askings import Asking
from perdure.telemetry.beginnings import begun_with
from perdure.telemetry.executions import error_of, local_activity
from perdure.wire import (
    CANCEL_RUN,
    COMPACT,
    JUDGE,
    LIST_TOOLS,
    MODEL,
    PROBE,
    PUT_AWAY,
    RECALL,
    UNDO,
    WORKFLOW,
    CompactInput,
    ModelInput,
    ProbeInput,
    RunRequest,
    ToolInput,
    UndoInput,
    opening_state,
)

Kind = Literal["chat", "tool", "probe", "undo"]


@dataclass(frozen=True)
class Attempted:
    """One attempt.

    Attributes:
        kind: A request to a model, or the body of a tool, of its probe, of its compensation.
        execution: Temporal's id of the execution that made it.
        activity: Temporal's id of the activity.
        number: Which of its attempts; of a model call, which of the requests made for it.
        name: The tool's name; of a model as the agent names it.
        made: When, and what became of it.
        handed: When the activity was handed to the workers; None where it was none, or a local one.
        step: Model turn.
        purpose: What a model was asked for, but for the next turn: `compaction`, or `memory`.
        call: The call's position, "" for a model.
        call_id: The provider's id of the call.
        child: The run that the call is, where it is one.
        status: How a call ended; "" where only the attempt did.
        arguments: Of a call, whole.
        result: Of a call, as the model is shown it.
        usage: Of a request to a model; estimated, and flagged so, where nobody has told.
        cost_usd: Of that; None where a price is not known.
        served: The model in the provider's words, "" where it said nothing else.
        finish: How its reply ended.
        asked: What was new to the model.
        answered: What it replied.
        known: The event of the history that has told of it.
    """

    kind: Kind
    execution: str
    activity: str
    number: int
    name: str
    made: Made
    handed: datetime | None
    step: int = 0
    purpose: str = ""
    call: str = ""
    call_id: str = ""
    child: str = ""
    status: str = ""
    arguments: dict[str, JSON] = field(default_factory=dict[str, JSON])
    result: str = ""
    usage: Usage = field(default_factory=Usage)
    cost_usd: Decimal | None = None
    served: str = ""
    finish: str = "stop"
    asked: Sequence[Content | ToolResult] = ()
    answered: AssistantMessage | None = None
    known: int = 0


@dataclass
class _Scheduled:
    kind: str
    id: str
    payloads: Sequence[Payload]
    time: datetime
    started: datetime | None = None
    attempt: int = 1
    asking: Asking | None = None


async def attempted(run_id: str, execution: str, events: Iterable[HistoryEvent], converter: DataConverter) -> History:
    """Return what the history of an execution tells of attempts."""
    history = History(run_id, execution, converter)
    for number, event in enumerate(events):
        await history.feed(event)
        if number % _BREATH == 0:
            await asyncio.sleep(0)  # a long one takes seconds, and whoever reads it has other things to do
    return history


_BREATH = 100
_NONE = (JUDGE, CANCEL_RUN, RECALL, LIST_TOOLS, PUT_AWAY)
_BEFORE_IT_BEGAN = {"NotFoundError"}


def for_memory(state: RunState, spent: Sequence[Spent], converter: DataConverter, now: datetime) -> History:
    """Return the requests that were made after a run, for what is to be remembered of it."""
    history = History(state.run_id, "memory", converter)
    history.opening = state
    for number, one in enumerate((single for some in spent for single in _each(some)), 1):
        told = Attempted("chat", "memory", "memory", number, one.model, _made(one, number, now), None, state.steps)
        history.attempts.append(replace(told, purpose="memory", usage=one.usage, cost_usd=one.cost_usd))
    return history


class History:
    """Takes the events of one execution, in order.

    Attributes:
        attempts: In the order in which they were known.
        opening: The state that it began with.
        began: When.
        follows: What the execution was known by that it goes on from, where it was resumed; "" else.
        continued: Whether it goes on from one of the same run, which was too long.
        caller: The run that has called this one; "" where none has.
        last: The last event that was taken.
    """

    def __init__(self, run_id: str, execution: str, converter: DataConverter) -> None:
        self._run_id, self._execution, self._converter = run_id, execution, converter
        self.attempts: list[Attempted] = []
        self.opening: RunState | None = None
        self.began: datetime | None = None
        self.follows = ""
        self.continued = False
        self.caller = ""
        self.last = 0
        self._resets: list[tuple[int, str]] = []
        self._called: dict[int, Attempted] = {}
        self._pending: dict[int, _Scheduled] = {}
        self._new: list[Content | ToolResult] = []
        self._now = datetime.now(UTC)

    async def feed(self, event: HistoryEvent) -> None:
        """Take an event."""
        self._now = event.event_time.ToDatetime(UTC)
        self.last = event.event_id
        handler, attributes = _HANDLERS.get(event.event_type), event.WhichOneof("attributes")
        if handler and attributes:
            before = len(self.attempts)
            await getattr(self, handler)(getattr(event, attributes), event)
            self.attempts[before:] = [replace(one, known=event.event_id) for one in self.attempts[before:]]

    def made_by(self, event: int) -> str:
        """Return the execution in which that event happened: after a reset, the first ones are a copy of another's."""
        return next((execution for upto, execution in self._resets if event <= upto), self._execution)

    async def _scheduled(self, attributes: Any, event: HistoryEvent) -> None:
        one = _Scheduled(attributes.activity_type.name, attributes.activity_id, attributes.input.payloads, self._now)
        self._pending[event.event_id] = one
        if form := _ASKING.get(one.kind):
            asked, kind = await self._decode(one.payloads, form[0]), form[1]
            one.asking = Asking(str(event.event_id), asked.step, kind, self._now, asked, self._spec.model)

    @property
    def _spec(self) -> AgentSpec:
        assert self.opening is not None  # noqa: S101 - a history begins with the start
        return self.opening.spec

    async def _started(self, attributes: Any, _: HistoryEvent) -> None:
        if one := self._pending.get(attributes.scheduled_event_id):
            one.started, one.attempt = self._now, attributes.attempt
            if one.asking:
                one.asking.start(attributes.attempt, self._now)

    async def _start(self, attributes: Any, _: HistoryEvent) -> None:
        request = await begun_with(attributes, self._decode)
        self.began, self.continued = self._now, bool(request.executions)
        self.caller = request.parent if request.caller else ""
        self.opening = opening_state(request, self._run_id, attributes.original_execution_run_id)
        if request.carried and not request.executions and request.forked_from is None:
            self.follows = request.carried.execution
        self._new = [request.input] if request.input and not request.executions else []

    async def _reset(self, attributes: Any, event: HistoryEvent) -> None:
        """Take that what came before was made by another execution, of which this one is a copy."""
        if attributes.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            self._resets.append((event.event_id, attributes.base_run_id))
            self.attempts = [replace(one, execution=self.made_by(one.known)) for one in self.attempts]

    # -- how activities ended --------------------------------------------------------------------------------

    async def _completed(self, attributes: Any, _: HistoryEvent) -> None:
        one, payloads = self._pending.pop(attributes.scheduled_event_id, None), attributes.result.payloads
        if one is None or one.kind in _NONE:
            return
        if one.asking is not None and one.kind == MODEL:
            turn: ModelTurn = await self._decode(payloads, ModelTurn)
            one.asking.reply(turn, self._now)
            self._requests(one, one.asking, turn)
            self._new = []
        elif one.asking is not None:
            one.asking.compact(await self._decode(payloads, CompactReport), self._now)
            self._requests(one, one.asking)
        else:
            await self._call(one, await self._outcome(one, payloads))

    async def _outcome(self, one: _Scheduled, payloads: Sequence[Payload]) -> tuple[list[Made], str, str, str]:
        """Return the attempts before the last one, and of that status, type of error and what it returned."""
        if one.kind == PROBE:
            return [], (await self._decode(payloads, ProbeReport)).outcome, "", ""
        if one.kind == UNDO:
            undone = await self._decode(payloads, UndoReport)
            return [], undone.status, "" if undone.status == "undone" else undone.status, undone.message
        if await self._is_remote(one):
            return [], "ok", "", ""
        report = await self._decode(payloads, ToolReport)
        result = report.result
        self._new.append(result)
        wrong = "" if result.status == "ok" else result.error_type or result.status
        return report.made, result.status, wrong, result.content

    async def _cancelled(self, attributes: Any, _: HistoryEvent) -> None:
        await self._broken(self._pending.pop(attributes.scheduled_event_id, None), None)

    async def _failed(self, attributes: Any, _: HistoryEvent) -> None:
        await self._broken(self._pending.pop(attributes.scheduled_event_id, None), attributes.failure)

    async def _broken(self, one: _Scheduled | None, failure: Failure | None) -> None:
        if one is None or one.kind in _NONE:
            return
        error = await error_of(self._converter, failure) if failure else None
        trail = await self._trail(failure) if failure else Trail()
        if one.asking is not None:
            one.asking.fail(error or CancelledError(), self._now)
            self._requests(one, one.asking)
        elif one.started is not None and not (isinstance(error, ApplicationError) and error.type in _BEFORE_IT_BEGAN):
            lost = isinstance(error, exceptions.TimeoutError) and error.type == TimeoutType.HEARTBEAT
            await self._call(one, (trail.made, "", _word(error), ""), trail.seen if lost else None)

    def _requests(self, one: _Scheduled, asking: Asking, turn: ModelTurn | None = None) -> None:
        each = [single for request in asking.spent for single in _each(request)]
        if asking.lost:
            lost = Usage(estimated=True)
            each.append(
                Spent(model=asking.model, status="lost", why=LOST, usage=lost, cost_usd=None, at=asking.started)
            )
        for number, request in enumerate(each, 1):
            replied = turn if turn and number == len(each) and request.status == "ok" else None
            made = _made(request, number, one.started or one.time)
            told = Attempted("chat", self._execution, one.id, number, request.model, made, one.time, asking.step)
            more: dict[str, Any] = {"usage": request.usage, "cost_usd": request.cost_usd}
            if asking.kind == "model":
                more["asked"] = tuple(self._new)
            if replied:
                more |= {"served": replied.served, "finish": replied.finish, "answered": replied.message}
            self.attempts.append(replace(told, purpose="compaction" if asking.kind == "summary" else "", **more))

    async def _call(
        self, one: _Scheduled, outcome: tuple[list[Made], str, str, str], seen: datetime | None = None
    ) -> None:
        made, status, wrong, content = outcome
        began = one.started or one.time
        last = Made(attempt=one.attempt, began=began, ended=max(seen or self._now, began), error_type=wrong)
        known = {before.attempt: before for before in made}
        guess = Made(began=one.time, ended=one.time, error_type="error", unseen=True)
        before = [known.get(n) or guess.model_copy(update={"attempt": n}) for n in range(1, one.attempt)]
        kind, named = await self._named(one)
        for at in [*before, last]:
            told = Attempted(kind, self._execution, one.id, at.attempt, one.kind, at, one.time)
            more: dict[str, Any] = {"status": status, "result": content} if at is last else {}
            self.attempts.append(replace(told, **named, **more))

    async def _named(self, one: _Scheduled) -> tuple[Kind, dict[str, Any]]:
        """Return what kind of call an activity is, and what there is to say of all of its attempts."""
        if await self._is_remote(one):
            arguments = (await self._converter.decode(list(one.payloads)))[0]
            return "tool", {"name": one.kind, "call": one.id, "step": _step(one.id), "arguments": arguments}
        kind, form = _KINDS.get(one.kind, ("tool", ToolInput))
        given: Any = await self._decode(one.payloads, form)
        call: ToolInput = given if form is ToolInput else given.call
        named = {"call": call.position, "call_id": call.call_id, "step": _step(call.position)}
        name = one.kind if form is ToolInput else given.tool
        return kind, {**named, "name": name, "arguments": call.arguments}

    async def _is_remote(self, one: _Scheduled) -> bool:
        return any(tool.remote is not None and tool.remote.activity == one.kind for tool in self._spec.known)

    # -- calls that are runs ---------------------------------------------------------------------------------

    async def _child_begun(self, attributes: Any, event: HistoryEvent) -> None:
        if attributes.workflow_type.name != WORKFLOW:
            return
        request = await self._decode(attributes.input.payloads, RunRequest)
        if request.caller is None:
            return
        position, child = request.caller.position, attributes.workflow_id
        made = Made(began=self._now, ended=self._now)
        told = Attempted("tool", self._execution, position, 1, request.spec.name, made, None, _step(position))
        self._called[event.event_id] = replace(told, call=position, child=child, arguments={"task": request.input})

    async def _child_done(self, attributes: Any, _: HistoryEvent) -> None:
        if attributes.initiated_event_id not in self._called:
            return
        result: RunResult = await self._decode(attributes.result.payloads, RunResult)
        self._child_ended(attributes, "" if result.status == "completed" else result.status, result.text)

    async def _child_failed(self, attributes: Any, _: HistoryEvent) -> None:
        self._child_ended(attributes, _word(await error_of(self._converter, attributes.failure)), "")

    async def _child_cut_off(self, attributes: Any, _: HistoryEvent) -> None:
        self._child_ended(attributes, "cancelled", "")

    def _child_ended(self, attributes: Any, wrong: str, text: str) -> None:
        if told := self._called.pop(attributes.initiated_event_id, None):
            made = told.made.model_copy(update={"ended": self._now, "error_type": wrong})
            self.attempts.append(replace(told, made=made, status=wrong or "ok", result=text))

    async def _marker(self, attributes: Any, _: HistoryEvent) -> None:
        """Take a local activity's end; its start is not recorded."""
        described = local_activity(attributes)
        if described is None:
            return
        scheduled = _time(described.get("original_schedule_time")) or self._now
        kind = described.get("activity_type", "")
        one = _Scheduled(kind, described["activity_id"], (), scheduled, scheduled, described.get("attempt", 1))
        if attributes.HasField("failure"):
            error = await error_of(self._converter, attributes.failure)
            outcome = (list[Made](), "", _word(error), "")
        else:
            outcome = await self._outcome(one, attributes.details["result"].payloads)
        self._local(one, outcome)

    def _local(self, one: _Scheduled, outcome: tuple[list[Made], str, str, str]) -> None:
        _, status, wrong, content = outcome
        for number in range(1, one.attempt + 1):
            last = number == one.attempt
            made = Made(
                attempt=number,
                began=one.time,
                ended=max(self._now, one.time) if last else one.time,
                error_type=wrong if last else "error",
                unseen=not last,
            )
            told = Attempted("tool", self._execution, one.id, number, one.kind, made, None, _step(one.id))
            more: dict[str, Any] = {"status": status, "result": content} if last else {}
            self.attempts.append(replace(told, call=one.id, **more))

    # -- decoding --------------------------------------------------------------------------------------------

    async def _decode(self, payloads: Sequence[Payload], form: type[Any]) -> Any:
        return (await self._converter.decode(list(payloads), [form]))[0]

    async def _trail(self, failure: Failure) -> Trail:
        """Return what the last heartbeat of an attempt has left that timed out."""
        payloads = failure.timeout_failure_info.last_heartbeat_details.payloads
        left = await self._converter.decode(list(payloads)) if payloads else []
        return Trail.model_validate(left[1]) if len(left) > 1 else Trail()


_HANDLERS: dict[int, str] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "_start",
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: "_reset",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "_scheduled",
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: "_started",
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "_completed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "_failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "_failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "_cancelled",
    EventType.EVENT_TYPE_MARKER_RECORDED: "_marker",
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "_child_begun",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: "_child_done",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: "_child_failed",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: "_child_cut_off",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: "_child_cut_off",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: "_child_cut_off",
}

_KINDS: dict[str, tuple[Kind, type[Any]]] = {PROBE: ("probe", ProbeInput), UNDO: ("undo", UndoInput)}


def _each(spent: Spent) -> list[Spent]:
    """Return requests that were counted together, each for itself, as if they had been spread evenly."""
    if spent.times == 1:
        return [spent]
    took = spent.took / spent.times if spent.took else timedelta()
    at = [spent.at + took * number if spent.at else None for number in range(spent.times)]
    return [spent.model_copy(update={"at": one, "took": None, "times": 1}) for one in at]


def _made(spent: Spent, number: int, started: datetime) -> Made:
    """Return when a request was made, and what became of it; guessed where nobody has told."""
    began = spent.at or started
    word = "" if spent.status == "ok" else _WORDS.get(spent.why, spent.why) or spent.status
    guessed = spent.at is None or (spent.took is None and spent.status != "lost")
    ended = began + (spent.took or timedelta())
    return Made(attempt=number, began=began, ended=ended, error_type=word, unseen=guessed)


_WORDS = {"worker": LOST, "broken_off": "cancelled", "interrupted": "cancelled"}
_ASKING: dict[str, tuple[type[ModelInput], Literal["model", "summary"]]] = {
    MODEL: (ModelInput, "model"),
    COMPACT: (CompactInput, "summary"),
}


def _word(error: BaseException | None) -> str:
    """Return why an attempt failed, in a word."""
    if isinstance(error, exceptions.TimeoutError):
        return LOST if error.type == TimeoutType.HEARTBEAT else "timeout"
    if isinstance(error, ApplicationError):
        return error.type or "error"
    return "error" if isinstance(error, FailureError) and error.failure else "cancelled"


def _step(position: str) -> int:
    number = position.partition(".")[0]
    return int(number) if number.isdigit() else 0


def _time(told: Any) -> datetime | None:
    """Return the time that a marker tells, as `{"secs_since_epoch": …}` or in ISO 8601."""
    if isinstance(told, dict):
        fields = cast("dict[str, int]", told)
        seconds = fields.get("secs_since_epoch", fields.get("seconds", 0))
        nanos = fields.get("nanos_since_epoch", fields.get("nanos", 0))
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=nanos / 1_000)
    try:
        return datetime.fromisoformat(told) if isinstance(told, str) else None
    except ValueError:
        return None
