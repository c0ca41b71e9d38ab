"""The ends of runs, for what waits for them: it begins a little before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar

from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from perdure.telemetry.executions import Recorded

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds that a run, which is about to end, gets to do so before the activity steps aside."""
_LATER = timedelta(seconds=15)
_EXPECTED = ApplicationErrorCategory.BENIGN
"""It is no news for a log."""


async def soon(end: Awaitable[T], run_id: str, patience: float = PATIENCE) -> T | None:
    """Return what `end` gives, which waits for a run's end; None if the engine has forgotten the run.

    Raises:
        ApplicationError: If the run goes on, to be tried again later: somebody has said something before it ended.
    """
    try:
        return await asyncio.wait_for(end, patience)
    except TimeoutError:
        words = f"Run {run_id} goes on."
        raise ApplicationError(words, type="not_ended", next_retry_delay=_LATER, category=_EXPECTED) from None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def until_ended(client: Client, run_id: str, execution: str) -> Recorded:
    """Return an execution once it has ended.

    Raises:
        RPCError: If the engine does not have it (any more).
    """
    handle = client.get_workflow_handle(run_id, run_id=execution)
    return Recorded(execution, [event async for event in handle.fetch_history_events(wait_new_event=True)])
