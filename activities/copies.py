"""Copies of what archived executions tell, and what is no longer needed once one has ended."""

from __future__ import annotations

import asyncio
from functools import partial

from perdure.activities.afterwards import Copy, Kept
from perdure.activities.auditing import audit_copy
from perdure.activities.ledger import usage_copy
from perdure.activities.stores import Store, segments
from perdure.settings import Settings
from perdure.telemetry import live


def every(store: Store, settings: Settings) -> list[Copy]:
    """Return what is made of each execution once it has been archived, whoever does that."""
    return [usage_copy(store, partial(segments.read, store)), audit_copy(store), forgetting(settings)]


def forgetting(settings: Settings) -> Copy:
    """Return what deletes what was told beside a run, once that has ended."""

    async def forget(kept: Kept) -> None:
        if kept.run.closed_at is None or live.is_postgres(settings):
            return
        from perdure.telemetry import live_files

        name = live.name_of(kept.run.namespace, kept.run.run_id)
        await asyncio.to_thread(live_files.remove, live.folder_of(settings), name)

    return forget
