"""History → events and state: the same outcomes, folded by the same functions as in the workflow.

Nothing here needs a worker or a query, nor a store as long as the engine has the history, which is the only source.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.exceptions import CancelledError, FailureError

from perdure import continuing, control, outcomes, turns, undoing
from perdure import events as ev
from perdure.failures import error_type, explain, fold_compaction_failure, fold_failure, fold_model_failure, wasted
from perdure.messages import CallRecord, Content, Entry, RunResult, RunStatus, Segment, content_hash
from perdure.reports import CompactReport, Judgement, ModelTurn, ProbeReport, ToolReport, UndoReport
from perdure.results import report_of_value
from perdure.state import CallState, CallStatus, Outcome
from perdure.strategies import plan_views
from perdure.telemetry.beginnings import begun_with
from perdure.telemetry.delegating import Delegating
from perdure.telemetry.executions import Shelf, histories, local_activity, no_shelf
from perdure.telemetry.upkeep import Activity, Earlier
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
    ModelInput,
    ProbeInput,
    ToolInput,
    UndoInput,
    opening_state,
)


async def project(temporal: Client, run_id: str, *, last: bool = False, shelf: Shelf = no_shelf) -> Projection:
    """Return the projection of all that has happened to a run so far, as far back as it is known.

    Args:
        last: Read its last execution alone: enough to know where it stands, as that begins with the state of the run.
        shelf: Has what the engine has forgotten.
    """
    projection = Projection(run_id, temporal.data_converter)
    async for event in histories(temporal, run_id, since=None if last else 0, shelf=shelf):
        await projection.feed(event)
    return projection


async def projected(run_id: str, events: Iterable[HistoryEvent], converter: DataConverter) -> Projection:
    """Return the projection of histories that are at hand."""
    projection = Projection(run_id, converter)
    for number, event in enumerate(events):
        await projection.feed(event)
        if number % _BREATH == 0:
            await asyncio.sleep(0)  # a long one takes seconds, and whoever reads it has other things to do
    return projection


_BREATH = 100


async def follow(
    temporal: Client,
    run_id: str,
    after: str = "",
    *,
    shelf: Shelf = no_shelf,
    seen: Callable[[ev.Event], object] | None = None,
) -> AsyncIterator[ev.Event]:
    """Yield the events after position `after`, each once and in order, until the run has ended.

    Args:
        seen: Called with those up to there, as far as they have to be read.
    """
    projection = Projection(run_id, temporal.data_converter)
    last = ev.position_key(after)
    since = max(last[0] // ev.EXECUTION - 1, 0)  # who had the run last is known by the execution before
    async for event in histories(temporal, run_id, since=since, wait=True, shelf=shelf):
        for happened in await projection.feed(event):
            if ev.position_key(happened.position) > last:
                yield happened
            elif seen:
                seen(happened)


class Projection(Delegating):
    """A run as its history tells it. Feed it events in order, those of all its executions one after another.

    Attributes:
        started_at: When it was started, or resumed.
        task: What the user said at the start; of a run that was resumed or continued as new, its beginning.
        earlier: What it has put away, as far as it was read.
        pending: Activities under way, by the id of the history's event.
    """

    def __init__(self, run_id: str, converter: DataConverter) -> None:
        super().__init__(run_id, converter)
        self.started_at: datetime | None = None
        self.task: Content = ""

    @property
    def entries(self) -> list[Entry]:
        """The transcript, as far as it was read: what comes after `earlier.before`."""
        return [*self.earlier.entries, *(self.state.messages if self.state else ())]

    @property
    def records(self) -> list[CallRecord]:
        """The records of all calls, as far as they were read."""
        return continuing.together(self.earlier.records, outcomes.records(self._require()))

    def result(self) -> RunResult:
        """Return the run's result, partial while it is open or where it was ended from outside."""
        result = self.ended
        if result is None:
            assert self.state is not None and self.started_at is not None  # noqa: S101, PT018 - after the first event
            outcome = self.state.outcome or Outcome(status="cancelled")
            result = outcomes.result_from(self.state, outcome, self._now - self.started_at)
        return continuing.with_records(result, self.earlier.before, self.earlier.records) if result.before else result

    async def feed(self, event: HistoryEvent) -> list[ev.Event]:
        """Take one history event, and return what it means: none, one or several events."""
        self._fresh, self._sender = [], ""
        self._now = event.event_time.ToDatetime(UTC)
        self._event_id = event.event_id
        handler, attributes = _HANDLERS.get(event.event_type), event.WhichOneof("attributes")
        if handler and attributes:
            before = self._standing()
            went = await getattr(self, handler)(getattr(event, attributes), event)
            if went is _GOES_ON:
                before = self._standing()
            self._sender = ""
            self._take_early()
            self._tell_changes(before)
            if went is not _NOT_YET:
                self._tell_course()
        self.events.extend(self._fresh)
        return self._fresh

    # -- starting and ending -------------------------------------------------------------------------------

    async def _on_started(self, attributes: Any, _: HistoryEvent) -> object:
        request = await begun_with(attributes, self._decode)
        first, self.executions = self.state is None, request.executions
        self.state = opening_state(request, self.run_id, attributes.original_execution_run_id)
        self.started_at = self.state.began or self._now
        self._records, self._short = len(self.state.records), self.state.short
        self._decided = self._records
        self._staged = {record.position for record in self.state.records if record.status == "staged"}
        if first or not request.executions:
            self.task, self.earlier = request.input, Earlier(before=self.state.before)
            session = self.state.session.name if self.state.session else ""
            rules = content_hash(self.state.spec)
            self._about = {"agent": request.spec.name, "spec_hash": rules, "session": session}
        self._begin_from(goes_on=bool(request.executions))
        if request.executions:
            self._continue()
            return _GOES_ON
        self._sender = attributes.identity
        resumed = request.carried is not None or bool(request.packed)
        recurring = None if resumed else request.recurring
        self._tell(
            ev.RunStarted,
            type="run_started",
            model=request.spec.model,
            schedule=recurring.schedule if recurring else "",
            by=recurring.by if recurring else "",
            resumed=request.forked_from is None and resumed,
            forked_from=request.forked_from,
        )
        self._tell_opening()
        return None

    def _continue(self) -> None:
        """Forget what was counted in the execution before."""
        self.pending = {}
        self._forget()

    async def _on_workflow_task(self, attributes: Any, _: HistoryEvent) -> object:
        if not attributes.identity:
            return _NOT_YET
        if not self.workers or self.workers[-1] != attributes.identity:
            self.workers.append(attributes.identity)
            self._tell(ev.WorkerTookOver, type="worker_took_over", worker=attributes.identity)
        return None

    async def _on_workflow_task_completed(self, *_: Any) -> None:
        self._decided = len(self._require().records)

    async def _on_workflow_task_failed(self, attributes: Any, _: HistoryEvent) -> None:
        if attributes.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            turns.fold_reset(self._require(), attributes.new_run_id[-12:], self._now, self._decided)
        elif attributes.failure.message and attributes.cause != _OUTRUN:
            self._tell(ev.RuntimeFault, type="runtime_fault", message=await self._words(attributes.failure))

    async def _on_cancel_requested(self, attributes: Any, _: HistoryEvent) -> None:
        self._sender = attributes.identity
        asked, why = self._require().cancelling, control.cancelled_because(self._require(), attributes.cause)
        self._tell(ev.CancelRequested, type="cancel_requested", reason=why, by=asked.by if asked else "")

    async def _on_completed(self, attributes: Any, _: HistoryEvent) -> None:
        self._end(await self._decode(attributes.result.payloads, RunResult))

    async def _on_failed(self, attributes: Any, _: HistoryEvent) -> None:
        details = attributes.failure.application_failure_info.details.payloads
        if details:
            self._end(await self._decode(details, RunResult))
        else:
            self._end_from_outside("failed", await self._words(attributes.failure))

    async def _on_cancelled(self, _: Any, __: HistoryEvent) -> None:
        reasons = [event.reason for event in self.events if isinstance(event, ev.CancelRequested)]
        self._end_from_outside("cancelled", reasons[-1] if reasons else "")

    async def _on_terminated(self, attributes: Any, _: HistoryEvent) -> None:
        self._end_from_outside("failed", f"terminated: {attributes.reason}")

    async def _on_timed_out(self, _: Any, __: HistoryEvent) -> None:
        self._end_from_outside("failed", "timed out")

    def _end_from_outside(self, status: RunStatus, reason: str) -> None:
        failure = "ended_from_outside" if status == "failed" else None
        outcome = Outcome(status=status, reason=reason or None, failure=failure)
        started = self.started_at or self._now
        self._end(outcomes.result_from(self._require(), outcome, self._now - started))

    def _end(self, result: RunResult) -> None:
        self.ended = result
        self._require().outcome = Outcome(status=result.status, reason=result.reason, failure=result.failure)
        for one in result.undone:
            if one.status == "not_known":
                told = {"call": one.position, "name": one.name, "status": one.status, "message": one.message}
                self._tell(ev.Undone, type="undone", **told)
        self._tell(
            ev.RunFinished,
            type="run_finished",
            status=result.status,
            text=result.text,
            output=result.output,
            reason=result.reason,
            failure=result.failure,
            usage=result.usage,
            cost_usd=result.cost_usd,
            duration=result.duration,
        )

    # -- activities ----------------------------------------------------------------------------------------

    async def _on_properties_modified(self, attributes: Any, event: HistoryEvent) -> None:
        """Take that the run was cut off and undoes what it did: what was being looked up is looked up anew."""
        await super()._on_properties_modified(attributes, event)
        if payload := attributes.upserted_memo.fields.get(undoing.ENDING):
            outcomes.begin_undoing(self._require(), await self._decode([payload], Outcome))
            self.pending = {key: one for key, one in self.pending.items() if one.kind != PROBE}

    async def _on_scheduled(self, attributes: Any, event: HistoryEvent) -> None:
        kind = attributes.activity_type.name
        self.pending[event.event_id] = Activity(kind, attributes.activity_id, attributes.input.payloads)
        state = self._require()
        if kind == MODEL:
            request = await self._decode(attributes.input.payloads, ModelInput)
            state.ran = request.ran
            self.pending[event.event_id].asking = self._asking("model", request)
            turns.open_turn(state, answer_only=request.answer_only)
            model, last = state.spec.model, request.answer_only
            if state.spec.strategy is None or state.spec.strategy.asks:
                self._tell(ev.ModelStarted, type="model_started", model=model, answer_only=last, step=request.step)
        elif kind in (RECALL, LIST_TOOLS, COMPACT, PUT_AWAY):
            await self._on_upkeep(self.pending[event.event_id])
        elif kind == PROBE:
            probed = await self._decode(attributes.input.payloads, ProbeInput)
            if call := state.find(probed.call.position):
                call.status = CallStatus.PROBING
                if call.doubt and probed.believed_from:  # the workflow's clock decided, which is behind the history's
                    call.doubt = call.doubt.model_copy(update={"believed_from": probed.believed_from})
        elif kind == UNDO:
            undone = await self._decode(attributes.input.payloads, UndoInput)
            if effect := undoing.find(state, undone.call.position):
                effect.status = "undoing"
                self._tell(ev.Undoing, type="undoing", call=effect.position, name=effect.name)
        elif kind not in _NO_CALLS and (call := state.find(attributes.activity_id)):
            tool = state.tool_of(call)
            told = None if tool is None or tool.remote else await self._decode(attributes.input.payloads, ToolInput)
            call.key = told.key if told else call.key  # after a reset, only the run knows its new epoch
            self._start(call, told.order if told else None)

    async def _on_activity_started(self, attributes: Any, _: HistoryEvent) -> None:
        activity = self.pending.get(attributes.scheduled_event_id)
        if not activity:
            return
        activity.started, activity.attempt = self._now, attributes.attempt
        if activity.asking:
            activity.asking.start(attributes.attempt, self._now)
        if attributes.attempt > 1:
            lost = attributes.HasField("last_failure")
            self._tell_retry(activity, await self._error(attributes.last_failure) if lost else None)

    async def _on_activity_completed(self, attributes: Any, _: HistoryEvent) -> None:
        activity = self.pending.pop(attributes.scheduled_event_id, None)
        state, payloads = self._require(), attributes.result.payloads
        if activity is None:
            return
        if activity.kind == MODEL:
            self._fold_turn(await self._decode(payloads, ModelTurn), activity)
        elif activity.kind == COMPACT:
            await self._fold_compaction(activity, await self._decode(payloads, CompactReport))
        elif activity.kind == PROBE:
            probed = await self._decode(activity.payloads, ProbeInput)
            report = await self._decode(payloads, ProbeReport)
            self._fold_probe(probed.call.position, report, activity)
        elif activity.kind == UNDO:
            await self._fold_undo(activity, await self._decode(payloads, UndoReport))
        elif activity.kind in (RECALL, LIST_TOOLS):
            await self._learnt(activity, payloads)
        elif activity.kind == JUDGE:
            self._fold_judgement(activity.id, await self._decode(payloads, Judgement))
        elif activity.kind == PUT_AWAY and activity.leaving:
            self._put_away(activity.leaving, await self._decode(payloads, Segment))
        elif activity.kind not in _NO_CALLS and (call := state.find(activity.id)):
            outcomes.fold_report(state, call, await self._report(call, payloads))
            self._finished(call, activity)

    async def _report(self, call: CallState, payloads: Sequence[Payload]) -> ToolReport:
        tool = self._require().tool_of(call)
        if tool is None or tool.remote is None:
            return await self._decode(payloads, ToolReport)
        value = (await self._converter.decode(list(payloads)))[0] if payloads else None
        return report_of_value(value, call.call.id, call.call.name, tool.result_limit, call.order, tool.shaping)

    async def _on_activity_failed(self, attributes: Any, _: HistoryEvent) -> None:
        error = await self._error(attributes.failure)
        await self._fold_failure(self.pending.pop(attributes.scheduled_event_id, None), error)

    async def _on_activity_cancelled(self, attributes: Any, _: HistoryEvent) -> None:
        await self._fold_failure(self.pending.pop(attributes.scheduled_event_id, None), CancelledError())

    async def _fold_failure(self, activity: Activity | None, error: BaseException) -> None:
        state = self._require()
        if activity is None:
            return
        activity.fail(error, self._now)
        if activity.kind == MODEL and isinstance(error, CancelledError):
            fold_model_failure(state, error)
            told = {"model": state.spec.model, "finish": "interrupted", "usage": wasted(error), "wasted": wasted(error)}
            self._tell(ev.ModelFinished, type="model_finished", **told, **self._tries(activity))
        elif activity.kind == COMPACT:
            fold_compaction_failure(state, error)
            await self._tell_compaction(activity, CompactReport(cost_usd=None, message=explain(error)))
        elif activity.kind == MODEL:
            fold_model_failure(state, error)
            if state.pressure.due:
                return  # what is told is the compaction that follows
            told = {"error_type": error_type(error), "message": explain(error), "usage": wasted(error)}
            self._tell(ev.ModelFailed, type="model_failed", **told, **self._tries(activity))
        elif activity.kind == UNDO:
            await self._fold_undo(activity, UndoReport(status="failed", message=explain(error)))
        elif activity.kind in (RECALL, LIST_TOOLS):
            self._not_learnt(activity, error)
        elif activity.kind not in _NO_CALLS and (call := state.find(activity.id)):
            tool = state.tool_of(call)
            if tool:
                fold_failure(state, call, tool, error, self._now)
                self._finished(call, activity)

    async def _on_marker(self, attributes: Any, _: HistoryEvent) -> None:
        """Take a local activity's end; its start is not recorded."""
        described = local_activity(attributes)
        if described is None:
            return
        state = self._require()
        call = state.find(described["activity_id"])
        tool = state.tool_of(call) if call else None
        if call is None or tool is None:
            return
        if attributes.HasField("failure"):
            self._start(call, None)
            fold_failure(state, call, tool, await self._error(attributes.failure), self._now)
        else:
            report = await self._decode(attributes.details["result"].payloads, ToolReport)
            self._start(call, report.result.execution_order)
            outcomes.fold_report(state, call, report)
        self._finished(call, Activity(tool.name, call.position, (), attempt=described.get("attempt", 1)))

    def _fold_turn(self, turn: ModelTurn, activity: Activity) -> None:
        state = self._require()
        spec, progress = state.spec, state.progress  # of whoever had the run then
        turns.fold_turn(state, turn, self._now)
        if plan := plan_views.changed(progress, state):
            self._tell(ev.PlanChanged, type="plan_changed", steps=plan.steps, amended=plan.amended)
        if activity.asking:
            activity.asking.reply(turn, self._now)
        if turn.finish == "full" or turn.failure:
            return  # what is told is the compaction that follows, or the end
        calls = [f"{state.steps}.{index} {call.name}" for index, call in enumerate(turn.message.calls, 1)]
        if turn.directed:
            name = spec.strategy.name if spec.strategy else ""
            self._tell(ev.Moved, type="moved", strategy=name, text=turn.message.text, calls=calls)
            return
        self._tell(
            ev.ModelFinished,
            type="model_finished",
            model=turn.model or spec.model,
            text=turn.message.text,
            calls=calls,
            finish=turn.finish,
            usage=turn.usage + turn.wasted,
            wasted=turn.wasted,
            cost_usd=turn.cost_usd,
            fallback=turn.fallback,
            context=turn.context,
            **self._tries(activity),
        )

    def _fold_probe(self, position: str, report: ProbeReport, activity: Activity) -> None:
        state = self._require()
        call = state.find(position)
        if call is None:
            return
        told = {"call": position, "name": call.call.name, "outcome": report.outcome, "message": report.message}
        self._tell(ev.Probed, type="probed", **told, **self._tries(activity))
        outcomes.fold_probe(state, call, report)

    async def _fold_undo(self, activity: Activity, report: UndoReport) -> None:
        undone = await self._decode(activity.payloads, UndoInput)
        if effect := undoing.find(self._require(), undone.call.position):
            undoing.fold(self._require(), effect, report)
            told = {"call": effect.position, "name": effect.name, "status": effect.status, "message": effect.message}
            self._tell(ev.Undone, type="undone", **told, **self._tries(activity))

    async def _words(self, failure: Failure) -> str:
        error = await self._error(failure)
        return error.message if isinstance(error, FailureError) else str(error)


