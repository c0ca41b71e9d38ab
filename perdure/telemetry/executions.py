"""The histories of a run: one of each execution, from the first that the engine still has to the one that goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistoryEventAsyncIterator
from temporalio.service import RPCError, RPCStatusCode

from perdure.wire import RunRequest


async def histories(
    temporal: Client, run_id: str, *, since: int | None = 0, wait: bool = False
) -> AsyncIterator[HistoryEvent]:
    """Yield a run's events, execution after execution.

    Args:
        since: Of these, the executions from this one on, counted from 0; None: the last one alone.
        wait: Wait for more, up to the run's end.

    Raises:
        RPCError: If there is no such run, or the server does not answer.
    """
    events = _events(temporal, run_id, wait=wait)
    first = await anext(events)
    if earlier := await _earlier(temporal, run_id, first, since):
        events = _events(temporal, run_id, earlier, wait=wait)
    else:
        yield first
    while True:
        following = ""
        async for event in events:
            yield event
            following = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        if not following:
            return
        events = _events(temporal, run_id, following, wait=wait)


async def _earlier(temporal: Client, run_id: str, first: HistoryEvent, since: int | None) -> str:
    """Return the engine's id of the execution numbered `since`, or of the oldest one after it that the engine has.

    Args:
        first: The first event of the last execution: "" is returned where it is that one.
    """
    found = ""
    while since is not None:
        started = first.workflow_execution_started_event_attributes
        before = started.continued_execution_run_id
        if not before:
            return found
        (request,) = await temporal.data_converter.decode(list(started.input.payloads), [RunRequest])
        if request.executions <= since:
            return found
        try:
            first = await anext(_events(temporal, run_id, before, page_size=1))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return found  # its retention has ended
        found = before
    return found


def _events(
    temporal: Client, run_id: str, execution: str = "", *, wait: bool = False, page_size: int | None = None
) -> WorkflowHistoryEventAsyncIterator:
    handle = temporal.get_workflow_handle(run_id, run_id=execution or None)
    return handle.fetch_history_events(wait_new_event=wait, page_size=page_size)
