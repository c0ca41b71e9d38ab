"""A store that goes away in the middle of things, and comes back."""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from perdure.activities.stores import Session, Store, Turn, open_store, run_owner
from perdure.activities.stores.patience import patiently
from perdure.errors import ConnectionFailed
from tests.chaos.cable import Cable
from tests.conformance.conftest import within

RUN = run_owner("default", "r1")
SOON = 30
"""Seconds in which a store that is down has to have said so, on a slow machine: each of two waits takes 5."""


@dataclass
class Outage:
    """A store, and how it goes away and comes back.

    Attributes:
        direct: The address of the database itself, whether it is away or not.
    """

    store: Store
    direct: str
    begin: Callable[[], Any]
    end: Callable[[], Any]


@contextlib.asynccontextmanager
async def behind_a_cable(direct: str, how: str) -> AsyncGenerator[Outage]:
    address = make_url(direct)
    async with Cable.to(f"{address.host}:{address.port}") as cable:
        host, port = cable.address.split(":")
        store = open_store(address.set(host=host, port=int(port)).render_as_string(hide_password=False))
        yield Outage(store, direct, getattr(cable, how), cable.plug)
        cable.plug()
        await store.aclose()


@contextlib.asynccontextmanager
async def beside_a_writer(file: Path) -> AsyncGenerator[Outage]:
    store = open_store(f"sqlite:///{file}")
    await store.agents()
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    with contextlib.closing(other):
        yield Outage(
            store,
            f"sqlite:///{file}",
            lambda: other.execute("BEGIN EXCLUSIVE"),
            lambda: other.in_transaction and other.execute("ROLLBACK"),
        )
        await store.aclose()


@pytest.fixture(params=["sqlite", "postgresql pull", "postgresql hold"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> contextlib.AbstractAsyncContextManager[Outage]:
    """A store that can go away: locked by another writer, not there, or silent."""
    database, _, how = request.param.partition(" ")
    if database == "sqlite":
        return beside_a_writer(tmp_path / "store.db")
    return behind_a_cable(request.getfixturevalue("postgres_url"), how)


@pytest.fixture
async def outage(away: contextlib.AbstractAsyncContextManager[Outage]) -> AsyncGenerator[Outage]:
    async with away as outage:
        yield outage


async def refused(call: Awaitable[Any]) -> str:
    """Return the sentence with which a call of a store that is down fails soon."""
    async with asyncio.timeout(SOON):
        with pytest.raises(ConnectionFailed, match=r"^The store at [^\n]* can't be used: [^\n]*\.$") as caught:
            await call
    return str(caught.value)


async def test_a_store_that_is_away_says_so_soon_and_works_again_when_it_is_back(outage):
    ref = await outage.store.put(b"before", RUN)
    outage.begin()
    calls = [outage.store.put(b"during", RUN), outage.store.drop_runs("default", ["r2"])]
    await asyncio.gather(*(refused(call) for call in calls))
    outage.end()
    assert await outage.store.get(ref) == b"before"
    assert await outage.store.get(await outage.store.put(b"after", RUN)) == b"after"


async def test_whoever_is_patient_waits_until_it_is_back(outage, caplog):
    caplog.set_level(logging.WARNING, "perdure.store")
    await outage.store.put(b"before", RUN)
    outage.begin()
    waiting = asyncio.create_task(patiently(lambda: outage.store.put(b"during", RUN)))
    async with asyncio.timeout(SOON):
        while not caplog.records:
            await asyncio.sleep(0.05)
    assert not waiting.done()
    outage.end()
    async with asyncio.timeout(SOON):
        ref = await waiting
    assert await outage.store.get(ref) == b"during"
    assert "the store is there again" in caplog.text


@pytest.mark.long
async def test_it_can_be_closed_while_it_is_away(outage):
    await outage.store.put(b"before", RUN)
    outage.begin()
    calling = asyncio.create_task(outage.store.put(b"during", RUN))
    await asyncio.sleep(0)
    async with asyncio.timeout(SOON):
        await outage.store.aclose()
    with contextlib.suppress(ConnectionFailed, asyncio.CancelledError):
        await calling


async def connections(server: str) -> int:
    count = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
    found: int = await within(server, lambda connection: connection.scalar(text(count)))
    return found


async def test_outages_leave_no_connection_behind(postgres_url):
    async with behind_a_cable(postgres_url, "pull") as outage:
        await outage.store.put(b"before", RUN)
        for number in range(12):
            calls = [asyncio.create_task(outage.store.put(b"%d" % number, RUN)) for _ in range(8)]
            for _ in range(number * 10):  # wherever they are by then
                await asyncio.sleep(0)
            outage.begin()
            if number % 2:
                for call in calls:
                    call.cancel()
            await asyncio.wait(calls)
            outage.end()
        await asyncio.gather(*(outage.store.put(b"after", RUN) for _ in range(16)))
        assert await connections(outage.direct) <= 8
        await outage.store.aclose()
        async with asyncio.timeout(SOON):  # the server hears of it a moment later
            while await connections(outage.direct):
                await asyncio.sleep(0.05)


async def test_what_was_kept_is_kept_and_what_was_not_is_not_there_at_all(postgres_url):
    """A session is kept with its turn, or neither is, wherever the connection breaks."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    told: dict[str, bool] = {}

    async def end(store: Store, name: str) -> None:
        session = Session(namespace="d", name=name, agent="a", created_at=now, updated_at=now)
        try:
            told[name] = await store.end_turn(session, Turn(number=1, run_id="r", status="completed", at=now))
        except ConnectionFailed:
            told[name] = False

    async with behind_a_cable(postgres_url, "pull") as outage:
        await outage.store.sessions("d")
        for number in range(20):
            calls = [asyncio.create_task(end(outage.store, f"{number}.{at}")) for at in range(4)]
            for _ in range(number * 4):
                await asyncio.sleep(0)
            outage.begin()
            await asyncio.wait(calls)
            outage.end()
    store = open_store(postgres_url)
    kept = {session.name for session in await store.sessions("d", limit=1000)}
    assert {name for name, said in told.items() if said} <= kept  # and some were kept, but nobody heard of it
    for name in told:
        assert len(await store.turns("d", name)) == (name in kept)
    await store.aclose()


@pytest.mark.parametrize("left", [(), ("-wal", "-shm")])
async def test_what_is_kept_after_the_file_was_deleted_is_in_the_file_of_that_name(tmp_path: Path, left: Any) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store, reader = open_store(url), open_store(url)
    lost = await store.put(b"lost", RUN)
    assert await reader.get(lost) == b"lost"
    for ending in {"", "-wal", "-shm"} - set(left):
        Path(f"{tmp_path / 'store.db'}{ending}").unlink()
    with pytest.raises(LookupError):
        await reader.get(lost)
    refs = await asyncio.gather(*(store.put(f"kept {number}".encode(), RUN) for number in range(20)))
    assert [await reader.get(ref) for ref in refs] == [f"kept {number}".encode() for number in range(20)]
    await store.aclose()
    await reader.aclose()


async def test_a_file_that_was_put_in_the_place_of_another_is_read_and_written_from_then_on(tmp_path: Path) -> None:
    here, there = [tmp_path / name / "store.db" for name in ("here", "there")]
    store, other = open_store(f"sqlite:///{here}"), open_store(f"sqlite:///{there}")
    lost, found = await store.put(b"before", RUN), await other.put(b"from a backup", RUN)
    await other.aclose()
    shutil.rmtree(here.parent)
    there.parent.rename(here.parent)
    assert await store.get(found) == b"from a backup"
    with pytest.raises(LookupError):
        await store.get(lost)
    await store.aclose()
