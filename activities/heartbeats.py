"""Heartbeats of an activity, for as long as its process lives, and what attempts leave to those after them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import Field
from temporalio import activity
from temporalio.client import AsyncActivityCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from perdure.attempts import Made, Trail, lost
from perdure.messages import Data, Usage
from perdure.reports import Spent
from perdure.telemetry import signals


class Tried(Data):
    """What the attempts of one model call leave to those after them, on whichever worker.

    Attributes:
        model: Which of the agent's models is due, by its place in their order.
        reason: Why it is not the first one, in the words of each before it, for a person.
        failed: Attempts that count as tries of that model; those lost with their worker don't.
        place: Its place in the queue for that model's tokens per minute, where the next attempt need not join again.
        queue: The worker whose queue it is.
        sent: Input tokens of a request under way. Still set at the next attempt, it was lost with its worker.
        begun: When that request was sent.
        seen: Its last sign of life.
        wasted: Of the attempts that failed half-way.
        spent: All requests that have ended, oldest first.
        cost_usd: Of those; None where a price is not known.
        uncapped: True if the provider has refused the limit of a reply that the run's budget asks for.
        known: The last attempt that has told what it did.
        heard: The last one that was about to make a request, and has told that it was.
    """

    model: int = 0
    reason: str = ""
    failed: int = 0
    place: float | None = None
    queue: str = ""
    sent: int = 0
    begun: datetime | None = None
    seen: datetime | None = None
    spent: list[Spent] = Field(default_factory=list[Spent])
    wasted: Usage = Usage()
    cost_usd: Decimal | None = Decimal(0)
    uncapped: bool = False
    known: int = 0
    heard: int = 0


_ended: OrderedDict[tuple[str, str], Tried] = OrderedDict()
"""What attempts have left that have failed in this process: of one that the engine had given up, it has not heard."""
_REMEMBERED = 1_000


def _remember(tried: Tried) -> None:
    info = activity.info()
    _ended[info.workflow_run_id or "", info.activity_id] = tried.model_copy(update={"known": info.attempt})
    while len(_ended) > _REMEMBERED:
        _ended.popitem(last=False)


def _left_here(details: list[Any]) -> list[Any]:
    """Return what the engine has of the attempts before, or what is known here of a later one of them."""
    info = activity.info()
    known = _ended.pop((info.workflow_run_id or "", info.activity_id), None)
    told = Tried.model_validate(details[0]) if details else Tried()
    if known is None or not max(told.known, told.heard) < known.known < info.attempt:
        return details
    return [known, *details[1:]]


class Pulse:
    """The heartbeats of one attempt. What it was left, or keeps itself, is told with each of them, so that it lasts."""

    def __init__(self) -> None:
        self._details = _left_here(list(activity.info().heartbeat_details))
        self._left = False
        self._kept = False
        info, trail = activity.info(), self._details[1] if len(self._details) > 1 else None
        left = Trail.model_validate(trail) if trail else Trail()
        self.made = [*left.made, *lost(left, info.attempt, info.scheduled_time)]
        self._trail: Trail | None = None

    @property
    def tried(self) -> Tried:
        """What was left last."""
        return Tried.model_validate(self._details[0]) if self._details else Tried()

    def keep(self, tried: Tried) -> None:
        """Leave `tried` to the attempts after this one, with the next heartbeat, which is soon."""
        tried = tried.model_copy(update={"known": activity.info().attempt})
        self._details, self._kept = [tried, *self._details[1:]], True

    def leave(self, tried: Tried) -> None:
        """Leave `tried` to the attempts after this one, which is about to fail."""
        self.keep(tried)
        self._left = True

    async def given_up(self) -> bool:
        """Return whether this attempt has come too late, and another one is made; see `given_up`.

        If not, the engine knows from now on that it was about to make a request.
        """
        number = activity.info().attempt
        if number == 1:
            return False  # it costs the engine a request
        told = self.tried.model_copy(update={"known": number - 1, "heard": number})
        self._details = [told, *self._details[1:]]
        return await given_up(*self._details)

    @property
    def lost_one(self) -> bool:
        """Whether an attempt before was lost before it told that it had sent a request, and may have sent one.

        The first attempt tells nothing before it does, those after it do.
        """
        tried = self.tried
        return activity.info().attempt > 1 and (not self._details or (tried.heard > tried.known and not tried.sent))

    def note_failure(self) -> None:
        """See to it that an attempt which is about to fail is not taken for one that was lost."""
        if self.tried.known < activity.info().attempt:
            self.leave(self.tried)

    def begin(self) -> datetime:
        """Note that a tool's body begins: should its worker be lost, the attempt after this one has to tell of it."""
        now = datetime.now(UTC)
        self._trail, self._kept = Trail(now=activity.info().attempt, began=now, made=self.made[-_MOST:]), True
        return now

    def did(self, made: Made) -> None:
        """Note how the body ended, which is to be tried again."""
        self.made = [*self.made, made][-_MOST:]
        self._trail = Trail(told=made.attempt, now=made.attempt, made=self.made)
        self._left = True

    @property
    def has_news(self) -> bool:
        """Whether it keeps something that it was not left."""
        return self._kept

    async def deliver(self) -> None:
        """See to it that the engine has what is left before it hears of the failure; its own heartbeats may be late."""
        if self._left and not activity.info().is_local:
            self.beat()  # or an older one that waits to be sent would come last
            handle = activity.client().get_async_activity_handle(task_token=activity.info().task_token)
            with suppress(AsyncActivityCancelledError, RPCError):
                await handle.heartbeat(*self._details)

    def beat(self) -> None:
        """Tell the engine that the attempt is alive, and those after it when it was."""
        now = datetime.now(UTC)
        if self._kept and self.tried.begun:
            self._details[0] = self.tried.model_copy(update={"seen": now})
        if self._trail is not None:
            self._trail = self._trail.model_copy(update={"seen": now})
            self._details = [self.tried, self._trail]
        activity.heartbeat(*self._details)


