"""Whether the runs that there are would go on with today's code: their histories, replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Replayer, UnsandboxedWorkflowRunner, WorkflowRunner

from perdure.client import Client
from perdure.engine.converter import data_converter
from perdure.errors import RecordingError
from perdure.wire import AFTERWARDS, NOTIFY, WORKFLOW
from perdure.workflows.afterwards import AfterwardsWorkflow
from perdure.workflows.agent import AgentWorkflow
from perdure.workflows.noticing import NotifyWorkflow

_WORKFLOWS = {WORKFLOW: AgentWorkflow, AFTERWARDS: AfterwardsWorkflow, NOTIFY: NotifyWorkflow}

RUNNING = "ExecutionStatus = 'Running'"
"""The query of the runs for which a deploy matters."""

_ENDS = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
)


@dataclass(frozen=True)
class Checked:
    """What became of one history.

    Attributes:
        run_id: The run, which is the Temporal workflow's id.
        source: The file, or `server`.
        events: How many it has.
        running: Whether it has not ended: a deploy reaches it.
        verdict: `fine`, `breaks`, or `foreign`: a workflow that is not Perdure's.
        why: For `breaks`: what today's code does otherwise; for `foreign`: what it is.
    """

    run_id: str
    source: str
    events: int
    running: bool
    verdict: Literal["fine", "breaks", "foreign"]
    why: str = ""


async def replay_history(
    history: WorkflowHistory,
    *,
    converter: DataConverter = data_converter,
    runner: WorkflowRunner | None = None,
    interceptors: Sequence[Interceptor] = (),
) -> None:
    """Replay a history with the code that is here.

    Args:
        runner: Default: the one that workers have.

    Raises:
        Exception: If that decides otherwise than the code that was recorded; the text says where.
    """
    replayer = Replayer(
        workflows=[*_WORKFLOWS.values()],
        workflow_runner=runner or UnsandboxedWorkflowRunner(),
        data_converter=converter,
        interceptors=interceptors,
    )
    await replayer.replay_workflow(history)


async def check_history(
    history: WorkflowHistory, source: str = "", *, converter: DataConverter = data_converter
) -> Checked:
    """Return whether a run would go on with the code that is here."""
    first = history.events[0].workflow_execution_started_event_attributes
    run_id = first.workflow_id or history.workflow_id
    running = history.events[-1].event_type not in _ENDS
    told = (run_id, source, len(history.events), running)
    if first.workflow_type.name not in _WORKFLOWS:
        return Checked(*told, verdict="foreign", why=f"a workflow of type {first.workflow_type.name}")
    try:
        await replay_history(WorkflowHistory(run_id, history.events), converter=converter)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run would meet it as well
        return Checked(*told, verdict="breaks", why=_reason(error))
    return Checked(*told, verdict="fine")


def _reason(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return text if "TMPRL" in text else f"{type(error).__name__}: {text}"


# -- where histories come from -----------------------------------------------------------------------------


async def check_histories(folder: Path, converter: DataConverter = data_converter) -> AsyncIterator[Checked]:
    """Check all histories in the JSON files of a folder and those below it, as `temporal workflow show -o json` writes.

    Raises:
        RecordingError: If there are none, or one of the files is no history.
    """
    files = await asyncio.to_thread(lambda: sorted(folder.rglob("*.json")) if folder.is_dir() else [])
    if not files:
        raise RecordingError(f"There are no histories (*.json) in {str(folder)!r}.")
    for file in files:
        yield await check_history(await asyncio.to_thread(_read, file), str(file), converter=converter)


def _read(file: Path) -> WorkflowHistory:
    try:
        history = WorkflowHistory.from_json(file.stem, file.read_text("utf-8"))
        first = history.events[0]
    except Exception as error:  # the SDK names no errors here
        raise RecordingError(f"The file {str(file)!r} is no history: {_reason(error)}.") from error
    if first.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise RecordingError(f"The file {str(file)!r} is no whole history: it does not begin with the start.")
    return history


async def check_server(client: Client, query: str = RUNNING, limit: int | None = None) -> AsyncIterator[Checked]:
    """Check the histories of the workflows that a query of the engine finds, newest first.

    Raises:
        RecordingError: If the engine can't read the query, or has no answer to it.
    """
    temporal: TemporalClient = client.temporal
    try:
        async for found in temporal.list_workflows(query, limit=limit):
            if found.workflow_type not in _WORKFLOWS:
                running = found.status is WorkflowExecutionStatus.RUNNING
                why = f"a workflow of type {found.workflow_type}"
                yield Checked(found.id, "server", found.history_length, running, "foreign", why)
                continue
            handle: Any = temporal.get_workflow_handle(found.id, run_id=found.run_id)
            history: WorkflowHistory = await handle.fetch_history()
            yield await check_history(history, "server", converter=temporal.data_converter)
    except RPCError as error:
        raise RecordingError(f"The engine does not answer the query {query!r}: {error.message}") from error
