"""Where a run stands: its status, what it waits for, what is being retried. From history and the engine alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from perdure.events import ApprovalRequested, InDoubt
from perdure.messages import JSON
from perdure.state import CallState, CallStatus
from perdure.steps import Wait, next_step
from perdure.wire import JUDGE, MODEL, PROBE

if TYPE_CHECKING:
    from perdure.client import Client, RunHandle
    from perdure.telemetry.projection import Projection


@dataclass(frozen=True)
class Request:
    """What a run wants of a person: an approval, or the settlement of a call in doubt.

    Attributes:
        why: The policy that asks, or why the outcome is unknown.
        hash: Of the arguments; for approvals.
        key: The idempotency key under which the effect may be found; for settlements.
    """

    run_id: str
    call: str
    tool: str
    wants: Literal["approval", "settlement"]
    arguments: dict[str, JSON]
    why: str
    hash: str
    key: str
    since: datetime | None

    @property
    def commands(self) -> list[str]:
        """The exact commands that answer it."""
        call = f"{shlex.quote(self.run_id)} {self.call}"
        if self.wants == "approval":
            return [f"perdure approve {call}", f"perdure deny {call}"]
        return [f"perdure settle {call} {outcome}" for outcome in ("done", "not-done", "retry")]


@dataclass(frozen=True)
class Attempt:
    """An activity under way that failed before.

    Attributes:
        number: Of the attempt under way or due, from 1.
        last_failure: Why the one before failed.
        next_at: When the next one is due; None while one is under way.
    """

    what: str
    number: int
    last_failure: str
    next_at: datetime | None


def status(projection: Projection) -> str:
    """Return the run's status, an open one included."""
    if projection.ended:
        return projection.ended.status
    step = next_step(projection.state) if projection.state else None
    return step.status if isinstance(step, Wait) else "running"


def waits(projection: Projection) -> bool:
    """Return whether nothing goes on in the run until a person answers."""
    return status(projection).startswith("waiting_")


def requests(projection: Projection) -> Iterator[Request]:
    """Yield what an open run wants of people, in call order."""
    if projection.ended or projection.state is None:
        return
    since = {event.call: event.time for event in projection.events if isinstance(event, ApprovalRequested | InDoubt)}
    for call in projection.state.calls:
        if call.status in (CallStatus.ASKING, CallStatus.IN_DOUBT):
            yield _request(projection.run_id, call, since.get(call.position))


def _request(run_id: str, call: CallState, since: datetime | None) -> Request:
    approval = call.status is CallStatus.ASKING
    doubt = call.doubt.message if call.doubt else ""
    return Request(
        run_id=run_id,
        call=call.position,
        tool=call.call.name,
        wants="approval" if approval else "settlement",
        arguments=call.arguments,
        why=(call.call.ask or "") if approval else doubt,
        hash=call.hash,
        key=call.key,
        since=since,
    )


async def attempts(client: Client, run_id: str) -> list[Attempt]:
    """Return what is being tried again; history knows nothing of it until it ends."""
    described = await client.temporal.get_workflow_handle(run_id).describe()
    found = [one for one in described.raw_description.pending_activities if one.HasField("last_failure")]
    return [await _attempt(client, one) for one in found]


async def _attempt(client: Client, pending: Any) -> Attempt:
    from datetime import UTC

    from perdure.failures import explain

    error = await client.temporal.data_converter.decode_failure(pending.last_failure)
    due = pending.next_attempt_schedule_time.ToDatetime(UTC) if pending.HasField("next_attempt_schedule_time") else None
    return Attempt(
        what=_activity(pending.activity_type.name, pending.activity_id),
        number=pending.attempt,
        last_failure=explain(error),
        next_at=due,
    )


def _activity(kind: str, position: str) -> str:
    match kind:
        case _ if kind == MODEL:
            return "model call"
        case _ if kind == PROBE:
            return f"look-up of call {position.partition('?')[0]}"
        case _ if kind == JUDGE:
            return f"check of the arguments of call {position}"
        case _:
            return f"{kind} (call {position})"


async def where_served(handle: RunHandle, client: Client) -> tuple[str, str | None]:
    """Return the queue on which a run waits for a worker, and the file that was last served there, if known."""
    from perdure.activities.stores import open_store, store_url

    described = await client.temporal.get_workflow_handle(handle.id).describe()
    store = open_store(store_url(client.settings))
    try:
        entries = await store.agents(client.temporal.namespace)
    finally:
        await store.aclose()
    return described.task_queue, next((one.source for one in entries if one.task_queue == described.task_queue), None)
