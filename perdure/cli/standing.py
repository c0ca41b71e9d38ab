"""Where a run stands: its status, what it waits for, what is being retried. From history and the engine alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalio.service import RPCError, RPCStatusCode

from perdure import asking
from perdure.asking import Request
from perdure.cli import session
from perdure.errors import ConnectionFailed
from perdure.events import ApprovalRequested, Asked, InDoubt, Paused
from perdure.steps import Wait, next_step
from perdure.wire import COMPACT, JUDGE, LIST_TOOLS, MODEL, PROBE, PUT_AWAY, UNDO

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from temporalio.api.workflow.v1 import PendingActivityInfo
    from temporalio.client import WorkflowExecutionDescription

    from perdure.client import Client
    from perdure.telemetry.projection import Projection


@dataclass(frozen=True)
class Now:
    """What only the engine knows of a run.

    Attributes:
        under_way: What it is doing.
        absence: The sentence if nobody serves it.
        priority: What it was started with, from 1, the most urgent, to 5; None if it was not given one.
        tenant: On whose behalf it was started; empty if that was not said.
        forgotten: The engine does not have it any more: what is told of it is from the archive.
        below: What the runs below it want of people.
    """

    under_way: list[Attempt]
    absence: str | None
    priority: int | None = None
    tenant: str = ""
    forgotten: bool = False
    below: Sequence[Request] = ()


@dataclass(frozen=True)
class Attempt:
    """An activity under way, or due again after it failed.

    Attributes:
        number: Of the attempt under way or due, from 1.
        last_failure: Why the one before failed; empty if none has.
        next_at: When the next one is due; None while one is under way.
        since: Since when a worker has had this attempt; None while none has it.
    """

    what: str
    number: int
    last_failure: str
    next_at: datetime | None
    since: datetime | None = None


def status(projection: Projection) -> str:
    """Return the run's status, an open one included."""
    if projection.ended:
        return projection.ended.status
    step = next_step(projection.state) if projection.state else None
    return step.status if isinstance(step, Wait) else "running"


def waits(projection: Projection) -> bool:
    """Return whether nothing goes on in the run until a person answers."""
    return status(projection).startswith(("waiting_", "paused"))


def requests(projection: Projection) -> Iterator[Request]:
    """Yield what an open run wants of people: to go on, and what its calls wait for, in call order."""
    if projection.ended or projection.state is None:
        return
    told = (event for event in projection.events if isinstance(event, ApprovalRequested | Asked | InDoubt | Paused))
    since = {"" if isinstance(event, Paused) else event.call: event.time for event in told}
    yield from asking.requests(projection.state, since)


async def waiting_below(client: Client, projection: Projection) -> AsyncGenerator[Projection]:
    """Yield the runs that calls of an open run are, and that wait for a person, and those below them."""
    if projection.ended or projection.state is None:
        return
    for child in projection.state.waiting_below:
        its = await client.handle(child).projection(last=True)
        yield its
        async for one in waiting_below(client, its):
            yield one


async def below(client: Client, projection: Projection) -> list[Request]:
    """Return what the runs below an open run want of people."""
    return [request async for its in waiting_below(client, projection) for request in requests(its)]


async def now(client: Client, run_id: str) -> Now:
    """Return what history does not tell; nothing if there is no such run."""
    try:
        described, absence = await asyncio.gather(
            client.temporal.get_workflow_handle(run_id).describe(), unserved(client, run_id)
        )
        kept = described.raw_description.workflow_execution_info.priority
        doing = await _under_way(client, described)
        return Now(doing, absence, kept.priority_key or None, kept.fairness_key)
    except RPCError as error:
        return Now([], None, forgotten=error.status is RPCStatusCode.NOT_FOUND)


async def attempts(client: Client, run_id: str) -> list[Attempt]:
    """Return what is being tried again; history knows nothing of it until it ends."""
    described = await client.temporal.get_workflow_handle(run_id).describe()
    return [one for one in await _under_way(client, described) if one.last_failure]


async def _under_way(client: Client, described: WorkflowExecutionDescription) -> list[Attempt]:
    """Return what a run is doing now, be it for the first time or again."""
    return [await _attempt(client, one) for one in described.raw_description.pending_activities]


