"""What is done about a run after its end, off its critical path."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter

from perdure.activities import histories
from perdure.activities.ends import PATIENCE, soon, until_ended
from perdure.activities.heartbeats import heartbeats
from perdure.activities.stores import ArchivedRun, Store, run_owner
from perdure.errors import ConnectionFailed
from perdure.telemetry import acquaintance
from perdure.telemetry.executions import Recorded
from perdure.telemetry.projection import Projection, projected
from perdure.wire import ARCHIVE, AfterRun

_log = logging.getLogger("perdure.afterwards")

_LOCALLY = 1.0
"""Seconds that an execution gets to end where the worker can decide less meanwhile."""


@dataclass(frozen=True)
class Kept:
    """An execution that has just been archived, or, of one that goes on, what there is of it by now.

    Attributes:
        run: The run, as the archive has it now; of one that goes on, as it would have it.
        execution: Temporal's run id.
        projection: What the history of this execution tells.
        events: That history.
        goes_on: Whether there is more of it to come.
        converter: Reads what is in it.
    """

    run: ArchivedRun
    execution: str
    projection: Projection
    events: Sequence[HistoryEvent]
    converter: DataConverter
    goes_on: bool = False


Copy = Callable[[Kept], Awaitable[None]]
"""Writes down elsewhere what an execution tells. Comes after its end, may be repeated, then writes the same again.

Some take what there is of one that goes on, too, and go on from there: see `meanwhile`.
"""

_CONTINUED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW


class Afterwards:
    """What follows the runs of one worker.

    Args:
        client: To read histories.
        store: Where they are kept.
        copies: What is made of each execution besides, in this order.
    """

    def __init__(self, client: Client, store: Store, copies: Sequence[Copy] = ()) -> None:
        self._client = client
        self._store = store
        self._copies = copies

    @activity.defn(name=ARCHIVE)
    async def archive(self, request: AfterRun) -> None:
        """Keep an execution that has ended; wait for its end before.

        Raises:
            ApplicationError: If it goes on: somebody has said something before it ended.
            ConnectionFailed: If the store is down.
        """
        async with heartbeats():
            recorded = await self._recorded(request)
            if recorded:
                await make_copies(self._copies, await keep(self._client, self._store, request.run_id, recorded))

    async def _recorded(self, request: AfterRun) -> Recorded | None:
        """Return the execution, or None if the engine has forgotten it."""
        patience = _LOCALLY if activity.info().is_local else PATIENCE
        return await soon(until_ended(self._client, request.run_id, request.execution), request.run_id, patience)


async def make_copies(copies: Sequence[Copy], kept: Kept) -> None:
    """Make each copy. One that a defect hinders is told in the log, and holds up neither the others nor the archive.

    Raises:
        ConnectionFailed: If the store is down.
    """
    if state := kept.projection.state:
        acquaintance.meet(kept.projection.entries, state.spec, state.run_id)
    for copy in copies:
        try:
            await copy(kept)
        except ConnectionFailed:
            raise
        except Exception:  # noqa: BLE001 - whatever it is: the archive is there
            _log.exception("of run %s a copy could not be made", kept.run.run_id)


async def keep(client: Client, store: Store, run_id: str, recorded: Recorded) -> Kept:
    """Put an execution that has ended into the archive, and return it. Safe to repeat.

    Raises:
        ConnectionFailed: If the store is down.
    """
    projection = await projected(run_id, recorded.events, client.data_converter)
    ref = await histories.write(store, run_owner(client.namespace, run_id), recorded)
    run = _archived(projection, client.namespace, recorded.events[-1])
    await store.archive(run, recorded.execution, ref)
    state = projection.state
    if run.closed_at and state and state.secrets and not state.borrowing.parent:
        await store.drop_secrets(state.secrets.id)
    return Kept(run, recorded.execution, projection, recorded.events, client.data_converter)


async def so_far(client: Client, run_id: str, recorded: Recorded) -> Kept:
    """Return what there is of an execution that goes on. Nothing is kept of it."""
    projection = await projected(run_id, recorded.events, client.data_converter)
    run = _archived(projection, client.namespace, None)
    return Kept(run, recorded.execution, projection, recorded.events, client.data_converter, goes_on=True)


def _archived(projection: Projection, namespace: str, last: HistoryEvent | None) -> ArchivedRun:
    """Return a run as the archive has it; `last` is the event by which its execution has ended, None: it goes on."""
    state, started_at = projection.state, projection.started_at
    assert state is not None and started_at is not None  # noqa: S101, PT018 - a history begins with the start
    result = None if last is None or last.event_type == _CONTINUED else projection.result()
    return ArchivedRun(
        namespace=namespace,
        run_id=projection.run_id,
        agent=state.spec.name,
        status=result.status if result else "running",
        started_at=state.began or started_at,
        closed_at=last.event_time.ToDatetime(UTC) if result and last else None,
        session=state.session.name if state.session else "",
        user=state.user,
        tenant=state.tenant,
        result=result,
    )
