"""Forking a run: what it did up to a step is read, put away for a new one, and the new one started."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure import archive, forking
from perdure.context import refs_of
from perdure.deposits import deposited
from perdure.errors import ForkError
from perdure.messages import Content, Undone, content_hash
from perdure.sensitive import Vaulted
from perdure.speaking import LARGEST, size_of
from perdure.starting import begin
from perdure.state import RunState
from perdure.telemetry.executions import histories
from perdure.telemetry.projection import Projection
from perdure.transcripts import pieces
from perdure.wire import MODEL, ModelInput, RunRequest, packed_state

if TYPE_CHECKING:
    from perdure.activities.stores import Store
    from perdure.client import Client, RunHandle


@dataclass(frozen=True)
class Source:
    """A run, as what it is forked from.

    Attributes:
        state: As it was right after the step.
        task: What the user said at its start.
        gone: What it undid later.
        started: How it was started.
    """

    state: RunState
    task: Content
    gone: list[Undone]
    started: WorkflowExecutionStartedEventAttributes

    @property
    def priority(self) -> Priority:
        """What it was started with."""
        kept = self.started.priority
        return Priority(kept.priority_key or None, kept.fairness_key or None, kept.fairness_weight or None)

    async def labels(self, client: Client) -> Any:
        """Return the labels that it was given."""
        payload = self.started.memo.fields.get("labels")
        return (await client.temporal.data_converter.decode([payload]))[0] if payload else {}


async def fork(
    client: Client,
    run_id: str,
    step: int,
    *,
    say: Content | None = None,
    model: str | None = None,
    instructions: str | None = None,
    id: str | None = None,
    values: Mapping[str, str] | None = None,
) -> RunHandle:
    """Start a run that goes on from what run `run_id` was after `step` steps; see `RunHandle.fork`."""
    from perdure.client import RunHandle

    say, values = _without_values(say, values or {}), values or {}
    await client.admitted()
    source = await read(client, run_id, step)
    new_id = id or f"{source.state.spec.name}-{secrets.token_hex(4)}"
    request = await prepare(client, source, new_id, model, instructions, say)
    task = content_hash([run_id, step, say, model, instructions])
    memo = {"agent": request.spec.name, "labels": await source.labels(client), "task": task, "forked_from": run_id}
    queue, reuse = source.started.task_queue.name, WorkflowIDReusePolicy.REJECT_DUPLICATE
    there = id is not None and await archive.has_alone(client, new_id)
    try:
        if not there:
            async with deposited(client, new_id, values) as vaulted:
                request = _recordable(client, request, vaulted)
                await begin(client.temporal, new_id, request, queue, reuse, memo, source.priority)
            return client.handle(new_id)
    except WorkflowAlreadyStartedError:
        pass
    handle = RunHandle(client, new_id, existing=True)
    handle.same_task = (await handle.memo()).get("task") == task
    return handle


def _without_values(said: Content | None, values: Mapping[str, str]) -> Content | None:
    """Return what is said without secrets, should the user have written one."""
    if not values or not isinstance(said, str):
        return said
    from perdure.activities.unlocked import Unlocked

    return Unlocked(values).json(said)


def _recordable(client: Client, request: RunRequest, vaulted: Vaulted | None) -> RunRequest:
    """Return `request` with where the secrets are, and compressed where it is too large for a history."""
    assert request.carried is not None  # noqa: S101 - it was just made
    request.carried.secrets = vaulted
    if size_of(client.temporal, request) <= LARGEST:
        return request
    return request.model_copy(update={"carried": None, "packed": packed_state(request.carried)})


async def read(client: Client, run_id: str, step: int) -> Source:
    """Return a run as it was after `step` turns of its model, whoever has it.

    Raises:
        ForkError: If it has not taken so many.
        RPCError: If neither engine nor archive has it.
        ConnectionFailed: If the archive is needed, and can't be read.
    """

    async def shelf(run_id: str) -> Any:
        return await archive.executions(client, run_id)

    projection = Projection(run_id, client.temporal.data_converter)
    state, started, first = None, None, -1
    async for event in histories(client.temporal, run_id, shelf=shelf):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = event.workflow_execution_started_event_attributes
        if await _asks_for(event, step + 1, client) and projection.state:
            state = projection.state.model_copy(deep=True)
        await projection.feed(event)
        first = projection.state.steps if first < 0 and projection.state else first
    last = projection.state
    assert last is not None and started is not None  # noqa: S101, PT018 - it begins so
    state = last if state is None and last.steps == step else state
    if state is None or state.steps != step:
        raise ForkError(_range(run_id, first, last))
    done = {record.position for record in [*state.records, *projection.earlier.records]}
    gone = [one for one in projection.result().undone if one.position in done]
    return Source(state, projection.task, gone, started)


def _range(run_id: str, first: int, last: RunState) -> str:
    """Return where a run can be forked, as a sentence; its history begins after step `first`."""
    taken = f"Run {run_id} has taken {last.steps} step{'' if last.steps == 1 else 's'}"
    steps = f"{first} to {last.steps}" if first < last.steps else f"{last.steps}"
    if first and (source := last.forked_from):
        return f"{taken}, the first {source.step} as run {source.run_id}: fork it at {steps}, or that one before."
    return f"{taken}: fork it at {steps}."


async def _asks_for(event: HistoryEvent, step: int, client: Client) -> bool:
    """Return whether the model is asked there for that turn."""
    scheduled = event.activity_task_scheduled_event_attributes
    if scheduled.activity_type.name != MODEL:
        return False
    (request,) = await client.temporal.data_converter.decode(list(scheduled.input.payloads), [ModelInput])
    asked: int = request.step
    return asked == step


async def prepare(
    client: Client, source: Source, run_id: str, model: str | None, instructions: str | None, say: Content | None
) -> RunRequest:
    """Return the input of a new run that goes on from `source`; what it needs of the store is its own then.

    Raises:
        ForkError: If it can't go on from there, or the store lacks what was put away.
        ConnectionFailed: If the store is needed, and can't be used.
    """
    spec = forking.changed(source.state.spec, model, instructions)
    state = forking.forked(source.state, run_id, spec, say, source.gone)
    assert state.forked_from is not None  # noqa: S101 - it is set there
    async with client.store() as store:
        await _put_away(client, store, state)
    return RunRequest(
        input=source.task if say is None else say,
        spec=spec,
        spec_hash=content_hash(spec),
        heartbeat=client.settings.heartbeat_timeout,
        max_history_events=client.settings.max_history_events or 0,
        notify=client.settings.notify,
        carried=state,
        session=state.session,
        tenant=state.tenant,
        forked_from=state.forked_from,
    )


async def _put_away(client: Client, store: Store, state: RunState) -> None:
    """Put the earlier part of `state` in the store, and own all that it refers to there."""
    from perdure.activities.stores import run_owner, segments

    owner = run_owner(client.temporal.namespace, state.run_id)
    refs = set(refs_of(state.messages)) | {call.result.ref for call in state.parked if call.result and call.result.ref}
    try:
        async for segment, body in pieces(state.before, partial(segments.read, store)):
            await store.own([segment.ref], owner)
            refs.update(refs_of(body.entries))
    except LookupError as error:
        raise ForkError(f"What run {_source(state)} has put away is not there any more: {error}") from error
    await segments.own_there(store, refs, owner)
    await segments.put_away(store, owner, state)


def _source(state: RunState) -> str:
    return state.forked_from.run_id if state.forked_from else state.run_id
