"""Lists of runs, from the engine's own index."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from perdure.engine import search_attributes
from perdure.errors import PerdureError
from perdure.recurring import SCHEDULED_BY
from perdure.wire import BEGAN, WORKFLOW

_RESUMABLE = ("failed", "cancelled", "budget_exhausted")
_SPANS = (timedelta(hours=1), timedelta(days=2), None)
"""How far back one looks, until there are enough: the index can't be asked for the newest first."""
ENDS = ("completed", *_RESUMABLE)
"""The statuses of runs that have ended."""
OPEN = ("running", "waiting_approval", "waiting_input", "waiting_decision", "paused")


@dataclass(frozen=True)
class RunInfo:
    """A run as `list_runs` gives it.

    Attributes:
        status: A `RunStatus` or `OpenStatus`.
        task_queue: Where its workers listen; "" where only the archive has it.
        archived: The engine has forgotten it.
        session: As diagnostics show it: redacted where it names a person.
        tenant: As diagnostics show it.
        waiting_for: What of people an open run waits for, be it all that it does or not.
        tokens: Of one that has ended: all that were sent and received; None where that is not known.
        cost_usd: Of one that has ended; None where that is not known.
    """

    id: str
    agent: str
    status: str
    started_at: datetime
    closed_at: datetime | None
    task_queue: str
    archived: bool = False
    session: str = ""
    tenant: str = ""
    waiting_for: list[str] = field(default_factory=list[str])
    tokens: int | None = None
    cost_usd: float | None = None


@dataclass(frozen=True)
class Filter:
    """Which runs are listed: those of which all that is given is true."""

    status: str | None = None
    agent: str | None = None
    session: str | None = None
    tenant: str | None = None
    waiting_for: str | None = None
    schedule: str | None = None

    def query(self) -> str:
        """Return it in the language of the engine's index."""
        query = [f"WorkflowType = '{WORKFLOW}'", "ExecutionStatus != 'ContinuedAsNew'"]
        if self.status in OPEN or self.waiting_for:
            query.append("ExecutionStatus = 'Running'")
        indexed: dict[SearchAttributeKey[Any], str | None] = {
            search_attributes.AGENT: self.agent,
            search_attributes.WAITING_FOR: self.waiting_for,
        }
        if self.status in (*OPEN[1:], "budget_exhausted"):
            indexed[search_attributes.STATUS] = self.status
        if self.schedule:
            query.append(f"{SCHEDULED_BY} = '{quoted(self.schedule)}'")
        for key, named in ((search_attributes.SESSION, self.session), (search_attributes.TENANT, self.tenant)):
            indexed[key] = named and search_attributes.told(named)
        return " AND ".join([*query, *(f"{key.name} = '{quoted(of)}'" for key, of in indexed.items() if of)])

    @property
    def needs_more(self) -> bool:
        """Whether it needs what the engine's index may lack."""
        return bool(self.session or self.tenant or self.waiting_for)


async def list_runs(temporal: Client, wanted: Filter, limit: int) -> list[RunInfo]:
    """Return at most `limit` runs, the one started or resumed last first.

    Raises:
        PerdureError: If the engine does not index what is asked for.
    """
    query, status = wanted.query(), wanted.status
    runs: list[RunInfo] = []
    try:
        for back in _SPANS:
            since = datetime.now(UTC) - back if back else None
            recent = [f"StartTime >= '{since.isoformat()}'"] if since else []
            runs = await _newest(temporal, " AND ".join([query, *recent]), status, limit, since)
            if len(runs) >= limit:
                break
    except RPCError as error:
        if "invalid search attribute" not in error.message:  # a server that has never had a run of ours
            raise
        if wanted.needs_more and not await search_attributes.has_more(temporal):
            told = "This server lists no runs by session, tenant or what they wait for"
            raise PerdureError(f"{told}: `perdure doctor` says what it lacks.") from error
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


def going_on(task_queue: str) -> str:
    """Return the query of the engine's index for the runs of a queue that are open."""
    return f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Running' AND TaskQueue = '{quoted(task_queue)}'"


def quoted(text: str) -> str:
    """Return `text` as it is written between quotes in a query."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


async def _run_info(found: WorkflowExecution) -> RunInfo:
    attributes = found.typed_search_attributes
    shown = attributes.get(search_attributes.STATUS)
    running = found.status == WorkflowExecutionStatus.RUNNING
    if running:
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
        session=attributes.get(search_attributes.SESSION) or "",
        tenant=attributes.get(search_attributes.TENANT) or "",
        waiting_for=list(attributes.get(search_attributes.WAITING_FOR) or ()) if running else [],
        tokens=attributes.get(search_attributes.TOKENS),
        cost_usd=attributes.get(search_attributes.COST),
    )
