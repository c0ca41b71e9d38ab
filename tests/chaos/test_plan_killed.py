"""The worker is killed with SIGKILL while steps of a plan are at work, and while the plan is looked at."""

import asyncio
import json

import pytest

from perdure.strategies.plan_views import plan_of
from tests.chaos.play import call
from tests.chaos.stage import Stage
from tests.chaos.test_agents_killed import SPECS
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


def step(name, *needs):
    return {"id": name, "goal": f"Do {name}.", "depends_on": list(needs), "tools": ["charge", "pay_probed"]}


def doing(*calls):
    return [*({"calls": [one]} for one in calls), {"text": "done"}]


IN_A_STEP = ("way/2.2", "pay_probed after")
BETWEEN, IN_THE_LAST = ("way", "model 2 after"), ("way/4.1", "charge after")


async def killed_at(world, run, said, *points):
    """Play a run whose worker is killed at each of these points, of it or of a run below; return the handle."""
    worker = world.worker()
    held = world.stage.arm(*points[0])
    await world.start(run, said)
    for at, _ in enumerate(points):
        await held.reached
        held = world.stage.arm(*points[at + 1]) if at + 1 < len(points) else held
        worker.kill()
        worker = world.worker()
    return world.client.handle(run)


@pytest.mark.parametrize("points", [(IN_A_STEP,), pytest.param((BETWEEN, IN_THE_LAST), marks=pytest.mark.long)])
async def test_each_step_of_a_plan_is_done_once_whatever_is_killed_meanwhile(tmp_path, points):
    plan = call("plan", steps=[step("a"), step("b"), step("c", "a", "b")])
    steps = {
        "a": doing(call("charge", run="way/2.1")),
        "b": doing(call("pay_probed", run="way/2.2")),
        "c": doing(call("charge", run="way/4.1")),
    }
    said = json.dumps({"run": "way", "replies": doing(plan, call("keep_plan")), "steps": steps})
    async with Stage.open() as stage, World.open(tmp_path, stage) as world:
        world.spec = SPECS["planner"]
        handle = await asyncio.wait_for(killed_at(world, "way", said, *points), 150)
        result = await asyncio.wait_for(handle.result(), 100)
        assert (result.text, {record.status for record in result.calls}) == ("done", {"ok"})
        done = [(one.run, one.tool) for one in stage.effects if not one.tool.startswith("model")]
        assert sorted(done) == [("way/2.1", "charge"), ("way/2.2", "pay_probed"), ("way/4.1", "charge")]
        plan = plan_of((await handle.projection()).state)
        assert plan
        assert [one.status for one in plan.steps] == ["done"] * 3