_MOST = 100
"""Attempts of a tool that are told of one by one."""


@contextmanager
def counted(pulse: Pulse, tool: str, agent: str) -> Generator[None]:
    """Have the attempts after this one know when it began, and how it ended where it has to be made again."""
    began = pulse.begin()
    try:
        yield
    except BaseException as error:
        name = error.type if isinstance(error, ApplicationError) else type(error).__name__
        made = Made(attempt=activity.info().attempt, began=began, ended=datetime.now(UTC), error_type=name or "error")
        signals.current().called(tool, agent, (made.ended - began).total_seconds(), made.error_type)
        pulse.did(made)
        raise


@asynccontextmanager
async def heartbeats() -> AsyncGenerator[Pulse]:
    """Heartbeat three times per heartbeat timeout while the block runs; without a timeout, only when asked to.

    Where a worker has little to do it heartbeats more often: what a heartbeat brings back is the cancellation.
    """
    pulse, info = Pulse(), activity.info()
    timeout = info.heartbeat_timeout
    if not info.is_local:
        what = info.activity_type if info.activity_type.startswith("perdure.") else "tool"
        signals.current().queued(what, info.started_time - info.current_attempt_scheduled_time)
    task = asyncio.create_task(_beat(pulse, timeout.total_seconds() / 3)) if timeout else None
    try:
        yield pulse
    except BaseException:
        _remember(pulse.tried)
        await pulse.deliver()
        raise
    finally:
        if task:
            task.cancel()


PROMPT, RATE = 0.6, 80
"""Seconds between two heartbeats at least, and how many a second a worker sends, up to three per heartbeat timeout."""

EARLY = 0.1
"""Seconds after which it is told that a request was sent: one that was lost before that is never heard of."""

_beating: set[Pulse] = set()


async def _beat(pulse: Pulse, longest: float) -> None:
    _beating.add(pulse)
    try:
        await asyncio.sleep(min(longest, max(EARLY, len(_beating) / RATE)))
        if pulse.has_news:
            pulse.beat()
        while True:  # waiting first: a quick call then costs the server no request but its result
            await asyncio.sleep(min(longest, max(PROMPT, len(_beating) / RATE)))
            pulse.beat()
    finally:
        _beating.discard(pulse)


async def given_up(*details: object) -> bool:
    """Return whether the engine has given this attempt up, or can't be asked.

    A process that was frozen, or has just started, learns of its work too late; others may have settled it by then.

    Args:
        details: What is left to the next attempt, in place of what was before.
    """
    handle = activity.client().get_async_activity_handle(task_token=activity.info().task_token)
    try:
        await handle.heartbeat(*details)
    except AsyncActivityCancelledError:
        return False  # whoever runs it is about to be cancelled, and tells how it ended
    except RPCError:
        return True
    return False
