"""What runs have used: rows that are written again and again, and outlive their runs."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import text

from perdure.activities.stores import open_store
from perdure.messages import Usage
from perdure.sealing import Key, Keyring
from perdure.usage import Prompt, UsageRow
from tests.conformance.conftest import within

NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


def row(run_id="r1", attempt=1, *, after=0, **more):
    used = Usage(input_tokens=100, cached_tokens=20, output_tokens=7)
    told = {"namespace": "default", "agent": "writer", "model": "openai:gpt-5", "usage": used, "kind": "model", **more}
    place = {"run_id": run_id, "position": "5.0", "at": NOW + timedelta(seconds=after), "attempt": attempt}
    return UsageRow.model_validate({**told, **place})


async def test_rows_come_back_as_they_were_kept(store):
    assert await store.usage("default") == []
    whole = row(
        step=3,
        tenant="t",
        session="s",
        user="u",
        sent_at=NOW,
        cost_usd=Decimal("0.0000123456789"),
        input_usd=Decimal("0.00001"),
        status="lost",
        why="worker",
        prompt=Prompt(instructions=1, reread=2, results={"find": 3}),
    )
    unknown = row("r2", after=1)
    await store.keep_usage([whole, unknown])
    assert await store.usage("default") == [whole, unknown]
    assert unknown.cost_usd is None
    assert await store.usage("elsewhere") == []


async def test_rows_that_are_written_again_are_not_counted_twice(store):
    rows = [row(attempt=attempt) for attempt in range(1, 121)]
    await store.keep_usage(rows)
    await store.keep_usage([*rows, *rows])
    assert await store.usage("default") == rows
    await store.keep_usage([row(status="failed")])
    assert [one.status for one in await store.usage("default")][:2] == ["failed", "ok"]


async def test_a_run_that_was_resumed_uses_positions_once_more_at_another_time(store):
    await store.keep_usage([row(), row(after=60)])
    assert len(await store.usage("default", run_id="r1")) == 2


async def test_rows_are_found_by_whose_they_are_and_when_they_were_made(store):
    first = row("r1", tenant="a", session="s")
    second = row("r2", after=60, agent="reader")
    await store.keep_usage([second, first])
    assert await store.usage("default", tenant="a") == await store.usage("default", session="s") == [first]
    assert await store.usage("default", agent="reader") == await store.usage("default", run_id="r2") == [second]
    assert await store.usage("default", until=second.time) == [first]
    assert await store.usage("default", since=second.time) == [second]


async def test_rows_stay_when_their_run_is_dropped_and_go_when_they_are(store):
    await store.keep_usage([row(), row("r2", after=60)])
    await store.drop_runs("default", ["r1", "r2"])
    assert len(await store.usage("default")) == 2
    assert await store.drop_usage("default", NOW + timedelta(seconds=60)) == 1
    assert [one.run_id for one in await store.usage("default")] == ["r2"]


async def test_an_encrypted_store_hides_for_whom_it_was(url):
    store = open_store(url, keys=Keyring([Key("k", b"k" * 32)]))
    await store.keep_usage([row(user="anna")])
    assert [one.user for one in await store.usage("default")] == ["anna"]
    await store.aclose()
    (body,) = await within(url, lambda connection: list(connection.scalars(text("SELECT body FROM perdure_usage"))))
    assert "anna" not in str(body)
