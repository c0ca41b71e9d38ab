"""Watching a run: its events, each once and in order, and between them what comes beside them just now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from datetime import timedelta

from perdure import events as ev
from perdure.telemetry.live import Aside

_HELD = 1_000
"""What comes before the event that it belongs to, and waits for it."""

_EARLIER = timedelta(seconds=1)
"""A piece of text that is older than its model call by more is of an earlier one; clocks may differ by less."""


class Attention:
    """Which of what comes beside a run's events is of what goes on now. Pure.

    Of a reply, only pieces of the newest attempt are let through, each once and in order. What is of a call that has
    ended is dropped; what comes before the event that it belongs to waits for that.
    """

    def __init__(self) -> None:
        self._base: dict[str, str] = {}
        self._asked: ev.ModelStarted | None = None
        self._replied = 0
        self._calls: dict[str, str] = {}
        self._called: set[str] = set()
        self._ended: set[str] = set()
        self._newest = (0, 0)
        self._length = 0
        self._held: list[Aside] = []

    def happened(self, event: ev.Event) -> Iterator[Aside]:
        """Take an event; yield what had come before it, and is of it."""
        self._base = {"agent": event.agent, "spec_hash": event.spec_hash, "session": event.session}
        match event:
            case ev.ModelStarted():
                self._asked, self._newest, self._length = event, (0, 0), 0
            case ev.ModelFinished() | ev.ModelFailed() | ev.Moved():
                self._asked, self._replied = None, max(event.step, self._replied)
                self._called = {call.partition(" ")[0] for call in getattr(event, "calls", ())}
            case ev.ToolStarted() | ev.Undoing():
                self._calls[event.call] = event.name
                self._ended.discard(event.call)
            case ev.ToolFinished() | ev.InDoubt() | ev.Undone():
                self._calls.pop(event.call, None)
                self._ended.add(event.call)
            case ev.RunStarted():
                self._replied, self._called, self._ended = 0, set(), set()
            case _:
                return
        held, self._held = self._held, []
        for aside in held:
            yield from self.came(aside)

    def came(self, aside: Aside) -> Iterator[Aside]:
        """Take what has come beside the events; yield it if it is of what goes on now."""
        if isinstance(aside, ev.TextDelta):
            yield from self._text(aside)
        elif name := self._calls.get(aside.call):
            yield aside.model_copy(update={**self._base, "name": name})
        elif aside.call in self._ended:
            return
        elif aside.local and aside.call in self._called:
            yield aside.model_copy(update=self._base)  # its start will be told when it has ended
        else:
            self._hold(aside)

    def _text(self, delta: ev.TextDelta) -> Iterator[Aside]:
        if self._asked is None or delta.step > self._asked.step:
            if delta.step > self._replied:
                self._hold(delta)
            return
        attempt = (delta.attempt, delta.request)
        if delta.step < self._asked.step or attempt < self._newest or delta.time < self._asked.time - _EARLIER:
            return
        if attempt > self._newest:
            self._newest, self._length = attempt, 0
        if delta.offset >= self._length:
            self._length = delta.offset + len(delta.text)
            yield delta.model_copy(update=self._base)

    def _hold(self, aside: Aside) -> None:
        self._held = [*self._held, aside][-_HELD:]


async def together(
    events: AsyncIterator[ev.Event], asides: AsyncGenerator[Aside], attention: Attention
) -> AsyncGenerator[ev.Event]:
    """Yield `events` to their end, and between them what is of now; what goes wrong beside them is left out."""
    queue: asyncio.Queue[ev.Event | Aside | None] = asyncio.Queue(_HELD)

    async def follow() -> None:
        try:
            async for event in events:
                await queue.put(event)
        finally:
            await queue.put(None)

    async def listen() -> None:
        with contextlib.suppress(Exception):
            async for aside in asides:
                await queue.put(aside)

    following, listening = asyncio.create_task(follow()), asyncio.create_task(listen())
    try:
        while (each := await queue.get()) is not None:
            if isinstance(each, Aside):
                for aside in attention.came(each):
                    yield aside
                continue
            yield each
            for aside in attention.happened(each):
                yield aside
        await following
    finally:
        for task in (following, listening):
            task.cancel()
        await asyncio.gather(following, listening, return_exceptions=True)
        await asides.aclose()
