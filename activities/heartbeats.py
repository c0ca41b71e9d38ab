"""Heartbeats of an activity, for as long as its process lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity


@asynccontextmanager
async def heartbeats() -> AsyncGenerator[None]:
    """Heartbeat three times per heartbeat timeout while the block runs; without a timeout, do nothing."""
    timeout = activity.info().heartbeat_timeout
    if not timeout:
        yield
        return
    task = asyncio.create_task(_beat(timeout.total_seconds() / 3))
    try:
        yield
    finally:
        task.cancel()


async def _beat(interval: float) -> None:
    while True:
        await asyncio.sleep(interval)  # first: a quick call then costs the server no request but its result
        activity.heartbeat()
