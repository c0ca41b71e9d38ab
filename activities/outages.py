"""Tools that do not work at present: known to all runs of a worker, so that none waits for what has just failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from perdure.activities.bodies import Ended, NeverBegan, Overdue, Raised, Returned
from perdure.activities.breakers import Breaker
from perdure.errors import ToolError
from perdure.results import words

LATER = "Try it again later, or do without it and say so."


class Outage:
    """How one tool has fared of late: a breaker, since when it fails, and of what.

    Args:
        breaker: Says when it is left alone.
    """

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._since: datetime | None = None
        self._last = ""

    @property
    def words(self) -> str | None:
        """Why it is not asked now, or None."""
        seconds = self._breaker.wait()
        if not seconds or not self._since:
            return None
        return (
            f"It has not worked since {self._since:%H:%M:%S} UTC, and is asked again in {seconds:.0f} s. {self._last}"
        )

    def enter(self) -> int:
        """Take note of an attempt that begins."""
        return self._breaker.enter()

    def leave(self, entered: int, ended: Ended[Any]) -> None:
        """Take note of how it ended. A tool that says itself that it failed works."""
        why = failure(ended)
        if why:
            self._since, self._last = self._since or datetime.now(UTC), f"Last: {why}"
            self._breaker.leave(entered, "failed")
        elif isinstance(ended, Returned | Raised):
            self._since = None
            self._breaker.leave(entered, "answered")
        else:
            self._breaker.leave(entered, "unknown")


class Outages(defaultdict[tuple[str, str], Outage]):
    """By agent and tool.

    Args:
        breaker: Makes one.
    """

    def __init__(self, breaker: Callable[[], Breaker]) -> None:
        super().__init__(lambda: Outage(breaker()))


def failure(ended: Ended[Any]) -> str | None:
    """Return why a tool is not available, or None where it works or nobody knows."""
    match ended:
        case Raised(ToolError()):
            return None
        case Raised(error):
            return words(error)
        case Overdue():
            return "It did not end in time."
        case NeverBegan(message, "unavailable"):
            return message
        case _:
            return None
