"""Where workers say where they are: keeps the points of each run, and says who is to die."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Moment = Callable[[str, str, str], None]
"""Told of a run, an activity's id, and `start` or `done`, before the worker goes on."""


def nothing(*_: object) -> None:
    """Hear of a moment, and do nothing."""


class Stage:
    """Listens to workers. Serve it with `Stage.open()`.

    Attributes:
        address: Host and port.
        points: Of each run: names of the points that it came to, in that order.
        kills: Of each run: how often a worker died at a point of it.
    """

    def __init__(self) -> None:
        self.address = ""
        self.points: dict[str, list[str]] = {}
        self.kills: dict[str, int] = {}
        self.moment: Moment = nothing
        self._deadly: dict[str, str] = {}
        self._executions: dict[tuple[str, str], list[str]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncGenerator[Stage]:
        """Listen while the block runs."""
        stage = cls()
        server = await asyncio.start_server(stage._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        stage.address = f"{host}:{port}"
        try:
            yield stage
        finally:
            server.close()

    def expect(self, run: str, deadly: str = "") -> None:
        """Keep the points of a run from now on; whoever comes to the one that is `deadly` first dies there."""
        self.points[run] = []
        self.kills[run] = 0
        if deadly:
            self._deadly[run] = deadly

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ValueError):  # killed while it spoke
            answer = self._answer(**json.loads(await reader.readline()))
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    def _answer(self, workflow: str, execution: str, name: str, call: str, moment: str) -> dict[str, Any]:
        run = next((run for run in self.points if run in workflow), "")
        if not run:
            return {}
        executions = self._executions.setdefault((run, workflow), [])
        if execution not in executions:
            executions.append(execution)
        number = executions.index(execution) + 1
        told = f"{workflow.replace(run, 'run')}{f' #{number}' if number > 1 else ''}: {name}"
        if told not in self.points[run]:
            self.points[run].append(told)
        if moment:
            self.moment(run, call, moment)
        if self._deadly.get(run) != told:
            return {}
        del self._deadly[run]
        self.kills[run] += 1
        return {"die": True}
