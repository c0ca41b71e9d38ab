"""The spans and metrics of an execution that has ended, told once, off its critical path."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from temporalio import activity

from perdure.activities.afterwards import Kept
from perdure.reports import Spent
from perdure.state import RunState
from perdure.telemetry import otel
from perdure.telemetry.attempted import attempted, for_memory
from perdure.telemetry.ids import of_attempt
from perdure.telemetry.otel import Telemetry
from perdure.telemetry.spans import Told, spans, waits

_log = logging.getLogger("perdure.telemetry")

_REMEMBERED = 10_000


class Tracing:
    """Tells of executions. A `Copy`: its spans have the ids that they would have if it was repeated.

    Args:
        telemetry: Where it is told.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._counted: OrderedDict[str, None] = OrderedDict()

    async def __call__(self, kept: Kept) -> None:
        """Tell of an execution, and wait a moment until it has arrived. What can't be told holds up nothing."""
        try:
            told = await told_of(kept)
            self._count(kept, told)
            self._telemetry.emit(spans(told, self._telemetry.capture))
        except Exception:  # noqa: BLE001 - a defect in telling is no reason to keep the archive waiting
            _log.exception("the spans of run %s could not be made", kept.run.run_id)
            self._telemetry.dropped("runs", 1)
            return
        await self._telemetry.delivered()

    def _count(self, kept: Kept, told: Told) -> None:
        """Count what there is to count, once in this process."""
        if kept.execution in self._counted:
            return
        self._counted[kept.execution] = None
        while len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)
        signals, agent = self._telemetry.signals, kept.run.agent
        for one in waits(told):
            decision = "none" if one.decided is None else "approved" if one.decided.approve else "denied"
            signals.approval(one.name, agent, decision, one.until - one.asked)
        if told.result:
            signals.ended(agent, told.result.status, told.result.failure or "", told.ended - told.began)


def tell_of_memory(state: RunState, namespace: str, spent: Sequence[Spent]) -> None:
    """Tell of the requests that the activity under way has made after a run, where OpenTelemetry is on."""
    telemetry, info, now = otel.current(), activity.info(), datetime.now(UTC)
    if telemetry is None:
        return
    history = for_memory(state, spent, activity.client().data_converter, now)
    told = Told(namespace, state.run_id, history, [], None, now, now)
    made = (info.namespace, info.workflow_id or "", info.workflow_run_id or "", info.activity_id)
    found = enumerate(spans(told), 1)
    telemetry.emit(replace(span, ref=of_attempt(*made, number)) for number, span in found)


async def told_of(kept: Kept) -> Told:
    """Return what is known of an execution."""
    history = await attempted(kept.run.run_id, kept.execution, kept.events, kept.converter)
    began = kept.run.started_at if history.continued or history.began is None else history.began
    read = partial(Told, kept.run.namespace, kept.run.run_id, history, kept.projection.events)
    return read(result=kept.run.result, began=began, ended=kept.events[-1].event_time.ToDatetime(began.tzinfo))