_OUTRUN = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
"""Something was said while the run was about to end or to continue as new: it is decided about once more."""

_GOES_ON = object()
"""What the start of an execution gives that goes on from another: nothing of what stands then has just happened."""

_NOT_YET = object()
"""What a task of the workflow gives that is shown without identity: not recorded yet, it comes again when it is."""

_NO_CALLS = (COMPACT, PROBE, UNDO, JUDGE, CANCEL_RUN, RECALL, LIST_TOOLS, PUT_AWAY)
"""Activities whose id is not that of the call that they execute."""

_HANDLERS: dict[int, str] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "_on_started",
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: "_on_workflow_task",
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: "_on_workflow_task_completed",
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: "_on_workflow_task_failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "_on_scheduled",
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: "_on_activity_started",
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "_on_activity_completed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "_on_activity_failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "_on_activity_failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "_on_activity_cancelled",
    EventType.EVENT_TYPE_MARKER_RECORDED: "_on_marker",
    EventType.EVENT_TYPE_TIMER_STARTED: "_on_timer_started",
    EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED: "_on_properties_modified",
    EventType.EVENT_TYPE_TIMER_FIRED: "_on_timer_fired",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "_on_signal",
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: "_on_signal_sent",
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: "_on_signal_not_sent",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED: "_on_update_admitted",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: "_on_update_accepted",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: "_on_update_completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: "_on_cancel_requested",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "_on_completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "_on_failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "_on_cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "_on_terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "_on_timed_out",
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "_on_child_initiated",
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED: "_on_child_not_started",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: "_on_child_completed",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: "_on_child_failed",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: "_on_child_cancelled",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: "_on_child_terminated",
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: "_on_child_timed_out",
}
