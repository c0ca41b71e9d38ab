"""Hundreds of kills at random moments, under many runs at once. Seeded: PERDURE_CHAOS_SEED plays the same plan again.

PERDURE_CHAOS_KILLS=200 python -m pytest -m long tests/chaos/test_random_kills.py
"""

import asyncio
import os
import random
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from perdure.errors import ConnectionFailed, DecisionRejected
from tests.chaos.checks import check_run
from tests.chaos.play import Case, Player, call
from tests.chaos.stage import Stage
from tests.chaos.world import World

KILLS = int(os.environ.get("PERDURE_CHAOS_KILLS", "200"))
SEED = int(os.environ.get("PERDURE_CHAOS_SEED", random.randrange(1_000_000)))
WORKERS = 3
RUNS = 12
"""Under way at once."""
DEADLINE = 4
"""Seconds of each tool. A frozen worker comes back before that, and a person looks only afterwards."""

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(KILLS * 10 + 300)]

TOOLS = ["read", "read", "local_read", "charge", "charge", "pay", "pay_probed", "pay_in_thread"]
WAYS = {"kill": 14, "stop": 2, "freeze": 3, "server": 1, "store": 2}
LARGE = 100_000
"""Bytes of what a third of all calls returns."""
EVENTS = 40
"""So many and a run continues as new: every second or third turn."""
IN_MEMORY = "2"
"""Runs that a worker keeps there."""


def journey(dice):
    """Return a conversation of a few turns: look at several things, then act, sometimes after asking."""
    turns = []
    for _ in range(dice.randint(2, 6)):
        names = dice.choices(TOOLS, k=dice.randint(1, 4))
        turns.append(tuple(call(name, **options(dice)) for name in names))
    return Case(tuple(turns), (), {}, doubts=None)


def options(dice):
    asking = {"ask": "yes"} if dice.random() < 0.2 else {}
    return {**asking, "big": LARGE} if dice.random() < 0.3 else asking


class Traveller(Player):
    """A run with a person who decides at random, by update or by signal, and settles by what is true."""

    def __init__(self, world, name, dice):
        super().__init__(world, name, journey(dice))
        self._dice = dice

    async def answer(self, point, position):
        if point == "in_doubt":
            await asyncio.sleep(DEADLINE + 1)  # the one wait of these tests: nobody may look earlier
            outcome = self.outcome(position)
            if outcome == "retry" and self._dice.random() < 0.5:
                outcome = "not-done"
            await self._say(partial(self.handle.settle, position, outcome, result="seen"))
        elif self._dice.random() < 0.2:
            await self._say(partial(self.handle.deny, position))
        elif self._dice.random() < 0.5:
            handle = self.world.client.temporal.get_workflow_handle(self.played.run)
            await handle.signal("approve", {"call": position, "by": "Ann"})
        else:
            await self._say(partial(self.handle.approve, position))

    async def _say(self, decide):
        """Say it until there is a receipt; what is refused then was taken, and its receipt was lost."""
        for _ in range(100):
            try:
                await decide()
            except ConnectionFailed:
                await asyncio.sleep(0.2)
            except DecisionRejected as error:
                assert error.reason in {"already_decided", "not_in_doubt", "closed"}  # noqa: PT017
                return
            else:
                return


class Trouble:
    """Breaks things, and counts what it broke."""

    def __init__(self, world, dice, store):
        self.broken: Counter[str] = Counter()
        self._store = store
        self._world = world
        self._dice = dice
        self._workers = [world.worker() for _ in range(WORKERS)]

    async def make(self, kills):
        """Break `kills` things, one after the other."""
        for _ in range(kills):
            await asyncio.sleep(self._dice.uniform(0, 1.5))
            way = self._dice.choices(list(WAYS), WAYS.values())[0]
            self.broken[way] += 1
            if way == "server":
                await self._kill_server()
            elif way == "store":
                await self._lock_store()
            else:
                await self._break(way, self._dice.randrange(WORKERS))

    async def _break(self, way, number):
        worker = self._workers[number]
        if way == "stop":
            worker.ask_to_end()
            await worker.ended()
        elif way == "freeze":
            worker.freeze()
            await asyncio.sleep(self._dice.uniform(0.5, DEADLINE - 1))
            worker.thaw()
            return
        else:
            worker.kill()
        self._workers[number] = self._world.worker()

    async def _lock_store(self):
        """Have a stranger write for so long that some give up, and try again."""
        with closing(sqlite3.connect(self._store, isolation_level=None)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(self._dice.uniform(0.5, 8))
            stranger.execute("ROLLBACK")

    async def _kill_server(self):
        killed = self._world.server.record.pid
        self._world.kill_server()
        while self._world.server.record.pid == killed:
            await asyncio.sleep(0.05)


async def travel(world, dice, trouble):
    """Keep `RUNS` runs under way until there is no more trouble; return them all."""
    players: list[Traveller] = []
    open_runs: set[asyncio.Task[None]] = set()
    while not trouble.done() or open_runs:
        while not trouble.done() and len(open_runs) < RUNS:
            player = Traveller(world, f"journey {len(players)}", random.Random(dice.random()))
            await player.start()
            players.append(player)
            open_runs.add(asyncio.create_task(player.end(300)))
        done, open_runs = await asyncio.wait({trouble, *open_runs}, return_when=asyncio.FIRST_COMPLETED)
        open_runs.discard(trouble)
        for task in done:
            task.result()
        if trouble.done() and open_runs:
            await asyncio.wait(open_runs)
            open_runs = set()
    return players


@pytest.mark.reported(9)
def test_nothing_is_lost_or_done_twice_under_random_kills(tmp_path_factory):
    async def rounds():
        dice = random.Random(SEED)
        home = tmp_path_factory.mktemp("random")
        memory: Any = {"PERDURE_MAX_RUNS": IN_MEMORY}
        async with Stage.open() as stage, World.open(home, stage, events=EVENTS, **memory) as world:
            world.limit(DEADLINE)
            stage.pause = lambda: dice.uniform(0, 0.3)
            trouble = Trouble(world, random.Random(SEED), home / "store.db")
            players = await travel(world, dice, asyncio.create_task(trouble.make(KILLS)))
            for player in players:
                await player.look_back()
            return players, trouble.broken

    players, broken = asyncio.run(rounds())
    played = [player.played for player in players]
    calls = Counter(record.status for run in played if run.ended for record in run.ended.calls)
    doubts = sum(event.type == "in_doubt" for run in played for event in run.events)
    executions = sum(run.executions for run in played)
    sys.stderr.write(f"\nseed {SEED}: {dict(broken)}; {len(played)} runs in {executions} executions, ")
    sys.stderr.write(f"calls {dict(calls)}, {doubts} doubts\n")
    wrong = {run.run: problem for run in played if (problem := problem_of(run))}
    assert not wrong, "\n\n".join(f"{run}: {problem}" for run, problem in wrong.items())


def problem_of(run):
    """Return what does not hold for a run, and what happened to it; None where all is well."""
    try:
        check_run(run)
        assert run.result.status == "completed", run.result.reason
    except AssertionError as error:
        story = [f"{e.position} {e.time:%M:%S.%f} {e.type} {getattr(e, 'call', '')}" for e in run.again]
        return "\n".join([str(error), *story, *map(str, run.effects)])
    return None
