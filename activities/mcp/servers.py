"""The MCP servers of one worker: each is started, or connected to, when it is first needed, and shared by all runs.

One that has crashed is started anew for the call that comes next. They are spoken to where tools run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from perdure.activities.context import CallContext
from perdure.activities.held import Held
from perdure.activities.mcp.connections import (
    Connection,
    NotSent,
    Unreachable,
    Values,
    asks_for_input,
    connected,
)
from perdure.activities.mcp.content import content_of, words_of
from perdure.activities.toolbox import Toolbox
from perdure.activities.unlocked import Unlocked
from perdure.agents import Agent
from perdure.errors import ToolError
from perdure.mcp import MCPServer, Offer, filled, template
from perdure.policies import McpTool, ToolSpec
from perdure.results import REACHING, Illustrated
from perdure.sensitive import SHORTEST_SECRET, Vaulted, spellings
from perdure.telemetry import redaction
from perdure.tools import Tool

_IDLE_SECONDS = 60.0
"""After which a connection is closed that was made with a run's own secrets."""

_ENDING_SECONDS = 6.0
"""How long servers may take to end that are told to; the `mcp` package kills them before."""

_PRIVATE = re.compile(r"key|token|secret|passw|auth|credential|private", re.IGNORECASE)
"""Names of environment variables whose values are hidden."""

_INPUT = "The server wants more of its user before it goes on, which tools of MCP servers do not get here."


class Line:
    """A server as this worker knows it: its connection, and the places of its calls. Used where tools run.

    Args:
        server: Which one.
        secrets: Those of the run for which it is; empty for one that is for all runs.
    """

    def __init__(self, server: MCPServer, secrets: Mapping[str, str]) -> None:
        self.server = server
        self.private: dict[str, str] = {}
        self.users = 0
        self.left = 0.0
        self.crashes = 0
        self.places = asyncio.Semaphore(server.concurrency)
        self._secrets = secrets
        self._connecting = asyncio.Lock()
        self._held: Held[Connection] | None = None
        self._retired: set[asyncio.Future[None]] = set()
        self._closing = asyncio.Event()

    async def connection(self) -> Connection:
        """Return a connection by which something may be sent.

        Raises:
            Unreachable: If there is none.
        """
        async with self._connecting:
            if self._held and self._held.value.usable:
                return self._held.value
            self._retire()
            values = self._values()
            held = Held(lambda: connected(self.server, values))
            try:
                async with asyncio.timeout(self.server.start_seconds):
                    found = await held.entered()
            except TimeoutError:
                raise Unreachable(f"It was not there within {self.server.start_seconds:g} s.") from None
            except Unreachable as error:
                self.crashes = self.crashes + 1 if error.crashed else 0
                raise
            finally:
                if not held.is_open:
                    self._leave_to_end(held.abort())
            self._held, self.crashes = held, 0
            return found

    def _retire(self) -> None:
        """Close a connection by which nothing more is sent, once all that was is answered."""
        held, self._held = self._held, None
        if held:
            self._leave_to_end(_closed(held, self._closing))

    def _leave_to_end(self, work: Coroutine[Any, Any, None]) -> None:
        self._retired.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._retired.discard)

    async def aclose(self) -> None:
        """Close its connections, and end the server with them."""
        self._closing.set()
        held, self._held = self._held, None
        if held:
            await held.aclose()
        if self._retired:
            await asyncio.wait(list(self._retired), timeout=_ENDING_SECONDS)

    def _values(self) -> Values:
        """Return its environment and headers, which this process shows nowhere from now on."""
        server = self.server
        env = {name: self._fill(name, template(value), hide=False) for name, value in server.env.items()}
        headers = {name: self._fill(name, template(value), hide=True) for name, value in server.headers.items()}
        return Values(env, headers)

    def _fill(self, name: str, text: str, *, hide: bool) -> str:
        try:
            value, used = filled(text, os.environ, self._secrets)
        except LookupError as error:
            raise Unreachable(str(error.args[0]), lasting=True) from None
        for hole, one in used.items():
            secret = hide or hole in self._secrets or _PRIVATE.search(hole) or _PRIVATE.search(name)
            if secret and len(one) >= SHORTEST_SECRET:
                self.private[hole] = one
                redaction.current().known.learn_secret(hole, spellings(one))
        return value


async def _closed(held: Held[Connection], closing: asyncio.Event) -> None:
    """Close a connection as soon as it waits for no answer, or can't get one."""
    events = (held.value.idle, held.value.ended, closing)
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await held.aclose()


