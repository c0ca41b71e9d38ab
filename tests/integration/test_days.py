"""Runs that wait for days, on an engine whose clock can be moved."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from temporalio.client import RPCError
from temporalio.testing import WorkflowEnvironment

from perdure import Limits, tool
from perdure.client import Client
from perdure.engine.converter import data_converter
from perdure.engine.server import find_binary
from tests.integration.conftest import Stage

SKIPPING = ["--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true"]
DAYS = timedelta(days=3)


@pytest.fixture
async def engine_of_days(stage_settings):
    """An engine of its own, whose clock can be moved."""
    async with AsyncExitStack() as stack:
        try:
            starting = WorkflowEnvironment.start_time_skipping_v2(
                dev_server_existing_path=find_binary(),
                dev_server_extra_args=SKIPPING,
                data_converter=data_converter,
            )
            env = await stack.enter_async_context(await starting)
        except (AttributeError, RPCError) as error:
            pytest.skip(f"this Temporal server or SDK can't skip time: {error}")
        yield env


@pytest.fixture
async def stage(engine_of_days, stage_settings):
    """A stage on that engine; its runs are audited like others."""
    async with AsyncExitStack() as stack:
        stage = Stage(Client(engine_of_days.client, stage_settings), stack)
        yield stage
        await stage.close()


@pytest.mark.reported(20, 23)
async def test_waiting_three_days_for_a_person_costs_no_budget_and_loses_nothing(stage, engine_of_days):
    sold = []

    @tool(approval="always")
    async def sell(what: str) -> str:
        """Sell something."""
        sold.append(what)
        return f"{what} is sold"

    script = [{"calls": [{"name": "sell", "arguments": {"what": "chair"}}]}, "All is sold."]
    limits = Limits(steps=3, wall_time=timedelta(minutes=1))
    handle = await stage.start(script, [sell], limits=limits)
    request = await stage.until(handle, "approval_requested")
    workflow = stage.client.temporal.get_workflow_handle(handle.id)
    before = await stage.state(handle)
    assert await engine_of_days.fast_forward(workflow, DAYS)
    await stage.stop()
    await stage.serve(*stage.agents)
    assert (await stage.state(handle)).calls == before.calls, "it has lost something"
    await handle.approve("1.1", hash=request.hash)
    done = await stage.end(handle)
    assert (done.result.status, done.result.text, sold) == ("completed", "All is sold.", ["chair"])
    assert done.result.duration > DAYS
    assert done.state.ran < timedelta(minutes=1)
    assert not done.notes
