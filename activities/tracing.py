"""The spans and metrics of executions, told once, off their critical path."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from temporalio import activity

from perdure.activities.afterwards import Kept
from perdure.activities.stores.copied import Told as Marks
from perdure.reports import Spent
from perdure.state import RunState
from perdure.telemetry import otel
from perdure.telemetry.attempted import attempted, for_memory
from perdure.telemetry.executions import was_reset
from perdure.telemetry.ids import of_attempt
from perdure.telemetry.otel import Telemetry
from perdure.telemetry.spans import Span, Told, spans, waits

_log = logging.getLogger("perdure.telemetry")

_PATIENCE = timedelta(seconds=30)
"""How long one process may take to tell of an execution, before another one tells the same."""
_AGAIN = 0.1
"""Seconds until who waits for that looks again."""


class Tracing:
    """Tells of executions, and of each span once. A `Copy`, also of what there is of an execution that goes on.

    How far it has come is in the store. A worker that is lost between telling and noting that leaves the same spans to
    be told again, with the ids that they had.

    Args:
        telemetry: Where it is told.
        marks: How far it was told.
    """

    def __init__(self, telemetry: Telemetry, marks: Marks) -> None:
        self._telemetry = telemetry
        self._marks = marks

    async def __call__(self, kept: Kept) -> None:
        """Tell what is new of an execution, and wait a moment for it to arrive. What can't be told holds up nothing.

        Raises:
            ConnectionFailed: If the store is down.
        """
        try:
            told = await told_of(kept)
            found = spans(told, self._telemetry.capture)
        except Exception:  # noqa: BLE001 - a defect in telling is no reason to keep the archive waiting
            _log.exception("the spans of run %s could not be made", kept.run.run_id)
            self._telemetry.dropped("runs", 1)
            return
        for execution in dict.fromkeys(span.execution for span in found):
            await self._tell(kept, told, execution, [span for span in found if span.execution == execution])

    async def _tell(self, kept: Kept, told: Told, execution: str, found: Sequence[Span]) -> None:
        """Tell those spans of an execution that were not told yet."""
        key = (kept.run.namespace, kept.run.run_id, execution, secrets.token_hex(8))  # of each copy, here and elsewhere
        while (mark := await self._marks.claim(*key, _PATIENCE)) is None:
            if kept.goes_on:
                return  # there will be another time
            await asyncio.sleep(_AGAIN)
        last = max(span.known for span in found)
        try:
            if fresh := [span for span in found if span.known > mark]:
                self._count(kept, told, execution, mark)
                self._telemetry.emit(fresh)
                await self._telemetry.delivered()
        finally:
            await self._marks.told(*key, last)

    def _count(self, kept: Kept, told: Told, execution: str, mark: int) -> None:
        """Count what there is to count of what came after `mark`."""
        signals, agent, history = self._telemetry.signals, kept.run.agent, told.history
        for one in waits(told):
            if one.known > mark and history.made_by(one.known) == execution:
                decision = "none" if one.decided is None else "approved" if one.decided.approve else "denied"
                signals.approval(one.name, agent, decision, one.until - one.asked)
        if told.result and history.made_by(history.last) == execution:
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
    result = None if was_reset(kept.events[-1]) else kept.run.result
    return read(result=result, began=began, ended=kept.events[-1].event_time.ToDatetime(began.tzinfo))
