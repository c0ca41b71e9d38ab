"""The histories of a run: one of each execution, from the first that there still is to the one that goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistoryEventAsyncIterator
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from perdure.wire import RunRequest


async def error_of(converter: DataConverter, failure: Failure) -> BaseException:
    """Return the error that a failure is. That of an event, which may go into the archive, stays as it was recorded."""
    copy = Failure()
    copy.CopyFrom(failure)  # it is decrypted in place
    return await converter.decode_failure(copy)


def local_activity(marker: Any) -> dict[str, Any] | None:
    """Return what a marker tells of a local activity that has ended; None of something else."""
    if marker.marker_name != "core_local_activity":
        return None
    told: dict[str, Any] = json.loads(marker.details["data"].payloads[0].data)
    return told


def was_reset(last: HistoryEvent) -> bool:
    """Return whether an execution was ended by the engine, since the run was reset."""
    return last.workflow_execution_terminated_event_attributes.identity == "history-resetter"


@dataclass(frozen=True)
class Recorded:
    """An execution of a run that has ended, as Temporal recorded it; an encrypted payload stays encrypted.

    Attributes:
        execution: Its Temporal run id.
        events: From its start to its end.
    """

    execution: str
    events: Sequence[HistoryEvent]

    @property
    def left_behind(self) -> bool:
        """Whether somebody has reset the run: it goes on with another execution, which begins as this one did."""
        return was_reset(self.events[-1])

    @property
    def continues(self) -> str:
        """The Temporal run id of the execution that it goes on from, "" where it is the first."""
        return self.events[0].workflow_execution_started_event_attributes.continued_execution_run_id


Shelf = Callable[[str], Awaitable[Sequence[Recorded]]]
"""Returns the executions of a run that are archived, in any order; none where the archive does not have it."""


async def no_shelf(run_id: str) -> Sequence[Recorded]:  # noqa: ARG001 - a shelf is asked for a run
    """Return nothing: the engine's histories are all there is."""
    return ()


async def histories(
    temporal: Client, run_id: str, *, since: int | None = 0, wait: bool = False, shelf: Shelf = no_shelf
) -> AsyncIterator[HistoryEvent]:
    """Yield a run's events, execution after execution.

    Args:
        since: Of these, the executions from this one on, counted from 0; None: the last one alone.
        wait: Wait for more, up to the run's end.
        shelf: Has what the engine has forgotten.

    Raises:
        RPCError: If there is no such run, or the server does not answer.
    """
    events = _events(temporal, run_id, wait=wait)
    try:
        first = await anext(events)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND or not (kept := _ended(await shelf(run_id))):
            raise
        for event in await _those(temporal, kept, since):
            yield event
        return
    forgotten, executions = await _before(temporal, run_id, first, since, shelf)
    for event in forgotten:
        yield event
    for execution in executions:
        async for event in _events(temporal, run_id, execution):
            yield event
    yield first
    while True:
        following = ""
        async for event in events:
            yield event
            following = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        if not following:
            return
        events = _events(temporal, run_id, following, wait=wait)


async def _before(
    temporal: Client, run_id: str, first: HistoryEvent, since: int | None, shelf: Shelf
) -> tuple[Sequence[HistoryEvent], list[str]]:
    """Return what came before an execution, from the one numbered `since` on, oldest first.

    First the events that only the archive has, then the engine's ids of the executions that it still has. They are
    found backwards: after a reset, an execution may be followed by two, of which one was left behind.

    Args:
        first: The first event of the one that is begun with.
    """
    found: list[str] = []
    while since is not None:
        before = first.workflow_execution_started_event_attributes.continued_execution_run_id
        missing = await _number(temporal, first) - since if before else 0
        if missing <= 0:
            break
        try:
            first = await anext(_events(temporal, run_id, before, page_size=1))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            kept = _up_to(before, await shelf(run_id))[-missing:]  # its retention has ended
            return [event for one in kept for event in one.events], found[::-1]
        found.append(before)
    return (), found[::-1]


def _ended(kept: Sequence[Recorded]) -> list[Recorded]:
    """Return the executions that the last one of a run goes on from, oldest first, and that one."""
    last = max(kept, key=lambda one: one.events[-1].event_time.ToNanoseconds(), default=None)
    return _up_to(last.execution, kept) if last else []


def _up_to(execution: str, kept: Sequence[Recorded]) -> list[Recorded]:
    by_id, found = {one.execution: one for one in kept}, list[Recorded]()
    while execution in by_id:
        found.append(by_id.pop(execution))
        execution = found[-1].continues
    return found[::-1]


async def _those(temporal: Client, kept: Sequence[Recorded], since: int | None) -> list[HistoryEvent]:
    number = 0 if since is None else await _number(temporal, kept[0].events[0])
    start = len(kept) - 1 if since is None else max(since - number, 0)
    return [event for one in kept[start:] for event in one.events]


async def _number(temporal: Client, first: HistoryEvent) -> int:
    """Return how many executions came before the one that begins with `first`."""
    payloads = first.workflow_execution_started_event_attributes.input.payloads
    (request,) = await temporal.data_converter.decode(list(payloads), [RunRequest])
    number: int = request.executions
    return number


def _events(
    temporal: Client, run_id: str, execution: str = "", *, wait: bool = False, page_size: int | None = None
) -> WorkflowHistoryEventAsyncIterator:
    handle = temporal.get_workflow_handle(run_id, run_id=execution or None)
    return handle.fetch_history_events(wait_new_event=wait, page_size=page_size)
