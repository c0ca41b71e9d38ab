"""What tools share, what their runs open, and where small pieces of application code run."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure import Agent, AgentError
from perdure.activities import toolbox as module
from perdure.activities.context import CallContext
from perdure.activities.toolbox import Toolbox
from perdure.wire import ToolInput


class Runs:
    """Stands for the Temporal client: tells when a run has ended."""

    def __init__(self) -> None:
        self.ends: dict[str, list[asyncio.Future[None]]] = {}
        self.asked = asyncio.Semaphore(0)

    def get_workflow_handle(self, run_id: str) -> Any:
        return type("Handle", (), {"result": lambda _, follow_runs: self._result(run_id)})()

    async def _result(self, run_id: str) -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ends.setdefault(run_id, []).append(end)
        self.asked.release()
        await end


class Log:
    """Context managers that say when they are entered and left."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.left = threading.Semaphore(0)

    def manager(self, name: str, *, fails: str = "", error: BaseException | None = None) -> Callable[[], Any]:
        @asynccontextmanager
        async def manage() -> AsyncGenerator[str]:
            task = asyncio.current_task()
            if fails == "entering":
                raise error or RuntimeError("no database")
            self.lines.append(f"+{name}")
            try:
                yield name
            finally:
                self.lines.append(f"-{name}" if task is asyncio.current_task() else f"-{name} elsewhere")
                self.left.release()
                if fails == "leaving":
                    raise error or RuntimeError("no database")

        return manage


def toolbox(*agents: Agent, runs: Runs | None = None, threads: int = 2) -> Toolbox:
    return Toolbox({agent.name: agent for agent in agents}, cast("Client", runs), threads)


def agent(name: str, lifespan: Callable[[], Any] | None = None) -> Agent:
    return Agent(name, "m:m", lifespan=lifespan)


def context(box: Toolbox, run_id: str = "run") -> CallContext:
    call = ToolInput(agent="a", call_id="c7", position="3.2", key="run:e:3.2")
    return CallContext(call, run_id, 2, datetime.now(UTC) + timedelta(seconds=30), box)


# -- lifespans ------------------------------------------------------------------------------------------------


async def test_lifespan_is_entered_once_before_anything_is_served_and_left_at_the_end():
    log = Log()
    async with toolbox(agent("a", log.manager("a")), agent("b", log.manager("b")), agent("c")) as box:
        assert log.lines == ["+a", "+b"]
        assert [box.shared(name) for name in "abcd"] == ["a", "b", None, None]
    assert log.lines == ["+a", "+b", "-b", "-a"]


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
async def test_lifespan_that_fails_is_named_and_the_others_are_left_again(kind):
    log, error = Log(), kind("no database")
    box = toolbox(agent("a", log.manager("a")), agent("b", log.manager("b", fails="entering", error=error)))
    said = f"The lifespan function of agent 'b' failed: .*{kind.__name__}: no database"
    with pytest.raises(AgentError, match=said):
        await box.__aenter__()
    assert log.lines == ["+a", "-a"]
    assert not box._thread.is_alive()


async def test_lifespan_that_is_no_context_manager_is_named():
    async def forgot_the_decorator():
        yield 1

    with pytest.raises(AgentError, match=r"The lifespan function of agent 'a' failed: .*asynchronous context manager"):
        await toolbox(agent("a", forgot_the_decorator)).__aenter__()


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit("x")])
async def test_lifespan_that_fails_when_it_is_left_keeps_no_other_from_being_left(error):
    log = Log()
    async with toolbox(agent("a", log.manager("a")), agent("b", log.manager("b", fails="leaving", error=error))) as box:
        pass
    assert log.lines == ["+a", "+b", "-b", "-a"]
    assert not box._thread.is_alive()


async def test_lifespan_that_is_never_left_does_not_hold_the_worker(monkeypatch):
    monkeypatch.setattr(module, "_CLOSING_SECONDS", 0.1)

    @asynccontextmanager
    async def stubborn():
        yield 1
        await asyncio.Event().wait()

    async with toolbox(agent("a", stubborn)) as box:
        pass
    assert not box._thread.is_alive()


# -- what a run opens -----------------------------------------------------------------------------------------


async def test_resource_is_opened_once_per_run_and_key_and_left_when_the_run_ends():
    log, runs = Log(), Runs()
    async with toolbox(runs=runs) as box:
        opened = await asyncio.gather(*(context(box, "one").open("db", log.manager("one")) for _ in range(5)))
        assert opened == ["one"] * 5
        assert await context(box, "two").open("db", log.manager("two")) == "two"
        assert await context(box, "one").open("cache", log.manager("cache")) == "cache"
        assert log.lines == ["+one", "+two", "+cache"]
        await runs.asked.acquire()
        await runs.asked.acquire()
        runs.ends["one"][0].set_exception(RuntimeError("the run failed"))
        for _ in range(2):
            await asyncio.to_thread(log.left.acquire)
        assert log.lines == ["+one", "+two", "+cache", "-cache", "-one"]
    assert log.lines[-1] == "-two"


async def test_resource_is_opened_again_after_the_run_has_ended_and_was_resumed():
    log, runs = Log(), Runs()
    async with toolbox(runs=runs) as box:
        for _ in range(2):
            await context(box).open("db", log.manager("db"))
            await runs.asked.acquire()
            runs.ends["run"][-1].set_result(None)
            await asyncio.to_thread(log.left.acquire)
    assert log.lines == ["+db", "-db"] * 2


