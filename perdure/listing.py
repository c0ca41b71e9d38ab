"""Lists of runs, from the engine's own index."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.engine import search_attributes
from perdure.wire import WORKFLOW

_RESUMABLE = ("failed", "cancelled", "budget_exhausted")
_SPANS = (timedelta(hours=1), timedelta(days=2), None)
"""How far back one looks, until there are enough: the index can't be asked for the newest first."""
_OPEN = ("running", "waiting_approval", "waiting_input", "waiting_decision", "paused")


@dataclass(frozen=True)
class RunInfo:
    """A run as `list_runs` gives it. `status` is a `RunStatus` or `OpenStatus`."""

    id: str
    agent: str
    status: str
    started_at: datetime
    closed_at: datetime | None
    task_queue: str


async def list_runs(temporal: Client, status: str | None, agent: str | None, limit: int) -> list[RunInfo]:
    """Return at most `limit` runs, the one started or resumed last first, of that status and agent if given."""
    query = [f"WorkflowType = '{WORKFLOW}'"]
    if agent:
        query.append(f"{search_attributes.AGENT.name} = '{_quoted(agent)}'")
    if status in _OPEN:
        query.append("ExecutionStatus = 'Running'")
    if status in (*_OPEN[1:], "budget_exhausted"):
        query.append(f"{search_attributes.STATUS.name} = '{status}'")
    runs: list[RunInfo] = []
    try:
        for back in _SPANS:
            since = [f"StartTime >= '{(datetime.now(UTC) - back).isoformat()}'"] if back else []
            runs = await _newest(temporal, " AND ".join([*query, *since]), status, limit)
            if len(runs) >= limit:
                break
    except RPCError as error:
        if "invalid search attribute" not in error.message:  # a server that has never had a run of ours
            raise
    return runs


async def _newest(temporal: Client, query: str, status: str | None, limit: int) -> list[RunInfo]:
    """Return the newest runs that a query finds, each once, however often it was resumed."""
    found = [each async for each in temporal.list_workflows(query)]
    runs: list[RunInfo] = []
    last = {each.id: each for each in sorted(found, key=lambda each: each.start_time)}
    for each in sorted(last.values(), key=lambda each: each.start_time, reverse=True):
        run = _run_info(each)
        if status in _RESUMABLE and not await _is_newest(temporal, each):
            continue  # it was resumed, and is something else now
        if status is None or run.status == status:
            runs.append(run)
        if len(runs) >= limit:
            break
    return runs


async def _is_newest(temporal: Client, found: WorkflowExecution) -> bool:
    newest = await temporal.get_workflow_handle(found.id).describe()
    return newest.run_id == found.run_id


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _run_info(found: WorkflowExecution) -> RunInfo:
    attributes = found.typed_search_attributes
    shown = attributes.get(search_attributes.STATUS)
    if found.status == WorkflowExecutionStatus.RUNNING:
        status = shown or "running"
    elif found.status == WorkflowExecutionStatus.COMPLETED:
        status = "budget_exhausted" if shown == "budget_exhausted" else "completed"
    else:
        status = "cancelled" if found.status == WorkflowExecutionStatus.CANCELED else "failed"
    return RunInfo(
        id=found.id,
        agent=attributes.get(search_attributes.AGENT) or "",
        status=status,
        started_at=found.start_time,
        closed_at=found.close_time,
        task_queue=found.task_queue,
    )
