"""Long runs with large results are killed while they are put away, and while they go on as new.

Each result is too large for the history, and each run continues as new every few turns.
"""

import asyncio

import pytest

from tests.chaos.checks import check_sound
from tests.chaos.play import Case, call, kill, play
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

LARGE = 100_000
"""Bytes of each result."""
EVENTS = 30
"""So many and a run continues as new: every third turn or so."""

ASKING = call("pay", ask="yes", big=LARGE)


def large(name):
    return (call(name, big=LARGE),)


def journey(*names, points, doubts=0, **more):
    """Return the case of a run with one call in each turn, all of which have their effects."""
    results = {f"{turn}.1": "ok" for turn in range(1, len(names) + 1)}
    effects = {name: names.count(name) for name in names}
    return Case(tuple(large(name) for name in names), points, results, effects, doubts=doubts, **more)


FIVE = ("charge",) * 5
CASES = {
    # What was done is not done again, wherever its result was by then.
    **{
        f"idempotent {moment} its result was kept": journey(*FIVE, points=(f"tool put {moment}",))
        for moment in ("before", "after")
    },
    **{
        f"{name} {moment} its result was kept": journey(name, *FIVE[1:], points=(f"tool put {moment}",), doubts=doubts)
        for name, moment, doubts in [("pay", "before", 1), ("pay_in_thread", "after", 1), ("pay_probed", "before", 0)]
    },
    "idempotent, each time": journey(
        *FIVE, points=("tool put before", "tool put after", "tool put before"), doubts=1, settle="done"
    ),
    # The earlier part is put away once, however often it is tried.
    **{
        f"put away, {moment} it was kept": journey(*FIVE, points=(f"put_away put {moment}",))
        for moment in ("before", "after")
    },
    "put away, each time": journey(*FIVE, points=("put_away put before", "put_away put after", "put_away put before")),
    # Beyond the first execution.
    **{f"model turn 4 {moment}": journey(*FIVE, points=(f"model 4 {moment}",)) for moment in ("before", "after")},
    "unsafe effect of a later execution": journey(*FIVE[1:], "pay", points=("pay after",), doubts=1),
    "read of a later execution": journey(*FIVE[1:], "read", points=("read after",)),
    "waiting for approval in a later execution": Case(
        (*(large("charge") for _ in FIVE), (ASKING,), large("charge")),
        ("approval",),
        {f"{turn}.1": "ok" for turn in range(1, 8)},
        {"charge": 6, "pay": 1},
    ),
    "staged in the first, executed in the last": Case(
        ((call("mail"),), *(large("charge") for _ in FIVE), (call("mail"),)),
        ("mail after",),
        {f"{turn}.1": "ok" for turn in range(1, 8)},
        {"charge": 5, "mail": 2},
    ),
    "undone over all executions": Case(
        tuple((call("hire"),) for _ in FIVE),
        ("dismiss hire 5 after", "dismiss hire 2 before"),
        {f"{turn}.1": "ok" for turn in range(1, 6)},
        {"hire": 5, "dismiss": 5},
        last={"error": {"kind": "authentication"}},
        status="failed",
    ),
}


# All are about to continue as new. They are let go one after the other, and then one of two workers is killed.
TOGETHER = {
    f"about to continue as new, {number}": journey(*FIVE, points=("put_away put after",)) for number in range(6)
}

ALL = {**CASES, **TOGETHER}


async def kill_on_the_way(world, players, worker):
    """Kill the worker when each run has gone on for another while, some into their next execution."""
    for player in players:
        player.release()
        await asyncio.sleep(0.03)
    worker.kill()
    return world.worker()


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    async def played():
        home = tmp_path_factory.mktemp("state")
        async with Stage.open() as stage, World.open(home, stage, events=EVENTS, PERDURE_MAX_RUNS="2") as world:
            runs = await play(world, CASES, kill)
            # The worker that goes on is the other one here.
            return {**runs, **await play(world, TOGETHER, kill_on_the_way)}

    return asyncio.run(played())


@pytest.mark.parametrize("name", ALL)
def test_worker_killed_while(wave, name):
    check_sound(wave[name], ALL[name])
    assert len(wave[name].histories) > 1
