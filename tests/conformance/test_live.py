"""The side channel over PostgreSQL: what one worker tells, any number of watchers hear."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from perdure.events import TextDelta
from perdure.sealing import Key, Keyring
from perdure.settings import Settings
from perdure.telemetry.broadcast import Broadcast, Reply
from perdure.telemetry.live import listen, outlet

KEYS = Keyring([Key("k1", b"k" * 32)])
PATIENCE = 30


@pytest.fixture
def settings(postgres_url: str) -> Settings:
    return Settings(store=postgres_url)


def reply(run: str = "r") -> Reply:
    return Reply(namespace="n", run_id=run, step=1, model="m:m", attempt=1, request=1)


@pytest.fixture
def broadcast(settings: Settings) -> Iterator[Broadcast]:
    broadcast = Broadcast(lambda: outlet(settings), KEYS)
    yield broadcast
    broadcast.close()


async def heard(settings: Settings, broadcast: Broadcast, text: str, keys: Keyring) -> list[Any]:
    """Say `text` once somebody listens; return the pieces up to its end."""
    found: list[Any] = []

    async def speak() -> None:
        while not found:  # until it is heard that somebody speaks: there is no other sign of a listener
            broadcast.text(reply("other"), "of another run ")
            broadcast.text(reply(), "so we say ")
            await asyncio.sleep(0.05)
        broadcast.text(reply(), text)
        broadcast.end(reply())

    speaking = asyncio.create_task(speak())
    async with asyncio.timeout(PATIENCE), aclosing(listen(settings, keys, "n", "r")) as asides:
        async for aside in asides:
            found.append(aside)
            if "END" in aside.text:
                break
    await speaking
    return found


async def test_what_is_told_is_heard_whole_and_in_order_by_whoever_listens_to_that_run(settings, broadcast):
    text = "word 😀 " * 2_000 + "END."
    found = await heard(settings, broadcast, text, KEYS)
    assert all(isinstance(one, TextDelta) and one.run_id == "r" for one in found)
    assert "".join(one.text for one in found).endswith(text)
    ends = [one.offset + len(one.text) for one in found]
    assert ends[:-1] == [one.offset for one in found[1:]]
    assert broadcast.dropped == 0


async def test_server_that_is_away_delays_nothing_and_what_is_lost_is_counted():
    settings = Settings(store="postgresql://perdure@127.0.0.1:1/none")
    broadcast = Broadcast(lambda: outlet(settings))
    broadcast.text(reply(), "lost ")
    async with asyncio.timeout(PATIENCE):
        while not broadcast.dropped:
            await asyncio.sleep(0.01)
    began = time.monotonic()
    broadcast.close()
    assert time.monotonic() - began < PATIENCE
