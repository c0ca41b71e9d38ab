"""The worker is killed with SIGKILL after runs have ended, and before, while and after they are archived."""

import asyncio
import json

import pytest

from perdure import archive
from tests.chaos.play import call
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

MOMENTS = ("archive put before", "archive put after")
"""The history of a run that has ended is about to be kept; and it is, but not noted as the run's."""


def task(run):
    charge = {"calls": [call("charge", run=run)]}
    return json.dumps({"run": run, "replies": [charge] * 5 + [{"text": "one"}]})


async def until_archived(world, run):
    while not ((found := await world.store.archived("default", run)) and found.result):
        await asyncio.sleep(0.1)  # nobody is told
    return found


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_run_that_has_ended_is_archived_once_whenever_its_worker_is_killed(tmp_path, moment):
    async with Stage.open() as stage, World.open(tmp_path, stage) as world:
        ended = stage.arm("letter", moment)
        worker = world.worker()
        await world.start("letter", task("letter"))
        handle = world.client.handle("letter")
        await asyncio.wait_for(ended.reached, 100)
        result = await handle.result()
        assert result.text == "one", "the run has waited for its archive"
        again = stage.arm("letter", moment)
        worker.kill()
        worker = world.worker()
        await asyncio.wait_for(again.reached, 100)
        assert not await world.store.archived("default", "letter")
        worker.kill()
        world.worker()
        kept = await asyncio.wait_for(until_archived(world, "letter"), 100)
        assert (kept.result, kept.status, len(kept.histories)) == (result, "completed", 1)
        (recorded,) = await archive.executions(world.client, "letter")
        engine = await world.client.temporal.get_workflow_handle("letter").fetch_history()
        assert list(recorded.events) == list(engine.events)
        assert len([effect for effect in stage.effects if effect.tool == "charge"]) == 5
