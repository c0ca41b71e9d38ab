"""What tools share for a worker's life, and what a run opens."""

import asyncio
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import AgentError
from perdure.tools import ToolContext, tool


def calling(*names):
    return {"calls": [{"name": name} for name in names]}


@pytest.fixture
def log():
    """What was opened and closed, in order."""
    return []


def opening(log, name="pool"):
    """A resource that notes when it is opened and closed."""

    @asynccontextmanager
    async def resource():
        log.append(f"open {name}")
        try:
            yield f"the {name}"
        finally:
            await asyncio.sleep(0)
            log.append(f"close {name}")

    return resource


async def until(holds):
    """Wait until something is true that nobody can be asked to announce."""
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came true")


# -- a worker's ------------------------------------------------------------------------------------------------


async def test_the_lifespan_is_entered_once_for_all_calls_and_left_when_the_worker_stops(stage, log):
    seen = []

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append(ctx.shared)
        return "seen"

    @tool(effect="read", name="look sync")
    def look_sync(ctx: ToolContext) -> str:
        """Look."""
        seen.append(ctx.shared)
        return "seen"

    agent = stage.agent([calling("look", "look sync", "look"), "done"], [look, look_sync], lifespan=opening(log))
    await stage.serve(agent)
    assert log == ["open pool"]
    first, second = await stage.start_again(agent), await stage.start_again(agent)
    await asyncio.gather(stage.end(first), stage.end(second))
    assert seen == ["the pool"] * 6
    assert log == ["open pool"]
    await stage.stop()
    assert log == ["open pool", "close pool"]


async def test_each_agent_has_what_its_own_lifespan_opened(stage, log):
    seen = []

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append((ctx.agent, ctx.shared))
        return "seen"

    one = stage.agent([calling("look"), "done"], [look], name="one", lifespan=opening(log, "red"))
    two = stage.agent([calling("look"), "done"], [look], name="two", lifespan=opening(log, "blue"))
    three = stage.agent([calling("look"), "done"], [look], name="three")
    await stage.serve(one, two, three)
    for agent in (one, two, three):
        await stage.end(await stage.start_again(agent))
    assert seen == [("one", "the red"), ("two", "the blue"), ("three", None)]


async def test_a_lifespan_that_fails_is_an_error_that_names_the_agent_and_closes_what_was_open(stage, log):
    @asynccontextmanager
    async def broken():
        raise ConnectionRefusedError("no database there")
        yield

    first = stage.agent(["done"], lifespan=opening(log), name="first")
    second = stage.agent(["done"], lifespan=broken, name="second")
    with pytest.raises(AgentError, match=r"agent 'second' failed: ConnectionRefusedError: no database there"):
        await stage.serve(first, second)
    await until(lambda: log == ["open pool", "close pool"])


async def test_a_lifespan_that_fails_to_close_does_not_keep_the_worker_from_stopping(stage):
    @asynccontextmanager
    async def stubborn():
        yield "pool"
        raise OSError("already closed")

    await stage.serve(stage.agent(["done"], lifespan=stubborn))
    await stage.stop()


# -- a run's ---------------------------------------------------------------------------------------------------


def opener(log, **options):
    @tool(effect="read", name="browse", **options)
    async def browse(ctx: ToolContext) -> str:
        """Browse."""
        return await ctx.open("browser", opening(log, f"browser of {ctx.run_id}"))

    return browse


async def test_what_a_run_opens_is_opened_once_and_closed_when_the_run_ends(stage, log):
    agent = stage.agent([calling("browse", "browse"), calling("browse"), "done"], [opener(log)])
    await stage.serve(agent)
    first, second = await stage.start_again(agent), await stage.start_again(agent)
    done = await stage.end(first)
    await stage.end(second)
    assert {result.content for result in done.results} == {f"the browser of {first.id}"}
    await until(lambda: len(log) == 4)
    opened = [f"open browser of {handle.id}" for handle in (first, second)]
    assert sorted(log) == sorted([*opened, *(line.replace("open", "close") for line in opened)])


