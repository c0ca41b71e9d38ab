"""The archive in SQL."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from perdure.activities.stores import ArchivedRun, run_owner
from perdure.activities.stores.blobs import SQLBlobs
from perdure.activities.stores.database import whole
from perdure.activities.stores.tables import HISTORIES, RUNS


class SQLArchive(SQLBlobs):
    """See `perdure.activities.stores.Archive`."""

    @whole
    async def archive(self, run: ArchivedRun, execution: str, history: str) -> None:
        """See `Archive.archive`."""
        key = {"namespace": run.namespace, "run_id": run.run_id}
        values = {
            "agent": run.agent,
            "session": run.session,
            "started_at": run.started_at,
            "closed_at": run.closed_at,
            "body": run.model_dump(mode="json", exclude={"histories"}),
        }
        keeping = self._insert(RUNS).values(**key, **values)
        newer = RUNS.c.closed_at.is_(None) | (keeping.excluded.closed_at >= RUNS.c.closed_at)
        adding = self._insert(HISTORIES).values(**key, execution=execution, ref=history)
        async with self._writing() as connection:
            await connection.execute(keeping.on_conflict_do_update(index_elements=[*key], set_=values, where=newer))
            await connection.execute(
                adding.on_conflict_do_update(index_elements=[*key, "execution"], set_={"ref": history})
            )

    @whole
    async def archived(self, namespace: str, run_id: str) -> ArchivedRun | None:
        """See `Archive.archived`."""
        query = select(RUNS.c.body).where(RUNS.c.namespace == namespace, RUNS.c.run_id == run_id)
        async with self._reading() as connection:
            found = await _runs(connection, namespace, query) if connection else []
            return found[0] if found else None

    @whole
    async def archived_runs(
        self, namespace: str, *, agent: str | None = None, session: str | None = None, limit: int = 100
    ) -> list[ArchivedRun]:
        """See `Archive.archived_runs`."""
        query = select(RUNS.c.body).where(RUNS.c.namespace == namespace)
        if agent is not None:
            query = query.where(RUNS.c.agent == agent)
        if session is not None:
            query = query.where(RUNS.c.session == session)
        query = query.order_by(RUNS.c.started_at.desc(), RUNS.c.run_id).limit(limit)
        async with self._reading() as connection:
            return await _runs(connection, namespace, query) if connection else []

    @whole
    async def drop_runs(self, namespace: str, run_ids: Collection[str]) -> None:
        """See `Archive.drop_runs`."""
        async with self._writing() as connection:
            for table in (RUNS, HISTORIES):
                where = (table.c.namespace == namespace) & table.c.run_id.in_(run_ids)
                await connection.execute(delete(table).where(where))
            await self._disown(connection, [run_owner(namespace, run_id) for run_id in run_ids])


async def _runs(connection: AsyncConnection, namespace: str, query: Any) -> list[ArchivedRun]:
    runs = [ArchivedRun.model_validate(body) for body in await connection.scalars(query)]
    keys = [(namespace, run.run_id) for run in runs]
    where = tuple_(HISTORIES.c.namespace, HISTORIES.c.run_id).in_(keys)
    rows = await connection.execute(
        select(HISTORIES.c.run_id, HISTORIES.c.ref).where(where).order_by(HISTORIES.c.number)
    )
    histories: dict[str, list[str]] = {}
    for run_id, ref in rows:
        histories.setdefault(run_id, []).append(ref)
    return [run.model_copy(update={"histories": histories.get(run.run_id, [])}) for run in runs]
