"""The store's tables are made and upgraded by whoever uses them first."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text

from perdure.activities.stores import open_store, run_owner, schema
from perdure.activities.stores.tables import METADATA
from perdure.errors import ConnectionFailed
from tests.conformance.conftest import within

# As stores were made before there were versions.
FIRST = """
CREATE TABLE perdure_catalogue (
    namespace VARCHAR NOT NULL, agent VARCHAR NOT NULL, task_queue VARCHAR NOT NULL, hash VARCHAR NOT NULL,
    spec JSON NOT NULL, source VARCHAR NOT NULL, seen_at TIMESTAMP{zone} NOT NULL,
    PRIMARY KEY (namespace, agent, task_queue)
)
"""
SPEC = '{"name": "travel", "model": "openai:m"}'
KEPT = f"INSERT INTO perdure_catalogue VALUES ('default', 'travel', 'q1', 'h', '{SPEC}', 'a.py', '2026-01-02 12:00:00')"
PUT = """
import asyncio, sys
from perdure.activities.stores import open_store, run_owner

async def main():
    store = open_store(sys.argv[1])
    await store.put(sys.argv[2].encode(), run_owner("default", "r1"))
    await store.aclose()

sys.stdin.readline()
asyncio.run(main())
"""


async def tables(url: str) -> set[str]:
    return set(await within(url, lambda connection: inspect(connection).get_table_names()))


@pytest.fixture
async def older(url: str) -> str:
    """The address of a store with the catalogue alone, and an agent in it."""
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir()
    zone = "" if url.startswith("sqlite") else " WITH TIME ZONE"
    await within(url, lambda connection: connection.execute(text(FIRST.format(zone=zone))))
    await within(url, lambda connection: connection.exec_driver_sql(KEPT))
    return url


async def test_a_new_store_has_the_newest_version_and_the_tables_that_the_code_knows(url):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    store = open_store(url)
    await store.put(b"hello", run_owner("default", "r1"))
    await store.aclose()

    def differences(connection: Connection) -> Any:
        ours = {"include_name": lambda name, kind, _: kind != "table" or name in METADATA.tables}
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True, **ours}), METADATA)

    assert await within(url, differences) == []
    assert await within(url, schema.version) == schema.HEAD


def test_the_newest_version_is_the_last_step():
    from alembic.script import ScriptDirectory

    folder = str(Path(schema.__file__).with_name("migrations"))
    steps = list(ScriptDirectory(folder, version_locations=[folder]).walk_revisions())
    assert [step.revision for step in steps] == [str(number) for number in range(int(schema.HEAD), 0, -1)]
    assert [Path(step.path).name.partition("_")[0] for step in steps] == [f"v{step.revision}" for step in steps]


async def test_an_older_store_is_upgraded_and_keeps_what_it_has(older):
    store = open_store(older)
    (entry,) = await store.agents()
    assert (entry.spec.name, entry.seen_at) == ("travel", datetime(2026, 1, 2, 12, tzinfo=UTC))
    assert await store.get(await store.put(b"hello", run_owner("default", "r1"))) == b"hello"
    await store.aclose()
    assert await within(older, schema.version) == schema.HEAD


@pytest.mark.long
async def test_processes_that_upgrade_it_at_once_all_succeed(older):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PUT, older, str(number)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = await asyncio.gather(*(asyncio.to_thread(process.communicate) for process in processes))
    assert [error for _, error in errors] == [""] * 4
    store = open_store(older)
    await store.drop_runs("default", ["r1"])
    assert (await store.sweep(datetime.max.replace(tzinfo=UTC))).size == 4
    await store.aclose()


async def test_an_upgrade_that_fails_leaves_the_older_store_as_it_was(older):
    await within(older, lambda connection: connection.exec_driver_sql("CREATE TABLE perdure_facts (other INTEGER)"))
    store = open_store(older)
    with pytest.raises(ConnectionFailed, match=r"perdure_facts.* already exists\.$"):
        await store.agents()
    await store.aclose()
    assert await tables(older) == {"perdure_catalogue", "perdure_facts"}
    await within(older, lambda connection: connection.exec_driver_sql("DROP TABLE perdure_facts"))
    store = open_store(older)
    assert len(await store.agents()) == 1
    await store.aclose()


async def test_a_store_of_a_newer_version_is_refused_in_one_sentence_and_left_alone(url):
    store = open_store(url)
    await store.put(b"hello", run_owner("default", "r1"))
    await store.aclose()
    await within(url, lambda connection: connection.exec_driver_sql(f"UPDATE {schema.VERSIONS} SET version_num = '77'"))
    store = open_store(url)
    sentence = (
        r"^The store at .* is of a newer Perdure \(its tables have version 77; here \d+ is the newest\): upgrade "
    )
    for use in (store.agents, lambda: store.put(b"more", run_owner("default", "r1"))):
        with pytest.raises(ConnectionFailed, match=sentence):
            await use()
    await store.aclose()
    assert await within(url, schema.version) == "77"


async def test_whoever_only_reads_makes_no_store(url, tmp_path):
    store = open_store(url)
    assert await store.agents() == []
    assert await store.archived_runs("default") == []
    with pytest.raises(LookupError):
        await store.get("0" * 32)
    await store.aclose()
    if url.startswith("sqlite"):
        assert list(tmp_path.iterdir()) == []
    else:
        assert await tables(url) == set()
