"""What runs have cost: from the store's ledger, and of those that go on from their histories."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from temporalio.service import RPCError

from perdure.costs import By, CostReport, report
from perdure.engine import search_attributes
from perdure.errors import RunNotFound
from perdure.listing import quoted
from perdure.speaking import unreachable
from perdure.usage import UsageRow
from perdure.wire import WORKFLOW

if TYPE_CHECKING:
    from perdure.activities.stores import Store
    from perdure.client import Client

_FRESH = timedelta(hours=1)
"""What has ended so lately may not be in the ledger yet; see `perdure.retention.keep_up`."""

_AT_ONCE = 8
"""Histories that are read at once."""


async def cost(
    client: Client,
    *,
    by: By = "agent",
    since: datetime | None = None,
    until: datetime | None = None,
    agent: str | None = None,
    run: str | None = None,
    tenant: str | None = None,
    session: str | None = None,
) -> CostReport:
    """Return what runs have cost; see `Client.cost`."""
    namespace = client.temporal.namespace
    async with client.store() as store:
        if run is None:
            kept = await store.usage(namespace, since=since, until=until, agent=agent, tenant=tenant, session=session)
            live = await _unkept(client, store, agent)
        else:
            live, kept = await _tree(client, store, run, {run})
    wanted = {"agent": agent, "tenant": tenant, "session": session}
    rows = {row.key: row for row in [*live, *kept]}
    fit = [row for row in rows.values() if all(value in (None, getattr(row, name)) for name, value in wanted.items())]
    fit = [row for row in fit if (since is None or row.time >= since) and (until is None or row.time < until)]
    known = {row.key for row in kept}
    return report(sorted(fit, key=_order), by, {row.run_id for row in fit if row.key not in known})


def _order(row: UsageRow) -> tuple[datetime, str, int]:
    return row.time, row.run_id, row.attempt


async def _tree(client: Client, store: Store, run_id: str, seen: set[str]) -> tuple[list[UsageRow], list[UsageRow]]:
    """Return the requests of a run and of those under it: as their histories tell, and those in the ledger.

    Raises:
        RunNotFound: If neither knows of it.
    """
    kept = await store.usage(client.temporal.namespace, run_id=run_id)
    try:
        live, children = await _rows(client, store, run_id)
    except RunNotFound:
        if kept:
            return [], kept
        raise
    for child in [one for one in children if one not in seen]:
        seen.add(child)
        with contextlib.suppress(RunNotFound):  # it was deleted, or has never begun
            below = await _tree(client, store, child, seen)
            live, kept = [*live, *below[0]], [*kept, *below[1]]
    return live, kept


async def _unkept(client: Client, store: Store, agent: str | None) -> list[UsageRow]:
    """Return the requests of runs that go on, or have ended lately without being in the archive yet."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(run_id: str) -> list[UsageRow]:
        async with places:
            try:
                return (await _rows(client, store, run_id))[0]
            except RunNotFound:  # it has been deleted since
                return []

    found = await asyncio.gather(*(one(run_id) for run_id in await _not_archived(client, store, agent)))
    return [row for rows in found for row in rows]


async def _rows(client: Client, store: Store, run_id: str) -> tuple[list[UsageRow], list[str]]:
    """Return the requests of a run, as its history tells, and the ids of the runs that it has called."""
    from functools import partial

    from perdure.activities.ledger import rows_of
    from perdure.activities.stores import segments

    projection = await client.handle(run_id).projection()
    rows = await rows_of(projection, client.temporal.namespace, partial(segments.read, store))
    return rows, list(projection.state.leases) if projection.state else []


async def _not_archived(client: Client, store: Store, agent: str | None) -> Collection[str]:
    """Return the ids of those runs."""
    lately = (datetime.now(UTC) - _FRESH).isoformat()
    query = [f"WorkflowType = '{WORKFLOW}'", f"(ExecutionStatus = 'Running' OR CloseTime > '{lately}')"]
    if agent:
        query.append(f"{search_attributes.AGENT.name} = '{quoted(agent)}'")
    try:
        found = {one.run_id: one.id async for one in client.temporal.list_workflows(" AND ".join(query))}
    except RPCError as error:
        if "invalid search attribute" in error.message:  # a server that has never had a run of ours
            return set()
        raise unreachable(client.temporal, error) from error
    left = await store.not_archived(client.temporal.namespace, found)
    return {found[execution] for execution in left}
