"""Runs that the engine has forgotten, from the store's archive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalio.service import RPCError, RPCStatusCode

from perdure.engine import search_attributes
from perdure.errors import ConnectionFailed
from perdure.listing import ENDS, Filter, RunInfo, quoted
from perdure.recurring import is_of
from perdure.speaking import unreachable
from perdure.telemetry.executions import Recorded

if TYPE_CHECKING:
    from perdure.activities.stores import ArchivedRun
    from perdure.client import Client

_log = logging.getLogger("perdure.archive")

_MOST = 10_000
"""Runs of the archive that are looked through for those of one status."""
_AT_ONCE = 100
"""Runs that the engine's index is asked for at once."""
_HEARD = timedelta(minutes=1)
"""After this, its index has heard of a run."""


async def find(client: Client, run_id: str) -> ArchivedRun | None:
    """Return a run as the archive has it, or None.

    Raises:
        ConnectionFailed: If the store can't be used.
    """
    async with client.store() as store:
        return await store.archived(client.temporal.namespace, run_id)


async def executions(client: Client, run_id: str) -> Sequence[Recorded]:
    """Return the executions of a run that are archived: a `Shelf`.

    Raises:
        ConnectionFailed: If the store can't be used.
    """
    from perdure.activities import histories

    async with client.store() as store:
        run = await store.archived(client.temporal.namespace, run_id)
        try:
            return await histories.read(store, run) if run else ()
        except LookupError as error:
            raise ConnectionFailed(f"Run {run_id} is in the archive, but not whole: {error}") from error


async def memo(client: Client, run_id: str) -> Mapping[str, Any]:
    """Return what was noted at the start of an archived run; nothing where the archive does not have it.

    Raises:
        ConnectionFailed: If the store can't be used.
    """
    kept = await executions(client, run_id)
    if not kept:
        return {}
    first = min(kept, key=lambda one: one.events[0].event_time.ToNanoseconds()).events[0]
    fields = first.workflow_execution_started_event_attributes.memo.fields
    values = await client.temporal.data_converter.decode(list(fields.values()))
    return dict(zip(fields, values, strict=True))


async def has_alone(client: Client, run_id: str) -> bool:
    """Return whether the archive has a run that the engine has forgotten, and would begin anew.

    Where the store can't be used, a warning is logged, and the engine's word counts.

    Raises:
        ConnectionFailed: If the server does not answer.
    """
    try:
        return await find(client, run_id) is not None and await forgotten(client, run_id)
    except RPCError as error:
        raise unreachable(client.temporal, error) from error
    except ConnectionFailed as error:
        _log.warning("run %s is begun where the engine does not know it; the archive can't be asked: %s", run_id, error)
        return False


async def complete(client: Client, runs: list[RunInfo], wanted: Filter, limit: int) -> list[RunInfo]:
    """Return `runs`, which are all that the engine has, with those that only the archive has, at most `limit`.

    Where the store can't be used, a warning is logged.
    """
    status, agent, session = wanted.status, wanted.agent, wanted.session
    if len(runs) >= limit or (status and status not in ENDS) or wanted.waiting_for:
        return runs
    known = {run.id for run in runs}
    try:
        async with client.store() as store:
            most = _MOST if status or wanted.tenant or wanted.schedule else limit + len(runs)
            kept = await store.archived_runs(client.temporal.namespace, agent=agent, session=session, limit=most)
    except ConnectionFailed as error:
        _log.warning("Runs that the engine has forgotten are not listed: %s", error)
        return runs
    ended = [run for run in kept if status in (None, run.status) and run.status in ENDS and run.run_id not in known]
    fits = [run for run in ended if wanted.tenant in (None, run.tenant)]
    if wanted.schedule:
        fits = [run for run in fits if is_of(wanted.schedule, run.run_id)]
    for start in range(0, len(fits), _AT_ONCE):
        if len(runs) >= limit:
            break
        some = fits[start : start + _AT_ONCE]
        there = await _there(client, some)
        runs += [_info(run) for run in some if run.run_id not in there][: limit - len(runs)]
    return sorted(runs, key=lambda run: run.started_at, reverse=True)


async def _there(client: Client, runs: Sequence[ArchivedRun]) -> set[str]:
    """Return the ids of those of `runs` that the engine still has.

    One question for all of them to its index, which may not have heard yet of the newest: these are asked for.
    """
    ids = ", ".join(f"'{quoted(run.run_id)}'" for run in runs)
    there = {each.id async for each in client.temporal.list_workflows(f"WorkflowId IN ({ids})")}
    since = datetime.now(UTC) - _HEARD
    new = [run.run_id for run in runs if run.run_id not in there and run.started_at > since]
    gone = await asyncio.gather(*(forgotten(client, run_id) for run_id in new))
    return there | {run_id for run_id, is_gone in zip(new, gone, strict=True) if not is_gone}


async def forgotten(client: Client, run_id: str) -> bool:
    """Return whether the engine does not have that run."""
    try:
        await client.temporal.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise
    return False


def _info(run: ArchivedRun) -> RunInfo:
    return RunInfo(
        id=run.run_id,
        agent=run.agent,
        status=run.status,
        started_at=run.started_at,
        closed_at=run.closed_at,
        task_queue="",
        archived=True,
        session=search_attributes.told(run.session),
        tenant=search_attributes.told(run.tenant),
        tokens=run.result.usage.input_tokens + run.result.usage.output_tokens if run.result else None,
        cost_usd=float(run.result.cost_usd) if run.result and run.result.cost_usd is not None else None,
    )
