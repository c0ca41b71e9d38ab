"""A worker is asked to end with SIGTERM while runs are under way: calls may finish, what does not is handed over."""

import asyncio

import pytest

from tests.chaos.checks import check_sound
from tests.chaos.play import Case, call, play
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


def one(name, point, *, status="ok", effects=1, doubts=0, goes_on=False):
    """Return the case of a single call."""
    done = {name: effects} if effects else {}
    return Case(((call(name),),), (point,), {"1.1": status}, done, doubts=doubts, goes_on=goes_on)


NAMES = {
    "read": "read",
    "local read": "local_read",
    "idempotent": "charge",
    "unsafe": "pay",
    "unsafe in a thread": "pay_in_thread",
    "probed": "pay_probed",
}
CASES = {
    **{
        f"{name} finishes {moment} its effect": one(tool, f"{tool} {moment}", goes_on=True)
        for name, tool in NAMES.items()
        for moment in ("before", "after")
    },
    "model finishes": Case(((call("read"),),), ("model 1 during",), {"1.1": "ok"}, {"read": 1}, goes_on=True),
    "model is cut off": Case(((call("read"),),), ("model 1 during",), {"1.1": "ok"}, {"read": 1}),
    **{
        f"{name} is cut off {moment}": one(NAMES[name], f"{NAMES[name]} {moment}")
        for name in ("read", "local read", "idempotent")
        for moment in ("before", "after")
    },
    **{
        f"{name} is cut off {moment}": one(NAMES[name], f"{NAMES[name]} {moment}", doubts=1)
        for name in ("unsafe", "unsafe in a thread")
        for moment in ("before", "after")
    },
    "probed is cut off before": one("pay_probed", "pay_probed before", status="error", effects=0),
    "probed is cut off after": one("pay_probed", "pay_probed after"),
    "waiting for approval": Case(((call("pay", ask="yes"),),), ("approval",), {"1.1": "ok"}, {"pay": 1}),
    "edit being judged": Case(
        ((call("pay", ask="yes"),),), ("judging",), {"1.1": "ok"}, {"pay": 1}, people="edit", goes_on=True
    ),
}


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    codes = []

    async def stop(world, players, worker):
        worker.ask_to_end()
        await worker.said("Stopping")
        for player in players:
            if player.case.goes_on:
                player.release()
        codes.append(await worker.ended())
        await asyncio.gather(*(player.between() for player in players))
        return world.worker()

    async def stopped():
        async with Stage.open() as stage, World.open(tmp_path_factory.mktemp("stopped"), stage) as world:
            return await play(world, CASES, stop)

    return asyncio.run(stopped()), codes


@pytest.mark.parametrize("name", CASES)
def test_worker_asked_to_end_and(wave, name):
    check_sound(wave[0][name], CASES[name])


def test_worker_asked_to_end_does_so_with_code_0(wave):
    assert wave[1] == [0]
