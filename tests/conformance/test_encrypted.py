"""A store with keys holds nothing that could be read without them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text

from perdure.activities.stores import ArchivedRun, CatalogueEntry, Session, Store, Turn, open_store, run_owner
from perdure.errors import KeyMissing
from perdure.memory import Circle, Fact
from perdure.messages import RunResult
from perdure.policies import AgentSpec
from perdure.sealing import Key, Keyring
from tests.conformance.conftest import within

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
CANARY = "canary13812341234"
OLD, NEW = Key("old", b"o" * 32), Key("new", b"n" * 32)
RUN = run_owner("default", "r1")
CIRCLE = Circle(namespace="default", agent="travel", tenant="", user="ada", scopes=["user"])


@asynccontextmanager
async def opened(url: str, *keys: Key) -> AsyncGenerator[Store]:
    store = open_store(url, keys=Keyring(keys))
    yield store
    await store.aclose()


def fact(id: str, said: str) -> Fact:
    place = {"namespace": "default", "agent": "travel", "tenant": "", "scope": "user", "subject": "ada"}
    return Fact.model_validate({**place, "id": id, "text": said, "source": CANARY, "at": NOON})


async def fill(store: Store) -> str:
    """Put the canary everywhere, and return the reference of a blob."""
    spec = AgentSpec(name="travel", model="scripted:x", instructions=CANARY)
    place = {"agent": "travel", "task_queue": "q", "hash": "h", "source": "f"}
    await store.announce(
        CatalogueEntry.model_validate({**place, "namespace": "default", "spec": spec, "seen_at": NOON})
    )
    result = RunResult(run_id="r1", status="completed", text=CANARY)
    run = {"run_id": "r1", "agent": "travel", "status": "completed", "started_at": NOON, "result": result}
    archived = ArchivedRun.model_validate({**run, "namespace": "default"})
    await store.archive(archived, "e1", await store.put(CANARY.encode(), RUN))
    session = {"name": "s", "agent": "travel", "created_at": NOON, "updated_at": NOON, "variables": {"phone": CANARY}}
    turn = Turn(number=1, run_id="r1", status="completed", input=CANARY, text=CANARY, at=NOON)
    assert await store.end_turn(Session.model_validate({**session, "namespace": "default"}), turn)
    await store.remember([fact("f1", f"Ada has the number {CANARY}")])
    return await store.put(CANARY.encode() * 2, RUN)


async def check(store: Store, ref: str) -> None:
    """See that all of it is read."""
    assert (await store.find("travel"))[0].spec.instructions == CANARY
    archived = await store.archived("default", "r1")
    assert archived is not None
    assert archived.result is not None
    assert archived.result.text == CANARY
    assert await store.get(ref) == CANARY.encode() * 2
    assert [turn.input for turn in await store.turns("default", "s")] == [CANARY]
    session = await store.session("default", "s")
    assert session is not None
    assert session.variables == {"phone": CANARY}
    assert [found.id for found in await store.recall(CIRCLE, "whose number?", 5)] == ["f1"]
    assert [found.id for found in await store.recall(CIRCLE, CANARY, 5)] == ["f1"]
    assert [found.source for found in await store.facts("default")] == [CANARY]


def _everything(connection: Connection) -> str:
    tables = [name for name in inspect(connection).get_table_names() if name.startswith("perdure_")]
    rows: list[Any] = [row for table in tables for row in connection.execute(text(f"SELECT * FROM {table}"))]
    return repr([[bytes(cell) if isinstance(cell, memoryview) else cell for cell in row] for row in rows])


async def test_nothing_can_be_read_in_tables_and_blobs(url, tmp_path: Path):
    async with opened(url, NEW) as store:
        ref = await fill(store)
        await check(store, ref)
    assert CANARY not in await within(url, _everything)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file for file in files if CANARY.encode() in file.read_bytes()] == []


async def test_without_a_key_the_same_search_would_find_it(url):
    async with opened(url) as store:
        await check(store, await fill(store))
    assert CANARY in await within(url, _everything)


async def test_what_was_kept_before_there_was_a_key_or_with_an_older_one_is_read(url):
    async with opened(url) as store:
        ref = await fill(store)
    async with opened(url, OLD) as store:
        await check(store, ref)
        later = Turn(number=2, run_id="r2", status="completed", input=CANARY, at=NOON + timedelta(hours=1))
        session = await store.session("default", "s")
        assert session is not None
        assert await store.end_turn(session.model_copy(update={"updated_at": later.at}), later)
        await store.remember([fact("f2", "Ada likes window seats")])
    async with opened(url, NEW, OLD) as store:
        assert len(await store.turns("default", "s")) == 2
        assert [found.id for found in await store.recall(CIRCLE, "window", 5)] == ["f2"]
        assert [found.id for found in await store.recall(CIRCLE, "number", 5)] == ["f1"]
        assert await store.forget("default", "f2", NOON)
        assert await store.recall(CIRCLE, "window", 5) == []


async def test_who_has_not_the_key_is_told_which_one_it_is(url):
    async with opened(url, NEW) as store:
        ref = await fill(store)
    async with opened(url, OLD) as store:
        for call in (store.get(ref), store.archived("default", "r1"), store.turns("default", "s"), store.agents()):
            with pytest.raises(KeyMissing, match="encrypted with key new"):
                await call


async def test_the_same_bytes_are_one_blob_until_the_key_changes(url):
    async with opened(url, OLD) as store:
        assert await store.put(b"hello", RUN) == await store.put(b"hello", RUN)
        before = await store.put(b"", RUN)
    async with opened(url, NEW, OLD) as store:
        assert await store.put(b"hello", RUN) not in (before, await store.put(b"", RUN))
        assert await store.get(before) == b""
