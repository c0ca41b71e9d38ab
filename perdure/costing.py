"""What runs have cost: from the store's ledger, and of those that go on from their histories."""

from __future__ import annotations

import asyncio
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
    async with client.store() as store:
        rows = await store.usage(
            client.temporal.namespace,
            since=since,
            until=until,
            agent=agent,
            run_id=run,
            tenant=tenant,
            session=session,
        )
        live = await _live(client, store, agent, run, known=bool(rows))
    wanted = {"agent": agent, "tenant": tenant, "session": session}
    fresh = [row for row in live if all(value in (None, getattr(row, name)) for name, value in wanted.items())]
    fresh = [row for row in fresh if (since is None or row.time >= since) and (until is None or row.time < until)]
    known = {row.key for row in rows}
    added = [row for row in fresh if row.key not in known]
    return report([*rows, *added], by, {row.run_id for row in added})


async def _live(client: Client, store: Store, agent: str | None, run: str | None, *, known: bool) -> list[UsageRow]:
    """Return the requests of runs that are not in the ledger, or not all of them."""
    if run is not None:
        try:
            return await _rows(client, store, run)
        except RunNotFound:
            if known:
                return []
            raise
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(run_id: str) -> list[UsageRow]:
        async with places:
            try:
                return await _rows(client, store, run_id)
            except RunNotFound:  # it has been deleted since
                return []

    found = await asyncio.gather(*(one(run_id) for run_id in await _unkept(client, store, agent)))
    return [row for rows in found for row in rows]


async def _rows(client: Client, store: Store, run_id: str) -> list[UsageRow]:
    from functools import partial

    from perdure.activities.ledger import rows_of
    from perdure.activities.stores import segments

    projection = await client.handle(run_id).projection()
    return await rows_of(projection, client.temporal.namespace, partial(segments.read, store))


async def _unkept(client: Client, store: Store, agent: str | None) -> Collection[str]:
    """Return the runs that go on, or have ended lately without being in the archive yet."""
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
