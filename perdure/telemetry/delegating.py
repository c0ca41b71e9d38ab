"""The runs that a run's calls are, as its own history tells of them."""

from __future__ import annotations

from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter
from temporalio.exceptions import CancelledError, TerminatedError, TimeoutType, WorkflowAlreadyStartedError
from temporalio.exceptions import TimeoutError as TimedOut

from perdure import delegation
from perdure.delegation import Waits
from perdure.messages import RunResult
from perdure.state import Lease
from perdure.telemetry.upkeep import Activity, Upkeep
from perdure.wire import WAITS, WORKFLOW, RunRequest


class Delegating(Upkeep):
    """The part of a projection that takes what becomes of a run's calls that are runs."""

    def __init__(self, run_id: str, converter: DataConverter) -> None:
        super().__init__(run_id, converter)
        self._called: dict[int, tuple[str, Activity]] = {}

    def _forget(self) -> None:
        super()._forget()
        self._called = {}

    async def _on_signal(self, attributes: Any, event: HistoryEvent) -> None:
        if attributes.signal_name != WAITS:
            await super()._on_signal(attributes, event)
            return
        told = await self._sent(attributes, Waits)
        if isinstance(told, Waits):
            delegation.waits(self._require(), told)
        else:
            self._refuse(WAITS, "signal", told)

    async def _on_properties_modified(self, attributes: Any, event: HistoryEvent) -> None:
        await super()._on_properties_modified(attributes, event)
        if payload := attributes.upserted_memo.fields.get(delegation.UNFUNDED):
            state = self._require()
            if call := state.find(await self._decode([payload], str)):
                self._start(call, None)
                delegation.unfunded(state, call)
                self._finished(call, Activity(call.call.name, call.position, ()))

    async def _on_child_initiated(self, attributes: Any, event: HistoryEvent) -> None:
        if attributes.workflow_type.name != WORKFLOW:
            return
        state, child = self._require(), attributes.workflow_id
        request = await self._decode(attributes.input.payloads, RunRequest)
        call = state.find(request.caller.position) if request.caller else None
        if call is None or request.caller is None or request.limits is None:
            return
        state.leases[child] = Lease(limits=request.limits)
        self._called[event.event_id] = (child, Activity(call.call.name, call.position, (), started=self._now))
        self._start(call, request.caller.order, child)

    async def _on_child_completed(self, attributes: Any, _: HistoryEvent) -> None:
        self._ended(attributes, await self._decode(attributes.result.payloads, RunResult))

    async def _on_child_failed(self, attributes: Any, _: HistoryEvent) -> None:
        self._ended(attributes, await self._error(attributes.failure))

    async def _on_child_cancelled(self, attributes: Any, _: HistoryEvent) -> None:
        self._ended(attributes, CancelledError())

    async def _on_child_terminated(self, attributes: Any, _: HistoryEvent) -> None:
        self._ended(attributes, TerminatedError("terminated"))

    async def _on_child_timed_out(self, attributes: Any, _: HistoryEvent) -> None:
        late = TimedOut("timed out", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=())
        self._ended(attributes, late)

    async def _on_child_not_started(self, attributes: Any, _: HistoryEvent) -> None:
        self._ended(attributes, WorkflowAlreadyStartedError(attributes.workflow_id, WORKFLOW))

    def _ended(self, attributes: Any, ended: RunResult | BaseException) -> None:
        child, activity = self._called.pop(attributes.initiated_event_id, ("", None))
        call = self._require().find(activity.id) if activity else None
        if call and activity:
            delegation.fold(self._require(), call, child, ended)
            self._finished(call, activity)
