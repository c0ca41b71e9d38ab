"""A worker is asked to end with SIGTERM while runs are under way: calls may finish, what does not is handed over."""

import asyncio
import signal

import pytest

from tests.chaos.checks import check_sound
from tests.chaos.play import Case, call, play
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


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

    return asyncio.run(stopped(tmp_path_factory, CASES, stop)), codes


async def stopped(tmp_path_factory, cases, stop):
    """Play the cases with a local read that would take a minute if nobody ended it."""
    async with Stage.open() as stage, World.open(tmp_path_factory.mktemp("stopped"), stage) as world:
        world.limit(60, "local_read")
        return await play(world, cases, stop)


@pytest.mark.parametrize("name", CASES)
def test_worker_asked_to_end_and(wave, name):
    check_sound(wave[0][name], CASES[name])


def test_worker_asked_to_end_does_so_with_code_0(wave):
    assert wave[1] == [0]


def test_model_call_is_repeated_only_where_it_was_cut_off(wave):
    calls = {name: [effect.tool for effect in wave[0][name].effects].count("model 1") for name in CASES}
    assert {name for name, count in calls.items() if count > 1} == {"model is cut off"}


TWICE = {name: case for name, case in CASES.items() if "is cut off" in name}


@pytest.fixture(scope="module")
def told_twice(tmp_path_factory):
    codes = []

    async def stop(world, players, worker):
        worker.ask_to_end()
        await worker.said("Stopping")
        worker.ask_to_end()
        codes.append(await worker.ended())
        await asyncio.gather(*(player.between() for player in players))
        return world.worker()

    return asyncio.run(stopped(tmp_path_factory, TWICE, stop)), codes


@pytest.mark.parametrize("name", TWICE)
def test_worker_told_to_end_twice_and(told_twice, name):
    check_sound(told_twice[0][name], TWICE[name])


def test_worker_told_to_end_twice_does_so_at_once(told_twice):
    assert told_twice[1] == [128 + signal.SIGTERM]
