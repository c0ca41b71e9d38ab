"""The catalogue in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from perdure.activities.stores import CatalogueEntry
from perdure.activities.stores.database import Database, whole
from perdure.activities.stores.tables import CATALOGUE


class SQLCatalogue(Database):
    """See `perdure.activities.stores.Catalogue`."""

    @whole
    async def announce(self, entry: CatalogueEntry) -> None:
        """See `Catalogue.announce`."""
        async with self._writing() as connection:
            await self._announce(connection, entry)

    @whole
    async def announce_all(self, namespace: str, task_queue: str, entries: Sequence[CatalogueEntry]) -> None:
        """See `Catalogue.announce_all`."""
        if any((entry.namespace, entry.task_queue) != (namespace, task_queue) for entry in entries):
            raise ValueError(f"All entries have to be of namespace {namespace!r} and queue {task_queue!r}.")
        where = (CATALOGUE.c.namespace == namespace) & (CATALOGUE.c.task_queue == task_queue)
        async with self._writing() as connection:
            await self._lock(connection)
            await connection.execute(delete(CATALOGUE).where(where))
            for entry in entries:
                await self._announce(connection, entry)

    @whole
    async def agents(self, namespace: str | None = None) -> list[CatalogueEntry]:
        """See `Catalogue.agents`."""
        return await self._entries(select(CATALOGUE), namespace)

    @whole
    async def find(self, agent: str, namespace: str | None = None) -> list[CatalogueEntry]:
        """See `Catalogue.find`."""
        return await self._entries(select(CATALOGUE).where(CATALOGUE.c.agent == agent), namespace)

    async def _entries(self, query: Select[Any], namespace: str | None) -> list[CatalogueEntry]:
        if namespace is not None:
            query = query.where(CATALOGUE.c.namespace == namespace)
        query = query.order_by(CATALOGUE.c.agent, CATALOGUE.c.seen_at.desc(), CATALOGUE.c.task_queue)
        async with self._reading() as connection:
            rows = await connection.execute(query) if connection else None
            return [CatalogueEntry.model_validate(dict(row)) for row in rows.mappings()] if rows else []

    async def _announce(self, connection: AsyncConnection, entry: CatalogueEntry) -> None:
        values = {**entry.model_dump(), "spec": entry.spec.model_dump(mode="json")}
        keys = [column.name for column in CATALOGUE.primary_key]
        rest = {name: value for name, value in values.items() if name not in keys}
        statement = self._insert(CATALOGUE).values(values).on_conflict_do_update(index_elements=keys, set_=rest)
        await connection.execute(statement)
