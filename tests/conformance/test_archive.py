"""Runs that have ended, as they outlive the engine's retention."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from perdure.activities.stores import ArchivedRun, run_owner, session_owner
from perdure.messages import RunResult

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def run(run_id="r1", minutes=0, **more):
    started = NOON + timedelta(minutes=minutes)
    values: dict[str, Any] = {
        "namespace": "default",
        "agent": "travel",
        "status": "completed",
        "started_at": started,
        **more,
    }
    return ArchivedRun(run_id=run_id, **values)


async def test_a_run_comes_back_whole_with_its_histories_in_order(store):
    whole = run(
        closed_at=NOON + timedelta(hours=1),
        session="s",
        user="ada",
        tenant="acme",
        result=RunResult(run_id="r1", status="completed", text="简短\x00"),
    )
    await store.archive(run(status="running"), "e1", "a" * 32)
    await store.archive(whole, "e2", "b" * 32)
    assert await store.archived("default", "r1") == whole.model_copy(update={"histories": ["a" * 32, "b" * 32]})


async def test_archiving_again_changes_nothing(store):
    for _ in range(2):
        await store.archive(run(), "e1", "a" * 32)
    assert await store.archived_runs("default") == [run(histories=["a" * 32])]


async def test_what_is_archived_late_does_not_replace_what_is_said_of_a_later_end(store):
    for execution, status, hour in (("e3", "completed", 3), ("e1", "running", None), ("e2", "failed", 2)):
        closed = NOON + timedelta(hours=hour) if hour else None
        await store.archive(run(status=status, closed_at=closed), execution, execution[-1] * 32)
    kept = await store.archived("default", "r1")
    assert (kept.status, kept.closed_at) == ("completed", NOON + timedelta(hours=3))
    assert len(kept.histories) == 3


async def test_a_run_that_was_never_archived_is_none(store):
    assert await store.archived("default", "r1") is None
    assert await store.archived_runs("default") == []


async def test_runs_are_listed_the_latest_first_and_by_agent_or_session(store):
    await store.archive(run("r1"), "e", "a" * 32)
    await store.archive(run("r2", 2, agent="other"), "e", "b" * 32)
    await store.archive(run("r3", 1, session="s"), "e", "c" * 32)
    await store.archive(run("r4", namespace="elsewhere"), "e", "d" * 32)
    assert [r.run_id for r in await store.archived_runs("default")] == ["r2", "r3", "r1"]
    assert [r.run_id for r in await store.archived_runs("default", limit=1)] == ["r2"]
    assert [r.run_id for r in await store.archived_runs("default", agent="travel")] == ["r3", "r1"]
    assert [r.histories for r in await store.archived_runs("default", session="s")] == [["c" * 32]]


async def test_dropped_runs_are_forgotten_with_what_they_own(store):
    ref = await store.put(b"history", run_owner("default", "r1"))
    await store.archive(run("r1"), "e", ref)
    await store.archive(run("r2"), "e", "b" * 32)
    await store.drop_runs("default", ["r1", "unknown"])
    assert [r.run_id for r in await store.archived_runs("default")] == ["r2"]
    assert (await store.sweep(datetime.now(UTC) + timedelta(hours=1))).size == 7
    with pytest.raises(LookupError):
        await store.get(ref)


# -- retention ---------------------------------------------------------------------------------------------


def later() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def test_old_runs_are_those_that_ended_before_then_the_oldest_first(store):
    for run_id, hour in (("r3", 3), ("r1", 1), ("r2", 2)):
        await store.archive(run(run_id, closed_at=NOON + timedelta(hours=hour)), run_id, "a" * 32)
    await store.archive(run("open", minutes=90, status="running"), "e", "a" * 32)
    await store.archive(run("other", namespace="elsewhere", closed_at=NOON), "e", "a" * 32)
    assert await store.old_runs("default", NOON + timedelta(hours=3)) == ["r1", "open", "r2"]
    assert await store.old_runs("default", NOON) == []


async def test_executions_that_are_not_archived_are_told(store):
    assert await store.not_archived("default", ["e1"]) == {"e1"}
    await store.archive(run(), "e1", "a" * 32)
    many = [f"e{n}" for n in range(1, 1200)]
    assert await store.not_archived("default", many) == set(many) - {"e1"}
    assert await store.not_archived("elsewhere", ["e1"]) == {"e1"}


async def test_orphans_are_runs_that_own_blobs_and_are_not_archived(store):
    await store.put(b"1", run_owner("default", "gone"))
    await store.put(b"2", run_owner("default", "kept"))
    await store.put(b"3", run_owner("Default", "of-another-namespace"))
    await store.put(b"4", session_owner("default", "s"))
    await store.archive(run("kept"), "e", "a" * 32)
    assert await store.orphans("default", later()) == ["gone"]
    assert await store.orphans("default", NOON) == []


async def test_a_new_run_keeps_its_blobs_where_an_old_one_of_its_id_is_dropped(store):
    old = await store.put(b"old", run_owner("default", "r1"))
    await store.archive(run(closed_at=NOON), "e1", old)
    before = datetime.now(UTC)
    new = await store.put(b"new", run_owner("default", "r1"))
    await store.drop_runs("default", ["r1"], before=before)
    assert await store.archived("default", "r1") is None
    assert (await store.sweep(later())).blobs == 1
    assert await store.get(new) == b"new"


async def test_a_run_that_ended_since_is_not_dropped(store):
    await store.archive(run(closed_at=NOON + timedelta(hours=2)), "e1", "a" * 32)
    await store.drop_runs("default", ["r1"], before=NOON)
    assert (await store.archived("default", "r1")).histories == ["a" * 32]


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_dropped_what_anybody_owns_stays_and_all_else_goes(store, seed):
    random = Random(seed)
    runs = [f"r{n}" for n in range(6)]
    owners = [*(run_owner("default", name) for name in runs), session_owner("default", "s")]
    owned: dict[str, set[Any]] = {}
    for number in range(20):
        data = b"%d" % random.randrange(12)
        ref = await store.put(data, owner := random.choice(owners))
        owned.setdefault(ref, set()).add(owner)
        if number % 3 == 0:
            ref = random.choice(list(owned))
            await store.own([ref], owner := random.choice(owners))
            owned[ref].add(owner)
    for name in runs[:4]:
        await store.archive(run(name, closed_at=NOON), "e", "a" * 32)
    dropped = random.sample(runs, random.randrange(len(runs)))
    left = {ref: some - {run_owner("default", name) for name in dropped} for ref, some in owned.items()}
    expected = await store.needed_by_none_else("default", dropped)
    await store.drop_runs("default", dropped)
    freed = await store.sweep(later())
    assert freed == expected
    assert freed.blobs == sum(not some for some in left.values())
    for ref, some in left.items():
        if some:
            await store.get(ref)
        else:
            with pytest.raises(LookupError):
                await store.get(ref)
