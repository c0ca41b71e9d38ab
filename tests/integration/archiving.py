"""Runs in the archive, and an engine that forgets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.stores import ArchivedRun, store_of

PATIENCE = 60


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that can only be asked."""
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.05)


async def archived(stage: Any, run_id: str, executions: int = 1) -> ArchivedRun:
    """Return a run once it is in the archive with its end, and with so many executions at least."""
    found: list[ArchivedRun] = []

    async def there() -> bool:
        run = await store.archived(stage.client.temporal.namespace, run_id)
        if run and run.result and len(run.histories) >= executions:
            found.append(run)
        return bool(found)

    async with aclosing(store_of(stage.client.settings)) as store:
        await until(there)
    return found[0]


async def executions(stage: Any, run_id: str) -> AsyncIterator[str]:
    """Yield the engine's ids of a run's executions, the last one first."""
    execution = ""
    while True:
        handle = stage.client.temporal.get_workflow_handle(run_id, run_id=execution or None)
        first = await anext(handle.fetch_history_events(page_size=1))
        yield execution or (await handle.describe()).run_id
        execution = first.workflow_execution_started_event_attributes.continued_execution_run_id
        if not execution:
            return


async def delete(temporal: Any, run_id: str, execution: str) -> None:
    """Delete an execution, which takes the engine half a minute."""
    of = WorkflowExecution(workflow_id=run_id, run_id=execution)
    await temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace=temporal.namespace, workflow_execution=of)
    )

    async def gone() -> bool:
        try:
            await temporal.get_workflow_handle(run_id, run_id=execution).describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    await until(gone)
