"""How runs share a budget, as the history of each tells it."""

from __future__ import annotations

from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

from perdure import leases
from perdure.leases import Grant, LeaseRequest
from perdure.telemetry.people import People
from perdure.wire import GRANTED, LEASE


class Lending(People):
    """The part of a projection that takes what a run lends, and what it is lent."""

    def __init__(self, run_id: str, converter: DataConverter) -> None:
        super().__init__(run_id, converter)
        self._requests: dict[int, str] = {}

    def _forget(self) -> None:
        super()._forget()
        self._requests = {}

    async def _on_signal(self, attributes: Any, event: HistoryEvent) -> None:
        name = attributes.signal_name
        if name not in (LEASE, GRANTED):
            await super()._on_signal(attributes, event)
            return
        read = await self._sent(attributes, Grant if name == GRANTED else LeaseRequest)
        if isinstance(read, str):
            self._refuse(name, "signal", read)
        elif isinstance(read, Grant):
            leases.take(self._require(), read)

    async def _on_signal_sent(self, attributes: Any, event: HistoryEvent) -> None:
        if attributes.signal_name == LEASE:
            request = await self._decode(attributes.input.payloads, LeaseRequest)
            self._requests[event.event_id] = leases.ask(self._require(), request.wanted).id
        elif attributes.signal_name == GRANTED:
            grant = await self._decode(attributes.input.payloads, Grant)
            leases.lend(self._require(), attributes.workflow_execution.workflow_id, grant)

    async def _on_signal_not_sent(self, attributes: Any, _: HistoryEvent) -> None:
        if request := self._requests.get(attributes.initiated_event_id):
            leases.unanswered(self._require(), request)

    async def _on_timer_fired(self, attributes: Any, _: HistoryEvent) -> None:
        summary = self._timers.get(attributes.started_event_id, "")
        if summary.startswith(leases.SUMMARY):
            leases.unanswered(self._require(), summary.removeprefix(leases.SUMMARY))
        await super()._on_timer_fired(attributes, _)

    async def _sent(self, attributes: Any, kind: type[leases.Travelling]) -> leases.Travelling | str:
        """Return what a signal of another run holds, or why it can't be understood."""
        try:
            values = await self._converter.decode(list(attributes.input.payloads))
        except Exception:  # noqa: BLE001 - whatever a converter makes of what a stranger has sent
            values = []
        return leases.read(kind, values)
