"""The trace of a run from all its histories, with those of the runs that it has called."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from perdure import earlier
from perdure.errors import RunNotFound
from perdure.telemetry import tickets, tracing
from perdure.tracing import Trace

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.policies import AgentSpec


async def trace(client: Client, run_id: str, *, redacted: bool) -> Trace:
    """Return the trace of a run; see `RunHandle.trace`."""
    specs = dict[str, "AgentSpec"]()
    found = await _traced(client, run_id, specs)
    return tickets.redacted(found, specs) if redacted else found


async def _traced(client: Client, run_id: str, specs: dict[str, AgentSpec]) -> Trace:
    """Return the trace of a run and those under it, and add their rules to `specs`."""
    projection = await client.handle(run_id).projection()
    missing = await earlier.complete(client.settings, projection)
    if projection.state:
        specs[run_id] = projection.state.spec
    found = tracing.trace_of(projection, datetime.now(UTC), missing or "")
    under: dict[str, Trace] = {}
    for _, span in found.root.walk():
        if span.run and span.run not in specs:
            try:
                under[span.run] = await _traced(client, span.run, specs)
            except RunNotFound:
                continue  # it has never begun, or was deleted: its call says what became of it
    return tracing.with_runs(found, under) if under else found
