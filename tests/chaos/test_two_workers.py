"""Two workers share a queue, and one is killed: its runs go over to the other one, whose own runs never notice."""

import asyncio
from itertools import count

import pytest

from tests.chaos.checks import check_sound
from tests.chaos.play import Case, Player, call
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

TURNS = ((call("pay"), call("charge")),)
RESULTS = {"1.1": "ok", "1.2": "ok"}
EFFECTS = {"pay": 1, "charge": 1}
LOST = Case(TURNS, ("pay after",), RESULTS, EFFECTS, doubts=1)
KEPT = Case(TURNS, ("pay after",), RESULTS, EFFECTS, doubts=0)


async def spread(world, workers):
    """Start runs until each worker has two at least; return them, and who has which."""
    players: list[Player] = []
    holders: list[int] = []
    for number in count():
        if all(holders.count(worker.pid) >= 2 for worker in workers):
            return players, holders
        player = Player(world, f"run {number}", KEPT)
        await player.start()
        await player.reach()
        players.append(player)
        holders.append(player.holder)
    raise AssertionError


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    async def one_killed():
        async with Stage.open() as stage, World.open(tmp_path_factory.mktemp("two"), stage) as world:
            killed, kept = world.worker(), world.worker()
            await killed.said("Serving")
            await kept.said("Serving")
            players, holders = await spread(world, [killed, kept])
            killed.kill()
            for player in players:
                player.release()
            await asyncio.gather(*(player.finish() for player in players))
            return [
                (player.played, LOST if holder == killed.pid else KEPT)
                for player, holder in zip(players, holders, strict=True)
            ], kept.pid

    return asyncio.run(one_killed())


def test_one_of_two_workers_killed_loses_nothing(played):
    runs, _ = played
    for run, case in runs:
        check_sound(run, case)


def test_runs_of_the_other_worker_never_notice(played):
    runs, kept = played
    for run, case in runs:
        if case is KEPT:
            assert [event.attempt for event in run.events if event.type == "tool_finished"] == [1, 1]
        assert f" {kept}@" in run.projection.workers[-1]
