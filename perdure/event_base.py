"""What every event of a run has, and where it stands."""

from __future__ import annotations

from datetime import datetime

from perdure.messages import Data

VERSION = 1
"""Of the union's schema. It grows by types, and by fields with defaults; both raise it by one.

None is ever removed, renamed, or given another meaning. So a reader ignores the fields that it does not know, skips
the types that it does not know, and reads all that was written before it.
"""


class EventBase(Data):
    """What every event has.

    Attributes:
        run_id: The run.
        position: Where in the history: Temporal's event id, a dot, and a counter; ordered, and never used twice in one
            run. In a run that has continued as new, event 17 of its third execution is 200017. "" where the event is
            not durable.
        time: Of the history's event.
        step: Model turn, from 1; 0 before the first.
        agent: The agent's name.
        spec_hash: Hash of its rules.
        session: The session whose turn the run is, "" where it is of none.
        version: Of the union's schema, as of whoever made the event; see `VERSION`.
    """

    run_id: str
    position: str
    time: datetime
    step: int = 0
    agent: str = ""
    spec_hash: str = ""
    session: str = ""
    version: int = VERSION


EXECUTION = 100_000
"""What positions gain with each execution of a run that has continued as new: the engine allows half as many events."""


def position_key(position: str) -> tuple[int, int]:
    """Return a position as something that compares in order; "" comes before all."""
    first, _, second = position.partition(".")
    return (int(first or 0), int(second or 0))
