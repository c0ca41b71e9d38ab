"""Copies of what executions tell, and what is no longer needed once one has ended."""

from __future__ import annotations

import asyncio
from functools import partial

from perdure.activities.afterwards import Copy, Kept
from perdure.activities.auditing import audit_copy
from perdure.activities.ledger import usage_copy
from perdure.activities.stores import Store, segments
from perdure.activities.stores.copied import EventRow, Events, Told
from perdure.events import Event
from perdure.settings import Settings
from perdure.telemetry import event_log, live
from perdure.telemetry.event_log import EventLog
from perdure.telemetry.otel import Telemetry


def every(store: Store, settings: Settings, log: EventLog | None = None) -> list[Copy]:
    """Return what is made of each execution once it has been archived, whoever does that.

    Args:
        log: Logs its events; None: nobody does.
    """
    usage = usage_copy(store, partial(segments.read, store))
    return [usage, audit_copy(store), of_events(store, log), forgetting(settings)]


def tracing(telemetry: Telemetry | None, marks: Told) -> list[Copy]:
    """Return what tells OpenTelemetry of each execution, also while it goes on; nothing where it is off."""
    if telemetry is None:
        return []
    from perdure.activities.tracing import Tracing

    return [Tracing(telemetry, marks)]


def forgetting(settings: Settings) -> Copy:
    """Return what deletes what was told beside a run, once that has ended."""

    async def forget(kept: Kept) -> None:
        if kept.run.closed_at is None or live.is_postgres(settings):
            return
        from perdure.telemetry import live_files

        name = live.name_of(kept.run.namespace, kept.run.run_id)
        await asyncio.to_thread(live_files.remove, live.folder_of(settings), name)

    return forget


def of_events(store: Events, log: EventLog | None = None) -> Copy:
    """Return what copies the events of an execution into the store; those that were not there yet are logged, too.

    So none is logged twice, however often this is repeated.
    """

    async def copy(kept: Kept) -> None:
        events = kept.projection.events
        fresh = {row.position for row in await store.keep_events([_row(event, kept) for event in events])}
        if log:
            log.take(event for event in events if event.position in fresh)

    return copy


def _row(event: Event, kept: Kept) -> EventRow:
    return EventRow(
        namespace=kept.run.namespace,
        run_id=event.run_id,
        execution=kept.execution,
        position=event.position,
        time=event.time,
        type=event.type,
        agent=event.agent,
        session=event.session,
        step=event.step,
        call=getattr(event, "call", ""),
        body=event_log.shown(event),
    )
