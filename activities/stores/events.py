"""Copies of events in SQL: what one asks for has columns, so that one can also ask the database itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select

from perdure.activities.stores.copied import EventRow
from perdure.activities.stores.database import Database, whole
from perdure.activities.stores.tables import EVENTS

_KEY = ("namespace", "run_id", "execution", "position")
_AT_ONCE = 50
"""Rows that one statement writes."""


class SQLEvents(Database):
    """See `perdure.activities.stores.copied.Events`."""

    @whole
    async def keep_events(self, rows: Sequence[EventRow]) -> list[EventRow]:
        """See `Events.keep_events`."""
        fresh: set[tuple[str, ...]] = set()
        async with self._writing() as connection:
            for some in (rows[at : at + _AT_ONCE] for at in range(0, len(rows), _AT_ONCE)):
                keeping = self._insert(EVENTS).values([_values(row) for row in some])
                kept = keeping.on_conflict_do_nothing(index_elements=_KEY).returning(*(EVENTS.c[name] for name in _KEY))
                fresh |= {tuple(each) for each in await connection.execute(kept)}
        return [row for row in rows if row.key in fresh]

    @whole
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
        """See `Events.events`."""
        wanted = {"run_id": run_id, "agent": agent, "type": type}
        query = select(EVENTS).where(*(EVENTS.c[name] == value for name, value in wanted.items() if value is not None))
        query = query.where(EVENTS.c.namespace == namespace)
        query = query if since is None else query.where(EVENTS.c.time >= since)
        query = query if until is None else query.where(EVENTS.c.time < until)
        query = query.order_by(EVENTS.c.time, EVENTS.c.run_id, EVENTS.c.event, EVENTS.c.part).limit(limit)
        async with self._reading() as connection:
            found = (await connection.execute(query)).mappings() if connection else ()
            return [EventRow.model_validate(dict(row)) for row in found]


def _values(row: EventRow) -> dict[str, Any]:
    event, _, part = row.position.partition(".")
    return {**row.model_dump(), "event": int(event or 0), "part": int(part or 0)}
