"""The cable between one worker and the server, which can be pulled."""

import asyncio
from contextlib import asynccontextmanager


class Cable:
    """A TCP proxy in front of the server."""

    def __init__(self, target):
        self.address = ""
        self._target = target.split(":")
        self._plugged = True
        self._flows = asyncio.Event()
        self._flows.set()
        self._ends: set[asyncio.StreamWriter] = set()

    @classmethod
    @asynccontextmanager
    async def to(cls, target):
        """Serve at `address` what `target` serves."""
        cable = cls(target)
        server = await asyncio.start_server(cable._connect, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        cable.address = f"{host}:{port}"
        try:
            yield cable
        finally:
            cable.plug()  # what is held would wait for ever
            cable.pull()
            server.close()

    def pull(self):
        """Break all connections; there are no new ones until it is plugged in again."""
        self._plugged = False
        for end in self._ends:
            end.transport.abort()

    def plug(self):
        """Let it connect, and pass things on, again."""
        self._plugged = True
        self._flows.set()

    def hold(self):
        """Keep connections, old and new, and pass nothing on: whoever is at either end hears nothing."""
        self._flows.clear()

    async def _connect(self, reader, writer):
        self._ends.add(writer)
        try:
            if self._plugged:
                far_reader, far_writer = await asyncio.open_connection(*self._target)
                self._ends.add(far_writer)
                await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
                self._ends.discard(far_writer)
        except OSError:
            pass
        finally:
            writer.close()
            self._ends.discard(writer)

    async def _pass_on(self, reader, writer):
        try:
            while data := await reader.read(65_536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
