"""Running one body of application code, async or sync, up to a hard deadline.

However it ends, it ends as one of a closed union. A body that can't be stopped is left behind and reported.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from temporalio import activity

from perdure.activities.context import CallContext
from perdure.activities.toolbox import Job, Toolbox

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Returned(Generic[T]):
    """The body returned."""

    value: T


@dataclass(frozen=True, slots=True)
class Raised:
    """The body raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Overdue:
    """The hard deadline passed; `abandoned` if the body still runs."""

    abandoned: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run was cancelled, or the worker is stopping (`shutdown`); `abandoned` if the body still runs."""

    shutdown: bool
    abandoned: bool


@dataclass(frozen=True, slots=True)
class NeverBegan:
    """The body did not run at all: nothing happened.

    `error_type` is `removed`, `invalid_arguments`, `given_up`, `busy` or `stopping`.
    """

    message: str
    error_type: str


Ended = Returned[T] | Raised | Overdue | Stopped | NeverBegan


class Gate:
    """Lets a body begin once, or never: whoever comes first, the body or the one who gives it up.

    Args:
        deadline: From then on no body begins: others may believe already that nothing was done.
    """

    def __init__(self, deadline: datetime | None = None) -> None:
        self._deadline = deadline
        self._lock = threading.Lock()
        self._state: str = "open"

    def enter(self) -> bool:
        """Return whether the body may begin now."""
        late = self._deadline is not None and datetime.now(UTC) >= self._deadline
        return not late and self._turn("begun")

    def shut(self) -> bool:
        """Return whether the body had not begun; then it never will."""
        return self._turn("shut")

    def _turn(self, to: str) -> bool:
        with self._lock:
            if self._state == "open":
                self._state = to
                return True
            return False


async def run_body(
    body: Callable[[], Any], finish: Callable[[Any], T], context: CallContext, toolbox: Toolbox, grace: float
) -> Ended[T]:
    """Run `body` where it belongs, then `finish` on what it returned, and say how it ended.

    Args:
        body: Calls the application's function; returns its value or an awaitable.
        finish: Turns the value into what is reported; runs beside the body, so that a large value holds up nobody.
        context: Knows the deadline; told when the body should stop.
        toolbox: Where bodies run.
        grace: Seconds that a cancelled body may take to unwind.
    """
    gate = Gate(context.deadline)
    job: Job[Ended[T]]
    if inspect.iscoroutinefunction(body):
        job = toolbox.job(lambda: _async(gate, body, finish, context))
    else:
        job = toolbox.threads.job(lambda: _blocking(gate, body, finish, context))
    waiting = asyncio.wrap_future(job.future)
    left = (context.deadline - datetime.now(UTC)).total_seconds()
    try:
        await asyncio.wait({waiting}, timeout=max(left, 0))
    except asyncio.CancelledError:
        ended = await _stop(job, waiting, gate, context, grace)
        shutdown = activity.is_worker_shutdown() and not _cancel_requested()
        match ended:
            case None:
                return Stopped(shutdown=shutdown, abandoned=True)
            case Raised(asyncio.CancelledError()):
                return Stopped(shutdown=shutdown, abandoned=False)
            case NeverBegan(message):
                return NeverBegan(message, "stopping")
            case _:
                return ended
    if waiting.done():
        return waiting.result()
    ended = await _stop(job, waiting, gate, context, grace)
    match ended:
        case None:
            return Overdue(abandoned=True)
        case Raised(asyncio.CancelledError()):
            return Overdue(abandoned=False)
        case _:
            return ended


def _cancel_requested() -> bool:
    details = activity.cancellation_details()
    return bool(details and details.cancel_requested)


async def _stop(
    job: Job[Ended[T]], waiting: asyncio.Future[Ended[T]], gate: Gate, context: CallContext, grace: float
) -> Ended[T] | None:
    """Ask a body to stop; return how it ended after all, or None where it had to be left behind."""
    context.stop()
    if gate.shut():
        job.give_up()
        return NeverBegan("It did not begin in time: the worker was busy.", "busy")
    job.give_up()
    if not waiting.done():
        await asyncio.wait({waiting}, timeout=grace)
    return waiting.result() if waiting.done() else None


def _blocking(gate: Gate, body: Callable[[], Any], finish: Callable[[Any], T], context: CallContext) -> Ended[T]:
    if not gate.enter():
        return NeverBegan("It did not begin in time.", "busy")
    try:
        with context.current():
            value = body()
            if inspect.isawaitable(value):
                value = asyncio.run(_await(value))
        return Returned(finish(value))
    except BaseException as error:  # noqa: BLE001 - application code may raise anything
        return Raised(error)


async def _await(value: Any) -> Any:
    return await value


async def _async(gate: Gate, body: Callable[[], Any], finish: Callable[[Any], T], context: CallContext) -> Ended[T]:
    if not gate.enter():
        return NeverBegan("It did not begin in time.", "busy")
    try:
        with context.current():
            value = await body()
        return Returned(finish(value))
    except BaseException as error:  # noqa: BLE001 - application code may raise anything, SystemExit too
        return Raised(error)
