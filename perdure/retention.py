"""How long runs are kept in the store: what ended long ago goes, and what was not archived yet is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.auditing import note
from perdure.errors import ConnectionFailed, PerdureError
from perdure.listing import quoted
from perdure.schedules import last_runs
from perdure.speaking import unreachable
from perdure.state import SessionTurn
from perdure.wire import AFTERWARDS, NOTIFY, WORKFLOW, AfterRun, NotifyInput, after_id

if TYPE_CHECKING:
    from perdure.activities.afterwards import Copy
    from perdure.activities.stores import Freed, Store
    from perdure.client import Client

_log = logging.getLogger("perdure.retention")

_AT_ONCE = 20
"""Questions to the engine under way at once."""

_BATCH = 200
"""Runs that are asked about, and then dropped, before the next ones are."""

_YOUNG = timedelta(hours=1)
"""What somebody has put into the store may be for a run that is just being started."""


@dataclass
class Pruned:
    """What was removed, or would be.

    Attributes:
        runs: Ids of runs of the archive.
        freed: Blobs that nobody needs any more, of these and other runs.
        open: Runs that are old enough, but have gone on.
        in_engine: Runs that are old enough, but the engine has them still.
        scheduled: Runs that are old enough, but the next run of their schedule may begin with what they gave.
        usage: Rows of the usage ledger.
    """

    runs: list[str] = field(default_factory=list[str])
    freed: Freed | None = None
    usage: int = 0
    open: list[str] = field(default_factory=list[str])
    in_engine: list[str] = field(default_factory=list[str])
    scheduled: list[str] = field(default_factory=list[str])


async def prune(
    client: Client,
    older_than: timedelta,
    *,
    dry_run: bool = False,
    from_engine: bool = False,
    usage: bool = False,
) -> Pruned:
    """Remove from the store what ended that long ago, and the blobs that nothing refers to any more.

    A run that goes on is kept, and so is one that the engine still has: it could be resumed; and the last ones of a
    schedule. What others need of a
    run, such as its forks or its session, they own themselves.

    Args:
        dry_run: Remove nothing, and only say what would be.
        from_engine: Have the engine delete those that it still has, if they have ended, and remove them as well.
        usage: Forget what requests of that age have used, too: otherwise what runs have cost stays known.

    Raises:
        ConnectionFailed: If server or store can't be used; what was removed before stays so.
    """
    namespace, now, pruned = client.temporal.namespace, datetime.now(UTC), Pruned()
    async with client.store() as store:
        old = await store.old_runs(namespace, now - older_than)
        needed = await last_runs(client) if old else set[str]()
        pruned.scheduled = [run_id for run_id in old if run_id in needed]
        old = [run_id for run_id in old if run_id not in needed]
        lost = await store.orphans(namespace, now - max(older_than, _YOUNG))
        gone: list[str] = []
        for at in range(0, len(old) + len(lost), _BATCH):
            some = [*old, *lost][at : at + _BATCH]
            droppable = await _droppable(client, some, pruned, dry_run=dry_run, from_engine=from_engine)
            gone += droppable
            if not dry_run:
                if droppable:
                    await note(store, namespace, "pruned", details={"runs": [*droppable]})
                await store.drop_runs(namespace, droppable, before=now)  # whatever has begun since is not theirs
        pruned.runs = [run_id for run_id in old if run_id in set(gone)]
        wanted = store.needed_by_none_else(namespace, gone) if dry_run else store.sweep(datetime.now(UTC))
        pruned.freed = await wanted
        if usage:
            pruned.usage = await _drop_usage(store, namespace, now - older_than, dry_run=dry_run)
    return pruned


async def _drop_usage(store: Store, namespace: str, before: datetime, *, dry_run: bool) -> int:
    return len(await store.usage(namespace, until=before)) if dry_run else await store.drop_usage(namespace, before)


async def _droppable(
    client: Client, run_ids: Collection[str], pruned: Pruned, *, dry_run: bool, from_engine: bool
) -> list[str]:
    """Return those of the runs that can go, and note why the others can't."""
    statuses = await _each(client, run_ids)
    droppable: list[str] = []
    for run_id, status in statuses.items():
        if status is WorkflowExecutionStatus.RUNNING:
            pruned.open.append(run_id)
        elif status is not None and not from_engine:
            pruned.in_engine.append(run_id)
        elif status is None or dry_run or await _deleted(client, run_id):
            droppable.append(run_id)
        else:
            pruned.open.append(run_id)
    return droppable


