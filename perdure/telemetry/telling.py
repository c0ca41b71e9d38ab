"""What every part of the projection does: hold a run's state, and tell what became of it as events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, TypeVar, cast

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter

from perdure import budgets, outcomes
from perdure import events as ev
from perdure.messages import CallRecord, Entry, RunResult, UserMessage, content_hash
from perdure.phases import phase_of
from perdure.state import CallState, CallStatus, Phase, RunState
from perdure.steps import Finish, Wait, next_step
from perdure.telemetry.executions import error_of

T = TypeVar("T")


def _is_ours(entry: Entry) -> bool:
    return isinstance(entry, UserMessage) and entry.source == "runtime"


class Telling:
    """A run's state so far, and its events.

    Attributes:
        state: The run's state, as the workflow has it; None before the first event.
        events: All events so far.
        ended: How it ended, or None.
        executions: How many came before the one that was read last.
        workers: Who had it, in order.
        senders: Whom the engine has kept as the sender of what an event tells, by its position.
    """

    def __init__(self, run_id: str, converter: DataConverter) -> None:
        self.run_id = run_id
        self.state: RunState | None = None
        self.events: list[ev.Event] = []
        self.ended: RunResult | None = None
        self.executions = 0
        self.workers: list[str] = []
        self.senders: dict[str, str] = {}
        self._sender = ""
        self._about: dict[str, str] = {}
        self._length = 0
        self._near: set[budgets.LimitName] = set()
        self._phase: tuple[Phase, str] = (Phase.INITIALIZING, "running")
        self._converter = converter
        self._records = 0
        self._staged: set[str] = set()
        self._short = ""
        self._fresh: list[ev.Event] = []
        self._now = datetime.now(UTC)
        self._event_id = 0

    def _tell(self, kind: type[ev.EventBase], **fields: Any) -> None:
        fields.setdefault("step", self.state.steps if self.state else 0)
        position = f"{self.executions * ev.EXECUTION + self._event_id}.{len(self._fresh)}"
        event = kind(run_id=self.run_id, position=position, time=self._now, **self._about, **fields)
        if self._sender:
            self.senders[position] = self._sender
        self._fresh.append(event)  # type: ignore[arg-type] # every EventBase here is a member of the union

    def _standing(self) -> dict[str, CallStatus]:
        return {call.position: call.status for call in self.state.all_calls} if self.state else {}

    def _tell_changes(self, before: dict[str, CallStatus]) -> None:
        """Tell of calls that now wait, are in doubt, or have a result without having been executed."""
        state = self._require()
        told = {event.call for event in self._fresh if isinstance(event, ev.ToolFinished)}
        for call in state.all_calls:
            if before.get(call.position) is call.status:
                continue
            if call.status is CallStatus.ASKING:
                self._tell_request(call)
            elif call.status is CallStatus.QUESTION:
                question = str(call.arguments.get("question", ""))
                self._tell(ev.Asked, type="asked", call=call.position, name=call.call.name, question=question)
            elif call.status is CallStatus.IN_DOUBT:
                self._tell_doubt(call)
            elif call.status is CallStatus.CLOSED and call.position not in told:
                self._tell_result(record=outcomes.record_of(call))
        known = state.records[: self._records] if self._staged else []
        fresh = state.records[self._records :]
        executed = [one for one in known if one.position in self._staged and one.status != "staged"]
        for record in [*fresh, *executed]:
            if before.get(record.position) is not CallStatus.CLOSED and record.position not in told:
                self._tell_result(record)
        self._staged = {record.position for record in [*known, *fresh] if record.status == "staged"}
        self._records = len(state.records)
        if state.short and state.short != self._short:
            self._tell(ev.Paused, type="paused", reason=state.short)
        self._short = state.short
        self._tell_handing()

    def _tell_handing(self) -> None:
        """Tell that another agent has the run now: what is told from here on is about that one."""
        state, before = self._require(), self._about.get("agent")
        if before is not None and before != state.spec.name:
            self._tell(ev.HandedOff, type="handed_off", to=state.spec.name, times=state.handed)
            self._about |= {"agent": state.spec.name, "spec_hash": content_hash(state.spec)}

    def _begin_from(self, *, goes_on: bool) -> None:
        """Take an execution's opening state as what has been told of already; `goes_on` if the run has begun before."""
        state = self._require()
        self._length, self._near = state.length, set(budgets.near(state))
        self._phase = self._phase_now() if goes_on else (Phase.INITIALIZING, "running")

    def _tell_opening(self) -> None:
        """Tell what the runtime says to the model before anything else: in a run that was resumed, or forked."""
        for entry in reversed(list(takewhile(_is_ours, reversed(self._require().messages)))):
            self._tell(ev.Told, type="told", content=cast("UserMessage", entry).content)

    def _tell_course(self) -> None:
        """Tell what the runtime has put into the conversation, which limits are near, and what is being done now.

        After all else: positions of what older versions knew of stay as they were.
        """
        state = self._require()
        fresh = min(max(state.length - self._length, 0), len(state.messages))
        self._length = state.length
        for entry in state.messages[len(state.messages) - fresh :]:
            if _is_ours(entry):
                self._tell(ev.Told, type="told", content=cast("UserMessage", entry).content)
        near = budgets.near(state)
        for name, share in near.items():
            if name not in self._near and not self.ended:
                most = budgets.in_words(state.limits, name)
                self._tell(ev.BudgetWarning, type="budget_warning", limit=name, share=share, most=most)
        self._near = set(near)
        if self.workers and not self.ended and (now := self._phase_now()) != self._phase:
            (before, _), self._phase = self._phase, now
            self._tell(ev.PhaseChanged, type="phase_changed", phase=now[0], status=now[1], before=before)

    def _phase_now(self) -> tuple[Phase, str]:
        """Return what the run does, and what it waits for, as the workflow decides it."""
        step = next_step(self._require())
        if isinstance(step, Finish):
            return Phase.POST_PROCESSING, "running"
        return phase_of(step, self._require(), self._phase[0]), step.status if isinstance(step, Wait) else "running"

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
            wrote=record.wrote,
            attempt=attempt,
            duration=duration,
        )

    def _require(self) -> RunState:
        assert self.state is not None  # noqa: S101 - a history begins with the start
        return self.state

    async def _decode(self, payloads: Sequence[Payload], kind: type[T]) -> T:
        value: T = (await self._converter.decode(list(payloads), [kind]))[0]
        return value

    async def _error(self, failure: Failure) -> BaseException:
        return await error_of(self._converter, failure)
