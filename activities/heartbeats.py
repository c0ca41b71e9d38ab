"""Heartbeats of an activity, for as long as its process lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity
from temporalio.client import AsyncActivityCancelledError
from temporalio.service import RPCError


@asynccontextmanager
async def heartbeats() -> AsyncGenerator[None]:
    """Heartbeat three times per heartbeat timeout while the block runs; without a timeout, do nothing.

    What an earlier attempt has counted (see `failed_before`) is told again each time, so that it is kept.
    """
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
        activity.heartbeat(*activity.info().heartbeat_details)


async def given_up() -> bool:
    """Return whether the engine has given this attempt up, or can't be asked.

    A process that was frozen learns of its work too late; others may have settled it by then.
    """
    handle = activity.client().get_async_activity_handle(task_token=activity.info().task_token)
    try:
        await handle.heartbeat()
    except AsyncActivityCancelledError:
        return False  # whoever runs it is about to be cancelled, and tells how it ended
    except RPCError:
        return True
    return False


def failed_before() -> int:
    """Return how many attempts have counted themselves as failed; those lost with their worker have not."""
    details = activity.info().heartbeat_details
    return details[0] if details else 0


def count_failure() -> int:
    """Count this attempt as failed, for those after it, on whichever worker; return the count.

    To be called last, just before the attempt fails.
    """
    failed = failed_before() + 1
    activity.heartbeat(failed)
    return failed
