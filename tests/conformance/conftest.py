"""The two databases that every store test runs against.

SQLite always. PostgreSQL: the server that `PERDURE_TEST_POSTGRES` names, by the address of a database and a user
who may create others; else one that is started here, where it is installed. Each test has a database of its own.
"""

import os
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from perdure.activities.stores import Store, open_store
from tests.conformance import postgres


async def within(url: str, work: Callable[[Connection], Any], **options: Any) -> Any:
    """Return what `work` returns of the database itself."""
    driver = "sqlite+aiosqlite" if url.startswith("sqlite") else "postgresql+asyncpg"
    engine = create_async_engine(make_url(url).set(drivername=driver), poolclass=NullPool, **options)
    async with engine.begin() as connection:
        found = await connection.run_sync(work)
    await engine.dispose()
    return found


async def tell(server: str, statement: str) -> None:
    """Have a PostgreSQL server execute what no transaction may hold."""
    await within(server, lambda connection: connection.execute(text(statement)), isolation_level="AUTOCOMMIT")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a PostgreSQL server."""
    if there := os.environ.get("PERDURE_TEST_POSTGRES"):
        yield there
        return
    with postgres.serving() as server:
        if server is None:
            pytest.skip("no PostgreSQL is installed, and PERDURE_TEST_POSTGRES names no server")
        yield server


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncGenerator[str]:
    """The address of a new database."""
    name = f"perdure_test_{uuid.uuid4().hex[:12]}"
    await tell(postgres_server, f"CREATE DATABASE {name}")
    yield f"{postgres_server.rpartition('/')[0]}/{name}"
    await tell(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """The address of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'home' / 'store.db'}"
    address: str = request.getfixturevalue("postgres_url")
    return address


@pytest.fixture
async def store(url: str) -> AsyncGenerator[Store]:
    """A new store."""
    store = open_store(url)
    yield store
    await store.aclose()
