"""`perdure watch`: a run's events as they happen, and what comes between them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from perdure import events as ev
from perdure.cli import session, standing, story
from perdure.cli.board import Board, Screen
from perdure.cli.output import Misuse, emit, paint, safe, say

if TYPE_CHECKING:
    from perdure.client import Client

REFRESH = 0.1
"""Seconds between two pictures."""


async def watch(run_id: str, after: str, *, as_json: bool, stream: bool) -> None:
    """Print events until the run has ended.

    Args:
        after: Position of the last one that is not wanted.
        stream: Text and progress as well, where there is somebody, or a program, who looks on while they come.

    Raises:
        Misuse: If `after` is no position.
    """
    try:
        ev.position_key(after)
    except ValueError as error:
        raise Misuse(f"{after!r} is no position; positions look like 19.1.") from error
    client = await session.connect()
    board = Board()
    screen = Screen(board, sys.stdout)
    shown = _Shown(board, screen)
    beside = [asyncio.create_task(_miss_worker(client, run_id, screen))]
    if not as_json and screen.is_terminal and stream:
        screen.show()
        beside.append(asyncio.create_task(_draw(screen)))
    try:
        async for event in client.handle(run_id).events(after, live=stream and (as_json or screen.is_terminal)):
            if as_json:
                emit(event)
            else:
                shown.take(event)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        screen.hide()


class _Shown:
    """Events as lines that stay; what comes between them is on the board."""

    def __init__(self, board: Board, screen: Screen) -> None:
        self._board = board
        self._screen = screen

    def take(self, event: ev.Event) -> None:
        self._board.take(event)
        if event.position and not isinstance(event, ev.PhaseChanged):
            self._screen.say(story.line(event, self._board.begun or event.time, sys.stdout))
        if isinstance(event, ev.ModelFinished) and event.text and not event.calls and self._screen.is_terminal:
            self._screen.say(safe(event.text))
        self._screen.refresh()


async def _draw(screen: Screen) -> None:
    while True:
        await asyncio.sleep(REFRESH)
        screen.refresh()


async def _miss_worker(client: Client, run_id: str, screen: Screen) -> None:
    """Say so whenever no worker takes the run."""
    async for text in standing.absences(client, run_id):
        tell: Callable[[str], object] = screen.say if screen.is_terminal else say
        tell(paint(safe(text), "yellow", sys.stderr))
