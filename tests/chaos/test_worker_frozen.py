"""A worker is frozen or cut off, taken for lost, and comes back late: it must not do what others have done.

`EARLY` and `LATE` are frozen with SIGSTOP and lose their connections, as a suspended machine does; `KEPT` keep them,
so that the server goes on handing them work; `CUT_OFF` go on working where nobody hears them; `UNHEARD` are handed to a
worker that sleeps already.
"""

import asyncio
from functools import partial

import pytest

from tests.chaos.cable import Cable
from tests.chaos.checks import check_sound
from tests.chaos.play import PATIENCE, Case, Player, call, play
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240), pytest.mark.long]


def one(name, point, *, status="ok", effects=1, **more):
    """Return the case of a single call."""
    options = {option: more.pop(option) for option in ("doubts", "settle") if option in more}
    done = {name: effects} if effects else {}
    return Case(((call(name, **more),),), (point,), {"1.1": status}, done, **options)


EARLY = {
    # The first look says "not done", and was made too early: the frozen worker can still do it. In a thread, since it
    # would be up to chance whether a body that can be stopped is stopped in time.
    "probed before its effect": one("pay_in_thread_probed", "pay_in_thread_probed before"),
    "probed while its request is on the way": one("pay_in_thread_probed", "pay_in_thread_probed during"),
}
LATE = {
    "model called": Case(((call("read"),),), ("model 1 before",), {"1.1": "ok"}, {"read": 1}),
    "model answered": Case(((call("read"),),), ("model 2 after",), {"1.1": "ok"}, {"read": 1}),
    "idempotent before": one("charge", "charge before"),
    "idempotent after": one("charge", "charge after"),
    "unsafe after": one("pay", "pay after", doubts=1),
    "probed after": one("pay_probed", "pay_probed after"),
    "probed before, and looks at its deadline": one(
        "pay_probed", "pay_probed before", status="error", effects=0, careful=True
    ),
    "waiting for approval": Case(((call("pay", ask="yes"),),), ("approval",), {"1.1": "ok"}, {"pay": 1}),
}
KEPT = {f"{name}, connections kept": LATE[name] for name in ("model called", "unsafe after", "waiting for approval")}
CUT_OFF = {f"{name}, cut off": LATE[name] for name in LATE if "deadline" not in name}
CUT_OFF["probed before, cut off"] = one("pay_probed", "pay_probed before")
UNHEARD = {
    # Given up before its worker heard of it, so it must not begin any more.
    "call it never heard of, given up by a person": one(
        "pay", "approval", status="error", effects=0, doubts=1, settle="not-done", ask="yes"
    ),
    "call it never heard of, given up by a probe": one(
        "pay_probed_soon", "approval", status="error", effects=0, ask="yes"
    ),
}
CASES = {**EARLY, **LATE, **KEPT, **CUT_OFF, **UNHEARD}


async def come_back_early(world, players, worker):
    """Go on as soon as each has been looked up once, and do it after all."""
    looks, done = world.stage.looks, world.stage.done
    await world.stage.until(lambda: all(player.played.run in looks for player in players))
    assert not any(found for player in players for found in looks[player.played.run])
    for player in players:
        player.release()
    worker.thaw()
    await world.stage.until(lambda: all(done(player.played.run, "pay_in_thread_probed") for player in players))


async def come_back_late(world, players, worker):
    """Go on when the runs have ended."""
    await asyncio.gather(*(player.finish() for player in players))
    for player in players:
        player.release()
    worker.thaw()


async def go_on_alone(world, players, worker):
    """Go on at once, while others take over."""
    worker.thaw()
    for player in players:
        player.release()
    await asyncio.gather(*(player.finish() for player in players))


async def wave(home, stage, cases, then, *, cut=True):
    """Play `cases` on a server of their own: freeze their worker, start another one, do `then`, and mend all."""
    async with World.open(home, stage) as world, Cable.to(world.server.address) as cable:

        async def breaking(world, players, worker):
            worker.freeze()
            if cut:
                cable.pull()
            other = world.worker()
            for player in players:
                await player.between()
            await asyncio.wait_for(then(world, players, worker), 2 * PATIENCE)
            cable.plug()
            worker.ask_to_end()  # which it does once nothing is under way in it any more
            await worker.ended()
            return other

        return await play(world, cases, breaking, world.worker(TEMPORAL_ADDRESS=cable.address))


async def unheard(home, stage):
    """Have calls handed to a worker that sleeps: the other one has no place left for them."""
    async with World.open(home, stage) as world:
        world.limit(90, "read")  # it keeps its place until it is released, however slow the machine is
        players = [Player(world, name, case) for name, case in UNHEARD.items()]
        busy = Player(world, "busy", Case(((call("read"),),), ("read before",), {"1.1": "ok"}, {"read": 1}))
        world.worker(PERDURE_MAX_ACTIVITIES="1")
        for player in (*players, busy):
            await player.start()
            await player.reach()
            player.turn()
        asleep = world.worker()
        await world.polled_by(asleep)
        asleep.freeze()
        for player in players:
            await player.between()
            await world.handed_to(asleep, player.played.run)
        busy.release()
        for player in players:
            await player.handle.result()
        asleep.thaw()
        asleep.ask_to_end()
        await asleep.ended()
        await asyncio.gather(*(player.finish() for player in (*players, busy)))
        return dict(zip(UNHEARD, (player.played for player in players), strict=True))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    async def all_waves():
        async with Stage.open() as stage:
            home = partial(tmp_path_factory.mktemp, "frozen")
            waves = [
                wave(home(), stage, EARLY, come_back_early),
                wave(home(), stage, LATE, come_back_late),
                wave(home(), stage, KEPT, come_back_late, cut=False),
                wave(home(), stage, CUT_OFF, go_on_alone),
                unheard(home(), stage),
            ]
            return {name: run for runs in await asyncio.gather(*waves) for name, run in runs.items()}

    return asyncio.run(all_waves())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.reported(43)
def test_worker_comes_back_after(played, name):
    check_sound(played[name], CASES[name])


def test_probe_that_asks_too_early_is_asked_again_and_finds_the_effect(played):
    assert [played[name].looks for name in EARLY] == [[False, True], [False, True]]
