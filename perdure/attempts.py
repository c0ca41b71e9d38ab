"""The attempts that were made of an activity: what each leaves to those after it, and to whoever reads the history.

Requests to models are told of by `perdure.reports.Spent`.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from perdure.messages import Data

LOST = "worker_lost"
"""What an attempt ended with whose worker was lost."""


class Made(Data):
    """One attempt that was made.

    Attributes:
        attempt: The engine's number of it, from 1.
        began: When (UTC), as the worker saw it.
        ended: When; of one whose worker was lost, when there was a last sign of life of it.
        error_type: Why it gave nothing, in a word; "" where it did. `worker_lost` where nobody could tell.
        unseen: True where nobody has seen it: its worker was lost before it gave a sign, and the times are guesses.
    """

    attempt: int = 1
    began: datetime
    ended: datetime
    error_type: str = ""
    unseen: bool = False


class Trail(Data):
    """Which attempts were made of an activity, as they leave it to those after them.

    Attributes:
        told: The last attempt that has told how it ended.
        now: The one that was under way.
        began: When what it does began: the body of a tool, a request to a model; None where nothing was under way.
        seen: Its last sign of life.
        made: Of those before, the newest.
    """

    told: int = 0
    now: int = 0
    began: datetime | None = None
    seen: datetime | None = None
    made: list[Made] = Field(default_factory=list[Made])


def lost(left: Trail, attempt: int, scheduled: datetime) -> list[Made]:
    """Return the attempts before `attempt` that have not told how they ended."""
    found, last = list[Made](), left.made[-1].ended if left.made else scheduled
    for number in range(left.told + 1, attempt):
        if number != left.now:
            found.append(Made(attempt=number, began=last, ended=last, error_type=LOST, unseen=True))
        elif left.began:
            last = max(left.seen or left.began, left.began)
            found.append(Made(attempt=number, began=left.began, ended=last, error_type=LOST))
    return found
