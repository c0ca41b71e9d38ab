"""Lists of runs, from the engine's own index."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.engine import search_attributes
from perdure.wire import BEGAN, WORKFLOW

_RESUMABLE = ("failed", "cancelled", "budget_exhausted")
_SPANS = (timedelta(hours=1), timedelta(days=2), None)
"""How far back one looks, until there are enough: the index can't be asked for the newest first."""
ENDS = ("completed", *_RESUMABLE)
"""The statuses of runs that have ended."""
_OPEN = ("running", "waiting_approval", "waiting_input", "waiting_decision", "paused")


@dataclass(frozen=True)
class RunInfo:
    """A run as `list_runs` gives it.

    Attributes:
        status: A `RunStatus` or `OpenStatus`.
        task_queue: Where its workers listen; "" where only the archive has it.
        archived: The engine has forgotten it.
    """

    id: str
    agent: str
    status: str
    started_at: datetime
    closed_at: datetime | None
    task_queue: str
    archived: bool = False


async def list_runs(temporal: Client, status: str | None, agent: str | None, limit: int) -> list[RunInfo]:
    """Return at most `limit` runs, the one started or resumed last first, of that status and agent if given."""
    query = [f"WorkflowType = '{WORKFLOW}'", "ExecutionStatus != 'ContinuedAsNew'"]
    if agent:
        query.append(f"{search_attributes.AGENT.name} = '{quoted(agent)}'")
    if status in _OPEN:
        query.append("ExecutionStatus = 'Running'")
    if status in (*_OPEN[1:], "budget_exhausted"):
        query.append(f"{search_attributes.STATUS.name} = '{status}'")
    runs: list[RunInfo] = []
    try:
        for back in _SPANS:
            since = datetime.now(UTC) - back if back else None
            recent = [f"StartTime >= '{since.isoformat()}'"] if since else []
            runs = await _newest(temporal, " AND ".join([*query, *recent]), status, limit, since)
            if len(runs) >= limit:
                break
    except RPCError as error:
        if "invalid search attribute" not in error.message:  # a server that has never had a run of ours
            raise
    return runs


async def _newest(
    temporal: Client, query: str, status: str | None, limit: int, since: datetime | None
) -> list[RunInfo]:
    """Return the newest runs that a query finds, each once, however often it was resumed.

    None that began before `since`: it has continued as new after that, and others that began earlier were not found.
    """
    found = [each async for each in temporal.list_workflows(query)]
    last = {each.id: each for each in sorted(found, key=lambda each: each.start_time)}
    told = [(await _run_info(each), each) for each in last.values()]
    runs: list[RunInfo] = []
    for run, each in sorted(told, key=lambda one: one[0].started_at, reverse=True):
        if len(runs) >= limit or (since and run.started_at < since):
            break
        if status in _RESUMABLE and not await _is_newest(temporal, each):
            continue  # it was resumed, and is something else now
        if status is None or run.status == status:
            runs.append(run)
    return runs


async def _is_newest(temporal: Client, found: WorkflowExecution) -> bool:
    newest = await temporal.get_workflow_handle(found.id).describe()
    return newest.run_id == found.run_id


def quoted(text: str) -> str:
    """Return `text` as it is written between quotes in a query."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


async def _run_info(found: WorkflowExecution) -> RunInfo:
    attributes = found.typed_search_attributes
    shown = attributes.get(search_attributes.STATUS)
    if found.status == WorkflowExecutionStatus.RUNNING:
        status = shown or "running"
    elif found.status == WorkflowExecutionStatus.COMPLETED:
        status = "budget_exhausted" if shown == "budget_exhausted" else "completed"
    else:
        status = "cancelled" if found.status == WorkflowExecutionStatus.CANCELED else "failed"
    began = await found.memo_value(BEGAN, None, type_hint=datetime)
    return RunInfo(
        id=found.id,
        agent=attributes.get(search_attributes.AGENT) or "",
        status=status,
        started_at=began or found.start_time,
        closed_at=found.close_time,
        task_queue=found.task_queue,
    )
