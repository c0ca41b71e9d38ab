"""The worker of a session is killed with SIGKILL in the middle of its turns, and between them."""

import asyncio
import json

import pytest

from perdure.messages import AssistantMessage, ToolMessage, UserMessage
from tests.chaos.play import call
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

CHARGE = {"calls": [call("charge", run="talk")]}
TASK = json.dumps(
    {"run": "talk.1", "replies": [CHARGE, {"text": "one"}, CHARGE, {"text": "two"}, CHARGE, {"text": "three"}]}
)


async def talk(world):
    """Say three things, and lose the worker during the first two turns, and after the second one."""
    sessions = [client.session("talk", world.spec, task_queue=world.queue) for client in world.clients]
    during_one = world.stage.arm("talk.1", "charge after")
    worker = world.worker()
    await sessions[0].send(TASK)
    await during_one.reached
    queued = await sessions[1].send("second", when_busy="queue")
    assert (queued.how, queued.turn) == ("queued", 1)
    worker.kill()
    during_two = world.stage.arm("talk.2", "charge before")
    worker = world.worker()
    await during_two.reached  # nobody waited for it: it was begun by what follows the first turn
    worker.kill()
    worker = world.worker()
    assert (await world.client.handle("talk.2").result()).text == "two"
    worker.kill()  # whether it has recorded the turn or not
    third = await sessions[0].send("third")
    assert (third.how, third.turn) == ("started", 3)
    world.worker()
    assert (await third.result()).text == "three"
    return await sessions[1].turns(), await sessions[1].history()


async def test_a_session_survives_its_workers_and_each_turn_is_done_once(tmp_path):
    async with Stage.open() as stage, World.open(tmp_path, stage) as world:
        turns, history = await asyncio.wait_for(talk(world), 200)
        assert [(one.number, one.status, one.text) for one in turns] == [
            (1, "completed", "one"),
            (2, "completed", "two"),
            (3, "completed", "three"),
        ]
        assert [one.content for one in history if isinstance(one, UserMessage)] == [TASK, "second", "third"]
        asked = [made.id for one in history if isinstance(one, AssistantMessage) for made in one.calls]
        assert [one.result.call_id for one in history if isinstance(one, ToolMessage)] == asked
        charged = [effect.run for effect in stage.effects if effect.tool == "charge"]
        assert charged == ["talk.1", "talk.2", "talk.3"]
