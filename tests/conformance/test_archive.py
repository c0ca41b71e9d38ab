"""Runs that have ended, as they outlive the engine's retention."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.activities.stores import ArchivedRun, run_owner
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
    assert await store.sweep(datetime.now(UTC) + timedelta(hours=1)) == 7
    with pytest.raises(LookupError):
        await store.get(ref)
