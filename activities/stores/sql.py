"""The store in SQL: one implementation for SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    URL,
    Column,
    DateTime,
    Dialect,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    TypeDecorator,
    delete,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateTable

from perdure.activities.stores import CatalogueEntry
from perdure.errors import ConnectionFailed

PATIENCE = 5
"""Seconds that a database gets: to accept a connection, to run a statement, to come free of other writers."""
LOCK = 7_305_100
"""Number of the PostgreSQL advisory lock under which tables are made and catalogues replaced."""

_DRIVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sqlite": ("sqlite+aiosqlite", {"timeout": PATIENCE}),
    "postgres": ("postgresql+asyncpg", {"timeout": PATIENCE, "command_timeout": PATIENCE}),
    "postgresql": ("postgresql+asyncpg", {"timeout": PATIENCE, "command_timeout": PATIENCE}),
}


class UTCDateTime(TypeDecorator[datetime]):
    """A moment, with time zone on both sides; SQLite itself would forget it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return `value` in UTC."""
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return what was kept, as UTC."""
        return value.replace(tzinfo=UTC) if value and value.tzinfo is None else value


METADATA = MetaData()
CATALOGUE = Table(
    "perdure_catalogue",
    METADATA,
    Column("namespace", String, primary_key=True),
    Column("agent", String, primary_key=True),
    Column("task_queue", String, primary_key=True),
    Column("hash", String, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("source", String, nullable=False),
    Column("seen_at", UTCDateTime, nullable=False),
)
BLOBS = Table(
    "perdure_blobs",
    METADATA,
    Column("ref", String, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
OWNERS = Table(
    "perdure_blob_owners",
    METADATA,
    Column("ref", String, primary_key=True),
    Column("owner", String, primary_key=True),
)


class SQLStore:
    """See `perdure.activities.stores.Store`."""

    def __init__(self, url: str) -> None:
        self._url, self._engine = _engine(url)
        self._ready = False
        self._preparing = asyncio.Lock()

    async def announce(self, entry: CatalogueEntry) -> None:
        """See `Store.announce`."""
        async with self._transaction() as connection:
            await self._put(connection, entry)

    async def announce_all(self, namespace: str, task_queue: str, entries: Sequence[CatalogueEntry]) -> None:
        """See `Store.announce_all`."""
        if any((entry.namespace, entry.task_queue) != (namespace, task_queue) for entry in entries):
            raise ValueError(f"All entries have to be of namespace {namespace!r} and queue {task_queue!r}.")
        where = (CATALOGUE.c.namespace == namespace) & (CATALOGUE.c.task_queue == task_queue)
        async with self._transaction() as connection:
            await self._lock(connection)
            await connection.execute(delete(CATALOGUE).where(where))
            for entry in entries:
                await self._put(connection, entry)

    async def agents(self, namespace: str | None = None) -> list[CatalogueEntry]:
        """See `Store.agents`."""
        return await self._entries(select(CATALOGUE), namespace)

    async def find(self, agent: str, namespace: str | None = None) -> list[CatalogueEntry]:
        """See `Store.find`."""
        return await self._entries(select(CATALOGUE).where(CATALOGUE.c.agent == agent), namespace)

    async def put(self, data: bytes, owner: str) -> str:
        """See `Blobs.put`."""
        ref = hashlib.sha256(data).hexdigest()[:32]
        async with self._transaction() as connection:
            await connection.execute(self._insert(BLOBS).values(ref=ref, data=data).on_conflict_do_nothing())
            await connection.execute(self._insert(OWNERS).values(ref=ref, owner=owner).on_conflict_do_nothing())
        return ref

    async def get(self, ref: str) -> bytes:
        """See `Blobs.get`."""
        async with self._transaction() as connection:
            data: bytes | None = await connection.scalar(select(BLOBS.c.data).where(BLOBS.c.ref == ref))
        if data is None:
            raise LookupError(f"The store does not have blob {ref} (any more).")
        return data

    async def own(self, refs: Collection[str], owner: str) -> None:
        """See `Blobs.own`."""
        async with self._transaction() as connection:
            for ref in refs:
                await connection.execute(self._insert(OWNERS).values(ref=ref, owner=owner).on_conflict_do_nothing())

    def _insert(self, table: Table) -> Any:
        return (sqlite.insert if self._engine.dialect.name == "sqlite" else postgresql.insert)(table)

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await self._engine.dispose()

    async def _entries(self, query: Select[Any], namespace: str | None) -> list[CatalogueEntry]:
        if namespace is not None:
            query = query.where(CATALOGUE.c.namespace == namespace)
        if not self._ready and self._missing():
            return []  # whoever only reads makes no file
        query = query.order_by(CATALOGUE.c.agent, CATALOGUE.c.seen_at.desc(), CATALOGUE.c.task_queue)
        async with self._transaction() as connection:
            rows = await connection.execute(query)
            return [CatalogueEntry.model_validate(dict(row)) for row in rows.mappings()]

    async def _put(self, connection: AsyncConnection, entry: CatalogueEntry) -> None:
        insert = sqlite.insert if self._engine.dialect.name == "sqlite" else postgresql.insert
        values = {**entry.model_dump(), "spec": entry.spec.model_dump(mode="json")}
        keys = [column.name for column in CATALOGUE.primary_key]
        rest = {name: value for name, value in values.items() if name not in keys}
        statement = insert(CATALOGUE).values(values).on_conflict_do_update(index_elements=keys, set_=rest)
        await connection.execute(statement)

    async def _lock(self, connection: AsyncConnection) -> None:
        """Keep others out till the transaction ends; SQLite does by itself from the first write on."""
        if self._engine.dialect.name == "postgresql":
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))

    async def _prepare(self) -> None:
        """Make the tables that are missing; any number of workers may do so at once."""
        async with self._preparing:
            if self._ready:
                return
            if self._engine.dialect.name == "sqlite" and self._url.database:
                Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
            async with self._engine.begin() as connection:
                await self._lock(connection)
                for table in METADATA.sorted_tables:
                    await connection.execute(CreateTable(table, if_not_exists=True))
            self._ready = True

    def _missing(self) -> bool:
        file = self._url.database if self._engine.dialect.name == "sqlite" else None
        return bool(file) and file != ":memory:" and not Path(str(file)).exists()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncConnection, None]:
        """Yield a connection in a transaction; whatever the database does becomes one sentence."""
        try:
            if not self._ready:
                await self._prepare()
            async with self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise ConnectionFailed(f"The store at {self._url} can't be used: {_reason(error)}.") from error


def _engine(url: str) -> tuple[URL, AsyncEngine]:
    try:
        scheme, _, path = url.partition(":///")
        # A path is taken as it is: SQLAlchemy would read `?` and `%` in it.
        address = URL.create(scheme, database=path) if scheme.startswith("sqlite") and path else make_url(url)
        driver, arguments = _DRIVERS[address.drivername.partition("+")[0]]
        address = address.set(drivername=driver)
        return address, create_async_engine(address, connect_args=arguments, pool_timeout=PATIENCE, pool_pre_ping=True)
    except (ArgumentError, KeyError, ValueError) as error:
        raise ConnectionFailed("A store's address is sqlite:///PATH or postgresql://USER@HOST/DATABASE.") from error
    except ImportError as error:
        raise ConnectionFailed(f"The store needs the Python package {error.name}; install perdure anew.") from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no reply within {PATIENCE} s"
    first = str(getattr(error, "orig", None) or error).partition("\n")[0]
    return first.rpartition(">: ")[2].rstrip(".")
