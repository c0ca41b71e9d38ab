"""The worker is killed with SIGKILL, twice, under agents that are handed over to, called, and members of a team."""

import asyncio
import json

import pytest

from perdure.loading import load_agents
from tests.chaos.play import call
from tests.chaos.stage import Stage
from tests.chaos.world import CAST, World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

SPECS = {agent.name: agent.spec for agent in load_agents(str(CAST))}


def task(run, *turns):
    """Return a task: these calls, one a turn, then an answer."""
    return json.dumps({"run": run, "replies": [*({"calls": [one]} for one in turns), {"text": "done"}]})


def paying(run):
    return call("pay_probed", run=run)


RUNS = {
    "over": ("desk", task("over", call("read", run="over"), call("transfer_to_mate"), paying("over"))),
    "top": ("boss", task("top", call("mate", task=task("top/1.1", call("charge", run="top/1.1"), paying("top/1.1"))))),
    "crew": (
        "crew",
        task(
            "crew/1.1",
            call("charge", run="crew/1.1"),
            call("publish_found", what=task("crew/2.1", call("charge", run="crew/2.1"))),
        ),
    ),
}
ROUNDS = [
    [("over", "model 2 after"), ("top/1.1", "pay_probed after"), ("crew/1.1", "model 2 after")],
    [("over", "pay_probed after"), ("top", "model 2 before"), ("crew/2.1", "charge after")],
]


async def killed(world):
    """Play the runs, whose worker is killed whenever all of them are at their points; return how they ended."""
    worker = world.worker()
    held = [world.stage.arm(*point) for point in ROUNDS[0]]
    for run, (agent, said) in RUNS.items():
        world.spec = SPECS[agent]
        await world.start(run, said)
    for following in [*ROUNDS[1:], []]:
        await asyncio.gather(*(one.reached for one in held))
        held = [world.stage.arm(*point) for point in following]
        worker.kill()
        worker = world.worker()
    handles = {run: world.client.handle(run) for run in RUNS}
    return handles, {run: await handle.result() for run, handle in handles.items()}


async def test_agents_that_work_for_each_other_survive_their_workers_and_nothing_is_done_twice(tmp_path):
    async with Stage.open() as stage, World.open(tmp_path, stage) as world:
        handles, results = await asyncio.wait_for(killed(world), 200)
        assert {
            run: (result.text, {one.status for one in result.calls}) for run, result in results.items()
        } == dict.fromkeys(RUNS, ("done", {"ok"}))
        done = sorted((effect.run, effect.tool) for effect in stage.effects if effect.tool in ("charge", "pay_probed"))
        assert done == [
            *(("crew/1.1", "charge"), ("crew/2.1", "charge"), ("over", "pay_probed")),
            *(("top/1.1", "charge"), ("top/1.1", "pay_probed")),
        ]
        events = [event async for event in handles["over"].events()]
        assert [(one.agent, one.to) for one in events if one.type == "handed_off"] == [("desk", "mate")]
        asked = [(one.step, one.agent) for one in events if one.type == "model_started"]
        assert asked == [(1, "desk"), (2, "desk"), (3, "mate"), (4, "mate")]
        assert results["top"].steps == 2 + (await world.client.handle("top/1.1").result()).steps
        crew = (await handles["crew"].projection()).state
        assert crew
        assert crew.progress == {"events": 2, "told": 2, "waiting": {}, "dead_letters": [], "since": 0}
