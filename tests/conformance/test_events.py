"""Copies of events: kept once each, in order, and forgotten with their run."""

from datetime import UTC, datetime, timedelta

from perdure.activities.stores import ArchivedRun
from perdure.activities.stores.copied import EventRow

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def row(position="5.0", run_id="r1", *, after=0, **more):
    told = {"namespace": "default", "execution": "e1", "type": "tool_started", "agent": "writer", "body": {"a": 1}}
    given = {**told, "run_id": run_id, "position": position, "time": NOW + timedelta(seconds=after), **more}
    return EventRow.model_validate(given)


async def test_events_are_kept_once_and_only_those_that_are_new_are_told(store):
    assert await store.events("default") == []
    first, second = row(call="1.1", step=1, session="s"), row("5.1")
    assert await store.keep_events([first]) == [first]
    assert await store.keep_events([first, second]) == [second]
    assert await store.keep_events([]) == []
    assert await store.events("default") == [first, second]


async def test_events_come_in_the_order_in_which_they_happened(store):
    rows = [row(position) for position in ("10.0", "5.10", "5.2", "100005.0")]
    await store.keep_events(rows)
    assert [one.position for one in await store.events("default")] == ["5.2", "5.10", "10.0", "100005.0"]


async def test_run_that_was_resumed_may_use_a_position_again(store):
    await store.keep_events([row()])
    again = row(execution="e2", after=60)
    assert await store.keep_events([again]) == [again]
    assert len(await store.events("default", run_id="r1")) == 2


async def test_events_are_found_by_run_agent_type_and_time(store):
    rows = [row(), row(run_id="r2", agent="other", after=1), row("6.0", type="tool_finished", after=2)]
    await store.keep_events(rows)
    assert await store.events("default", run_id="r2") == [rows[1]]
    assert await store.events("default", agent="other") == [rows[1]]
    assert await store.events("default", type="tool_finished") == [rows[2]]
    assert await store.events("default", since=rows[1].time, until=rows[2].time) == [rows[1]]
    assert await store.events("default", limit=1) == [rows[0]]
    assert await store.events("other") == []


async def test_hundreds_of_events_are_kept_at_once(store):
    rows = [row(f"{number}.0") for number in range(300)]
    assert await store.keep_events(rows) == rows
    assert await store.events("default") == rows


async def test_events_are_forgotten_with_their_run(store):
    run = ArchivedRun(
        namespace="default", run_id="r1", agent="a", status="completed", started_at=NOW, closed_at=NOW, result=None
    )
    await store.archive(run, "e1", "0" * 32)
    kept = row(run_id="r2")
    await store.keep_events([row(), kept])
    await store.drop_runs("default", ["r1"])
    assert await store.events("default") == [kept]
