"""When the runs of a schedule begin, and what is done where they meet. Data, and how Temporal says the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from temporalio.client import (
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
)

from perdure.errors import ScheduleError

Overlap = Literal["skip", "buffer-one", "buffer-all", "cancel-other", "allow-all"]
"""What becomes of a run that is due while the last one goes on: it is left out; it begins after that one, at most one
or all of them; it has that one cancelled first; it begins beside it."""

_OVERLAPS: dict[Overlap, ScheduleOverlapPolicy] = {
    "skip": ScheduleOverlapPolicy.SKIP,
    "buffer-one": ScheduleOverlapPolicy.BUFFER_ONE,
    "buffer-all": ScheduleOverlapPolicy.BUFFER_ALL,
    "cancel-other": ScheduleOverlapPolicy.CANCEL_OTHER,
    "allow-all": ScheduleOverlapPolicy.ALLOW_ALL,
}
_NAME = re.compile(r"[\w.@:+-]{1,100}")
_LEAST = timedelta(seconds=1)


@dataclass(frozen=True)
class When:
    """When runs of a schedule begin.

    Attributes:
        cron: Expressions such as `0 8 * * MON-FRI`; at the times of any of them.
        every: In such intervals, counted from 1970 on.
        timezone: The IANA name of the zone of `cron`, such as `Europe/Oslo`; "" for UTC.
    """

    cron: tuple[str, ...] = ()
    every: timedelta | None = None
    timezone: str = ""

    def __post_init__(self) -> None:
        """Check what the engine would not say clearly."""
        if not self.cron and self.every is None:
            raise ScheduleError("A schedule needs times: a cron expression, such as '0 8 * * MON-FRI', or an interval.")
        if self.every is not None and self.every < _LEAST:
            raise ScheduleError(f"The interval of a schedule is at least 1 s; {self.every} is less.")

    def __str__(self) -> str:
        """Return it as a person would say it."""
        zone = f" ({self.timezone or 'UTC'})"
        told = [f"cron {one}{zone}" for one in self.cron]
        return " and ".join([*told, f"every {self.every}"] if self.every else told)

    def complaint(self, said: str) -> str:
        """Return in a sentence what the engine does not take of it, for which it has said `said`."""
        if self.timezone and "time zone" in said:
            return f"Time zone {self.timezone!r} (--timezone) is not known; an IANA name is, such as Europe/Oslo."
        if not self.cron:
            return f"A schedule can't be every {self.every} (--every): {said}."
        given = " or ".join(map(repr, self.cron))
        return f"{given} (--cron) is no time: {said}; '0 8 * * MON-FRI' is one (minute hour day month weekday)."

    def spec(self) -> ScheduleSpec:
        """Return it as the engine takes it."""
        every = [ScheduleIntervalSpec(every=self.every)] if self.every else []
        return ScheduleSpec(cron_expressions=list(self.cron), intervals=every, time_zone_name=self.timezone or None)


@dataclass(frozen=True)
class Rules:
    """What a schedule does besides beginning runs.

    Attributes:
        overlap: Where the last run still goes on. Default `skip`.
        pause_on_failure: A run that ends `failed` pauses it. Default False.
        catchup: How late a run may begin that was missed while the engine was down. Default: a year, as the engine's.
    """

    overlap: Overlap = "skip"
    pause_on_failure: bool = False
    catchup: timedelta | None = None

    def policy(self) -> SchedulePolicy:
        """Return them as the engine takes them."""
        overlap = _OVERLAPS.get(self.overlap)
        if overlap is None:
            raise ScheduleError(f"overlap={self.overlap!r} can't be; known are {', '.join(_OVERLAPS)}.")
        return SchedulePolicy(overlap=overlap, pause_on_failure=self.pause_on_failure, catchup_window=self.catchup)


def check_id(id: str) -> str:
    """Return `id`, if a schedule can have it.

    Raises:
        ScheduleError: If it is empty, too long, or has other characters than letters, digits and `-_.@:+`.
    """
    if not _NAME.fullmatch(id):
        allowed = "a schedule's id is made of 1 to 100 letters, digits and any of - _ . @ : +"
        raise ScheduleError(f"{id[:120]!r} can't be a schedule: {allowed}.")
    return id


def overlap_of(overlap: Overlap | None) -> ScheduleOverlapPolicy | None:
    """Return it as the engine takes it; None stays so."""
    return Rules(overlap).policy().overlap if overlap else None


def rules_of(policy: SchedulePolicy) -> Rules:
    """Return the rules of a schedule."""
    names: dict[ScheduleOverlapPolicy, Overlap] = {number: name for name, number in _OVERLAPS.items()}
    return Rules(names.get(policy.overlap, "skip"), policy.pause_on_failure, policy.catchup_window)


def when_of(spec: ScheduleSpec) -> When:
    """Return the times of a schedule: the engine keeps cron expressions as calendars."""
    cron = [*spec.cron_expressions, *map(_cron, spec.calendars)]
    every = spec.intervals[0].every if spec.intervals else None
    return When(tuple(cron) or (() if every else ("never",)), every, spec.time_zone_name or "")


def _cron(calendar: ScheduleCalendarSpec) -> str:
    """Return a calendar as a cron expression: minute, hour, day, month, day of the week, and the year where it says."""
    fields = [
        _field(calendar.minute, 0, 59),
        _field(calendar.hour, 0, 23),
        _field(calendar.day_of_month, 1, 31),
        _field(calendar.month, 1, 12),
        _field(calendar.day_of_week, 0, 6),
    ]
    return " ".join([*fields, *([_field(calendar.year, 0, 0)] if calendar.year else [])])


def _field(ranges: Sequence[ScheduleRange], first: int, last: int) -> str:
    return ",".join(_range(one, first, last) for one in ranges) or "*"


def _range(one: ScheduleRange, first: int, last: int) -> str:
    step = f"/{one.step}" if one.step > 1 else ""
    if (one.start, one.end) == (first, last):
        return f"*{step}"
    return f"{one.start}-{one.end}{step}" if one.end > one.start else str(one.start)
