"""Something else on Temporal under the same kills: a program of its own, of which one sees the ledger alone."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError

from bench.crashing import ledger
from perdure.engine.server import DevServer
from perdure.testing.crash.points import STAGE
from perdure.testing.crash.processes import KeptUp
from perdure.testing.crash.report import Counts, Judged, Report, compared
from perdure.testing.crash.stage import Stage
from perdure.testing.crash.trouble import Trouble
from perdure.testing.engines import settings_of_tests

ROOT = Path(__file__).parents[2]
_PATIENCE = 120
_UNDER_WAY = 12


@dataclass(frozen=True)
class Peer:
    """A program that serves a workflow named `Shop` with a signal named `approve`.

    Attributes:
        command: Starts it; the server's address and the queue come behind.
    """

    command: Sequence[str]
    folder: Path
    only: str = ""

    @property
    def place(self) -> Path:
        """Where its ledger is."""
        return self.folder / "ledger.db"

    async def crash(self, *, each: bool, kills: int, workers: int, jobs: int, seed: int) -> Report:
        """Run the long order under kills, as `perdure.testing.crash.crash` does."""
        self.folder.mkdir()
        async with Stage.open() as stage, await DevServer.start(settings_of_tests(self.folder)) as server:
            lab = _Lab(self, stage, server)
            async with lab.cell("course", 1):
                right = await lab.played("course", "crash-00000", "")
            points = [one for one in stage.points["crash-00000"] if self.only in one] if each else []
            judged = await lab.each(points, jobs, right)
            more, broken = await lab.random(kills, workers, seed, right) if kills else ([], {})
        return Report((*judged, *more), broken, seed)


class _Lab:
    def __init__(self, peer: Peer, stage: Stage, server: DevServer) -> None:
        self._peer, self._stage, self._server = peer, stage, server
        self._names = (f"crash-{number:05}" for number in itertools.count(1))
        ours = {ledger.PLACE: str(peer.place), STAGE: stage.address, "PYTHONPATH": str(ROOT)}
        self._environment = {**os.environ, **ours}

    @asynccontextmanager
    async def cell(self, queue: str, workers: int) -> AsyncGenerator[list[KeptUp]]:
        """Serve a queue."""
        command = [*self._peer.command, self._server.address, queue]
        async with AsyncExitStack() as stack:
            kept = [KeptUp(command, self._peer.folder, f"{queue}-{n}", self._environment) for n in range(workers)]
            for one in kept:
                await stack.enter_async_context(aclosing(one))
            yield kept
            for one in kept:
                if one.trouble:
                    raise ChildProcessError(one.trouble)

    async def played(self, queue: str, run: str, deadly: str) -> list[str] | None:
        """Play a run, which is approved from the beginning; None where it does not end."""
        self._stage.expect(run, deadly)
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._to_the_end(queue, run)
        except (TimeoutError, WorkflowFailureError):
            return None
        return list(ledger.of(self._peer.place, run))

    async def _to_the_end(self, queue: str, run: str) -> None:
        while True:
            try:
                client = await Client.connect(self._server.address)
                await client.start_workflow(
                    "Shop",
                    "See to a long order.",
                    id=run,
                    task_queue=queue,
                    start_signal="approve",
                    rpc_timeout=timedelta(seconds=20),
                )
                await client.get_workflow_handle(run).result()
            except (RPCError, RuntimeError):  # no server answers, or the run is there
                await asyncio.sleep(0.2)
            else:
                return

    async def _judged(self, queue: str, part: str, right: list[str] | None, point: str = "") -> Judged:
        run = next(self._names)
        effects = await self.played(queue, run, point)
        there = list(ledger.of(self._peer.place, run))
        twice, lacking = compared(there, right or [])
        ended = effects is not None
        counts = Counts(len(twice), len(lacking) if ended else 0, wedged=int(not ended))
        story = (f"ledger: {', '.join(there)}",) if counts else ()
        return Judged(run, part, counts, point, not point or self._stage.kills[run] > 0, story)

    async def each(self, points: Sequence[str], jobs: int, right: list[str] | None) -> list[Judged]:
        """Kill at each of these points in turn."""
        left, judged = iter(points), list[Judged]()

        async def work(number: int) -> None:
            async with self.cell(f"each-{number}", 1):
                for point in left:
                    judged.append(await self._judged(f"each-{number}", "each", right, point))

        await asyncio.gather(*(work(number) for number in range(min(jobs, len(points)))))
        return judged

    async def random(
        self, kills: int, workers: int, seed: int, right: list[str] | None
    ) -> tuple[list[Judged], dict[str, int]]:
        """Break so many things while several runs are under way. It has no store of its own to be locked."""
        judged = list[Judged]()
        async with self.cell("random", workers) as kept:
            trouble = Trouble(kept, self._server, self._peer.folder / "other.db", random.Random(seed))
            making = asyncio.create_task(trouble.make(kills))

            async def work() -> None:
                while not making.done():
                    judged.append(await self._judged("random", "random", right))

            await asyncio.gather(*(work() for _ in range(_UNDER_WAY)))
            await making
        return judged, dict(trouble.broken)
