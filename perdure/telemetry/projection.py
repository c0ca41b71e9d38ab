"""History → events and state: the same outcomes, folded by the same functions as in the workflow.

Nothing here needs a worker, a store or a query: Temporal's history is the only source.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle
from temporalio.converter import DataConverter
from temporalio.exceptions import FailureError

from perdure import approvals
from perdure import events as ev
from perdure import state as states
from perdure.failures import error_type, explain, fold_failure
from perdure.messages import CallRecord, Decision, Receipt, RunResult, RunStatus, Settlement, content_hash
from perdure.results import report_of_value
from perdure.state import CallState, CallStatus, Judgement, ModelTurn, Outcome, ProbeReport, RunState, ToolReport
from perdure.wire import JUDGE, MODEL, PROBE, ModelInput, ProbeInput, RunRequest, edit_id, opening_state

T = TypeVar("T")


async def project(handle: WorkflowHandle[Any, Any]) -> Projection:
    """Return the projection of all that has happened to a run so far."""
    projection = Projection(handle.id, handle._client.data_converter)  # noqa: SLF001 - the SDK has no accessor
    async for event in handle.fetch_history_events():
        await projection.feed(event)
    return projection


async def follow(handle: WorkflowHandle[Any, Any], after: str = "") -> AsyncIterator[ev.Event]:
    """Yield the events after position `after`, each once and in order, until the run has ended."""
    projection = Projection(handle.id, handle._client.data_converter)  # noqa: SLF001 - the SDK has no accessor
    last = ev.position_key(after)
    async for event in handle.fetch_history_events(wait_new_event=True):
        for happened in await projection.feed(event):
            if ev.position_key(happened.position) > last:
                yield happened


@dataclass
class _Activity:
    kind: str
    id: str
    payloads: Sequence[Payload]
    started: datetime | None = None
    attempt: int = 1


class Projection:
    """A run as its history tells it. Feed it events in order.

    Attributes:
        state: The run's state, as the workflow has it; None before the first event.
        events: All events so far.
        ended: How it ended, or None.
    """

    def __init__(self, run_id: str, converter: DataConverter) -> None:
        self.run_id = run_id
        self.state: RunState | None = None
        self.events: list[ev.Event] = []
        self.ended: RunResult | None = None
        self.started_at: datetime | None = None
        self.workers: list[str] = []
        self.pending: dict[int, _Activity] = {}
        self._converter = converter
        self._updates: dict[str, Decision | Settlement] = {}
        self._edits: dict[str, Decision] = {}
        self._timers: dict[int, str] = {}
        self._early: list[tuple[str, Decision | Settlement]] = []
        self._records = 0
        self._fresh: list[ev.Event] = []
        self._now = datetime.now(UTC)
        self._event_id = 0

    def result(self) -> RunResult:
        """Return the run's result, partial while it is open or where it was ended from outside."""
        if self.ended:
            return self.ended
        assert self.state is not None and self.started_at is not None  # noqa: S101, PT018 - after the first event
        outcome = self.state.outcome or Outcome(status="cancelled")
        return states.result_from(self.state, outcome, self._now - self.started_at)

    async def feed(self, event: HistoryEvent) -> list[ev.Event]:
        """Take one history event, and return what it means: none, one or several events."""
        self._fresh = []
        self._now = event.event_time.ToDatetime(UTC)
        self._event_id = event.event_id
        handler = _HANDLERS.get(event.event_type)
        if handler is not None:
            before = self._standing()
            await getattr(self, handler[0])(getattr(event, handler[1]), event)
            self._take_early()
            self._tell_changes(before)
        self.events.extend(self._fresh)
        return self._fresh

    # -- starting and ending -------------------------------------------------------------------------------

    async def _on_started(self, attributes: Any, _: HistoryEvent) -> None:
        request = await self._decode(attributes.input.payloads, RunRequest)
        self.started_at = self._now
        self.state = opening_state(request, self.run_id, attributes.original_execution_run_id)
        self._records = len(self.state.records)
        self._tell(
            ev.RunStarted,
            type="run_started",
            agent=request.spec.name,
            model=request.spec.model,
            spec_hash=content_hash(self.state.spec),
            resumed=request.carried is not None,
        )

    async def _on_workflow_task(self, attributes: Any, _: HistoryEvent) -> None:
        # A task that is not recorded yet is shown without identity, and comes again when it is.
        if attributes.identity and (not self.workers or self.workers[-1] != attributes.identity):
            self.workers.append(attributes.identity)
            self._tell(ev.WorkerTookOver, type="worker_took_over", worker=attributes.identity)

    async def _on_workflow_task_failed(self, attributes: Any, _: HistoryEvent) -> None:
        if attributes.failure.message:
            self._tell(ev.RuntimeFault, type="runtime_fault", message=attributes.failure.message)

    async def _on_cancel_requested(self, attributes: Any, _: HistoryEvent) -> None:
        self._tell(ev.CancelRequested, type="cancel_requested", reason=attributes.cause)

    async def _on_completed(self, attributes: Any, _: HistoryEvent) -> None:
        self._end(await self._decode(attributes.result.payloads, RunResult))

    async def _on_failed(self, attributes: Any, _: HistoryEvent) -> None:
        details = attributes.failure.application_failure_info.details.payloads
        if details:
            self._end(await self._decode(details, RunResult))
        else:
            self._end_from_outside("failed", attributes.failure.message)

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
        self._end(states.result_from(self._require(), outcome, self._now - started))

    def _end(self, result: RunResult) -> None:
        self.ended = result
        self._require().outcome = Outcome(status=result.status, reason=result.reason, failure=result.failure)
        self._tell(
            ev.RunFinished,
            type="run_finished",
            status=result.status,
            text=result.text,
            reason=result.reason,
            failure=result.failure,
            usage=result.usage,
            duration=result.duration,
        )

    # -- activities ----------------------------------------------------------------------------------------

    async def _on_scheduled(self, attributes: Any, event: HistoryEvent) -> None:
        kind = attributes.activity_type.name
        self.pending[event.event_id] = _Activity(kind, attributes.activity_id, attributes.input.payloads)
        state = self._require()
        if kind == MODEL:
            request = await self._decode(attributes.input.payloads, ModelInput)
            if request.answer_only:
                states.close_soon(state)
            model, last = state.spec.model, request.answer_only
            self._tell(ev.ModelStarted, type="model_started", model=model, answer_only=last, step=request.step)
        elif kind == PROBE:
            probed = await self._decode(attributes.input.payloads, ProbeInput)
            if call := state.find(probed.call.position):
                call.status = CallStatus.PROBING
        elif kind != JUDGE and (call := state.find(attributes.activity_id)):
            self._start(call)

    def _start(self, call: CallState) -> None:
        states.start(self._require(), call)
        self._tell(
            ev.ToolStarted,
            type="tool_started",
            call=call.position,
            name=call.call.name,
            effect=call.effect,
            arguments=call.arguments,
        )

    async def _on_activity_started(self, attributes: Any, _: HistoryEvent) -> None:
        activity = self.pending.get(attributes.scheduled_event_id)
        if activity:
            activity.started, activity.attempt = self._now, attributes.attempt

    async def _on_activity_completed(self, attributes: Any, _: HistoryEvent) -> None:
        activity = self.pending.pop(attributes.scheduled_event_id)
        state, payloads = self._require(), attributes.result.payloads
        if activity.kind == MODEL:
            self._fold_turn(await self._decode(payloads, ModelTurn), activity)
        elif activity.kind == PROBE:
            probed = await self._decode(activity.payloads, ProbeInput)
            report = await self._decode(payloads, ProbeReport)
            self._fold_probe(probed.call.position, report)
        elif activity.kind == JUDGE:
            self._fold_judgement(activity.id, await self._decode(payloads, Judgement))
        elif call := state.find(activity.id):
            states.fold_report(state, call, await self._report(call, payloads))
            self._finished(call, activity)

    async def _report(self, call: CallState, payloads: Sequence[Payload]) -> ToolReport:
        tool = self._require().spec.tool(call.call.name)
        if tool is None or tool.remote is None:
            return await self._decode(payloads, ToolReport)
        value = (await self._converter.decode(list(payloads)))[0] if payloads else None
        return report_of_value(value, call.call.id, call.call.name, tool.result_limit, call.order)

    async def _on_activity_failed(self, attributes: Any, _: HistoryEvent) -> None:
        error = await self._error(attributes.failure)
        self._fold_failure(self.pending.pop(attributes.scheduled_event_id), error)

    async def _on_activity_cancelled(self, attributes: Any, _: HistoryEvent) -> None:
        from temporalio.exceptions import CancelledError

        self._fold_failure(self.pending.pop(attributes.scheduled_event_id), CancelledError())

    def _fold_failure(self, activity: _Activity, error: BaseException) -> None:
        state = self._require()
        if activity.kind == MODEL:
            self._tell(ev.ModelFailed, type="model_failed", error_type=error_type(error), message=explain(error))
        elif activity.kind not in (PROBE, JUDGE) and (call := state.find(activity.id)):
            tool = state.spec.tool(call.call.name)
            if tool:
                fold_failure(state, call, tool, error, self._now)
                self._finished(call, activity)

    async def _on_marker(self, attributes: Any, _: HistoryEvent) -> None:
        """Take a local activity's end; its start is not recorded."""
        if attributes.marker_name != "core_local_activity":
            return
        described = json.loads(attributes.details["data"].payloads[0].data)
        state = self._require()
        call = state.find(described["activity_id"])
        tool = state.spec.tool(call.call.name) if call else None
        if call is None or tool is None:
            return
        self._start(call)
        if attributes.HasField("failure"):
            fold_failure(state, call, tool, await self._error(attributes.failure), self._now)
        else:
            states.fold_report(state, call, await self._decode(attributes.details["result"].payloads, ToolReport))
        self._finished(call, _Activity(tool.name, call.position, (), attempt=described.get("attempt", 1)))

    def _fold_turn(self, turn: ModelTurn, activity: _Activity) -> None:
        state = self._require()
        states.fold_turn(state, turn, self._now)
        self._tell(
            ev.ModelFinished,
            type="model_finished",
            model=turn.model or state.spec.model,
            text=turn.message.text,
            calls=[f"{state.steps}.{index} {call.name}" for index, call in enumerate(turn.message.calls, 1)],
            finish=turn.finish,
            usage=turn.usage,
            attempt=activity.attempt,
            duration=self._now - activity.started if activity.started else None,
        )

    def _fold_probe(self, position: str, report: ProbeReport) -> None:
        state = self._require()
        call = state.find(position)
        if call is None:
            return
        told = {"call": position, "name": call.call.name, "outcome": report.outcome, "message": report.message}
        self._tell(ev.Probed, type="probed", **told)
        states.fold_probe(state, call, report)

    # -- people --------------------------------------------------------------------------------------------

    async def _on_signal(self, attributes: Any, _: HistoryEvent) -> None:
        payloads = (
            await self._converter.payload_codec.decode(list(attributes.input.payloads))
            if (self._converter.payload_codec)
            else attributes.input.payloads
        )
        name = attributes.signal_name
        wanted = approvals.read_signal(name, [payload.data for payload in payloads])
        if isinstance(wanted, str):
            self._refuse(name, "signal", wanted)
            return
        receipt = approvals.check(self._require(), wanted)
        if not receipt.accepted and approvals.premature(receipt):
            self._early.append((name, wanted))
        elif not receipt.accepted:
            self._refuse(name, "signal", receipt.message)
        else:
            self._take_signal(wanted, receipt)

    def _take_signal(self, wanted: Decision | Settlement, receipt: Receipt) -> None:
        if isinstance(wanted, Decision) and wanted.approve and wanted.arguments is not None:
            self._edits[edit_id(receipt.call, "signal")] = wanted
        else:
            self._apply(wanted, "signal")

    def _refuse(self, name: str, via: Literal["signal", "update"], reason: str) -> None:
        self._tell(ev.DecisionRefused, type="decision_refused", name=name, via=via, reason=reason)

    def _take_early(self) -> None:
        """Take the signals that came before what they are about, as the workflow does."""
        for name, wanted in list(self._early):
            receipt = approvals.check(self._require(), wanted)
            if receipt.accepted or self.ended:
                self._early.remove((name, wanted))
            if receipt.accepted:
                self._take_signal(wanted, receipt)
            elif self.ended:
                self._refuse(name, "signal", receipt.message)

    def _fold_judgement(self, activity_id: str, judgement: Judgement) -> None:
        decision = self._edits.pop(activity_id, None)
        if decision is None:
            return  # an update's: its own outcome says how it ended
        receipt = approvals.check(self._require(), decision)
        why = judgement.problem.message if judgement.problem else receipt.message
        if judgement.problem or not receipt.accepted:
            self._refuse("approve", "signal", why)
        else:
            self._apply(decision, "signal")

    async def _on_update_accepted(self, attributes: Any, _: HistoryEvent) -> None:
        request = attributes.accepted_request
        kind: type[Decision | Settlement] = Settlement if request.input.name == "settle" else Decision
        self._updates[request.meta.update_id] = await self._decode(request.input.args.payloads, kind)

    async def _on_update_completed(self, attributes: Any, _: HistoryEvent) -> None:
        wanted = self._updates.pop(attributes.meta.update_id, None)
        if wanted is None or not attributes.outcome.HasField("success"):
            return
        receipt = await self._decode(attributes.outcome.success.payloads, Receipt)
        if receipt.accepted:
            self._apply(wanted, "update")
        else:
            name = "settle" if isinstance(wanted, Settlement) else "decide"
            self._refuse(name, "update", receipt.message)

    def _apply(self, wanted: Decision | Settlement, via: approvals.Via) -> None:
        state = self._require()
        call = state.find(wanted.call)
        if call is None or not approvals.check(state, wanted).accepted:
            return
        name, position = call.call.name, call.position
        if isinstance(wanted, Settlement):
            approvals.apply_settlement(state, wanted)
            told: dict[str, Any] = {"outcome": wanted.outcome, "by": wanted.by, "reason": wanted.reason}
            self._tell(ev.Settled, type="settled", call=position, name=name, **told)
        else:
            approvals.apply_decision(state, wanted, via, self._now)
            self._tell_decision(call)

    def _tell_decision(self, call: CallState) -> None:
        record = call.decision
        if record:
            told = record.model_dump(include={"approve", "by", "via", "reason", "edited"})
            self._tell(ev.ApprovalDecided, type="approval_decided", call=call.position, name=call.call.name, **told)

    async def _on_timer_started(self, _: Any, event: HistoryEvent) -> None:
        if event.user_metadata.HasField("summary"):
            self._timers[event.event_id] = (await self._converter.decode([event.user_metadata.summary], [str]))[0]

    async def _on_timer_fired(self, attributes: Any, _: HistoryEvent) -> None:
        summary = self._timers.pop(attributes.started_event_id, "")
        if summary == approvals.EARLY_SUMMARY and self._early:
            name, wanted = self._early.pop(0)
            self._refuse(name, "signal", approvals.check(self._require(), wanted).message)
        if summary == approvals.ALARM_SUMMARY:
            self._ring()

    def _ring(self) -> None:
        state = self._require()
        asking = [call for call in state.calls if call.status is CallStatus.ASKING]
        approvals.expire(state, self._now)
        for call in asking:
            if call.status is CallStatus.ASKING:
                self._tell(ev.ApprovalReminder, type="approval_reminder", call=call.position, name=call.call.name)
            else:
                self._tell_decision(call)

    # -- telling -------------------------------------------------------------------------------------------

    def _tell(self, kind: type[ev.EventBase], **fields: Any) -> None:
        fields.setdefault("step", self.state.steps if self.state else 0)
        position = f"{self._event_id}.{len(self._fresh)}"
        event = kind(run_id=self.run_id, position=position, time=self._now, **fields)
        self._fresh.append(event)  # type: ignore[arg-type] # every EventBase here is a member of the union

    def _standing(self) -> dict[str, CallStatus]:
        return {call.position: call.status for call in self.state.calls} if self.state else {}

    def _tell_changes(self, before: dict[str, CallStatus]) -> None:
        """Tell of calls that now wait, are in doubt, or have a result without having been executed."""
        state = self._require()
        told = {event.call for event in self._fresh if isinstance(event, ev.ToolFinished)}
        for call in state.calls:
            if before.get(call.position) is call.status:
                continue
            if call.status is CallStatus.ASKING:
                self._tell_request(call)
            elif call.status is CallStatus.IN_DOUBT:
                self._tell_doubt(call)
            elif call.status is CallStatus.CLOSED and call.position not in told:
                self._tell_result(record=states.record_of(call))
        for record in state.records[self._records :]:
            if before.get(record.position) is not CallStatus.CLOSED and record.position not in told:
                self._tell_result(record)
        self._records = len(state.records)

    def _tell_request(self, call: CallState) -> None:
        self._tell(
            ev.ApprovalRequested,
            type="approval_requested",
            call=call.position,
            name=call.call.name,
            arguments=call.arguments,
            hash=call.hash,
            why=call.call.ask or "",
        )

    def _tell_doubt(self, call: CallState) -> None:
        message = call.doubt.message if call.doubt else ""
        told = {"call": call.position, "name": call.call.name, "key": call.key, "message": message}
        self._tell(ev.InDoubt, type="in_doubt", **told)

    def _finished(self, call: CallState, activity: _Activity) -> None:
        """Tell of a call that was executed and has its result now."""
        if call.status is CallStatus.CLOSED:
            duration = self._now - activity.started if activity.started else None
            self._tell_result(states.record_of(call), attempt=activity.attempt, duration=duration)

    def _tell_result(
        self, record: CallRecord, *, attempt: int | None = None, duration: timedelta | None = None
    ) -> None:
        self._tell(
            ev.ToolFinished,
            type="tool_finished",
            call=record.position,
            name=record.name,
            status=record.status,
            message=record.message,
            attempt=attempt,
            duration=duration,
        )

    def _require(self) -> RunState:
        assert self.state is not None  # noqa: S101 - a history begins with the start
        return self.state

    async def _decode(self, payloads: Sequence[Payload], kind: type[T]) -> T:
        value: T = (await self._converter.decode(list(payloads), [kind]))[0]
        return value

    async def _error(self, failure: Failure) -> FailureError | BaseException:
        return await self._converter.decode_failure(failure)


