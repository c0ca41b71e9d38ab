"""Several processes write into one store at once, and nothing is lost."""

import asyncio
import subprocess
import sys

import pytest

from perdure.activities.stores import open_store, run_owner

WRITE = """
import asyncio, sys
from datetime import UTC, datetime
from functools import partial
from perdure.activities.stores import ArchivedRun, Session, Turn, open_store, run_owner
from perdure.activities.stores.patience import patiently
from perdure.memory import Fact

NOW = datetime(2026, 1, 2, tzinfo=UTC)

async def turn(store, me):
    "End the next turn of the one session that all go on with; others may be quicker."
    while True:
        number = len(await store.turns("d", "shared")) + 1
        session = Session(namespace="d", name="shared", agent="a", created_at=NOW, updated_at=NOW)
        if await store.end_turn(session, Turn(number=number, run_id=me, status="completed", at=NOW)):
            return

async def main(url, me):
    store = open_store(url)
    for number in range(8):
        name = f"{me}.{number}"
        await patiently(partial(store.put, b"shared", run_owner("d", name)))
        ref = await patiently(partial(store.put, name.encode(), run_owner("d", name)))
        run = ArchivedRun(namespace="d", run_id=name, agent="a", status="completed", started_at=NOW)
        await patiently(partial(store.archive, run, "e", ref))
        fact = Fact(id=name, namespace="d", agent="a", scope="agent", subject="a", text=name, source="r", at=NOW)
        await patiently(partial(store.remember, [fact]))
        await patiently(partial(turn, store, me))
        await patiently(partial(store.sweep, NOW))
    await store.aclose()

sys.stdin.readline()
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.long
async def test_what_each_of_several_processes_writes_is_all_there(url):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, url, name], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in "abcd"
    ]
    for writer in writers:  # all are there before the first begins
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
    errors = await asyncio.gather(*(asyncio.to_thread(writer.communicate) for writer in writers))
    assert [error for _, error in errors] == [""] * 4
    store = open_store(url)
    names = sorted(f"{name}.{number}" for name in "abcd" for number in range(8))
    runs = await store.archived_runs("d")
    assert sorted(run.run_id for run in runs) == names
    assert sorted([(await store.get(ref)).decode() for run in runs for ref in run.histories]) == names
    assert sorted(fact.id for fact in await store.facts("d")) == names
    turns = await store.turns("d", "shared")
    assert [turn.number for turn in turns] == list(range(1, 33))
    assert sorted(turn.run_id for turn in turns) == sorted("abcd" * 8)
    await store.drop_runs("d", names[1:])
    shared = await store.put(b"shared", run_owner("d", names[0]))
    assert await store.get(shared) == b"shared"
    await store.aclose()
