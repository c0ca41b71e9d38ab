"""The Temporal server is killed with SIGKILL in the middle, and started again on the same database file.

Nothing is lost with it: not even an attempt that is under way, since its worker lives on.
"""

import asyncio

import pytest

from perdure.engine.connection import connect
from tests.chaos.checks import check_sound
from tests.chaos.play import Case, call, play
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


def one(name, point, **more):
    """Return the case of a single call."""
    return Case(((call(name),),), (point,), {"1.1": "ok"}, {name: 1}, **more)


ASKING = ((call("pay", ask="yes"),),)
CASES = {
    **{
        f"model {moment}": Case(((call("read"),),), (f"model 1 {moment}",), {"1.1": "ok"}, {"read": 1})
        for moment in ("before", "after")
    },
    **{
        f"{tool} {moment}": one(tool, f"{tool} {moment}")
        for tool in ("read", "local_read", "charge", "pay", "pay_in_thread", "pay_probed")
        for moment in ("before", "after")
    },
    "waiting for approval": Case(ASKING, ("approval",), {"1.1": "ok"}, {"pay": 1}),
    "approval signalled": Case(ASKING, ("approval",), {"1.1": "ok"}, {"pay": 1}, people="approve signal"),
    "edit being judged": Case(ASKING, ("judging",), {"1.1": "ok"}, {"pay": 1}, people="edit"),
    "probe under way": one("pay_probed", "probe", lose="pay_probed"),
    "waiting for a settlement": one("pay", "in_doubt", lose="pay", doubts=1),
    "twice": Case(
        ((call("pay"),), (call("charge"),)),
        ("pay after", "charge after"),
        {"1.1": "ok", "2.1": "ok"},
        {"pay": 1, "charge": 1},
    ),
}


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    async def kill_server(world, players, worker):
        killed = world.server.record.pid
        world.kill_server()
        for player in players:
            player.release()  # most of them end while nobody is there to hear of it
        while world.server.record.pid == killed:
            await asyncio.sleep(0.05)
        await connect(world.client.settings)
        await asyncio.gather(*(player.between() for player in players))
        return worker

    async def restarted():
        async with (
            Stage.open() as stage,
            World.open(tmp_path_factory.mktemp("server"), stage, heartbeat=10) as world,
        ):
            return await play(world, CASES, kill_server)

    return asyncio.run(restarted())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.reported(45)
def test_server_killed_while(wave, name):
    check_sound(wave[name], CASES[name])
