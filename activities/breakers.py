"""Circuit breakers: a service that keeps failing is left alone for a while. Pure, but for the clock it is given."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from perdure.settings import Settings

Ended = Literal["answered", "failed", "unknown"]
"""`unknown`: it was given up before it could tell anything about the service."""

_ASK_AGAIN = 5.0
"""Seconds after which to ask again while another request is the probe, which may take long."""


def breaker_of(settings: Settings, clock: Callable[[], float] = time.monotonic) -> Breaker:
    """Return a breaker as `settings.breaker_…` say."""
    window, open_for = settings.breaker_window.total_seconds(), settings.breaker_open.total_seconds()
    return Breaker(settings.breaker_failures, window, open_for, clock)


class Breaker:
    """Watches one service. Closed, all requests pass; open, none; then one at a time, until one is answered.

    Args:
        failures: So many within `window`, with no answer between them, open it.
        window: In seconds.
        open_for: Seconds for which it stays open; doing so again after a probe that failed.
        clock: Returns seconds; only differences count.
    """

    def __init__(
        self,
        failures: int = 5,
        window: float = 60.0,
        open_for: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = failures
        self._window = window
        self._open_for = open_for
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=failures)
        self._until: float | None = None  # None: closed
        self._probing = False
        self._era = 0

    def wait(self) -> float:
        """Return in how many seconds a request may be made; 0 if it may be made now."""
        if self._until is None:
            return 0.0
        if self._probing:
            return min(self._open_for, _ASK_AGAIN)
        return max(self._until - self._clock(), 0.0)

    def enter(self) -> int:
        """Take note of a request that begins, which `wait` has allowed; return what `leave` is to be given."""
        if self._until is not None:
            self._probing = True
            self._era += 1
        return self._era

    def leave(self, entered: int, ended: Ended) -> None:
        """Take note of how a request ended. One that began before the breaker changed tells nothing new."""
        if entered != self._era:
            return
        if ended == "answered":
            self._close()
        elif self._probing:
            self._open(self._open_for if ended == "failed" else 0.0)
        elif ended == "failed":
            self._count()

    def _count(self) -> None:
        now = self._clock()
        self._failures.append(now)
        if len(self._failures) == self._most and now - self._failures[0] <= self._window:
            self._open(self._open_for)

    def _open(self, seconds: float) -> None:
        self._until = self._clock() + seconds
        self._probing = False
        self._era += 1

    def _close(self) -> None:
        self._failures.clear()
        if self._until is not None:
            self._until, self._probing = None, False
            self._era += 1
