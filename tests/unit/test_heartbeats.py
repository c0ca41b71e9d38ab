"""What an attempt learns from the engine, and what it leaves to the attempts after it."""

import asyncio
import dataclasses
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from perdure.activities import heartbeats as beats
from perdure.activities.bodies import Gate
from perdure.activities.heartbeats import Pulse, Tried, given_up, heartbeats
from perdure.messages import Usage


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch):
    """All attempts of these tests are of one activity."""
    monkeypatch.setattr(beats, "_ended", OrderedDict())


def attempt(kept, leaves):
    """Run one attempt, which is left what is in `kept`, and leaves something there."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=7, heartbeat_details=kept)
    environment.on_heartbeat = lambda *details: kept.__setitem__(slice(None), details)
    environment.run(leaves)


def test_attempts_lost_with_their_worker_do_not_count_as_failed():
    attempt([], lambda: Pulse().tried == Tried() or pytest.fail("something was tried"))


async def test_what_was_tried_is_left_from_attempt_to_attempt_before_it_fails():
    told: list[Any] = []
    for _ in range(3):
        environment = ActivityEnvironment(client=cast("Client", Engine(None, told)))
        environment.info = dataclasses.replace(environment.info, heartbeat_details=told[-1:])

        async def fail():
            async with heartbeats() as pulse:
                pulse.leave(pulse.tried.model_copy(update={"failed": pulse.tried.failed + 1}))
                raise ValueError("it failed")

        with pytest.raises(ValueError, match="it failed"):
            await environment.run(fail)
    assert told == [Tried(failed=number, known=1) for number in (1, 2, 3)]


async def test_what_an_attempt_did_that_the_engine_had_given_up_is_known_to_the_next_one_in_the_same_process():
    gone = RPCError("no such activity", RPCStatusCode.NOT_FOUND, b"")
    environment = ActivityEnvironment(client=cast("Client", Engine(gone)))

    async def broken_off():
        async with heartbeats():
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await environment.run(broken_off)
    seen = []
    for activity_id in (environment.info.activity_id, "another"):
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, attempt=2, activity_id=activity_id)
        environment.run(lambda: seen.append(Pulse().lost_one))
    assert seen == [False, True]


async def test_an_engine_that_is_away_does_not_hide_why_an_attempt_failed():
    away = RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
    environment = ActivityEnvironment(client=cast("Client", Engine(away)))

    async def fail():
        async with heartbeats() as pulse:
            pulse.leave(Tried(failed=1))
            raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        await environment.run(fail)


def test_each_heartbeat_tells_what_is_kept_so_that_it_is_not_forgotten():
    kept: list[Any] = [{"failed": 2, "wasted": {"input_tokens": 7}}]  # as it comes from the engine

    def work():
        pulse = Pulse()
        pulse.beat()
        assert kept == [{"failed": 2, "wasted": {"input_tokens": 7}}]
        pulse.keep(pulse.tried.model_copy(update={"sent": 5}))
        pulse.beat()

    attempt(kept, work)
    assert kept == [Tried(failed=2, wasted=Usage(input_tokens=7), sent=5, known=7)]


class Engine:
    """Answers a heartbeat as it is told to."""

    def __init__(self, error: Exception | None, told: list[Any] | None = None) -> None:
        self._error = error
        self._told = [] if told is None else told

    def get_async_activity_handle(self, **_: object) -> "Engine":
        return self

    async def heartbeat(self, *details: Any) -> None:
        if self._error:
            raise self._error
        self._told += details


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (None, False),
        (AsyncActivityCancelledError(), False),
        (RPCError("no such activity", RPCStatusCode.NOT_FOUND, b""), True),
        (RPCError("away", RPCStatusCode.UNAVAILABLE, b""), True),
    ],
    ids=["awaited", "cancelled", "given up", "engine away"],
)
async def test_attempt_that_the_engine_does_not_await_any_more_is_given_up(error, gone):
    environment = ActivityEnvironment(client=cast("Client", Engine(error)))
    assert await environment.run(given_up) is gone


@pytest.mark.parametrize(("left", "begins"), [(timedelta(minutes=1), True), (timedelta(), False)])
def test_no_body_begins_after_its_deadline(left, begins):
    assert Gate(datetime.now(UTC) + left).enter() is begins


@pytest.mark.parametrize(("others", "waits"), [(0, 0.6), (99, 1.25), (1000, 5.0)])
async def test_a_cancellation_is_heard_within_a_second_unless_a_worker_has_much_to_do(others, waits, monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 1:  # the first one is for what there is to tell early
            await forever.wait()

    forever = asyncio.Event()
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, heartbeat_timeout=timedelta(seconds=15))

    async def lives():
        monkeypatch.setattr("perdure.activities.heartbeats._beating", {Pulse() for _ in range(others)})
        async with heartbeats():
            await asyncio.tasks.sleep(0)

    monkeypatch.setattr("perdure.activities.heartbeats.asyncio.sleep", sleep)
    await environment.run(lives)
    assert slept[1:] == [waits]
