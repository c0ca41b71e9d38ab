"""What is copied into the store of what runs tell: their usage, who did what, events, what is told elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from perdure.audit import AuditEntry, AuditState
from perdure.messages import JSON, Data
from perdure.usage import UsageRow

# -- usage -------------------------------------------------------------------------------------------------


class Ledger(Protocol):
    """What runs have used. Rows outlive the runs: nothing in them was said by anybody."""

    async def keep_usage(self, rows: Sequence[UsageRow]) -> None:
        """Keep `rows`, each in place of the one of the same key. Safe to repeat."""
        ...

    async def usage(
        self,
        namespace: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        agent: str | None = None,
        run_id: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
    ) -> list[UsageRow]:
        """Return rows, oldest first: of requests that were made from `since` on and before `until`."""
        ...

    async def drop_usage(self, namespace: str, before: datetime) -> int:
        """Delete the rows of requests that were made before then; return how many there were."""
        ...


# -- audit -------------------------------------------------------------------------------------------------


class Audit(Protocol):
    """Who did what. Rows are only ever added, and outlive what they tell of."""

    async def note(self, entries: Sequence[AuditEntry]) -> None:
        """Add `entries`, in this order, but those that are there already. Safe to repeat."""
        ...

    async def noted(
        self, namespace: str, *, run_id: str | None = None, since: datetime | None = None
    ) -> list[AuditEntry]:
        """Return entries, in the order in which they were added."""
        ...

    async def check_audit(self, namespace: str) -> AuditState:
        """Return whether each entry follows from the one before it, as it was written."""
        ...


# -- events ------------------------------------------------------------------------------------------------


class EventRow(Data):
    """A copy of an event; see `perdure.events`.

    Attributes:
        execution: Temporal's run id: a run that was resumed counts its positions anew.
        call: The call that it is about, "" where it is about none.
        body: The whole event as JSON, redacted.
    """

    namespace: str
    run_id: str
    execution: str
    position: str
    time: datetime
    type: str
    agent: str
    session: str = ""
    step: int = 0
    call: str = ""
    body: dict[str, JSON]

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from all others."""
        return (self.namespace, self.run_id, self.execution, self.position)


class Events(Protocol):
    """Copies of events; forgotten with their run."""

    async def keep_events(self, rows: Sequence[EventRow]) -> list[EventRow]:
        """Keep those that are not there yet, and return them. Safe to repeat."""
        ...

    async def events(
        self,
        namespace: str,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 10_000,
    ) -> list[EventRow]:
        """Return copies, oldest first: of what happened from `since` on and before `until`."""
        ...


# -- what is told elsewhere ----------------------------------------------------------------------------------


class Told(Protocol):
    """How far executions have been told of elsewhere, such as to OpenTelemetry; forgotten with their run.

    Whoever tells claims the execution before, so that no two tell at once. Who is lost in between leaves it to the
    next, who then tells that part again.
    """

    async def claim(self, namespace: str, run_id: str, execution: str, holder: str, patience: timedelta) -> int | None:
        """Return the event of the history up to which it was told, 0 none; None while somebody else tells.

        Args:
            holder: Who is to tell now, for `patience` at most.
        """
        ...

    async def told(self, namespace: str, run_id: str, execution: str, holder: str, event: int) -> None:
        """Note that it was told up to this event, and that `holder` is done. Safe to repeat."""
        ...