async def test_it_is_closed_also_when_the_run_is_cancelled(stage, log):
    @tool(approval="always")
    def book() -> str:
        """Book."""
        return "booked"

    handle = await stage.start([calling("browse"), calling("book"), "done"], [opener(log), book])
    await stage.until(handle, "approval_requested")
    assert log == [f"open browser of {handle.id}"]
    await handle.cancel()
    await stage.end(handle)
    await until(lambda: log[1:] == [f"close browser of {handle.id}"])


async def test_it_is_closed_also_when_the_run_fails(stage, log):
    script = [calling("browse"), {"error": {"kind": "quota", "message": "gone"}}]
    done = await stage.run(script, [opener(log)])
    assert done.result.status == "failed"
    await until(lambda: log[1:] == [f"close browser of {done.handle.id}"])


async def test_it_is_closed_also_when_the_worker_stops_in_the_middle(stage, log):
    @tool(approval="always")
    def book() -> str:
        """Book."""
        return "booked"

    handle = await stage.start([calling("browse"), calling("book"), "done"], [opener(log), book])
    await stage.until(handle, "approval_requested")
    await stage.stop()
    assert log == [f"open browser of {handle.id}", f"close browser of {handle.id}"]
    await stage.serve(*stage.agents)
    await handle.deny()
    await stage.end(handle)


async def test_a_resource_that_fails_to_open_is_the_tools_failure_and_may_be_opened_later(stage, log):
    times = iter(range(9))

    @asynccontextmanager
    async def moody():
        if next(times) == 0:
            raise OSError("not now")
        yield "browser"

    @tool(effect="read")
    async def browse(ctx: ToolContext) -> str:
        """Browse."""
        return await ctx.open("browser", moody)

    done = await stage.run([calling("browse"), "done"], [browse])
    assert [(result.status, result.content) for result in done.results] == [("ok", "browser")]


async def test_a_resource_that_fails_to_close_holds_up_nobody(stage, log):
    @asynccontextmanager
    async def stubborn():
        yield "browser"
        log.append("closing")
        raise OSError("gone already")

    @tool(effect="read")
    async def browse(ctx: ToolContext) -> str:
        """Browse."""
        return await ctx.open("browser", stubborn)

    done = await stage.run([calling("browse"), "done"], [browse])
    assert done.result.status == "completed"
    await until(lambda: log == ["closing"])


# -- an attempt's ----------------------------------------------------------------------------------------------


async def test_a_tool_is_told_who_asks_and_until_when(stage):
    seen, left = [], []

    @tool(effect="read", timeout=7)
    def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append((ctx.run_id, ctx.agent, ctx.step, ctx.call, ctx.attempt, ctx.cancelled))
        left.append(ctx.deadline - datetime.now(UTC))
        return "seen"

    done = await stage.run([calling("look"), "done"], [look])
    assert seen == [(done.handle.id, "subject", 1, "1.1", 1, False)]
    assert timedelta(seconds=5) < left[0] <= timedelta(seconds=7)


@pytest.mark.parametrize("why", ["deadline", "cancelled"])
async def test_a_sync_tool_sees_that_it_should_stop(stage, why):
    stopped = []

    @tool(effect="read", timeout=0.5 if why == "deadline" else 20)
    def work(ctx: ToolContext) -> str:
        """Work until told to stop."""
        while not ctx.cancelled:
            time.sleep(0.01)
        stopped.append(True)
        raise RuntimeError("stopped early")

    handle = await stage.start([calling("work"), "done"], [work])
    await stage.until_held(handle, "work")
    if why == "cancelled":
        await handle.cancel()
    done = await stage.end(handle)
    assert stopped
    assert done.result.status == ("cancelled" if why == "cancelled" else "completed")


@pytest.mark.reported(36)
async def test_an_async_tool_is_cancelled_and_may_clean_up(stage):
    cleaned = []

    @tool(effect="read", timeout=20)
    async def work() -> str:
        """Work."""
        try:
            await asyncio.sleep(20)
        finally:
            cleaned.append(True)
        return "late"

    handle = await stage.start([calling("work"), "done"], [work])
    await stage.until_held(handle, "work")
    await handle.cancel()
    done = await stage.end(handle)
    assert cleaned
    assert [call.status for call in done.result.calls] == ["cancelled"]
