"""Copies of what archived executions tell, and what is no longer needed once one has ended."""

from __future__ import annotations

import asyncio

from perdure.activities.afterwards import Copy, Kept
from perdure.settings import Settings
from perdure.telemetry import live


def forgetting(settings: Settings) -> Copy:
    """Return what deletes what was told beside a run, once that has ended."""

    async def forget(kept: Kept) -> None:
        if kept.run.closed_at is None or live.is_postgres(settings):
            return
        from perdure.telemetry import live_files

        name = live.name_of(kept.run.namespace, kept.run.run_id)
        await asyncio.to_thread(live_files.remove, live.folder_of(settings), name)

    return forget
