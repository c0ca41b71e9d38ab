"""The side channel over PostgreSQL: LISTEN and NOTIFY, a channel a run. What nobody listens for is gone."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

_LARGEST = 7_900
"""Bytes; the server takes less than 8,000."""
_TIMEOUT, _PAUSE = 2.0, 1.0
"""Seconds that the server gets; and between two tries to reach it."""
_MOST = 10_000
"""Lines that wait for whoever watches."""
_SEND = "SELECT pg_notify($1, line) FROM unnest($2::text[]) AS line"


def _channel(name: str) -> str:
    return f"perdure_{name}"


async def _connect(url: str) -> Any:
    asyncpg: Any = import_module("asyncpg")  # it has no types
    address = re.sub(r"^postgres(ql)?(\+\w+)?:", "postgresql:", url)
    return await asyncpg.connect(address, timeout=_TIMEOUT, command_timeout=_TIMEOUT)


class Notifications:
    """See `perdure.telemetry.live.Outlet`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None
        self._again = 0.0

    def write(self, name: str, lines: Sequence[bytes], *, begins: bool) -> None:  # noqa: ARG002 - nothing is kept
        """Send `lines`, in one transaction.

        Raises:
            ConnectionError: If the server has just failed; it is left alone for a second.
        """
        if time.monotonic() < self._again:
            raise ConnectionError
        try:
            self._loop.run_until_complete(self._send(name, [line.decode() for line in lines if len(line) <= _LARGEST]))
        except Exception:
            self._again = time.monotonic() + _PAUSE
            self._drop()
            raise

    async def _send(self, name: str, lines: list[str]) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await _connect(self._url)
        await self._connection.execute(_SEND, _channel(name), lines)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                self._loop.run_until_complete(_terminate(connection))

    def close(self) -> None:
        """Release the connection."""
        self._drop()
        self._loop.close()


async def _terminate(connection: Any) -> None:
    connection.terminate()
    await asyncio.sleep(0)  # its socket is closed by the loop


async def heard(url: str, name: str) -> AsyncGenerator[bytes]:
    """Yield what is sent from now on. Never ends; a server that goes away is tried again every second."""
    while True:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST)

        def hear(*told: Any, to: asyncio.Queue[bytes | None] = lines) -> None:
            with suppress(asyncio.QueueFull):  # whoever watches does not keep up
                to.put_nowait(str(told[-1]).encode())

        def end(_: object, to: asyncio.Queue[bytes | None] = lines) -> None:
            if to.full():
                to.get_nowait()
            to.put_nowait(None)

        with suppress(Exception):
            connection = await _connect(url)
            try:
                connection.add_termination_listener(end)
                await connection.add_listener(_channel(name), hear)
                while (line := await lines.get()) is not None:
                    yield line
            finally:
                connection.terminate()
        await asyncio.sleep(_PAUSE)
