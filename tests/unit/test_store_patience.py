"""A store that is down is waited for."""

import asyncio
import logging
from datetime import timedelta

import pytest

from perdure.activities.stores import patience
from perdure.errors import ConnectionFailed


class Down:
    """A store that is down for its first calls."""

    def __init__(self, times):
        self.left = times
        self.calls = 0

    async def get(self):
        self.calls += 1
        self.left -= 1
        if self.left >= 0:
            raise ConnectionFailed("The store is down.")
        return "there"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(patience, "FIRST", 0.001)
    monkeypatch.setattr(patience, "LONGEST", 0.002)


async def test_a_call_is_repeated_until_the_store_is_there_and_the_log_says_so_once(caplog):
    caplog.set_level(logging.INFO, "perdure.store")
    assert await patience.patiently(Down(4).get, meanwhile="not kept yet") == "there"
    assert [record.message for record in caplog.records] == [
        "not kept yet: The store is down.",
        "the store is there again",
    ]


async def test_after_its_time_it_fails_with_the_last_reason():
    down = Down(1_000_000)
    with pytest.raises(ConnectionFailed, match=r"^The store is down\.$"):
        await patience.patiently(down.get, timedelta(seconds=0.02))
    assert down.calls > 1


async def test_without_time_it_is_tried_once():
    down = Down(2)
    with pytest.raises(ConnectionFailed):
        await patience.patiently(down.get, timedelta())
    assert down.calls == 1


async def test_whoever_waits_can_be_cancelled():
    waiting = asyncio.create_task(patience.patiently(Down(1_000_000).get))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_another_error_is_no_reason_to_wait():
    async def get():
        raise LookupError("no such blob")

    with pytest.raises(LookupError):
        await patience.patiently(get)
