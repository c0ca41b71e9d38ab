"""How application code ends: each way is told from the others, and none holds up the worker."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from perdure.activities.bodies import Ended, Gate, NeverBegan, Overdue, Raised, Returned, Stopped, run_body
from perdure.activities.context import CallContext
from perdure.activities.toolbox import Toolbox
from perdure.wire import ToolInput

SOON, LATE = 0.05, 30.0
"""Seconds: a deadline that a test waits for, and one that never comes."""


class Desk:
    """Runs bodies as the tool activity does."""

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox = toolbox
        self.environments: list[ActivityEnvironment] = []
        self.contexts: list[CallContext] = []

    async def run(
        self,
        body: Callable[..., Any],
        *,
        within: float = LATE,
        grace: float = LATE,
        finish: Callable[[Any], Any] = repr,
    ) -> Ended[Any]:
        call = ToolInput(agent="a", call_id="c", position="1.1", key="k")
        context = CallContext(call, "run", 1, datetime.now(UTC) + timedelta(seconds=within), self.toolbox)
        environment = ActivityEnvironment()
        self.environments.append(environment)

        async def activity() -> Ended[Any]:
            self.contexts.append(context)
            return await run_body(functools.partial(body), finish, context, self.toolbox, grace)

        ended: Ended[Any] = await environment.run(activity)
        return ended

    def cancel(self, *, shutdown: bool = False) -> None:
        details = ActivityCancellationDetails(cancel_requested=not shutdown, worker_shutdown=shutdown)
        for environment in self.environments:
            if shutdown:
                environment.worker_shutdown()
            environment.cancel(details)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """A desk with places for two sync bodies."""
    async with Toolbox({}, cast("Client", None), 2) as toolbox:
        yield Desk(toolbox)


@pytest.fixture
def anchor() -> Iterator[threading.Event]:
    """What a body that can't be stopped waits for; it is let go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def in_thread(event: threading.Event) -> asyncio.Task[bool]:
    """Wait for a thread's event without blocking the loop."""
    return asyncio.create_task(asyncio.to_thread(event.wait, LATE))


# -- bodies that end by themselves ----------------------------------------------------------------------------


async def test_async_body_returns_on_the_tools_own_thread(desk):
    async def body():
        return threading.current_thread().name

    assert await desk.run(body) == Returned("'perdure-tools'")


async def test_sync_body_returns_in_a_thread_of_its_own(desk):
    assert await desk.run(lambda: threading.current_thread().name) == Returned("'perdure-tool'")


async def test_sync_body_that_returns_an_awaitable_is_awaited(desk):
    async def later():
        return 7

    assert await desk.run(lambda: later()) == Returned("7")  # noqa: PLW0108 - a lambda is no coroutine function


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), TimeoutError()],
)
async def test_whatever_a_body_raises_is_told_and_ends_nothing_else(desk, error):
    async def raises():
        raise error

    def raises_at_once():
        raise error

    assert await desk.run(raises) == Raised(error)
    assert await desk.run(raises_at_once) == Raised(error)
    assert await desk.run(lambda: 1) == Returned("1")


async def test_error_while_the_value_is_made_ready_is_the_bodys(desk):
    def finish(value):
        raise OSError(value)

    async def body():
        return "x"

    for one in (body, lambda: "x"):
        ended = await desk.run(one, finish=finish)
        assert isinstance(ended, Raised)
        assert isinstance(ended.error, OSError)


# -- the hard deadline ----------------------------------------------------------------------------------------


async def test_async_body_is_cancelled_at_the_deadline(desk):
    assert await desk.run(asyncio.Event().wait, within=SOON) == Overdue(abandoned=False)
    assert desk.contexts[0].cancelled


async def test_body_that_ends_while_it_is_being_stopped_is_believed(desk):
    async def body():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done after all"

    assert await desk.run(body, within=SOON) == Returned("'done after all'")


async def test_error_while_a_body_is_being_stopped_is_told(desk):
    async def body():
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError

    ended = await desk.run(body, within=SOON)
    assert isinstance(ended, Raised)
    assert isinstance(ended.error, OSError)


async def test_sync_body_that_looks_at_its_context_ends_in_time(desk):
    def body():
        while not desk.contexts[0].cancelled:
            pass
        return "stopped"

    assert await desk.run(body, within=SOON) == Returned("'stopped'")


async def test_sync_body_that_ignores_its_deadline_is_left_behind(desk, anchor):
    assert await desk.run(anchor.wait, within=SOON, grace=SOON) == Overdue(abandoned=True)


