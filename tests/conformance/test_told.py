"""How far executions were told of elsewhere: one tells at a time, and nothing twice."""

import asyncio
from datetime import UTC, datetime, timedelta

from perdure.activities.stores import ArchivedRun

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
RUN = ("default", "r1", "e1")
A_WHILE, AT_ONCE = timedelta(minutes=5), timedelta(0)


async def test_who_claims_an_execution_learns_how_far_it_was_told(store):
    assert await store.claim(*RUN, "ann", A_WHILE) == 0
    await store.told(*RUN, "ann", 7)
    assert await store.claim(*RUN, "bob", A_WHILE) == 7


async def test_nobody_else_tells_until_the_holder_is_done_or_was_lost(store):
    assert await store.claim(*RUN, "ann", AT_ONCE) == 0
    assert await store.claim(*RUN, "bob", A_WHILE) == 0
    assert await store.claim(*RUN, "ann", A_WHILE) is None
    assert await store.claim(*RUN, "bob", A_WHILE) == 0
    assert await store.claim("default", "r1", "e2", "ann", A_WHILE) == 0


async def test_what_was_told_is_never_taken_back(store):
    await store.claim(*RUN, "ann", AT_ONCE)
    await store.claim(*RUN, "bob", A_WHILE)
    await store.told(*RUN, "bob", 9)
    await store.told(*RUN, "ann", 5)
    assert await store.claim(*RUN, "cid", A_WHILE) == 9
    await store.told(*RUN, "ann", 9)  # she does not hold it any more
    assert await store.claim(*RUN, "ann", A_WHILE) is None


async def test_of_many_at_once_one_gets_it(store):
    found = await asyncio.gather(*(store.claim(*RUN, f"w{number}", A_WHILE) for number in range(8)))
    assert sorted(found, key=str) == [0, *[None] * 7]


async def test_it_is_forgotten_with_the_run(store):
    run = ArchivedRun(
        namespace="default", run_id="r1", agent="a", status="completed", started_at=NOW, closed_at=NOW, result=None
    )
    await store.archive(run, "e1", "0" * 32)
    await store.claim(*RUN, "ann", A_WHILE)
    await store.told(*RUN, "ann", 7)
    await store.drop_runs("default", ["r1"])
    assert await store.claim(*RUN, "ann", A_WHILE) == 0
