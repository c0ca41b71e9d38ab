"""Following a run: lines as things happen, on a terminal with a line below them that says what is going on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from perdure import asking
from perdure import events as ev
from perdure.cli import prompt, session, standing, story
from perdure.cli.board import Board, Screen
from perdure.cli.output import as_json, paint, safe, say
from perdure.errors import ConnectionFailed
from perdure.messages import RunResult
from perdure.settings import Settings

if TYPE_CHECKING:
    from perdure.client import Client, RunHandle
    from perdure.telemetry.projection import Projection

REFRESH, LOOK = 0.1, 2.0
"""Seconds between two pictures, and between two looks at what is being retried, or is asked by runs below."""


_BY_THE_WAY = (ev.RunStarted, ev.WorkerTookOver, ev.ModelFinished, ev.Moved, ev.ToolStarted, ev.Said, ev.Told)
"""What somebody who chats need not see."""


class Follower:
    """Shows a run until it ends, or until it waits for a person.

    Args:
        no_wait: Stop where it waits for a person, and where no worker serves it.
        file: What to serve if no worker takes it; None looks it up.
        ask: Let the person at this terminal answer what it asks.
        brief: Show only what is done and asked, as in a chat; and stop where the person here wants to answer later.
        seen: Position of the last event that was shown already.
    """

    def __init__(
        self,
        client: Client,
        run_id: str,
        *,
        no_wait: bool = False,
        file: str | None = None,
        ask: bool = True,
        brief: bool = False,
        seen: str = "",
    ) -> None:
        self._settings: Settings = client.settings
        self._client = client
        self._handle: RunHandle = client.handle(run_id)
        self._no_wait = no_wait
        self._file = file
        self._board = Board()
        self._screen = Screen(self._board)
        self._ask = ask and not no_wait and self._screen.is_terminal and sys.stdin.isatty()
        self._asking: asyncio.Task[None] | None = None
        self._brief = brief
        self._left = asyncio.Event()
        self._seen = ev.position_key(seen)
        self.last = ""

    async def follow(self) -> RunResult | None:
        """Return the result, or None if it waits for a person and `no_wait` was said, or the person here leaves it.

        A server that goes away is waited for: the run is kept there.

        Raises:
            RunNotFound: If there is no such run.
            ConnectionFailed: If no worker serves it and `no_wait` was said.
        """
        missing = asyncio.create_task(self._miss_worker())
        beside: list[asyncio.Task[Any]] = [
            missing,
            leaving := asyncio.create_task(self._leaves()),
            *(asyncio.create_task(work) for work in (self._draw(), self._look())),
        ]
        try:
            self._screen.show()
            while True:
                ended = asyncio.create_task(self._until_ended())
                beside.append(ended)
                await asyncio.wait([ended, missing, leaving], return_when=asyncio.FIRST_COMPLETED)
                if not ended.done() and leaving.done():
                    return None
                if not ended.done():
                    raise ConnectionFailed(await missing)
                try:
                    return await ended
                except ConnectionFailed as error:
                    await self._reconnect(error)
        finally:
            for task in [*beside, *([self._asking] if self._asking else [])]:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            self._screen.hide()

    async def _leaves(self) -> None:
        """Wait until the person here wants to be asked no more."""
        await self._left.wait()

    async def _until_ended(self) -> RunResult | None:
        async for event in self._handle.events(self.last, live=self._screen.is_terminal):
            self.last = event.position or self.last
            self._take(event)
            if not event.position:
                continue
            if isinstance(event, ev.PhaseChanged) and self._board.waits and not self._board.open:
                await self._hear_below()
            if self._no_wait and (self._board.open or self._board.paused or self._board.waits) and await self._waits():
                return None
        return await self._handle.whole((await self._handle.projection(last=True)).result())

    async def _hear_below(self) -> None:
        """Show what runs below this one wait for, or let the person here answer it."""
        if self._ask and self._asking is None:
            self._asking = asyncio.create_task(self._answer_below())
        elif not self._ask:
            for request in await standing.below(self._client, await self._handle.projection(last=True)):
                self._show_below(request)

    def _show_below(self, request: asking.Request) -> None:
        for text in story.request_lines(request, sys.stderr, story.INDENT):
            self._screen.say(text)

    async def _waits(self) -> bool:
        """Return whether it waits for a person; if so, all that it waits for has been shown."""
        projection = await self._handle.projection(last=True)
        if ev.position_key(self.last)[0] < projection.executions * ev.EXECUTION:
            projection = await self._handle.projection()  # it has continued as new since the last event
        waits = standing.waits(projection)
        if waits:
            for event in projection.events:
                if ev.position_key(event.position) > ev.position_key(self.last):
                    self._take(event)
        return waits

    async def _reconnect(self, error: ConnectionFailed) -> None:
        self._screen.say(f"{safe(str(error)).rstrip('.')}. The run is kept; waiting until it answers again.")
        while True:
            await asyncio.sleep(1)
            with contextlib.suppress(ConnectionFailed):
                self._client = await session.connect(self._settings)
                self._handle = self._client.handle(self._handle.id)
                return

    def _take(self, event: ev.Event) -> None:
        self._board.take(event)
        if self._is_shown(event):
            self._screen.say(story.line(event, self._board.begun or event.time, sys.stderr))
        if isinstance(event, prompt.Open):
            self._show_request(event)
        if self._asking is None and self._ask and isinstance(event, prompt.Open):
            self._asking = asyncio.create_task(self._answer_requests())
        self._screen.refresh()

    def _is_shown(self, event: ev.Event) -> bool:
        if isinstance(event, ev.ModelStarted | ev.PhaseChanged) or not event.position:
            return False
        if ev.position_key(event.position) <= self._seen:
            return False
        return not self._brief or not (isinstance(event, _BY_THE_WAY) or getattr(event, "status", "") == "completed")

    def _show_request(self, event: prompt.Open) -> None:
        approval = isinstance(event, ev.ApprovalRequested)
        wants: Literal["approval", "answer", "settlement"] = (
            "approval" if approval else "answer" if isinstance(event, ev.Asked) else "settlement"
        )
        request = asking.Request(
            run_id=event.run_id,
            call=event.call,
            tool=event.name,
            wants=wants,
            arguments=event.arguments if isinstance(event, ev.ApprovalRequested) else {},
            why="",
            hash="",
            key="",
            since=None,
        )
        arguments = as_json(request.arguments, indent=2).splitlines() if approval else []
        for text in (*arguments, *(paint(command, "cyan", sys.stderr) for command in request.commands)):
            self._screen.say(story.INDENT + text)

    # -- beside the events ---------------------------------------------------------------------------------

    async def _answer_requests(self) -> None:
        """Let the person here answer, one request after another, as long as any is open."""
        await asyncio.sleep(0)  # the events at hand may hold the answer already
        while self._board.open:
            event = next(iter(self._board.open.values()))
            if not any(one.call == event.call for one in standing.requests(await self._handle.projection(last=True))):
                self._close(event)
                continue
            self._screen.hide()
            if not await self._unless_decided(event, prompt.Asking(self._handle, event, self._screen).answered()):
                self._ask = False
                if self._brief:
                    self._left.set()
                break
            self._screen.show()
        self._screen.show()
        self._asking = None

    async def _answer_below(self) -> None:
        """Let the person here answer what runs below this one ask, as long as any of them waits."""
        seen = set[tuple[str, str]]()
        while self._ask and self._board.waits and not self._board.open:
            async for its in standing.waiting_below(self._client, await self._handle.projection(last=True)):
                for request in standing.requests(its):
                    await self._ask_for(request, its, seen)
            await asyncio.sleep(LOOK)
        self._asking = None

    async def _ask_for(self, request: asking.Request, its: Projection, seen: set[tuple[str, str]]) -> None:
        """Let the person here answer what a run below asks, once."""
        place = (request.run_id, request.call)
        told = [one for one in its.events if isinstance(one, prompt.Open) and one.call == request.call]
        if place in seen or not told or not self._ask:
            return
        seen.add(place)
        self._show_below(request)
        self._screen.hide()
        asked = prompt.Asking(self._client.handle(request.run_id), told[-1], self._screen)
        self._ask = await asked.answered()
        self._screen.show()

    def _close(self, event: prompt.Open) -> None:
        """Take a request off the board; a later one about the same call stays."""
        if self._board.open.get(event.call) is event:
            del self._board.open[event.call]

    async def _unless_decided(self, event: prompt.Open, answering: Coroutine[Any, Any, bool]) -> bool:
        """Return whether to go on asking; stop asking if somebody else has decided meanwhile."""
        task = asyncio.create_task(answering)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=REFRESH)
                if not task.done() and self._board.open.get(event.call) is not event:
                    say("(decided elsewhere)")
                    return True
            self._close(event)
            return task.result()
        finally:
            task.cancel()

    async def _draw(self) -> None:
        while self._screen.is_terminal:
            await asyncio.sleep(REFRESH)
            self._screen.refresh()

    async def _look(self) -> None:
        """Say what is being retried: history does not until it ends."""
        said: set[tuple[str, str]] = set()
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(Exception):  # only beside; the events say what is wrong with the server
                found = await standing.attempts(self._client, self._handle.id)
                self._board.trouble = [story.attempt_line(one, datetime.now(UTC)) for one in found]
                for one, text in zip(found, self._board.trouble, strict=True):
                    if (one.what, one.last_failure) not in said and not self._screen.is_terminal:
                        self._screen.say(text)
                    said.add((one.what, one.last_failure))

    async def _miss_worker(self) -> str:
        """Say so whenever no worker takes the run; with `no_wait`, return what there is to say."""
        async for text in standing.absences(self._client, self._handle.id, self._file):
            if self._no_wait:
                return text
            self._screen.say(paint(safe(text), "yellow", sys.stderr))
        raise AssertionError("absences never end")
