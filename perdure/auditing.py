"""The audit from Python: writing down what is done outside of runs, and reading all of it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from perdure.audit import Action, AuditEntry, AuditState, deeds
from perdure.errors import DecisionRejected, RunNotFound
from perdure.identity import way, whoami
from perdure.listing import OPEN

if TYPE_CHECKING:
    from perdure.activities.stores import Store
    from perdure.client import Client
    from perdure.telemetry.projection import Projection

_MOST_OPEN = 500
"""Open runs that are looked at where no run is named."""


async def note(store: Store, namespace: str, action: Action, *, by: str | None = None, **about: Any) -> None:
    """Write down that somebody does something now. Before it is done: what was deleted could not tell any more.

    Raises:
        ConnectionFailed: If the store can't be used.
    """
    given = {"by": by or whoami(), "via": way(), "position": uuid4().hex, "at": datetime.now(UTC), **about}
    await store.note([AuditEntry.model_validate({"namespace": namespace, "action": action, **given})])


def of(projection: Projection, namespace: str) -> list[AuditEntry]:
    """Return what people did to a run, as far as a projection goes."""
    tenant = projection.state.tenant if projection.state else ""
    return deeds(projection.events, projection.senders, namespace, tenant)


async def read(
    client: Client,
    run_id: str | None = None,
    *,
    by: str | None = None,
    actions: Collection[Action] = (),
    since: datetime | None = None,
    limit: int = 1000,
) -> list[AuditEntry]:
    """Return the newest entries, oldest first; see `Client.audit`."""
    namespace = client.temporal.namespace
    async with client.store() as store:
        kept = await store.noted(namespace, run_id=run_id, since=since)
    live = await _live(client, run_id, namespace)
    found = {entry.key: entry for entry in [*live, *kept]}.values()
    fitting = [
        entry
        for entry in found
        if (by is None or by.casefold() in entry.by.casefold())
        and (not actions or entry.action in actions)
        and (since is None or entry.at >= since)
    ]
    return sorted(fitting, key=lambda entry: (entry.at, entry.run_id))[-limit:]


async def verify(client: Client) -> AuditState:
    """Return whether all entries of the namespace are as they were written; see `Client.verify_audit`."""
    async with client.store() as store:
        return await store.check_audit(client.temporal.namespace)


async def _live(client: Client, run_id: str | None, namespace: str) -> list[AuditEntry]:
    """Return what was done to runs and is not kept yet: to the one named, or to those that are open."""
    if run_id is not None:
        return await _of_run(client, run_id, namespace)
    found: list[AuditEntry] = []
    for status in OPEN:
        for run in await client.list_runs(status=status, limit=_MOST_OPEN):
            found += await _of_run(client, run.id, namespace, last=True)
    return found


async def _of_run(client: Client, run_id: str, namespace: str, *, last: bool = False) -> list[AuditEntry]:
    try:
        return of(await client.handle(run_id).projection(last=last), namespace)
    except (RunNotFound, DecisionRejected):
        return []  # what was kept of it is all there is
