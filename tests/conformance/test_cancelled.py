"""Whoever stops waiting for the store leaves no connection open, and nothing half-done."""

import asyncio

import pytest

from perdure.activities.stores import open_store, run_owner

RUN = run_owner("default", "r1")


@pytest.mark.long
@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_call_that_is_cancelled_goes_on_to_its_end(url, turns):
    store = open_store(url)
    putting = asyncio.create_task(store.put(b"hello", RUN))
    for _ in range(turns):  # wherever it is by then: opening, making tables, in a transaction
        await asyncio.sleep(0)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    await store.aclose()
    other = open_store(url)
    if turns:
        assert await other.get("2cf24dba5fb0a30e26e83b2ac5b9e29e") == b"hello"
    await other.aclose()


@pytest.mark.long
async def test_many_cancelled_calls_leave_room_for_others(store):
    for _ in range(40):
        calls = [asyncio.create_task(store.put(b"hello", RUN)) for _ in range(5)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
    assert await store.put(b"hello", RUN)