async def _each(client: Client, run_ids: Collection[str]) -> dict[str, WorkflowExecutionStatus | None]:
    """Return the status of each run, as the engine has it; None where it has none of that id."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(run_id: str) -> WorkflowExecutionStatus | None:
        async with places:
            try:
                return (await client.temporal.get_workflow_handle(run_id).describe()).status
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise unreachable(client.temporal, error) from error

    return dict(zip(run_ids, await asyncio.gather(*map(ask, run_ids)), strict=True))


async def _deleted(client: Client, run_id: str) -> bool:
    """Have the engine delete all executions of a run that has ended; return False if it goes on again."""
    temporal, running = client.temporal, WorkflowExecutionStatus.RUNNING
    async for each in temporal.list_workflows(f"WorkflowId = '{quoted(run_id)}'"):
        if each.status is running:
            return False
        request = DeleteWorkflowExecutionRequest(
            namespace=temporal.namespace, workflow_execution=Execution(workflow_id=run_id, run_id=each.run_id)
        )
        try:
            await temporal.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise unreachable(temporal, error) from error
    return (await _each(client, [run_id]))[run_id] is not running


# -- catching up -------------------------------------------------------------------------------------------


async def catch_up(client: Client) -> list[str]:
    """Archive every execution that has ended, and is not there yet: nothing followed it. Return the runs' ids.

    It is copied as others are, and people are told of its end. One that can't be read, since it has put something away
    in another store, is named in the log and left out.

    Raises:
        ConnectionFailed: If server or store can't be used.
    """
    from perdure.activities import copies
    from perdure.telemetry import event_log, otel

    settings = client.settings
    async with client.store() as store, otel.on(settings) as telemetry, event_log.serving(settings.event_log) as log:
        of_each = [*copies.every(store, settings, log), *copies.tracing(telemetry, store)]
        try:
            ended = missing(client.temporal, store)
            found = [each.id async for each in ended if await _caught_up(client, store, each, of_each)]
        except RPCError as error:
            raise unreachable(client.temporal, error) from error
    return list(dict.fromkeys(found))


async def _caught_up(client: Client, store: Store, each: WorkflowExecution, copies: Sequence[Copy]) -> bool:
    from perdure.activities.afterwards import keep, make_copies
    from perdure.activities.ends import until_ended
    from perdure.activities.notices import of_end

    try:
        recorded = await until_ended(client.temporal, each.id, each.run_id)
        kept = await keep(client.temporal, store, each.id, recorded)
        await make_copies(copies, kept)
        if notice := await of_end(client.temporal, each.id, recorded):
            await _begin(client.temporal, NOTIFY, NotifyInput(notice=notice), notice.id, each.task_queue)
    except LookupError:  # the engine has forgotten it meanwhile
        return False
    except ConnectionFailed:
        raise
    except PerdureError as error:
        _log.warning("run %s can't be archived: %s", each.id, error)
        return False
    return True


_PAGE = 500
_SETTLED = timedelta(minutes=1)
"""An execution that has ended so long ago is followed by now, if ever."""


async def missing(
    temporal: TemporalClient, store: Store, *, task_queue: str = "", limit: int | None = None, only: str = ""
) -> AsyncIterator[WorkflowExecution]:
    """Yield executions of runs that have ended a while ago, and are not in the archive.

    Args:
        task_queue: Only of runs that are served there.
        limit: Look at so many.
        only: Of these, the ones that fit this query.
    """
    query = [f"WorkflowType = '{WORKFLOW}'", "ExecutionStatus != 'Running'"]
    query.append(f"CloseTime < '{(datetime.now(UTC) - _SETTLED).isoformat()}'")
    if only:
        query.append(only)
    if task_queue:
        query.append(f"TaskQueue = '{quoted(task_queue)}'")
    page: list[WorkflowExecution] = []
    async for each in temporal.list_workflows(" AND ".join(query), limit=limit):
        page.append(each)
        if len(page) == _PAGE:
            for one in await _not_archived(store, page):
                yield one
            page = []
    for one in await _not_archived(store, page):
        yield one


async def _not_archived(store: Store, page: Collection[WorkflowExecution]) -> list[WorkflowExecution]:
    if not page:
        return []
    namespace = next(iter(page)).namespace
    left = await store.not_archived(namespace, [each.run_id for each in page])
    return [each for each in page if each.run_id in left]


_EVERY, _AGAIN, _MOST = timedelta(hours=1), timedelta(minutes=1), 1000
"""How often a worker looks at all of them; when again after that failed, and at those that were ended from outside just
before; at how many executions."""
FROM_OUTSIDE = "ExecutionStatus IN ('Terminated', 'TimedOut')"


async def keep_up(temporal: TemporalClient, store: Store, task_queue: str) -> None:
    """See now and every hour to runs that have ended without what follows an end: it is begun then.

    Those that somebody has terminated, say, are seen to within minutes: people may be waiting to be told.
    """
    looked: datetime | None = None
    while True:
        now = datetime.now(UTC)
        recent = f"{FROM_OUTSIDE} AND CloseTime > '{(now - 5 * _AGAIN).isoformat()}'"
        whole = looked is None or now - looked >= _EVERY
        try:
            await follow_up(temporal, store, task_queue, _MOST, "" if whole else recent)
            looked = now if whole else looked
        except (ConnectionFailed, RPCError) as error:
            _log.warning("runs that ended without being archived wait: %s", error)
            looked = None
        await asyncio.sleep(_AGAIN.total_seconds())


async def follow_up(temporal: TemporalClient, store: Store, task_queue: str, limit: int, only: str = "") -> int:
    """Begin what nothing has begun yet after the end of runs of a queue; look at `limit` of them. Return how many.

    Args:
        only: Of these, the ones that fit this query.
    """
    begun = 0
    async for each in missing(temporal, store, task_queue=task_queue, limit=limit, only=only):
        memo = await each.memo()
        turn = SessionTurn(name=memo["session"], number=memo["turn"]) if memo.get("session") else None
        after = AfterRun(
            run_id=each.id,
            execution=each.run_id,
            agent=str(memo.get("agent", "")),
            goes_on=each.status is WorkflowExecutionStatus.CONTINUED_AS_NEW,
            session=turn,
            notify=True,  # where the run wants that
        )
        begun += await _begin(temporal, AFTERWARDS, after, after_id(each.id, each.run_id[-12:]), task_queue)
    return begun


async def _begin(temporal: TemporalClient, workflow: str, given: object, id: str, task_queue: str) -> bool:
    """Begin a workflow; return False if it was begun before, such as one that waits for the store."""
    fail, once = WorkflowIDConflictPolicy.FAIL, WorkflowIDReusePolicy.REJECT_DUPLICATE
    common: dict[str, Any] = {"id": id, "task_queue": task_queue, "id_conflict_policy": fail}
    if workflow == NOTIFY:
        common["id_reuse_policy"] = once
    with contextlib.suppress(WorkflowAlreadyStartedError):
        await temporal.start_workflow(workflow, given, **common)
        return True
    return False
