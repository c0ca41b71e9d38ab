"""A reset in Temporal rewinds a run; what the part left behind has done is never done again without a word."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from perdure.policies import Limits
from perdure.tools import ToolContext, tool
from tests.integration.archiving import executions

DONE = {"text": "done"}


async def reset(stage: Any, run_id: str, *, nth: int = 0, execution: str | None = None) -> None:
    """Rewind a run to before its `nth` completed workflow task (-1: the last), as the Web UI does.

    Of a run that has continued as new, `execution` says in which one; None: in the last.
    """
    temporal = stage.client.temporal
    handle = temporal.get_workflow_handle(run_id, run_id=execution)
    history = [event async for event in handle.fetch_history_events()]
    ends = [e.event_id for e in history if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run_id, run_id=execution or ""),
            reason="a test",
            workflow_task_finish_event_id=ends[nth],
            request_id=f"{run_id}-{nth}",
            reset_reapply_type=ResetReapplyType.RESET_REAPPLY_TYPE_ALL_ELIGIBLE,
        )
    )


def call(name: str) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": {}}]}


@pytest.mark.parametrize("nth", range(4))
async def test_calls_that_are_not_executed_are_named_alike_wherever_the_run_is_reset(stage: Any, nth: int) -> None:
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    handle = await stage.start([call("look"), call("gone"), call("look"), DONE], [look])
    await stage.end(handle)
    await reset(stage, handle.id, nth=nth)
    assert (await stage.end(handle)).result.text == "done"  # the audit compares run and history


async def test_an_effect_after_a_reset_is_asked_about_and_has_a_new_key(stage: Any) -> None:
    keys: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        return "paid"

    handle = await stage.start([call("pay"), DONE], [pay])
    await stage.end(handle)
    await reset(stage, handle.id)
    asked = await stage.until(handle, "approval_requested")
    assert "reset" in asked.why
    assert len(keys) == 1, "it was repeated before anybody was asked"
    await handle.approve(asked.call, hash=asked.hash)
    finished = await stage.end(handle)
    assert finished.result.status == "completed"
    assert len(set(keys)) == 2


async def test_an_approval_of_the_part_left_behind_does_not_hold_after_a_reset(stage: Any) -> None:
    paid: list[int] = []

    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        paid.append(1)
        return "paid"

    handle = await stage.start([call("pay"), DONE], [pay])
    asked = await stage.until(handle, "approval_requested")
    await handle.approve(asked.call, hash=asked.hash)
    await stage.end(handle)
    await reset(stage, handle.id)  # Temporal sends the approval once more
    again = await stage.until(handle, "approval_requested")
    await stage.until(handle, "decision_refused")
    assert again.call != asked.call
    await handle.deny(again.call)
    finished = await stage.end(handle)
    assert finished.results[0].status == "denied"
    assert len(paid) == 1


async def test_an_unsafe_call_under_way_at_a_reset_is_in_doubt_and_not_begun_again(stage: Any) -> None:
    begun: list[int] = []
    go_on = asyncio.Event()

    @tool(timeout=timedelta(seconds=30))
    async def pay() -> str:
        """Pay, slowly."""
        begun.append(1)
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return "paid"

    handle = await stage.start([call("pay"), DONE], [pay])
    await stage.until_held(handle, "pay")
    await stage.signal(handle, "approve", "9.9")  # something to be decided about while it is under way
    await stage.until(handle, "decision_refused")
    await reset(stage, handle.id, nth=-1)
    doubt = await stage.until(handle, "in_doubt")
    go_on.set()
    assert "reset" in doubt.message
    await handle.settle(doubt.call, "done", result="paid")
    finished = await stage.end(handle)
    assert finished.result.status == "completed"
    assert len(begun) == 1


async def test_a_retry_after_a_reset_has_the_key_of_the_call_in_doubt(stage: Any) -> None:
    keys: list[str] = []

    @tool(effect="idempotent", attempts=1)
    async def pay(ctx: ToolContext) -> str:
        """Pay; the first reply is lost."""
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise OSError("connection lost")
        return "paid"

    handle = await stage.start([call("pay"), DONE], [pay])
    await stage.until(handle, "in_doubt")
    await stage.state(handle)  # the last workflow task is complete
    await reset(stage, handle.id, nth=-1)
    doubt = await stage.until(handle, "in_doubt")
    await handle.settle(doubt.call, "retry")
    await stage.end(handle)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert doubt.key == keys[0]


@pytest.mark.parametrize(("execution", "paid_before", "asked"), [(0, 0, 2), (1, 1, 1)])
async def test_effects_left_behind_in_a_long_run_are_asked_about_and_its_spilled_results_stay(
    stage: Any, execution: int, paid_before: int, asked: int
) -> None:
    keys: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> str:
        """Pay; the receipt is too much for a history."""
        keys.append(ctx.idempotency_key)
        return f"receipt {len(keys)} " + "x" * 100_000

    @tool(effect="read")
    async def look(q: int) -> str:
        """Look."""
        return f"seen {q} " * 30_000

    stage.client.settings = stage.client.settings.model_copy(update={"max_history_events": 40})
    looks = [{"calls": [{"name": "look", "arguments": {"q": number}}]} for number in range(7)]
    replies = [looks[0], call("pay"), *looks[1:6], call("pay"), looks[6], DONE]
    handle = await stage.start(replies, [look, pay], limits=Limits(input_tokens=None))
    await stage.end(handle)
    names = [name async for name in executions(stage, handle.id)][::-1]
    assert len(names) > 2
    await reset(stage, handle.id, execution=names[execution])
    told = 0
    async for event in handle.events():
        if event.type == "approval_requested":
            told += 1
            assert "reset" in event.why
            assert len(keys) == 1 + told, "it was repeated before anybody was asked"
            await handle.approve(event.call, hash=event.hash)
    finished = await stage.end(handle)
    assert (finished.result.status, told) == ("completed", asked)
    assert len(set(keys)) == len(keys) == 2 + asked
    wanted = [f"receipt {number} " for number in (*range(1, paid_before + 1), *range(3, 3 + asked))]
    receipts = [result for result in finished.results if result.name == "pay"]
    assert [result.content[: len("receipt 1 ")] for result in receipts] == wanted
    async with stage.client.store() as store:
        for result in finished.results:
            assert result.ref
            assert len(await store.get(result.ref)) == result.size
