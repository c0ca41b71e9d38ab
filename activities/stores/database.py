"""A SQL database: its connections, transactions and errors; the same for SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import URL, Connection, Table, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from perdure.activities.stores import schema
from perdure.activities.stores.sealed import json_of
from perdure.errors import ConnectionFailed
from perdure.sealing import Keyring

PATIENCE = 5
"""Seconds that a database gets: to accept a connection, to run a statement, to come free of other writers."""
CONNECTIONS = 8
"""Connections of one store at most: what goes beyond waits for its turn."""
LOCK = 7_305_100
"""Number of the PostgreSQL advisory lock under which tables are made and catalogues replaced."""

_DRIVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sqlite": ("sqlite+aiosqlite", {"timeout": PATIENCE, "isolation_level": None}),
    "postgres": ("postgresql+asyncpg", {"timeout": PATIENCE, "command_timeout": PATIENCE}),
    "postgresql": ("postgresql+asyncpg", {"timeout": PATIENCE, "command_timeout": PATIENCE}),
}

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])


def whole(method: Method) -> Method:
    """Have a method of a database go on to its end, by itself, where its caller is cancelled.

    A connection that is cut off while it opens is never closed; and each statement ends within seconds anyway.
    """

    @wraps(method)
    async def run(self: Database, *args: Any, **kwargs: Any) -> Any:
        return await self.apart(method(self, *args, **kwargs))

    return cast("Method", run)


_AT_ONCE = 500
"""Values that one statement names; SQLite takes 32,766."""


def batches(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield `values` in parts that one statement can name."""
    left = list(values)
    yield from (left[at : at + _AT_ONCE] for at in range(0, len(left), _AT_ONCE))


class Database:
    """What the parts of the store in SQL have in common.

    Args:
        url: See `open_store`.
        keys: Encrypt what it keeps, if there are any.
    """

    def __init__(self, url: str, keys: Keyring | None = None) -> None:
        self.keys = keys or Keyring()
        self.url, self._engine = _engine(url, self.keys)
        self._writer = self._engine.execution_options(begin="BEGIN IMMEDIATE")
        self._ready = False
        self._prepared: tuple[int, int] | None = None
        self._preparing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database; None where it is in memory, or a server."""
        name = self.url.database if self._is_sqlite else None
        return Path(name) if name and name != ":memory:" else None

    @property
    def _shown(self) -> str:
        """Its address as people write it, without a password."""
        return str(self.url.set(drivername=self.url.get_backend_name()))

    async def apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns, which is not cancelled with its caller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """See `Store.aclose`. What is under way gets `PATIENCE` to end."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=PATIENCE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._engine.dispose()

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have left

    @property
    def _is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _insert(self, table: Table) -> Any:
        """Return an INSERT that knows ON CONFLICT, which is no standard, but the same in both."""
        return (sqlite.insert if self._is_sqlite else postgresql.insert)(table)

    async def _lock(self, connection: AsyncConnection) -> None:
        """Keep others out till the transaction ends; in SQLite every transaction that writes does."""
        if not self._is_sqlite:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[AsyncConnection | None]:
        """Yield a connection that sees the store at one moment; None where there is none: readers make none."""
        with self._said():
            there = await self._prepare(make=False)
            if not there:
                yield None
                return
            async with self._engine.begin() as connection:
                yield connection

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[AsyncConnection]:
        """Yield a connection in a transaction that is kept if the block ends well."""
        with self._said():
            await self._prepare(make=True)
            async with self._writer.begin() as connection:
                yield connection

    @contextmanager
    def _said(self) -> Generator[None]:
        """Say in one sentence what a database does."""
        try:
            yield
        except DataError as error:
            raise ValueError(f"The store can't keep that: {_reason(error)}.") from error
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            raise ConnectionFailed(f"The store at {self._shown} can't be used: {_reason(error)}.") from error

    async def _prepare(self, *, make: bool) -> bool:
        """Upgrade the tables, or, with `make`, make them if there are none; return whether there are any now.

        Any number of workers may do so at once. A file that was deleted or replaced meanwhile is left for the one that
        has its name: what is written to it would be lost.
        """
        if self._ready and self._prepared == self._identity():
            return True
        async with self._preparing:
            if self._ready and self._prepared == self._identity():
                return True
            if self._ready:
                self._ready = False
                await self._engine.dispose()
            if self.file and not self.file.exists():
                if not make:
                    return False
                self.file.parent.mkdir(parents=True, exist_ok=True)
            async with self._engine.begin() as connection:
                found = await connection.run_sync(schema.version)
            if found is None and not make:
                return False
            if schema.is_older(found):
                async with self._writer.begin() as connection:
                    await self._lock(connection)
                    found = await connection.run_sync(schema.upgrade)
            if found != schema.HEAD:
                raise ConnectionFailed(
                    f"The store at {self._shown} is of a newer Perdure (its tables have version {found}; here "
                    f"{schema.HEAD} is the newest): upgrade perdure here, or set PERDURE_STORE to another store."
                )
            await self._tune()
            self._ready, self._prepared = True, self._identity()
            return True

    def _identity(self) -> tuple[int, int] | None:
        """Return what tells a file from another one of its name; None where there is no file."""
        try:
            found = self.file.stat() if self.file else None
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if found else None

    async def _tune(self) -> None:
        """Have readers and writers of a file not wait for each other; while somebody uses it, another time will do."""
        if self.file:
            async with self._engine.execution_options(begin="").connect() as connection:
                with suppress(OperationalError):
                    await connection.exec_driver_sql("PRAGMA journal_mode=WAL")


def _engine(url: str, keys: Keyring) -> tuple[URL, AsyncEngine]:
    try:
        scheme, _, path = url.partition(":///")
        # A path is taken as it is: SQLAlchemy would read `?` and `%` in it.
        address = URL.create(scheme, database=path) if scheme.startswith("sqlite") and path else make_url(url)
        driver, arguments = _DRIVERS[address.drivername.partition("+")[0]]
        address = address.set(drivername=driver)
        pool = {} if path == ":memory:" else {"pool_size": CONNECTIONS, "max_overflow": 0, "pool_timeout": 2 * PATIENCE}
        engine = create_async_engine(address, connect_args=arguments, pool_pre_ping=True, **pool, **json_of(keys))
    except (ArgumentError, KeyError, ValueError) as error:
        raise ConnectionFailed("A store's address is sqlite:///PATH or postgresql://USER@HOST/DATABASE.") from error
    except ImportError as error:
        raise ConnectionFailed(f"The store needs the Python package {error.name}; install perdure anew.") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "begin", _begin)
    return address, engine


def _begin(connection: Connection) -> None:
    """Begin as the engine says: the driver itself would begin with the first write, and then be refused the lock."""
    if begin := connection.get_execution_options().get("begin", "BEGIN"):
        connection.exec_driver_sql(begin)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no reply within {PATIENCE} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    first = str(getattr(error, "orig", None) or error).partition("\n")[0]
    return first.rpartition(">: ")[2].rstrip(".")