async def _attempt(client: Client, pending: Any) -> Attempt:
    from temporalio.api.enums.v1 import PendingActivityState

    from perdure.failures import explain

    failed = pending.HasField("last_failure")
    taken = pending.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    due = pending.next_attempt_schedule_time.ToDatetime(UTC) if pending.HasField("next_attempt_schedule_time") else None
    return Attempt(
        what=activity_words(pending.activity_type.name, pending.activity_id),
        number=pending.attempt,
        last_failure=explain(await client.temporal.data_converter.decode_failure(pending.last_failure))
        if failed
        else "",
        next_at=due,
        since=pending.last_started_time.ToDatetime(UTC) if taken else None,
    )


def activity_words(kind: str, position: str) -> str:
    """Return what an activity does, for a person."""
    match kind:
        case _ if kind == MODEL:
            return "model call"
        case _ if kind == COMPACT:
            return "compaction of the context"
        case _ if kind == PROBE:
            return f"look-up of call {position.partition('?')[0]}"
        case _ if kind == UNDO:
            return f"undoing of call {position.removeprefix('undo ')}"
        case _ if kind == LIST_TOOLS:
            return "listing of the tools of MCP servers"
        case _ if kind == PUT_AWAY:
            return "putting away of earlier messages"
        case _ if kind == JUDGE:
            return f"check of the arguments of call {position}"
        case _:
            return f"{kind} (call {position})"


UNSERVED = timedelta(seconds=3)
"""How long what is due in a run may wait for a worker before that is spoken of."""


async def due(client: Client, run_id: str) -> timedelta | None:
    """Return for how long a run has waited for a worker to decide what is next; None where nothing is to be decided."""
    return _undecided(await client.temporal.get_workflow_handle(run_id).describe())


def _undecided(described: WorkflowExecutionDescription) -> timedelta | None:
    from temporalio.api.enums.v1 import PendingWorkflowTaskState

    task = described.raw_description.pending_workflow_task
    if task.state != PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED:
        return None
    return _since(task.scheduled_time)


def _since(time: Timestamp) -> timedelta:
    return datetime.now(UTC) - time.ToDatetime(UTC)


async def unserved(client: Client, run_id: str, file: str | None = None) -> str | None:
    """Return a sentence if no worker takes up what is due in a run, else None.

    Args:
        file: The one to serve; None looks for the one that was last served on that queue.
    """
    described = await client.temporal.get_workflow_handle(run_id).describe()
    left = await _left_lying(client, described)
    if (_undecided(described) or timedelta()) < UNSERVED and left is None:
        return None
    if left and await is_served(client, described.task_queue):
        what = activity_words(left.activity_type.name, left.activity_id)
        queue = left.activity_options.task_queue.name
        return f"No worker takes the {what} of run {run_id} (queue {queue}): start one that does. The run waits."
    with contextlib.suppress(ConnectionFailed):  # the store is down
        entries = [] if file else await session.catalogue(client)
        file = next((one.source for one in entries if one.task_queue == described.task_queue), file)
    command = f"perdure worker {session.short_path(file) if file else 'FILE'}"
    return f"No worker serves run {run_id} (queue {described.task_queue}): start one with `{command}`. The run waits."


async def _left_lying(client: Client, described: WorkflowExecutionDescription) -> PendingActivityInfo | None:
    """Return an activity that has been due for a while on a queue without a worker, be it busy or held back."""
    from temporalio.api.enums.v1 import PendingActivityState

    for one in described.raw_description.pending_activities:
        at = one.next_attempt_schedule_time if one.HasField("next_attempt_schedule_time") else one.scheduled_time
        waits = one.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED and _since(at) >= UNSERVED
        if waits and not await is_served(client, one.activity_options.task_queue.name):
            return one
    return None


async def is_served(client: Client, queue: str) -> bool:
    """Return whether a worker of that queue is there, busy or not."""
    from perdure.cli.choice import last_seen

    seen = await last_seen(client, queue)
    return seen is not None and seen.fresh


async def absences(client: Client, run_id: str, file: str | None = None) -> AsyncGenerator[str]:
    """Yield that sentence, once each time that no worker takes up what is due in a run. Never ends."""
    told = None
    while True:
        before = told
        with contextlib.suppress(RPCError):  # whoever follows the run says what is wrong with the server
            told = await unserved(client, run_id, file)
        if told and not before:
            yield told
        await asyncio.sleep(1)
