"""Every activity of what follows a run, or is told of it: timeout, retry, summary, in one place."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import FailureError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from perdure.messages import Data
from perdure.notices import Notice
from perdure.reports import LearnReport
from perdure.wire import (
    ARCHIVE,
    END_NOTICE,
    END_TURN,
    LEARN,
    NOTIFY,
    REMEMBER,
    AfterRun,
    NotifyInput,
    RememberInput,
    model_queue,
)

_SLACK = timedelta(seconds=10)
"""Added to an attempt's own deadline: it reports by itself before the engine gives it up."""


async def begin(name: str, request: Data, id: str, summary: str, **options: Any) -> None:
    """Begin a workflow that this one leaves alone; return when the engine has it."""
    with contextlib.suppress(FailureError):  # it is there already
        child = await workflow.start_child_workflow(
            name,
            request,
            id=id,
            cancellation_type=ChildWorkflowCancellationType.ABANDON,
            parent_close_policy=ParentClosePolicy.ABANDON,
            static_summary=summary[:200],
            **options,
        )
        child.add_done_callback(_left_alone)


def _left_alone(child: asyncio.Task[Any]) -> None:
    """See to it that nobody misses the outcome: how it ends is not this workflow's to know."""
    if not child.cancelled():
        child.exception()


LAST = Priority(priority_key=5)
"""Behind whatever runs still have to do."""

_PERSISTENT = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1))
"""For what nobody waits for: it is tried until whatever is down is back."""


async def archive(request: AfterRun) -> None:
    """Keep an execution that has ended. The first try is the worker's own affair, which costs the engine the least."""
    try:
        await workflow.execute_local_activity(
            ARCHIVE,
            request,
            start_to_close_timeout=_SLACK,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=f"archive: run {request.run_id}"[:200],
        )
    except FailureError:  # of a local activity, the failure comes as it is
        await _after(ARCHIVE, request, "archive")


async def end_turn(request: AfterRun) -> None:
    """Take what a run gave into its session."""
    await _after(END_TURN, request, "end the session's turn")


_DAY = timedelta(days=1)
"""What is to be remembered, or told, is given up by then."""


async def notify(request: NotifyInput) -> None:
    """Deliver a notice; whoever is to get it may be away for a day."""
    await workflow.execute_activity(
        NOTIFY,
        request,
        activity_id="notify",
        schedule_to_close_timeout=_DAY,
        start_to_close_timeout=timedelta(minutes=1),
        heartbeat_timeout=request.heartbeat,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=5)),
        summary=f"notice of run {request.notice.run_id}: {request.notice.occasion}"[:200],
    )


async def end_notice(request: AfterRun) -> Notice | None:
    """Return what is to be told of a run's end."""
    notice: Notice | None = await workflow.execute_activity(
        END_NOTICE,
        request,
        result_type=Notice,
        start_to_close_timeout=timedelta(minutes=5),
        heartbeat_timeout=request.heartbeat,
        retry_policy=_PERSISTENT,
        summary=f"how run {request.run_id} has ended"[:200],
    )
    return notice


async def learn(request: AfterRun, number: int) -> LearnReport:
    """Pick out what is worth remembering of a run; a call of a model, behind those for which somebody waits."""
    report: LearnReport = await workflow.execute_activity(
        LEARN,
        request,
        task_queue=model_queue(workflow.info().task_queue, request.remember),
        activity_id=f"learn {number}",
        result_type=LearnReport,
        schedule_to_close_timeout=_DAY,
        start_to_close_timeout=timedelta(minutes=15),
        heartbeat_timeout=request.heartbeat,
        retry_policy=_PERSISTENT,
        priority=LAST,
        summary=f"what is worth remembering of run {request.run_id}"[:200],
    )
    return report


async def remember(request: RememberInput) -> list[str]:
    """Keep facts; return their ids."""
    ids: list[str] = await workflow.execute_activity(
        REMEMBER,
        request,
        activity_id="remember",
        result_type=list[str],
        schedule_to_close_timeout=_DAY,
        start_to_close_timeout=timedelta(minutes=1),
        retry_policy=_PERSISTENT,
        priority=LAST,
        summary=f"remember run {request.run_id}"[:200],
    )
    return ids


async def _after(name: str, request: AfterRun, summary: str) -> None:
    await workflow.execute_activity(
        name,
        request,
        start_to_close_timeout=timedelta(minutes=5),
        heartbeat_timeout=request.heartbeat,
        retry_policy=_PERSISTENT,
        summary=f"{summary}: run {request.run_id}"[:200],
    )
