"""The archive in SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from perdure.activities.stores import ArchivedRun, Freed, run_owner
from perdure.activities.stores.blobs import SQLBlobs
from perdure.activities.stores.database import batches, whole
from perdure.activities.stores.tables import BLOBS, EVENTS, HISTORIES, OWNERS, RUNS, TOLD


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
    async def not_archived(self, namespace: str, executions: Collection[str]) -> set[str]:
        """See `Archive.not_archived`."""
        there: set[str] = set()
        async with self._reading() as connection:
            if connection is None:
                return set(executions)
            for some in batches(executions):
                where = (HISTORIES.c.namespace == namespace) & HISTORIES.c.execution.in_(some)
                there |= set(await connection.scalars(select(HISTORIES.c.execution).where(where)))
        return set(executions) - there

    @whole
    async def old_runs(self, namespace: str, before: datetime) -> list[str]:
        """See `Archive.old_runs`."""
        end = func.coalesce(RUNS.c.closed_at, RUNS.c.started_at)
        query = select(RUNS.c.run_id).where(RUNS.c.namespace == namespace, end < before).order_by(end)
        async with self._reading() as connection:
            return list(await connection.scalars(query)) if connection else []

    @whole
    async def orphans(self, namespace: str, before: datetime) -> list[str]:
        """See `Archive.orphans`."""
        prefix = run_owner(namespace, "")
        last_used = func.max(BLOBS.c.used_at)
        blobs = select(OWNERS.c.owner).join(BLOBS, BLOBS.c.ref == OWNERS.c.ref)
        query = blobs.where(OWNERS.c.owner.startswith(prefix, autoescape=True)).group_by(OWNERS.c.owner)
        known = select(RUNS.c.run_id).where(RUNS.c.namespace == namespace)
        async with self._reading() as connection:
            if connection is None:
                return []
            owners = await connection.scalars(query.having(last_used < before))
            found = {owner.removeprefix(prefix) for owner in owners if owner.startswith(prefix)}  # LIKE minds no case
            return sorted(found - set(await connection.scalars(known)))

    @whole
    async def drop_runs(self, namespace: str, run_ids: Collection[str], *, before: datetime | None = None) -> None:
        """See `Archive.drop_runs`."""
        end = func.coalesce(RUNS.c.closed_at, RUNS.c.started_at)
        for some in batches(run_ids):
            dropped = (RUNS.c.namespace == namespace) & RUNS.c.run_id.in_(some)
            if before is not None:
                dropped &= end < before
            async with self._writing() as connection:
                await connection.execute(delete(RUNS).where(dropped))
                left = select(RUNS.c.run_id).where(RUNS.c.namespace == namespace, RUNS.c.run_id.in_(some))
                gone = set(some) - set(await connection.scalars(left))
                of_them = (HISTORIES.c.namespace == namespace) & HISTORIES.c.run_id.in_(gone)
                await connection.execute(delete(HISTORIES).where(of_them))
                for copies in (EVENTS, TOLD):
                    of_them = (copies.c.namespace == namespace) & copies.c.run_id.in_(gone)
                    await connection.execute(delete(copies).where(of_them))
                await self._disown(connection, [run_owner(namespace, run_id) for run_id in gone], before)

    @whole
    async def needed_by_none_else(self, namespace: str, run_ids: Collection[str]) -> Freed:
        """See `Archive.needed_by_none_else`."""
        owned: Counter[str] = Counter()
        async with self._reading() as connection:
            if connection is None:
                return Freed(0, 0)
            for owners in batches(run_owner(namespace, run_id) for run_id in run_ids):
                owned.update(await connection.scalars(select(OWNERS.c.ref).where(OWNERS.c.owner.in_(owners))))
            sizes: list[int] = []
            for refs in batches(owned):
                sizes += await _sizes(connection, BLOBS.c.ref.in_(refs), owned)
            sizes += await _sizes(connection, ~exists().where(OWNERS.c.ref == BLOBS.c.ref), owned)
        return Freed(len(sizes), sum(sizes))


async def _sizes(connection: AsyncConnection, where: ColumnElement[bool], owned: Mapping[str, int]) -> list[int]:
    """Return the sizes of those blobs that have no more owners than `owned` counts."""
    owners = select(func.count()).where(OWNERS.c.ref == BLOBS.c.ref).scalar_subquery()
    rows = await connection.execute(select(BLOBS.c.ref, BLOBS.c.size, owners).where(where))
    return [size for ref, size, count in rows if owned.get(ref, 0) == count]


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
