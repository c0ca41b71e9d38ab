"""The store goes away just after an effect, or while a run is put away: nothing is done again, and all is kept."""

import asyncio
import contextlib
import sqlite3
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.chaos.cable import Cable
from tests.chaos.checks import check_sound
from tests.chaos.play import Case, call, play
from tests.chaos.stage import Stage
from tests.chaos.world import World
from tests.conformance import postgres

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

LARGE = 100_000
"""Bytes of each result."""

# The deadline of one of them passes meanwhile.
TOOLS = ("charge", "pay", "pay_in_thread", "pay_probed", "pay_probed_soon", "read", "local_read")
LOCKED = {
    f"{tool} has had its effect": Case(((call(tool, big=LARGE),),), (f"{tool} after",), {"1.1": "ok"}, {tool: 1})
    for tool in TOOLS
}

SIX = tuple((call("charge", big=LARGE),) for _ in range(6))
RESULTS, EFFECTS = {f"{turn}.1": "ok" for turn in range(1, 7)}, {"charge": 6}
GONE = {
    "an effect was had": Case(SIX, ("charge after",), RESULTS, EFFECTS),
    "a result is being kept": Case(SIX, ("tool put before",), RESULTS, EFFECTS),
    "a run is put away": Case(SIX, ("put_away put before",), RESULTS, EFFECTS),
    "a run was put away": Case(SIX, ("put_away put after",), RESULTS, EFFECTS),
    "a later execution asks its model": Case(SIX, ("model 5 before",), RESULTS, EFFECTS),
}


async def played_beside_a_writer(home):
    """Lock the store while each run has had its effect, until each result has been waited for."""

    async def lock(world, players, worker):
        with contextlib.closing(sqlite3.connect(home / "store.db", isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            for player in players:
                player.release()
            await worker.said("waits for the store", len(players))
            writer.execute("ROLLBACK")
        return worker

    async with Stage.open() as stage, World.open(home, stage) as world:
        return await play(world, LOCKED, lock)


async def played_on_a_cable(home, server):
    """Kill the worker while there is no store: the next one has to wait for it with all runs."""
    address = make_url(server)
    async with Stage.open() as stage, Cable.to(f"{address.host}:{address.port}") as cable:
        host, port = cable.address.split(":")
        near = address.set(host=host, port=int(port)).render_as_string(hide_password=False)
        limits: Any = {"PERDURE_MAX_RUNS": "2", "PERDURE_STORE": near}

        async def kill_and_pull(world, players, worker):
            cable.pull()
            worker.kill()
            following = world.worker()
            await following.said("can't be used", len(players))
            cable.plug()
            return following

        async with World.open(home, stage, events=40, store=server, **limits) as world:
            return await play(world, GONE, kill_and_pull)


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    async def both(server):
        homes = tmp_path_factory.mktemp("locked"), tmp_path_factory.mktemp("gone")
        if server is None:
            return await played_beside_a_writer(homes[0])
        first, second = await asyncio.gather(played_beside_a_writer(homes[0]), played_on_a_cable(homes[1], server))
        return {**first, **second}

    with postgres.serving() as server:
        return asyncio.run(both(server))


@pytest.mark.parametrize("name", LOCKED)
def test_store_locked_when(wave, name):
    check_sound(wave[name], LOCKED[name])
    assert len(wave[name].kept) == 1


@pytest.mark.parametrize("name", GONE)
def test_store_gone_and_worker_killed_when(wave, name):
    if name not in wave:
        pytest.skip("no PostgreSQL is installed")
    check_sound(wave[name], GONE[name])
    assert len(wave[name].kept) == 6
    assert len(wave[name].histories) > 1
