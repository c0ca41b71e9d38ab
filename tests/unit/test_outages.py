"""When a tool is left alone because it keeps failing, and when it is asked again."""

from __future__ import annotations

from typing import Any

from perdure.activities.bodies import Ended, Overdue, Raised, Returned, Stopped
from perdure.activities.breakers import Breaker
from perdure.activities.outages import Outages
from perdure.errors import ToolError

DOWN = Raised(ConnectionError("refused"))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watched(clock: Clock) -> Outages:
    return Outages(lambda: Breaker(clock=clock))


def told(outages: Outages, *ends: Ended[Any], name: str = "look") -> str | None:
    """Let attempts end so, and return what is said of the tool then."""
    for ended in ends:
        outage = outages["agent", name]
        outage.leave(outage.enter(), ended)
    return outages["agent", name].words


def test_a_tool_that_fails_five_times_in_a_row_is_left_alone_and_it_is_said_why() -> None:
    outages = watched(Clock())
    assert told(outages, *[DOWN] * 4) is None
    assert "asked again in 30 s. Last: It did not end in time." in str(told(outages, Overdue(abandoned=False)))
    assert told(outages, name="another") is None


def test_a_tool_that_refuses_works_and_one_that_was_stopped_tells_nothing() -> None:
    outages = watched(Clock())
    assert told(outages, *[DOWN] * 4, Raised(ToolError("No such city.")), *[DOWN] * 4) is None
    assert told(outages, *[Stopped(shutdown=False, abandoned=False)] * 9) is None


def test_one_attempt_shows_whether_it_is_back() -> None:
    clock = Clock()
    outages = watched(clock)
    told(outages, *[DOWN] * 5)
    clock.now = 31
    assert told(outages) is None
    outage = outages["agent", "look"]
    entered = outage.enter()
    assert outage.words  # while that one is under way
    outage.leave(entered, Returned("sunny"))
    assert outage.words is None
