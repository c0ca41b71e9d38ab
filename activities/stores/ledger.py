"""What runs have used, in SQL: what sums are made of has columns, so that one can also ask the database itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select

from perdure.activities.stores.database import Database, whole
from perdure.activities.stores.tables import USAGE
from perdure.usage import UsageRow

_KEY = ("namespace", "run_id", "position", "at", "attempt")
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "estimated")
_NAMED = (*_KEY, "time", "kind", "agent", "model", "tenant", "session", "status")
_AT_ONCE = 50
"""Rows that one statement writes: each has 17 values, and databases take some thousands."""


class SQLLedger(Database):
    """See `perdure.activities.stores.copied.Ledger`."""

    @whole
    async def keep_usage(self, rows: Sequence[UsageRow]) -> None:
        """See `Ledger.keep_usage`."""
        values = list({row.key: _values(row) for row in rows}.values())
        if not values:
            return
        async with self._writing() as connection:
            for at in range(0, len(values), _AT_ONCE):
                keeping = self._insert(USAGE).values(values[at : at + _AT_ONCE])
                told = {name: keeping.excluded[name] for name in USAGE.c.keys() if name not in _KEY}  # noqa: SIM118
                await connection.execute(keeping.on_conflict_do_update(index_elements=_KEY, set_=told))

    @whole
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
        """See `Ledger.usage`."""
        wanted = {"agent": agent, "run_id": run_id, "tenant": tenant, "session": session}
        query = select(USAGE).where(*(USAGE.c[name] == value for name, value in wanted.items() if value is not None))
        query = query.where(USAGE.c.namespace == namespace)
        query = query if since is None else query.where(USAGE.c.time >= since)
        query = query if until is None else query.where(USAGE.c.time < until)
        query = query.order_by(USAGE.c.time, USAGE.c.run_id, USAGE.c.at, USAGE.c.attempt)
        async with self._reading() as connection:
            found = (await connection.execute(query)).mappings() if connection else ()
            return [UsageRow.model_validate({**row, **row["body"]}) for row in found]

    @whole
    async def drop_usage(self, namespace: str, before: datetime) -> int:
        """See `Ledger.drop_usage`."""
        old = (USAGE.c.namespace == namespace) & (USAGE.c.time < before)
        async with self._writing() as connection:
            return (await connection.execute(delete(USAGE).where(old))).rowcount


def _values(row: UsageRow) -> dict[str, Any]:
    named = {name: getattr(row, name) for name in _NAMED}
    tokens = {name: getattr(row.usage, name) for name in _TOKENS}
    return {**named, **tokens, "body": row.model_dump(mode="json", exclude=set(_NAMED), exclude_defaults=True)}
