"""Tokens per minute of a model, shared by all runs of a worker. Pure, but for the clock it is given."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_BURST = 10.0
"""Seconds' worth of tokens that may go at once. A larger request goes when so many are there, and leaves a debt."""

_LEAST = 30_000 / 60
"""Tokens per second below which a limit that is only guessed is never set: OpenAI's smallest for a paying account
(30,000 a minute, tier 1 of GPT-4o)."""

_RECOVERY = 120.0
"""Seconds in which what a refusal has taken from the rate comes back."""


class Throttle:
    """A token bucket that calls queue at: each is told how long to wait, and its tokens are kept for it.

    A server's refusal (429) holds everything back for as long as the server asks, and halves the rate, which then
    recovers in a straight line: to the limit, or, where there is none, to twice what was sent before, after which all
    may pass again.

    Args:
        limit: Tokens per minute. None: as many as the server takes.
        clock: Returns seconds; only differences count.
    """

    def __init__(self, limit: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ceiling = math.inf if limit is None else limit / 60
        self._least = _LEAST if limit is None else limit / 600
        self._rate = self._ceiling
        self._slope = 0.0
        self._target = self._ceiling
        self._level = self._capacity
        self._at = self._held_until = clock()
        self._cut_at = -math.inf
        self._recent = 0.0  # tokens, each fading away within about a minute

    @property
    def rate(self) -> float:
        """Tokens per minute at present; infinite where nothing is known."""
        self._advance()
        return self._rate * 60

    @property
    def held(self) -> bool:
        """Whether the server has asked for a pause that is not over: tokens kept before it are void."""
        return self._clock() < self._held_until

    def wait(self, tokens: int) -> float:
        """Return in how many seconds a request of so many tokens may be made; 0 if now. Takes nothing."""
        self._advance()
        missing = min(tokens, self._capacity) - self._level
        queued = missing / self._rate if missing > 0 and math.isfinite(self._rate) else 0.0
        return max(queued, self._held_until - self._at, 0.0)

    def take(self, tokens: int) -> float:
        """Take the tokens of a request, which others wait for from now on; return as `wait` does."""
        wait = self.wait(tokens)
        self._spend(tokens)
        return wait

    def correct(self, taken: int, used: int) -> None:
        """Replace what a request has taken by what it has used."""
        self._advance()
        self._spend(used - taken)

    def refused(self, tokens: int, sent_at: float, pause: float) -> None:
        """Take note of a refusal.

        Args:
            tokens: Of the request that was refused.
            sent_at: When it was sent, by the same clock. Of requests sent together only one refusal lowers the rate.
            pause: Seconds that the server asks for.
        """
        self._advance()
        if sent_at > self._cut_at:
            self._cut()
        self._held_until = max(self._held_until, self._at + pause)
        if math.isfinite(self._rate):  # the first one passes when the pause is over, the others after it, at the rate
            self._level = min(self._level, min(tokens, self._capacity) - self._rate * pause)

    def _cut(self) -> None:
        self._cut_at = self._at
        before = self._rate if math.isfinite(self._rate) else self._recent / 60
        self._rate = min(max(before / 2, self._least), self._ceiling)
        self._target = min(max(before * 2, self._rate * 2), self._ceiling)
        self._slope = max(before / 2, self._rate / 2) / _RECOVERY

    def _advance(self) -> None:
        now = self._clock()
        passed, self._at = max(now - self._at, 0.0), now
        self._recent *= math.exp(-passed / 60)
        self._rate += self._slope * passed
        if self._rate >= self._target:
            self._rate, self._slope = self._ceiling, 0.0
        if math.isfinite(self._rate):
            self._level = min(self._level + self._rate * passed, self._capacity)
        else:
            self._level = math.inf

    def _spend(self, tokens: int) -> None:
        self._recent = max(self._recent + tokens, 0.0)
        self._level = min(self._level - tokens, self._capacity)

    @property
    def _capacity(self) -> float:
        return self._rate * _BURST
