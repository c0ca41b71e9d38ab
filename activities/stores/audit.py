"""The audit in SQL: rows that are only ever added, each with the hash of the one before it in its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from perdure.activities.stores.database import Database, batches, whole
from perdure.activities.stores.tables import AUDIT
from perdure.audit import AuditEntry, AuditState, link

_NAMED = ("namespace", "run_id", "position", "at", "action")
_PAGE = 1_000
"""Rows read at once."""


class SQLAudit(Database):
    """See `perdure.activities.stores.copied.Audit`."""

    @whole
    async def note(self, entries: Sequence[AuditEntry]) -> None:
        """See `Audit.note`."""
        if not entries:
            return
        async with self._writing() as connection:
            await self._lock(connection)  # one at a time: each has to know the one before
            for namespace in dict.fromkeys(entry.namespace for entry in entries):
                await self._add(connection, namespace, [one for one in entries if one.namespace == namespace])

    async def _add(self, connection: AsyncConnection, namespace: str, entries: Sequence[AuditEntry]) -> None:
        there = await _there(connection, namespace, {entry.run_id for entry in entries})
        newest = select(AUDIT.c.hash).where(AUDIT.c.namespace == namespace).order_by(AUDIT.c.number.desc()).limit(1)
        last = await connection.scalar(newest) or ""
        for entry in entries:
            if entry.key not in there:
                there.add(entry.key)
                last = link(last, entry)
                named = {name: getattr(entry, name) for name in _NAMED}
                rest = entry.model_dump(mode="json", exclude=set(_NAMED), exclude_defaults=True)
                await connection.execute(self._insert(AUDIT).values(**named, hash=last, body=rest))

    @whole
    async def noted(
        self, namespace: str, *, run_id: str | None = None, since: datetime | None = None
    ) -> list[AuditEntry]:
        """See `Audit.noted`."""
        query = select(AUDIT).where(AUDIT.c.namespace == namespace).order_by(AUDIT.c.number)
        query = query if run_id is None else query.where(AUDIT.c.run_id == run_id)
        query = query if since is None else query.where(AUDIT.c.at >= since)
        async with self._reading() as connection:
            return [_entry(row) for row in await _rows(connection, query)] if connection else []

    @whole
    async def check_audit(self, namespace: str) -> AuditState:
        """See `Audit.check_audit`."""
        state, number = AuditState(), 0
        query = select(AUDIT).where(AUDIT.c.namespace == namespace).order_by(AUDIT.c.number).limit(_PAGE)
        async with self._reading() as connection:
            while connection and (rows := await _rows(connection, query.where(AUDIT.c.number > number))):
                number = rows[-1]["number"]
                state = _checked(state, rows)
        return state


def _checked(state: AuditState, rows: Sequence[Mapping[str, Any]]) -> AuditState:
    """Return `state` after further rows."""
    for row in rows:
        entries, changed = state.entries + 1, {}
        if not state.broken and link(state.last, _entry(row)) != row["hash"]:
            changed = {"broken": entries, "broken_at": row["at"]}
        state = state.model_copy(update={"entries": entries, "last": row["hash"], **changed})
    return state


async def _there(connection: AsyncConnection, namespace: str, run_ids: set[str]) -> set[tuple[str, str, str, datetime]]:
    """Return the keys of what is there already of those runs; what was done outside of runs is never repeated."""
    found: set[tuple[str, str, str, datetime]] = set()
    for some in batches(run_ids - {""}):
        columns = (AUDIT.c.namespace, AUDIT.c.run_id, AUDIT.c.position, AUDIT.c.at)
        query = select(*columns).where(AUDIT.c.namespace == namespace, AUDIT.c.run_id.in_(some))
        found |= {(row.namespace, row.run_id, row.position, row.at) for row in await connection.execute(query)}
    return found


async def _rows(connection: AsyncConnection, query: Select[Any]) -> Sequence[Mapping[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in (await connection.execute(query)).mappings()]


def _entry(row: Mapping[str, Any]) -> AuditEntry:
    return AuditEntry.model_validate({**row["body"], **{name: row[name] for name in _NAMED}})
