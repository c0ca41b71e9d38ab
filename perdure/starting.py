"""The first call to the engine about a run: it is to be started."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.common import (
    Priority,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError

from perdure.engine import search_attributes
from perdure.errors import PerdureError
from perdure.speaking import LARGEST, size_of, unreachable
from perdure.wire import WORKFLOW, RunRequest

TASK_TIMEOUT = timedelta(seconds=5)
"""How long a run stands still after a worker was lost while it decided; the engine's default is 10 s."""


async def begin(
    temporal: Client,
    run_id: str,
    request: RunRequest,
    task_queue: str,
    reuse: WorkflowIDReusePolicy,
    memo: Mapping[str, Any],
    priority: Priority,
) -> None:
    """Start an execution of a run.

    Args:
        reuse: Whether one of that id may have been there before.

    Raises:
        WorkflowAlreadyStartedError: If one is there, or was.
        PerdureError: If the input is too large to be recorded.
        ConnectionFailed: If the server does not answer.
    """
    size = size_of(temporal, request)
    if size > LARGEST:
        hint = "give larger documents to a tool, by their address"
        raise PerdureError(f"The task and its agent have {size:,} bytes; at most {LARGEST:,} are taken: {hint}.")
    request = request.model_copy(update={"indexed": await search_attributes.has_more(temporal)})
    try:
        await temporal.start_workflow(
            WORKFLOW,
            request,
            id=run_id,
            task_queue=task_queue,
            id_reuse_policy=reuse,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            task_timeout=TASK_TIMEOUT,
            memo=memo,
            priority=priority,
            search_attributes=_attributes(request),
            static_summary=f"agent {request.spec.name}",
        )
    except RPCError as error:
        if "search attribute" not in error.message:
            raise unreachable(temporal, error) from error
        await search_attributes.ensure(temporal)  # a server that no worker has prepared yet
        await begin(temporal, run_id, request, task_queue, reuse, memo, priority)


def _attributes(request: RunRequest) -> TypedSearchAttributes:
    session = search_attributes.told(request.session.name) if request.session else ""
    tenant = search_attributes.told(request.tenant)
    return search_attributes.at_start(request.spec.name, more=request.indexed, session=session, tenant=tenant)


def priority_of(described: WorkflowExecutionDescription) -> Priority:
    """Return what a run was started with; everything it does inherits it."""
    kept = described.raw_description.workflow_execution_info.priority
    return Priority(
        priority_key=kept.priority_key or None,
        fairness_key=kept.fairness_key or None,
        fairness_weight=kept.fairness_weight or None,
    )