async def test_resource_stays_open_while_the_server_is_away(monkeypatch):
    monkeypatch.setattr(module, "_AWAY_SECONDS", 0)
    log, runs = Log(), Runs()
    async with toolbox(runs=runs) as box:
        await context(box).open("db", log.manager("db"))
        for _ in range(3):
            await runs.asked.acquire()
            runs.ends["run"][-1].set_exception(RPCError("away", RPCStatusCode.UNAVAILABLE, b""))
        await runs.asked.acquire()
        assert log.lines == ["+db"]
        runs.ends["run"][-1].set_exception(RPCError("gone", RPCStatusCode.NOT_FOUND, b""))
        await asyncio.to_thread(log.left.acquire)
    assert log.lines == ["+db", "-db"]


async def test_resource_that_needs_another_can_open_it():
    log, runs = Log(), Runs()

    async with toolbox(runs=runs) as box:
        ctx = context(box)

        @asynccontextmanager
        async def session():
            yield f"session on {await ctx.open('db', log.manager('db'))}"

        assert await asyncio.wait_for(ctx.open("session", session), 5) == "session on db"


async def test_resource_that_could_not_be_opened_is_tried_again_by_the_next_call():
    log, runs = Log(), Runs()
    async with toolbox(runs=runs) as box:
        with pytest.raises(RuntimeError, match="no database"):
            await context(box).open("db", log.manager("db", fails="entering"))
        assert await context(box).open("db", log.manager("db")) == "db"


async def test_resource_whose_tool_was_stopped_while_it_was_opened_is_given_up():
    log, runs, waiting = Log(), Runs(), threading.Event()

    @asynccontextmanager
    async def slow():
        try:
            waiting.set()
            await asyncio.Event().wait()
            yield
        finally:
            log.lines.append("given up")
            log.left.release()

    async with toolbox(runs=runs) as box:
        opening = box.job(lambda: context(box).open("db", slow))
        await asyncio.to_thread(waiting.wait, 30)
        opening.give_up()
        await asyncio.to_thread(log.left.acquire)
        assert await context(box).open("db", log.manager("db")) == "db"
    assert log.lines == ["given up", "+db", "-db"]


async def test_sync_tool_can_open_a_resource_from_its_thread():
    log, runs = Log(), Runs()
    async with toolbox(runs=runs) as box:
        opened = await asyncio.to_thread(lambda: asyncio.run(context(box).open("db", log.manager("db"))))
        assert opened == "db"
    assert log.lines == ["+db", "-db"]


# -- small pieces of application code -------------------------------------------------------------------------


async def later(value: Any) -> Any:
    return value


async def test_async_and_sync_functions_run_where_tools_run():
    async with toolbox() as box:

        async def name(n: int) -> str:
            return f"{n} {threading.current_thread().name}"

        assert await box.run(name, {"n": 1}, 5) == "1 perdure-tools"
        assert await box.run(lambda n: f"{n} {threading.current_thread().name}", {"n": 1}, 5) == "1 perdure-tool"
        assert await box.run(lambda n: later(n), {"n": 3}, 5) == 3  # noqa: PLW0108 - a lambda is no coroutine function


@pytest.mark.parametrize("error", [KeyError("a"), SystemExit(1), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_what_a_function_raises_is_an_exception_here_and_ends_nothing(error):
    def raises():
        raise error

    async def raises_later():
        raise error

    async with toolbox() as box:
        for function in (raises, raises_later):
            with pytest.raises(Exception, match=type(error).__name__ if not isinstance(error, Exception) else "a"):
                await box.run(function, {}, 5)
        assert await box.run(later, {"value": 1}, 5) == 1


async def test_function_that_takes_too_long_is_left_behind_and_its_place_given_to_others():
    anchor = threading.Event()
    async with toolbox(threads=1) as box:
        for function in (anchor.wait, asyncio.Event().wait, anchor.wait):
            with pytest.raises(TimeoutError, match=r"not within 0\.02 s"):
                await box.run(function, {}, 0.02)
        assert await box.run(lambda: 1, {}, 5) == 1
    anchor.set()


async def test_work_that_outlives_its_place_does_not_give_it_back_twice():
    anchor = threading.Event()
    async with toolbox(threads=1) as box:
        places, left = box.threads._places, [box.threads.job(anchor.wait) for _ in range(3)]
        for _ in left:
            while not box.threads._holding:
                await asyncio.sleep(0)
            for job in left:
                job.give_up()
                job.give_up()
        anchor.set()
        for job in left:
            assert await asyncio.wrap_future(job.future)
        assert places.acquire(blocking=False)
        assert not places.acquire(blocking=False)
        places.release()


# -- what a tool is handed ------------------------------------------------------------------------------------


async def test_context_says_which_attempt_of_which_call_it_is():
    async with toolbox(agent("a", Log().manager("shared"))) as box:
        ctx = context(box)
        assert (ctx.run_id, ctx.agent, ctx.step, ctx.call, ctx.call_id) == ("run", "a", 3, "3.2", "c7")
        assert (ctx.attempt, ctx.idempotency_key, ctx.shared) == (2, "run:e:3.2", "shared")
        assert not ctx.cancelled
        ctx.stop()
        assert ctx.cancelled


async def test_context_is_cancelled_once_its_deadline_has_passed():
    async with toolbox() as box:
        ctx = context(box)
        ctx.deadline = datetime.now(UTC)
        assert ctx.cancelled
