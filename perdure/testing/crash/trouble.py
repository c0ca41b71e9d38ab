"""Breaks workers, the server and the store at random moments, and counts what it broke."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from perdure.engine.server import DevServer
from perdure.testing.crash.processes import KeptUp

WAYS = {"kill": 14, "stop": 2, "freeze": 3, "server": 1, "store": 2}
"""How likely each is to come next."""


class Trouble:
    """Breaks one thing after the other.

    Args:
        workers: That are killed, stopped, or frozen for a while; each is started again by itself.
        server: The server, which is started again on its database file.
        store: File of the store, which a stranger locks.
        freeze: Seconds for which a worker is frozen at most: less than the shortest deadline of a tool that is not
            to be looked up too early.
    """

    def __init__(
        self, workers: Sequence[KeptUp], server: DevServer, store: Path, dice: random.Random, freeze: float = 3
    ) -> None:
        self.broken = Counter[str]()
        self._workers, self._server, self._store = workers, server, store
        self._dice, self._freeze = dice, freeze

    async def make(self, times: int) -> None:
        """Break so many things, at random moments 0 to 1.5 s apart."""
        for _ in range(times):
            await asyncio.sleep(self._dice.uniform(0, 1.5))
            way = self._dice.choices(list(WAYS), list(WAYS.values()))[0]
            self.broken[way] += 1
            if way == "server":
                await self._kill_server()
            elif way == "store":
                await self._lock_store()
            else:
                await self._break(way, self._dice.choice(self._workers))

    async def _break(self, way: str, kept: KeptUp) -> None:
        worker = kept.worker
        if way == "stop":
            worker.ask_to_end()
        elif way == "freeze":
            worker.freeze()
            await asyncio.sleep(self._dice.uniform(0.5, self._freeze))
            worker.thaw()
        else:
            worker.kill()

    async def _lock_store(self) -> None:
        """Have a stranger write for so long that some give up, and try again."""
        with closing(sqlite3.connect(self._store, isolation_level=None, timeout=30)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(self._dice.uniform(0.5, 8))
            stranger.execute("ROLLBACK")

    async def _kill_server(self) -> None:
        """SIGKILL the server, and wait until another one is there."""
        killed = self._server.record.pid
        os.kill(killed, signal.SIGKILL)
        while self._server.record.pid == killed:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
