"""What a run does for its own transcript, as its history tells it: recalling, showing it in short, putting it away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter
from temporalio.exceptions import CancelledError

from perdure import continuing, outcomes, pressure, recalling, toolsets
from perdure import events as ev
from perdure.failures import error_type, explain
from perdure.messages import CallRecord, Entry, Segment
from perdure.reports import CompactReport, RecallReport, ToolsReport
from perdure.state import CallState, CallStatus
from perdure.telemetry.askings import Asking
from perdure.telemetry.lending import Lending
from perdure.wire import COMPACT, LIST_TOOLS, MODEL, RECALL, CompactInput, ModelInput, PutAway


@dataclass
class Activity:
    """An activity of a run, from when it was handed to the workers."""

    kind: str
    id: str
    payloads: Sequence[Payload]
    started: datetime | None = None
    attempt: int = 1
    leaving: continuing.Part | None = None
    asking: Asking | None = None

    def fail(self, error: BaseException, now: datetime) -> None:
        """Take that it gave nothing."""
        if self.asking:
            self.asking.fail(error, now)


@dataclass
class PuttingAway:
    """A part of the transcript that goes into the store: so many entries."""

    position: str
    start: datetime
    entries: int
    end: datetime | None = None


@dataclass
class Earlier:
    """What a run has put away.

    Attributes:
        before: What was put away before the first history that was read began: only the store has it.
        entries: What was put away since.
        records: The same of the records.
    """

    before: Segment | None = None
    entries: list[Entry] = field(default_factory=list[Entry])
    records: list[CallRecord] = field(default_factory=list[CallRecord])


class Upkeep(Lending):
    """The part of a projection that takes what a run does for its own transcript, and tells of its calls and tries.

    Attributes:
        earlier: What it has put away, as far as it was read.
        pending: Activities under way, by the id of the history's event.
        askings: What models were asked, in order.
        puttings_away: When parts of the transcript were put away.
    """

    def __init__(self, run_id: str, converter: DataConverter) -> None:
        super().__init__(run_id, converter)
        self.askings: list[Asking] = []
        self.puttings_away: list[PuttingAway] = []
        self.earlier = Earlier()
        self.pending: dict[int, Activity] = {}

    def _asking(self, kind: Literal["model", "summary"], asked: ModelInput) -> Asking:
        """Return a call that begins now."""
        asking = Asking(self._here(), asked.step, kind, self._now, asked, self._require().spec.model)
        self.askings.append(asking)
        return asking

    def _here(self) -> str:
        """Return the position of the first event that history tells now."""
        return f"{self.executions * ev.EXECUTION + self._event_id}.0"

    async def _on_upkeep(self, activity: Activity) -> None:
        """Take that the run sees to its own transcript: what is recalled, shown in short, or put away."""
        state = self._require()
        if activity.kind == RECALL:
            recalling.begin(state)
        elif activity.kind == LIST_TOOLS:
            toolsets.begin(state)
        elif activity.kind == COMPACT:
            compacted = await self._decode(activity.payloads, CompactInput)
            state.ran = compacted.ran
            activity.asking = self._asking("summary", compacted)
            pressure.begin(state, len(compacted.decided))
        else:
            activity.leaving = continuing.named(state, await self._decode(activity.payloads, PutAway))
            self.puttings_away.append(PuttingAway(self._here(), self._now, len(activity.leaving.entries)))

    async def _fold_compaction(self, activity: Activity, report: CompactReport) -> None:
        pressure.fold(self._require(), report)
        if activity.asking:
            activity.asking.compact(report, self._now)
        await self._tell_compaction(activity, report)

    async def _tell_compaction(self, activity: Activity, report: CompactReport) -> None:
        asked = await self._decode(activity.payloads, CompactInput)
        entry = report.entry if report.how == "summarised" else None
        self._tell(
            ev.ContextCompacted,
            type="context_compacted",
            why=asked.why,
            how=report.how,
            by=entry.written_by if entry else "",
            before=report.before,
            after=report.after,
            usage=report.usage,
            cost_usd=report.cost_usd,
            message=report.message,
            **self._tries(activity),
        )
        outcome = self._require().outcome
        if outcome and outcome.failure == pressure.TOO_LONG:  # nothing could be done about what its provider said
            told = {"error_type": outcome.failure, "message": outcome.reason or ""}
            self._tell(ev.ModelFailed, type="model_failed", **told)

    def _fold_recall(self, activity: Activity, report: RecallReport) -> None:
        recalling.fold(self._require(), report)
        facts = len(report.message.facts) if report.message else 0
        self._tell(ev.Recalled, type="recalled", facts=facts, problem=report.problem, **self._tries(activity))
        if report.message:
            self._tell(ev.Told, type="told", content=report.message.content)
            self._length += 1  # it stands before what the user says

    async def _learnt(self, activity: Activity, payloads: Sequence[Payload]) -> None:
        """Take what was looked up before the model is asked."""
        if activity.kind == RECALL:
            self._fold_recall(activity, await self._decode(payloads, RecallReport))
        else:
            self._fold_tools(activity, await self._decode(payloads, ToolsReport))

    def _not_learnt(self, activity: Activity, error: BaseException) -> None:
        if activity.kind == RECALL:
            self._fold_recall(activity, RecallReport(problem=explain(error)))
        else:
            self._fold_no_tools(activity, error)

    def _fold_tools(self, activity: Activity, report: ToolsReport) -> None:
        toolsets.fold(self._require(), report)
        self._tell(
            ev.ToolsListed,
            type="tools_listed",
            tools={one.server: [tool.name for tool in one.tools] for one in report.servers},
            notes={one.server: one.notes for one in report.servers if one.notes},
            **self._tries(activity),
        )

    def _fold_no_tools(self, activity: Activity, error: BaseException) -> None:
        toolsets.fail(self._require(), explain(error), cancelled=isinstance(error, CancelledError))
        self._tell(ev.ToolsListed, type="tools_listed", problem=explain(error), **self._tries(activity))

    def _tries(self, activity: Activity) -> dict[str, Any]:
        """Return what an event tells of the attempt that has just ended."""
        return {"attempt": activity.attempt, "duration": self._now - activity.started if activity.started else None}

    def _start(self, call: CallState, order: int | None, child: str = "") -> None:
        """Start a call. Its order is what the workflow said: a local call beside it started without an event."""
        outcomes.start(self._require(), call)
        call.order = order or call.order
        self._tell(
            ev.ToolStarted,
            type="tool_started",
            call=call.position,
            name=call.call.name,
            effect=call.effect,
            arguments=call.arguments,
            child=child,
        )

    def _finished(self, call: CallState, activity: Activity) -> None:
        """Tell of a call that was executed and has its result now."""
        if call.status is CallStatus.CLOSED:
            self._tell_result(outcomes.record_of(call), **self._tries(activity))

    def _tell_retry(self, activity: Activity, error: BaseException | None) -> None:
        state = self._require()
        call = state.find(activity.id.partition("?")[0].removeprefix("undo "))
        told = {"error_type": error_type(error), "message": explain(error)} if error else {}
        self._tell(
            ev.RetryScheduled,
            type="retry_scheduled",
            step=state.steps + (activity.kind == MODEL),
            activity=activity.kind,
            activity_id=activity.id,
            call=call.position if call else "",
            attempt=activity.attempt - 1,
            **told,
        )

    def _put_away(self, part: continuing.Part, segment: Segment) -> None:
        state = self._require()
        self.puttings_away[-1].end = self._now
        self.earlier.entries.extend(part.entries)
        self.earlier.records = continuing.together(self.earlier.records, part.records)
        continuing.put_away(state, part, segment)
        self._records = len(state.records)