async def test_async_body_that_ignores_cancellation_is_left_behind(desk):
    let_go = asyncio.Event()

    async def body():
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    assert await desk.run(body, within=SOON, grace=SOON) == Overdue(abandoned=True)
    desk.toolbox._loop.call_soon_threadsafe(let_go.set)


# -- the run is cancelled, or the worker stops ----------------------------------------------------------------


@pytest.mark.parametrize("shutdown", [False, True])
async def test_async_body_is_stopped_with_the_run_or_the_worker(desk, shutdown):
    begun = threading.Event()

    async def body():
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(desk.run(body))
    await in_thread(begun)
    desk.cancel(shutdown=shutdown)
    assert await running == Stopped(shutdown=shutdown, abandoned=False)


@pytest.mark.parametrize("shutdown", [False, True])
async def test_sync_body_that_cannot_be_stopped_is_left_behind(desk, anchor, shutdown):
    begun = threading.Event()

    def body():
        begun.set()
        anchor.wait()

    running = asyncio.create_task(desk.run(body, grace=SOON))
    await in_thread(begun)
    desk.cancel(shutdown=shutdown)
    assert await running == Stopped(shutdown=shutdown, abandoned=True)


async def test_effect_that_was_done_when_the_run_was_cancelled_is_told(desk):
    begun = threading.Event()

    def body():
        begun.set()
        while not desk.contexts[0].cancelled:
            pass
        return "booked"

    running = asyncio.create_task(desk.run(body))
    await in_thread(begun)
    desk.cancel()
    assert await running == Returned("'booked'")


# -- bodies that never begin ----------------------------------------------------------------------------------


def holding(anchor: threading.Event) -> tuple[Callable[[], None], threading.Semaphore]:
    begun = threading.Semaphore(0)

    def body() -> None:
        begun.release()
        anchor.wait()

    return body, begun


async def test_body_for_which_there_is_no_place_never_begins_not_even_later(desk, anchor):
    ran = []
    hold, begun = holding(anchor)
    held = [asyncio.create_task(desk.run(hold)) for _ in range(2)]
    for _ in held:
        await asyncio.to_thread(begun.acquire)
    ended = await desk.run(lambda: ran.append(1), within=SOON)
    assert isinstance(ended, NeverBegan)
    assert ended.error_type == "busy"
    anchor.set()
    assert await asyncio.gather(*held) == [Returned("None")] * 2
    assert await desk.run(lambda: 2) == Returned("2")
    assert not ran


async def test_body_still_waiting_for_a_place_when_the_run_is_cancelled_never_begins(desk, anchor):
    hold, begun = holding(anchor)
    held = [asyncio.create_task(desk.run(hold, grace=SOON)) for _ in range(2)]
    for _ in held:
        await asyncio.to_thread(begun.acquire)
    waiting = asyncio.create_task(desk.run(lambda: 1))
    while len(desk.contexts) < 3:
        await asyncio.sleep(0)
    desk.cancel()
    ended = await waiting
    assert isinstance(ended, NeverBegan)
    assert ended.error_type == "stopping"
    assert await asyncio.gather(*held) == [Stopped(shutdown=False, abandoned=True)] * 2


async def test_place_of_a_body_that_was_left_behind_is_given_to_others(desk, anchor):
    for _ in range(4):
        assert await desk.run(anchor.wait, within=SOON, grace=SOON) == Overdue(abandoned=True)
    assert await desk.run(lambda: 1) == Returned("1")


async def test_async_body_behind_one_that_blocks_the_loop_never_begins_not_even_later(desk, anchor):
    ran = []
    begun = threading.Event()

    async def blocks():
        begun.set()
        anchor.wait()

    async def body():
        ran.append(1)

    blocking = asyncio.create_task(desk.run(blocks))
    await in_thread(begun)
    ended = await desk.run(body, within=SOON)
    assert isinstance(ended, NeverBegan)
    anchor.set()
    assert await blocking == Returned("None")

    async def after():
        return 2

    assert await desk.run(after) == Returned("2")
    assert not ran


def test_body_begins_once_or_never_whoever_comes_first():
    for _ in range(300):
        gate, barrier = Gate(), threading.Barrier(4)
        won: list[str] = []

        def race(turn: Callable[[], bool], name: str, won=won, barrier=barrier) -> None:
            barrier.wait()
            if turn():
                won.append(name)

        turns = [(gate.enter, "body"), (gate.shut, "gave up"), (gate.shut, "gave up"), (gate.enter, "body")]
        threads = [threading.Thread(target=race, args=turn) for turn in turns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
