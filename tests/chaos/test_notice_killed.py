"""The worker is killed with SIGKILL between what there is to tell and its delivery: people are told all the same."""

import asyncio
import json

import pytest

from tests.chaos.stage import Stage
from tests.chaos.world import World
from tests.receiving import Receiver

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

REPLIES = [{"calls": [{"name": "pay", "arguments": {"run": "x", "ask": "yes"}}]}, {"text": "done"}]


async def refused(receiver, more):
    """Return once the receiver has refused so many more."""
    wanted = receiver.refused + more
    while receiver.refused < wanted:
        await asyncio.sleep(0.02)


async def through_two_kills(world, receiver):
    for client in world.clients:
        client.settings = client.settings.model_copy(update={"notify_on": ["waiting", "ended"]})
    worker = world.worker()
    await world.start("told", json.dumps({"run": "told", "replies": REPLIES}))
    await refused(receiver, 1)
    worker.kill()
    receiver.failures = []
    worker = world.worker()
    await receiver.until("told", "run.waiting")
    receiver.failures = [503] * 10_000
    handle = world.client.handle("told")
    await handle.approve(by="Ann")
    await handle.result()
    await refused(receiver, 1)
    worker.kill()
    receiver.failures = []
    world.worker()
    return await receiver.until("told", "run.waiting", "run.ended")


async def test_no_notice_is_lost_with_the_worker_that_was_to_deliver_it(tmp_path):
    receiver = Receiver()
    receiver.failures = [503] * 10_000
    try:
        async with (
            Stage.open() as stage,
            World.open(tmp_path, stage, PERDURE_NOTIFY_URL=receiver.url) as world,
        ):
            waiting, ended = await asyncio.wait_for(through_two_kills(world, receiver), 100)
    finally:
        receiver.close()
    assert waiting["data"]["commands"] == ["perdure approve told 1.1", "perdure deny told 1.1"]
    assert ended["data"]["status"] == "completed"
    assert len({body["data"]["id"] for body in receiver.of("told")}) == 2
