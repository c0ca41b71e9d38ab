"""What people say to a run, as its history tells it: signals, updates, and the timers that stand for no answer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_never

from temporalio.api.history.v1 import HistoryEvent
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from perdure import approvals, control
from perdure import events as ev
from perdure.decisions import Answer, Cancellation, Decision, Pause, Receipt, Saying, Settlement
from perdure.reports import Judgement
from perdure.state import CallState, CallStatus
from perdure.telemetry.telling import Telling
from perdure.wire import edit_id


class People(Telling):
    """The part of a projection that takes what people say."""

    def __init__(self, run_id: str, converter: DataConverter) -> None:
        super().__init__(run_id, converter)
        self._updates: dict[str, control.Wanted] = {}
        self._senders: dict[str, str] = {}
        self._edits: dict[str, Decision] = {}
        self._edits_so_far = 0
        self._timers: dict[int, str] = {}
        self._early: list[tuple[str, control.Wanted]] = []

    def _forget(self) -> None:
        """Forget what only counts in one execution."""
        self._updates, self._edits, self._edits_so_far, self._timers, self._early = {}, {}, 0, {}, []

    async def _on_signal(self, attributes: Any, event: HistoryEvent) -> None:
        del event
        payloads, name, self._sender = list(attributes.input.payloads), attributes.signal_name, attributes.identity
        values: list[RawValue] = await self._converter.decode(payloads, [RawValue] * len(payloads))
        wanted = control.read_signal(name, [value.payload.data for value in values])
        if isinstance(wanted, str):
            self._refuse(name, "signal", wanted)
            return
        receipt = control.check(self._require(), wanted)
        if not receipt.accepted and approvals.premature(receipt):
            self._early.append((name, wanted))
        elif not receipt.accepted:
            self._refuse(name, "signal", receipt.message, wanted.by)
        elif approvals.takes(receipt):
            self._take_signal(wanted, receipt)

    def _take_signal(self, wanted: control.Wanted, receipt: Receipt) -> None:
        if isinstance(wanted, Decision) and wanted.approve and wanted.arguments is not None:
            self._edits_so_far += 1
            self._edits[edit_id(receipt.call, f"signal {self._edits_so_far}")] = wanted.model_copy(
                update={"call": receipt.call}
            )
        else:
            self._apply(control.about(wanted, receipt.call), "signal")

    def _refuse(self, name: str, via: control.Via, reason: str, by: str = "") -> None:
        self._tell(ev.DecisionRefused, type="decision_refused", name=name, via=via, reason=reason, by=by)

    def _take_early(self) -> None:
        """Take the signals that came before what they are about, as the workflow does."""
        for name, wanted in list(self._early):
            receipt = control.check(self._require(), wanted)
            if receipt.accepted or self.ended:
                self._early.remove((name, wanted))
            if approvals.takes(receipt):
                self._take_signal(wanted, receipt)
            elif self.ended and not receipt.accepted:
                self._refuse(name, "signal", receipt.message, wanted.by)

    def _fold_judgement(self, activity_id: str, judgement: Judgement) -> None:
        decision = self._edits.pop(activity_id, None)
        if decision is None:
            return  # an update's: its own outcome says how it ended
        receipt = control.check(self._require(), decision)
        why = judgement.problem.message if judgement.problem else receipt.message
        if judgement.problem or not receipt.accepted:
            self._refuse("approve", "signal", why, decision.by)
        elif approvals.takes(receipt):
            self._apply(decision, "signal")

    async def _on_update_admitted(self, attributes: Any, _: HistoryEvent) -> None:
        await self._remember(attributes.request)  # one that a reset has sent once more

    async def _on_update_accepted(self, attributes: Any, _: HistoryEvent) -> None:
        if attributes.accepted_request.input.name:
            await self._remember(attributes.accepted_request)

    async def _remember(self, request: Any) -> None:
        kind = control.KINDS[request.input.name]
        self._senders[request.meta.update_id] = request.meta.identity
        self._updates[request.meta.update_id] = await self._decode(request.input.args.payloads, kind)

    async def _on_update_completed(self, attributes: Any, _: HistoryEvent) -> None:
        wanted = self._updates.pop(attributes.meta.update_id, None)
        self._sender = self._senders.pop(attributes.meta.update_id, "")
        if wanted is None or not attributes.outcome.HasField("success"):
            return
        receipt = await self._decode(attributes.outcome.success.payloads, Receipt)
        if approvals.takes(receipt):
            self._apply(control.about(wanted, receipt.call), "update")
        elif not receipt.accepted:
            self._refuse(control.name_of(wanted), "update", receipt.message, wanted.by)

    def _apply(self, wanted: control.Wanted, via: control.Via) -> None:
        state = self._require()
        if not approvals.takes(control.check(state, wanted)):
            return
        call = state.find(wanted.call) if isinstance(wanted, Decision | Settlement | Answer) else None
        control.apply(state, wanted, via, self._now)
        about = {"call": call.position, "name": call.call.name} if call else {}
        told: dict[str, Any] = {**about, "by": wanted.by, "via": via}
        match wanted:
            case Decision() if call:
                self._tell_decision(call)
            case Settlement():
                told |= {"outcome": wanted.outcome, "reason": wanted.reason}
                self._tell(ev.Settled, type="settled", **told)
            case Answer():
                self._tell(ev.Answered, type="answered", text=wanted.text, duration=self._waited(call), **told)
            case Pause():
                self._tell(ev.Paused, type="paused", reason=wanted.reason, **told)
            case control.Resumption():
                self._tell(ev.Resumed, type="resumed", add=wanted.add, reason=wanted.reason, **told)
            case Saying():
                queued = wanted in state.queued
                self._tell(ev.Said, type="said", content=wanted.content, now=wanted.now, queued=queued, **told)
            case Decision() | Cancellation():
                pass  # the engine tells of the request that follows
            case _:
                assert_never(wanted)

    def _tell_decision(self, call: CallState) -> None:
        record = call.decision
        if record:
            told = record.model_dump(include={"approve", "by", "via", "reason", "edited"})
            told |= {"call": call.position, "name": call.call.name, "duration": self._waited(call)}
            self._tell(ev.ApprovalDecided, type="approval_decided", **told)

    def _waited(self, call: CallState | None) -> timedelta | None:
        return self._now - call.asked_at if call and call.asked_at else None

    async def _on_timer_started(self, _: Any, event: HistoryEvent) -> None:
        if event.user_metadata.HasField("summary"):
            self._timers[event.event_id] = (await self._converter.decode([event.user_metadata.summary], [str]))[0]

    async def _on_timer_fired(self, attributes: Any, _: HistoryEvent) -> None:
        summary = self._timers.pop(attributes.started_event_id, "")
        if summary == approvals.EARLY_SUMMARY and self._early:
            name, wanted = self._early.pop(0)
            self._refuse(name, "signal", control.check(self._require(), wanted).message, wanted.by)
        if summary == approvals.ALARM_SUMMARY:
            self._ring()

    def _ring(self) -> None:
        """Tell of requests that are due for a reminder; those that have expired the run itself records."""
        state = self._require()
        for call in state.open_calls:
            rules = state.rules_of(call).approval
            expires = rules.expires and call.asked_at and self._now >= call.asked_at + rules.expires
            if call.status is CallStatus.ASKING and rules.remind_every and not expires:
                self._tell(ev.ApprovalReminder, type="approval_reminder", call=call.position, name=call.call.name)

    async def _on_properties_modified(self, attributes: Any, event: HistoryEvent) -> None:
        del event
        fields = attributes.upserted_memo.fields
        if control.SHORT in fields:
            control.run_short(self._require(), await self._decode([fields[control.SHORT]], str))
        if approvals.EXPIRED not in fields:
            return
        for position in await self._decode([fields[approvals.EXPIRED]], list[str]):
            call = self._require().find(position)
            approvals.let_expire(self._require(), position, self._now)
            if call:
                self._tell_decision(call)
