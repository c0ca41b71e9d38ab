"""Who did what: rows that are only ever added, and show where one was changed."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from perdure.activities.stores import open_store
from perdure.audit import AuditEntry, AuditState
from perdure.sealing import Key, Keyring
from tests.conformance.conftest import within

NOW = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


def entry(position="7.0", run_id="r1", *, after=0, **more):
    told = {"namespace": "default", "action": "approved", "by": "Ann", "via": "cli", "call": "2.1", **more}
    return AuditEntry.model_validate(
        {"run_id": run_id, "position": position, "at": NOW + timedelta(seconds=after), **told}
    )


async def test_entries_come_back_as_they_were_noted(store):
    assert await store.noted("default") == []
    whole = entry(agent="travel", session="s", tenant="t", tool="book", reason="cheap", details={"steps": 5})
    await store.note([])
    await store.note([whole])
    assert await store.noted("default") == [whole]
    assert await store.noted("elsewhere") == []


async def test_what_is_there_already_is_not_added_again(store):
    await store.note([entry(), entry("9.0", after=1)])
    await store.note([entry(), entry("9.0", after=1), entry("11.0", after=2)])
    await store.note([entry(by="Bob")])
    assert [one.position for one in await store.noted("default")] == ["7.0", "9.0", "11.0"]
    assert {one.by for one in await store.noted("default")} == {"Ann"}


async def test_a_run_that_was_resumed_counts_its_positions_anew(store):
    await store.note([entry("1.0", action="started")])
    await store.note([entry("1.0", action="resumed", after=60)])
    assert [one.action for one in await store.noted("default", run_id="r1")] == ["started", "resumed"]


async def test_entries_are_found_by_run_and_time(store):
    await store.note([entry(), entry(run_id="r2", after=60), entry("a", run_id="", action="pruned", after=120)])
    assert len(await store.noted("default", run_id="r2")) == 1
    since = await store.noted("default", since=NOW + timedelta(seconds=60))
    assert [one.run_id for one in since] == ["r2", ""]


async def test_entries_outlive_their_runs(store):
    await store.note([entry()])
    await store.drop_runs("default", ["r1"])
    assert len(await store.noted("default", run_id="r1")) == 1


async def test_an_empty_audit_is_whole(store):
    assert await store.check_audit("default") == AuditState()


async def test_all_entries_follow_from_each_other_however_many_write_at_once(url):
    stores = [open_store(url) for _ in range(4)]
    await stores[0].note([entry("first")])
    await asyncio.gather(
        *(store.note([entry(f"{at}.{n}", after=n)]) for at, store in enumerate(stores) for n in range(8))
    )
    state = await stores[1].check_audit("default")
    assert (state.entries, state.broken) == (33, 0)
    assert len(state.last) == 64
    for store in stores:
        await store.aclose()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE perdure_audit SET action = 'denied' WHERE position = '2.0'",
        "UPDATE perdure_audit SET hash = 'x' WHERE position = '2.0'",
        "DELETE FROM perdure_audit WHERE position = '2.0'",
    ],
)
async def test_an_entry_that_was_changed_or_taken_out_is_seen(url, store, change):
    await store.note([entry(f"{n}.0", after=n) for n in range(1, 5)])
    await within(url, lambda connection: connection.execute(text(change)))
    state = await store.check_audit("default")
    gone = "DELETE" in change
    assert (state.entries, state.broken) == (3 if gone else 4, 2)
    assert state.broken_at == NOW + timedelta(seconds=3 if gone else 2)


async def test_namespaces_have_chains_of_their_own(url, store):
    await store.note([entry(f"{n}.0", namespace=name) for n in range(3) for name in ("default", "other")])
    await within(
        url, lambda connection: connection.execute(text("DELETE FROM perdure_audit WHERE namespace = 'other'"))
    )
    assert (await store.check_audit("default")).broken == 0
    assert (await store.check_audit("default")).entries == 3


async def test_with_a_key_who_and_why_are_sealed(url):
    sealed = open_store(url, "", Keyring([Key("k1", b"1" * 32)]))
    await sealed.note([entry(by="Ann Canary", reason="canary")])
    rows = await within(url, lambda connection: connection.execute(text("SELECT * FROM perdure_audit")).all())
    assert "canary" not in str(rows).lower()
    assert (await sealed.noted("default"))[0].by == "Ann Canary"
    assert (await sealed.check_audit("default")).broken == 0
    await sealed.aclose()