_HANDLERS: dict[int, tuple[str, str]] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: ("_on_started", "workflow_execution_started_event_attributes"),
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: ("_on_workflow_task", "workflow_task_started_event_attributes"),
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: ("_on_workflow_task_failed", "workflow_task_failed_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: ("_on_scheduled", "activity_task_scheduled_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: ("_on_activity_started", "activity_task_started_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: (
        "_on_activity_completed",
        "activity_task_completed_event_attributes",
    ),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("_on_activity_failed", "activity_task_failed_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: ("_on_activity_failed", "activity_task_timed_out_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: ("_on_activity_cancelled", "activity_task_canceled_event_attributes"),
    EventType.EVENT_TYPE_MARKER_RECORDED: ("_on_marker", "marker_recorded_event_attributes"),
    EventType.EVENT_TYPE_TIMER_STARTED: ("_on_timer_started", "timer_started_event_attributes"),
    EventType.EVENT_TYPE_TIMER_FIRED: ("_on_timer_fired", "timer_fired_event_attributes"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: ("_on_signal", "workflow_execution_signaled_event_attributes"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: (
        "_on_update_accepted",
        "workflow_execution_update_accepted_event_attributes",
    ),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: (
        "_on_update_completed",
        "workflow_execution_update_completed_event_attributes",
    ),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: (
        "_on_cancel_requested",
        "workflow_execution_cancel_requested_event_attributes",
    ),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: (
        "_on_completed",
        "workflow_execution_completed_event_attributes",
    ),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: ("_on_failed", "workflow_execution_failed_event_attributes"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: ("_on_cancelled", "workflow_execution_canceled_event_attributes"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: (
        "_on_terminated",
        "workflow_execution_terminated_event_attributes",
    ),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: (
        "_on_timed_out",
        "workflow_execution_timed_out_event_attributes",
    ),
}
