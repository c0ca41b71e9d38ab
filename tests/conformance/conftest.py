"""The two databases that every store test runs against.

SQLite always; PostgreSQL where `PERDURE_TEST_POSTGRES` names a server:
`postgresql://USER:PASSWORD@HOST:PORT/DATABASE` of a user who may create databases. Each test has its own.
"""

import os
import uuid

import pytest

from perdure.activities.stores import open_store

POSTGRES = os.environ.get("PERDURE_TEST_POSTGRES")


async def in_database(url, statement):
    from sqlalchemy import make_url, text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(
        make_url(url).set(drivername="postgresql+asyncpg"), isolation_level="AUTOCOMMIT", poolclass=None
    )
    async with engine.connect() as connection:
        await connection.execute(text(statement))
    await engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'home' / 'store.db'}"
        return
    if not POSTGRES:
        pytest.skip("PERDURE_TEST_POSTGRES names no PostgreSQL server")
    name = f"perdure_test_{uuid.uuid4().hex[:12]}"
    await in_database(POSTGRES, f"CREATE DATABASE {name}")
    yield f"{POSTGRES.rpartition('/')[0]}/{name}"
    await in_database(POSTGRES, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def store(url):
    store = open_store(url)
    yield store
    await store.aclose()
