"""The worker is killed with SIGKILL while other agents are at work: handed over to, or called as tools."""

import asyncio
import json

import pytest

from perdure.loading import load_agents
from tests.chaos.play import call
from tests.chaos.stage import Stage
from tests.chaos.world import CAST, World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


def spec_of(name):
    return next(agent.spec for agent in load_agents(str(CAST)) if agent.name == name)


def task(run, *turns):
    """Return a task: these calls, one a turn, then an answer."""
    return json.dumps({"run": run, "replies": [*({"calls": [one]} for one in turns), {"text": "done"}]})


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


async def test_a_hand_off_survives_its_workers_and_every_call_is_done_once(tmp_path):
    async with Stage.open() as stage, World.open(tmp_path, stage) as world:
        world.spec = spec_of("desk")
        said = task("over", call("read", run="over"), call("transfer_to_mate"), call("pay_probed", run="over"))
        points = [("over", "model 2 after"), ("over", "pay_probed after")]
        handle = await asyncio.wait_for(killed_at(world, "over", said, *points), 100)
        result = await asyncio.wait_for(handle.result(), 100)
        assert (result.text, [record.status for record in result.calls]) == ("done", ["ok"] * 3)
        assert [effect.tool for effect in stage.effects if effect.tool == "pay_probed"] == ["pay_probed"]
        events = [event async for event in handle.events()]
        assert [(one.agent, one.to) for one in events if one.type == "handed_off"] == [("desk", "mate")]
        asked = [(one.step, one.agent) for one in events if one.type == "model_started"]
        assert asked == [(1, "desk"), (2, "desk"), (3, "mate"), (4, "mate")]


async def test_a_run_that_is_a_call_survives_its_workers_and_is_one_run(tmp_path):
    async with Stage.open() as stage, World.open(tmp_path, stage) as world:
        world.spec = spec_of("boss")
        below = task("top/1.1", call("charge", run="top/1.1"), call("pay_probed", run="top/1.1"))
        said = task("top", call("mate", task=below))
        points = [("top/1.1", "pay_probed after"), ("top", "model 2 before")]
        handle = await asyncio.wait_for(killed_at(world, "top", said, *points), 100)
        result = await asyncio.wait_for(handle.result(), 100)
        assert (result.text, [record.status for record in result.calls]) == ("done", ["ok"])
        done = [effect.tool for effect in stage.effects if not effect.tool.startswith("model")]
        assert done == ["charge", "pay_probed"]
        child = await world.client.handle("top/1.1").result()
        assert (child.text, result.steps) == ("done", 2 + child.steps)


async def test_a_team_survives_its_workers_and_each_event_is_told_once(tmp_path):
    async with Stage.open() as stage, World.open(tmp_path, stage) as world:
        world.spec = spec_of("crew")
        below = task("crew/2.1", call("charge", run="crew/2.1"))
        said = task("crew/1.1", call("charge", run="crew/1.1"), call("publish_found", what=below))
        points = [("crew/1.1", "model 2 after"), ("crew/2.1", "charge after")]
        handle = await asyncio.wait_for(killed_at(world, "crew", said, *points), 100)
        result = await asyncio.wait_for(handle.result(), 100)
        assert (result.text, [record.status for record in result.calls]) == ("done", ["ok"] * 2)
        assert [effect.run for effect in stage.effects if effect.tool == "charge"] == ["crew/1.1", "crew/2.1"]
        state = (await handle.projection()).state
        assert state
        assert state.progress == {"events": 2, "told": 2, "waiting": {}, "dead_letters": []}