class Place:
    """A call's place at its server, or why it has none.

    Attributes:
        problem: Why nothing can be sent, in a sentence; "" where something can.
        lasting: No time mends that.
        crashes: How often in a row the server's process has ended before it was there.
        kind: Of the problem, in a word.
        secrets: All that must not be in what the call says.
    """

    def __init__(self, server: str, secrets: Unlocked) -> None:
        self.problem = ""
        self.lasting = False
        self.crashes = 0
        self.kind = "unavailable"
        self.secrets = secrets
        self._server = server
        self._line: Line | None = None
        self._connection: Connection | None = None

    def refuse(self, why: str, kind: str = "unavailable", *, lasting: bool = False) -> None:
        """Say why nothing can be sent."""
        self.problem = f"MCP server {self._server!r} can't be used: {why}"
        self.kind, self.lasting = kind, lasting

    async def enter(self, line: Line) -> None:
        """Wait for a place, and for the server. Runs where tools run, as all that follows."""
        await line.places.acquire()
        self._line = line
        line.users += 1
        try:
            self._connection = await line.connection()
        except Unreachable as error:
            self.refuse(str(error), lasting=error.lasting)
            self.crashes = line.crashes
        self.secrets = Unlocked({**self.secrets, **line.private}, self.secrets.problem)

    async def leave(self) -> None:
        """Give the place to others."""
        line, self._line = self._line, None
        if line:
            line.users -= 1
            line.left = asyncio.get_running_loop().time()
            line.places.release()

    async def offers(self) -> list[Offer]:
        """Return the tools that the server offers. Raises what the `mcp` package raises."""
        assert self._connection is not None  # noqa: S101 - there is no problem
        return await self._connection.offers()

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> Illustrated:
        """Return what a tool gives.

        Raises:
            NotSent: If nothing happened.
            ToolError: If the server says that it failed, or refuses it.
        """
        line = self._line
        assert line is not None and self._connection is not None  # noqa: S101, PT018 - there is no problem
        key = context.idempotency_key
        try:
            result = await self._connection.call(name, arguments, key, context.progress)
        except NotSent:
            self._connection = await self._again(line)
            result = await self._connection.call(name, arguments, key, context.progress)
        if asks_for_input(result):
            raise ToolError(_INPUT, error_type="input_required", suggestion="Do without it, or ask the user yourself.")
        if result.is_error:
            raise ToolError(words_of(result), error_type="tool_error")
        return content_of(result, shown=line.server.images)

    async def _again(self, line: Line) -> Connection:
        """Return another connection: the server was lost before the call was sent."""
        try:
            return await line.connection()
        except Unreachable as error:
            raise NotSent(f"MCP server {self._server!r} can't be used: {error}") from error


class Servers:
    """The MCP servers of one worker. An async context manager: they are ended with it.

    Args:
        agents: Whose they are, by name.
        toolbox: Where they are spoken to.
    """

    def __init__(self, agents: Mapping[str, Agent], toolbox: Toolbox) -> None:
        self._agents = agents
        self._toolbox = toolbox
        self._lines: dict[tuple[MCPServer, str], Line] = {}

    async def __aenter__(self) -> Self:
        """Start nothing yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End them all, as far as a tool that blocks their loop lets them be."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(self._toolbox.submit(self._close())), 2 * _ENDING_SECONDS)

    async def _close(self) -> None:
        lines, self._lines = list(self._lines.values()), {}
        await asyncio.gather(*(line.aclose() for line in lines), return_exceptions=True)

    @asynccontextmanager
    async def place(self, agent: str, server: str, vaulted: Vaulted | None, secrets: Unlocked) -> AsyncGenerator[Place]:
        """Yield a place for one call at an agent's server; waits for others, and for the server to be there."""
        place, known = Place(server, secrets), self._known(agent, server)
        if known is None:
            place.refuse(f"agent {agent!r} has it no more.", "removed", lasting=True)
            yield place
            return
        if problem := secrets.problem if known.secrets else "":
            place.refuse(problem, lasting=True)
            yield place
            return
        line = await asyncio.wrap_future(self._toolbox.submit(self._line(known, vaulted, secrets)))
        try:
            await self._enter(place, line)
            yield place
        finally:
            self._toolbox.submit(self._leave(place, line))

    async def offers(self, place: Place) -> list[Offer]:
        """Return the tools that a place's server offers. Raises what the `mcp` package raises."""
        return await asyncio.wrap_future(self._toolbox.submit(place.offers()))

    async def _enter(self, place: Place, line: Line) -> None:
        try:
            async with asyncio.timeout(REACHING.total_seconds()):
                await asyncio.wrap_future(self._toolbox.submit(place.enter(line)))
        except TimeoutError:
            place.refuse("other calls keep it busy.", "busy")
        except asyncio.CancelledError:
            place.refuse("its worker stops, or the run was cancelled.", "stopping")

    def _known(self, agent: str, server: str) -> MCPServer | None:
        live = self._agents.get(agent)
        return next((one for one in live.servers if one.name == server), None) if live else None

    async def _line(self, server: MCPServer, vaulted: Vaulted | None, secrets: Unlocked) -> Line:
        own = {name: secrets[name] for name in server.secrets if name in secrets}
        key = server, vaulted.id if own and vaulted else ""
        if key not in self._lines:
            self._lines[key] = Line(server, own)
        return self._lines[key]

    async def _leave(self, place: Place, line: Line) -> None:
        await place.leave()
        for key, one in list(self._lines.items()):
            if one is line and key[1] and not line.users:
                asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._forget, key, line)

    def _forget(self, key: tuple[MCPServer, str], line: Line) -> None:
        """Close what was made for one run, unless it is used again."""
        rested = asyncio.get_running_loop().time() - line.left > _IDLE_SECONDS - 1
        if self._lines.get(key) is line and not line.users and rested:
            del self._lines[key]
            _closing.add(task := asyncio.ensure_future(line.aclose()))
            task.add_done_callback(_closing.discard)


_closing: set[asyncio.Future[None]] = set()


def tool_of(place: Place, mcp: McpTool, name: str, context: CallContext) -> Tool:
    """Return the tool of a server as any tool is: what executes one call."""

    async def call(**arguments: Any) -> Illustrated:
        return await place.call(mcp.name, arguments, context)

    return Tool(ToolSpec(name=name, description=name, parameters={}, mcp=mcp), call)
