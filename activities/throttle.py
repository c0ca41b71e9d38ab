"""Tokens per minute of a model, shared by all runs of a worker. Pure, but for the clock it is given."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_BURST = 10.0
"""Seconds' worth of tokens that may go at once after a time without any."""

_LEAST = 30_000 / 60
"""Tokens per second below which a limit that is only guessed is never set: OpenAI's smallest for a paying account
(30,000 a minute, tier 1 of GPT-4o)."""

_RECOVERY = 120.0
"""Seconds in which what a refusal has taken from the rate comes back."""

_SHOWS = 10.0
"""Seconds within which a lower rate shows. Until then, further refusals, such as of requests sent together, don't lower
it once more."""


class Throttle:
    """A queue of calls that moves on by so many tokens a second. Each call has a place in it, and waits for its turn.

    A server's refusal (429) holds everything back for as long as the server asks, and halves the rate, which then
    grows again in a straight line, up to the limit. So places come later than was said, but keep their order.

    Args:
        limit: Tokens per minute. None: as many as the server takes, until it has refused some.
        clock: Returns seconds; only differences count.
    """

    def __init__(self, limit: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ceiling = math.inf if limit is None else limit / 60
        self._least = _LEAST if limit is None else limit / 600
        self._rate = self._ceiling
        self._slope = 0.0
        self._turn = 0.0  # the place whose turn it is
        self._end = -math.inf  # the place after the last one given away
        self._recent = 0.0  # tokens, each fading away within about a minute
        self._at = self._held_until = clock()
        self._cut_at = -math.inf

    @property
    def rate(self) -> float:
        """Tokens per minute at present; infinite where nothing is known."""
        self._advance()
        return self._rate * 60

    def wait(self) -> float:
        """Return in how many seconds it is the turn of whoever joins the queue now; 0 if at once."""
        return self.until(self._next())

    def until(self, place: float) -> float:
        """Return in how many seconds it is a place's turn; 0 if now."""
        self._advance()
        return self._seconds_for(max(place - self._turn, 0.0)) + max(self._held_until - self._at, 0.0)

    def take(self, tokens: int) -> float | None:
        """Join the queue with a request of so many tokens; return its place. None: there is no queue."""
        place = self._next()
        self._end = place + tokens
        self._recent += tokens
        return place if math.isfinite(self._rate) else None

    def correct(self, place: float | None, taken: int, used: int) -> None:
        """Replace what the request of that place has taken by what it has used."""
        self._advance()
        self._recent = max(self._recent + used - taken, 0.0)
        if place is not None:
            self._end += used - taken

    def refused(self, place: float | None, sent_at: float, pause: float) -> None:
        """Take note of a refusal.

        Args:
            place: Of the request. The queue goes on from there: whoever is late, as all are while the rate grows,
                would come at once otherwise.
            sent_at: When it was sent, by the same clock.
            pause: Seconds that the server asks for.
        """
        self._advance()
        if sent_at > self._cut_at + _SHOWS:
            self._cut()
        self._held_until = max(self._held_until, self._at + pause)
        self._turn = self._turn if place is None else min(self._turn, place)
        self._end = max(self._end, self._turn)  # whoever joins first comes when it is over, the next one after that

    def _cut(self) -> None:
        self._cut_at = self._at
        if math.isinf(self._rate):
            self._end = self._turn
        before = self._rate if math.isfinite(self._rate) else self._recent / 60
        self._rate = min(max(before / 2, self._least), self._ceiling)
        self._slope = self._rate / _RECOVERY

    def _advance(self) -> None:
        now = self._clock()
        since, self._at = self._at, max(now, self._at)
        self._recent *= math.exp((since - self._at) / 60)
        moved = max(self._at - max(since, self._held_until), 0.0)  # it stands still while the server asks for a pause
        if math.isfinite(self._rate):
            before, growing = self._rate, min(moved, self._growing)
            self._rate = min(before + self._slope * growing, self._ceiling)
            self._turn += (before + self._rate) / 2 * growing + self._rate * (moved - growing)

    def _next(self) -> float:
        """Return the place of whoever comes now: after the last one, unless that was some time ago."""
        self._advance()
        return max(self._end, self._turn - self._rate * _BURST) if math.isfinite(self._rate) else self._turn

    def _seconds_for(self, tokens: float) -> float:
        """Return how long the queue needs for so many tokens, at a rate that grows meanwhile."""
        growing = self._growing
        if not growing or not tokens:
            return tokens / self._rate
        seconds = (math.sqrt(self._rate**2 + 2 * self._slope * tokens) - self._rate) / self._slope
        if seconds <= growing:
            return seconds
        return growing + (tokens - (self._rate + self._ceiling) / 2 * growing) / self._ceiling

    @property
    def _growing(self) -> float:
        """For how many seconds the rate will grow."""
        return (self._ceiling - self._rate) / self._slope if self._slope else 0.0
