"""What follows a run: it is begun at its end, whatever that is, and archives it; the run does not wait for it."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle

from perdure.activities import copies
from perdure.activities.stores import opened
from perdure.policies import Limits
from perdure.tools import tool
from perdure.wire import AFTERWARDS, AfterRun, after_id
from tests.integration.archiving import archived, until
from tests.integration.test_reset import reset


async def follower(stage: Any, run_id: str) -> WorkflowExecutionDescription:
    """Return the workflow that follows a run, or fail if there is none."""
    temporal = stage.client.temporal
    described = await temporal.get_workflow_handle(run_id).describe()
    handle: WorkflowHandle[Any, Any] = temporal.get_workflow_handle(after_id(run_id, described.run_id[-12:]))
    return await handle.describe()


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


@tool(effect="read")
async def look() -> str:
    """Look."""
    return "nothing"


TWO = Limits(steps=2)
PAYING = [{"calls": [{"name": "pay", "arguments": {}}]}, "done"]


async def test_a_run_that_is_completed_is_archived_with_its_result(stage: Any) -> None:
    finished = await stage.run(["done"])
    kept = await archived(stage, finished.handle.id)
    assert kept.result == finished.result
    assert (kept.agent, kept.status, kept.started_at) == ("subject", "completed", finished.projection.started_at)
    assert kept.closed_at == finished.projection.events[-1].time


async def test_a_run_that_is_cancelled_is_archived(stage: Any) -> None:
    handle = await stage.start(PAYING, [pay])
    await stage.until(handle, "approval_requested")
    await handle.cancel("enough")
    finished = await stage.end(handle)
    kept = await archived(stage, handle.id)
    assert kept.status == "cancelled"
    assert kept.result == finished.result


async def test_a_run_that_fails_is_archived(stage: Any, raw_model: Any) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("a defect")

    finished = await stage.run(raw_model(broken))
    kept = await archived(stage, finished.handle.id)
    assert kept.status == "failed"
    assert kept.result == finished.result


async def test_a_run_that_was_resumed_is_archived_with_both_its_executions(stage: Any) -> None:
    finished = await stage.run([{"calls": [{"name": "look", "arguments": {}}]}, "half", "all"], [look], limits=TWO)
    assert finished.result.status == "budget_exhausted"
    assert (await archived(stage, finished.handle.id)).status == "budget_exhausted"
    await finished.handle.resume(add_steps=3)
    assert (await stage.end(finished.handle)).result.status == "completed"
    assert (await archived(stage, finished.handle.id, executions=2)).status == "completed"


async def test_a_run_whose_follower_is_there_already_ends_all_the_same(stage: Any) -> None:
    handle = await stage.start(PAYING, [pay])
    await stage.until(handle, "approval_requested")
    described = await stage.client.temporal.get_workflow_handle(handle.id).describe()
    request = AfterRun(run_id=handle.id, execution=described.run_id)
    name = after_id(handle.id, described.run_id[-12:])
    await stage.client.temporal.start_workflow(AFTERWARDS, request, id=name, task_queue=stage.queue)
    await handle.approve()
    finished = await stage.end(handle)
    assert finished.result.status == "completed"
    assert (await archived(stage, handle.id)).result == finished.result


@pytest.mark.parametrize("nth", [0, -1])
async def test_a_run_that_was_reset_is_followed_again(stage: Any, nth: int) -> None:
    finished = await stage.run(["done"])
    first = await follower(stage, finished.handle.id)
    await reset(stage, finished.handle.id, nth=nth)
    assert (await stage.end(finished.handle)).result.status == "completed"
    workflow = stage.client.temporal.get_workflow_handle(finished.handle.id)
    started = [
        event.child_workflow_execution_started_event_attributes.workflow_execution
        async for event in workflow.fetch_history_events()
        if event.HasField("child_workflow_execution_started_event_attributes")
    ]
    assert started[-1].run_id != first.run_id


async def test_what_follows_runs_is_not_listed_among_them(stage: Any) -> None:
    finished = await stage.run(["done"])
    await follower(stage, finished.handle.id)
    listed = [run.id for run in await stage.client.list_runs(limit=1000)]
    assert finished.handle.id in listed
    assert not [run_id for run_id in listed if "/afterwards/" in run_id]


async def test_a_copy_that_a_defect_hinders_holds_up_no_other_and_not_the_archive(stage: Any, monkeypatch: Any) -> None:
    async def broken(_: Any) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(copies, "audit_copy", lambda _: broken)
    finished = await stage.run(["done"])
    await archived(stage, finished.handle.id)

    async def followed() -> bool:
        return (await follower(stage, finished.handle.id)).status is WorkflowExecutionStatus.COMPLETED

    await until(followed)
    async with opened(stage.client.settings) as store:
        rows = await store.events(stage.client.temporal.namespace, run_id=finished.handle.id)
    assert [row.type for row in rows][-1] == "run_finished"
