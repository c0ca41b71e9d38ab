"""What an attempt learns from the engine, and what it leaves to the attempts after it."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.client import AsyncActivityCancelledError, Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from perdure.activities.bodies import Gate
from perdure.activities.heartbeats import count_failure, failed_before, given_up


def test_attempts_lost_with_their_worker_do_not_count_as_failed():
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=7)
    assert environment.run(failed_before) == 0


def test_failures_are_counted_from_attempt_to_attempt():
    kept: list[Any] = []
    for _ in range(3):
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, heartbeat_details=kept)
        environment.on_heartbeat = lambda *details: kept.__setitem__(slice(None), details)
        environment.run(count_failure)
    assert kept == [3]


class Engine:
    """Answers a heartbeat as it is told to."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def get_async_activity_handle(self, **_: object) -> "Engine":
        return self

    async def heartbeat(self) -> None:
        if self._error:
            raise self._error


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
