"""Each attempt of a tool is told of by it or, where its worker was lost, by the one after it."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities.heartbeats import Pulse, counted, heartbeats
from perdure.attempts import LOST, Made, Trail, lost
from perdure.reports import Spent

AT = datetime(2026, 1, 1, tzinfo=UTC)


def after(seconds):
    return AT + timedelta(seconds=seconds)


class Engine:
    """Keeps what it is left."""

    def __init__(self, left):
        self.left = left

    def get_async_activity_handle(self, **_):
        return self

    async def heartbeat(self, *details):
        self.left[:] = details


async def attempt(number, left, work):
    """Run one attempt, which is left what is in `left` and leaves something there."""
    environment = ActivityEnvironment(client=cast("Client", Engine(left)))
    environment.info = dataclasses.replace(
        environment.info, attempt=number, heartbeat_details=list(left), scheduled_time=AT, is_local=False
    )
    environment.on_heartbeat = lambda *details: left.__setitem__(slice(None), details)

    async def run() -> Pulse:
        async with heartbeats() as pulse:
            work(pulse)
            return pulse

    return await environment.run(run)


def fails(pulse):
    with counted(pulse, "look", "agent"):
        raise ApplicationError("No.", type="server")


async def test_an_attempt_lost_with_its_worker_is_told_by_the_next_one_with_its_last_sign_of_life():
    left: list[Any] = []

    def work(pulse):
        pulse.begin()
        pulse.beat()

    await attempt(1, left, work)
    (told,) = (await attempt(2, left, lambda _: None)).made
    assert (told.attempt, told.error_type, told.unseen) == (1, LOST, False)
    assert told.began <= told.ended
    assert datetime.now(UTC) - told.began < timedelta(minutes=1)


def test_attempts_that_gave_no_sign_of_life_are_told_as_guesses():
    left = Trail(told=1, now=1, made=[Made(attempt=1, began=AT, ended=after(2), error_type="server")])
    assert lost(left, 4, AT) == [
        Made(attempt=number, began=after(2), ended=after(2), error_type=LOST, unseen=True) for number in (2, 3)
    ]


def test_an_attempt_that_did_nothing_when_it_was_lost_is_not_told():
    assert lost(Trail(told=0, now=1, seen=after(3)), 2, AT) == []


async def test_no_attempt_is_told_twice():
    left: list[Any] = []
    for number in (1, 2):
        with pytest.raises(ApplicationError):
            await attempt(number, left, fails)
    pulse = await attempt(5, left, lambda pulse: pulse.begin())
    assert [(one.attempt, one.error_type) for one in pulse.made] == [
        *((1, "server"), (2, "server")),
        *((3, LOST), (4, LOST)),
    ]


async def test_the_newest_hundred_are_kept():
    def work(pulse):
        for second in range(130):
            pulse.did(Made(attempt=second, began=after(second), ended=after(second + 1)))

    pulse = await attempt(1, [], work)
    assert [one.attempt for one in pulse.made] == list(range(30, 130))


def test_requests_that_end_alike_are_told_one_by_one_unless_there_are_many():
    spent: list[Spent] = []
    for second in range(50):
        took = timedelta(milliseconds=5)
        spent = Spent(model="a:1", why="connection", at=after(second), took=took).after(spent)
    assert [one.times for one in spent] == [1] * 19 + [31]
    assert spent[18].took == timedelta(milliseconds=5)
