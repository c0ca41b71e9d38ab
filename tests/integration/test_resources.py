"""What tools share for a worker's life, what a run opened, and what a tool is told of its time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.errors import AgentError
from perdure.tools import ToolContext, tool

LOOK = {"calls": [{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}]}
DONE = {"text": "done"}


class Log:
    """What was opened and closed, in order."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.changed = threading.Event()

    def add(self, entry: str) -> None:
        self.entries.append(entry)
        self.changed.set()

    async def until(self, entry: str) -> None:
        while entry not in self.entries:
            self.changed.clear()
            if not await asyncio.to_thread(self.changed.wait, 10):
                pytest.fail(f"{entry!r} never came: {self.entries}")

    @asynccontextmanager
    async def resource(self, name: str) -> AsyncIterator[str]:
        self.add(f"open {name}")
        yield name
        self.add(f"close {name}")


async def test_the_lifespan_is_entered_once_per_worker_and_left_when_it_stops(stage: Any) -> None:
    log = Log()

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        log.add(f"use {ctx.shared}")
        return "seen"

    agent = stage.agent([LOOK, DONE], [look], lifespan=lambda: log.resource("pool"))
    await stage.serve(agent)
    for _ in range(2):
        await stage.end(await stage.start_again(agent))
    assert log.entries == ["open pool", *["use pool"] * 4]
    await stage.stop()
    assert log.entries[-1] == "close pool"


async def test_a_lifespan_that_fails_keeps_the_worker_from_starting_with_one_sentence(stage: Any) -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    agent = stage.agent([DONE], lifespan=broken)
    with pytest.raises(AgentError, match=r"lifespan function of agent 'subject' failed: OSError: no database"):
        await stage.serve(agent)
    stage.agents = []


@pytest.mark.parametrize("end", ["answers", "is cancelled"])
async def test_what_a_run_opened_is_shared_by_its_calls_and_closed_when_it_ends(stage: Any, end: str) -> None:
    log = Log()

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        return await ctx.open("browser", lambda: log.resource(f"browser of {ctx.run_id}"))

    @tool(approval="always")
    async def act() -> None:
        """Act."""

    last = DONE if end == "answers" else {"calls": [{"name": "act", "arguments": {}}]}
    handle = await stage.start([LOOK, last], [look, act])
    if end == "is cancelled":
        await stage.until(handle, "approval_requested")
        assert log.entries == [f"open browser of {handle.id}"]
        await handle.cancel()
    await stage.end(handle)
    await log.until(f"close browser of {handle.id}")
    assert log.entries == [f"open browser of {handle.id}", f"close browser of {handle.id}"]


async def test_a_sync_tool_can_look_whether_it_should_stop(stage: Any) -> None:
    seen: list[bool] = []

    @tool(effect="read", timeout=timedelta(seconds=0.4))
    def look(ctx: ToolContext) -> str:
        """Look, until told to stop."""
        seen.append(timedelta() < ctx.deadline - datetime.now(UTC) <= timedelta(seconds=0.4))
        pause = threading.Event()
        while not ctx.cancelled:
            pause.wait(0.01)
        seen.append(ctx.cancelled)
        raise TimeoutError("stopped")

    finished = await stage.run([{"calls": [{"name": "look", "arguments": {}}]}, DONE], [look])
    assert finished.results[0].status == "error"
    assert seen == [True, True] * 2, "a read is tried twice"
