"""Runs that wait for days, on an engine whose clock can be moved."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from perdure import Limits, tool
from perdure.testing import engine
from tests.integration.conftest import Stage

DAYS = timedelta(days=3)


@pytest.fixture
async def engine_of_days(tmp_path):
    """An engine of its own, whose clock can be moved."""
    async with engine(tmp_path) as running:
        yield running


@pytest.fixture
async def stage(engine_of_days):
    """A stage on that engine; its runs are audited like others."""
    async with AsyncExitStack() as stack:
        stage = Stage(engine_of_days.client, stack)
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
    before = await stage.state(handle)
    assert await engine_of_days.skip(handle, DAYS)
    await stage.stop()
    await stage.serve(*stage.agents)
    assert (await stage.state(handle)).calls == before.calls, "it has lost something"
    await handle.approve("1.1", hash=request.hash)
    done = await stage.end(handle)
    assert (done.result.status, done.result.text, sold) == ("completed", "All is sold.", ["chair"])
    assert done.result.duration > DAYS
    assert done.state.ran < timedelta(minutes=1)
    assert not done.notes
