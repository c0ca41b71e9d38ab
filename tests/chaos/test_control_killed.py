"""The worker is killed with SIGKILL while runs are in people's hands: nothing that they said is lost, or done twice."""

import asyncio
import json

import pytest

from tests.chaos.checks import check_run
from tests.chaos.play import Case, Player
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

PAY = {"calls": [{"name": "pay", "arguments": {"run": "x", "ask": "yes"}}]}
REPLIES = {
    "paused": [PAY, {"text": "done"}],
    "asked": [{"calls": [{"name": "ask_user", "arguments": {"question": "Which?"}}]}, {"text": "That: ${ask_user}"}],
    "said": [PAY, {"text": "it waits"}, {"text": "done"}],
}


async def through_the_kill(world, players):
    """Bring each run into people's hands, kill the worker, and go on."""
    paused, asked, said = (players[name] for name in REPLIES)
    worker = world.worker()
    await asyncio.gather(*(world.start(name, player._task) for name, player in players.items()))
    await asyncio.gather(paused.until("approval_requested"), asked.until("asked"), said.until("approval_requested"))
    await paused.handle.pause(by="Ann")
    await paused.handle.approve(by="Ann")
    held = world.stage.arm("said", "model 2 before")
    await said.handle.say("how is it going?", by="Ann")
    await held.reached
    worker.kill()
    world.worker()
    await paused.handle.resume(by="Ann")
    await asked.handle.answer("the red one", by="Ann")
    async for event in said.handle.events():
        if event.type == "model_finished" and event.text == "it waits":
            break
    await said.handle.approve(by="Ann")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    async def all_three():
        async with Stage.open() as stage, World.open(tmp_path_factory.mktemp("control"), stage) as world:
            players = {name: Player(world, name, Case((), (), {})) for name in REPLIES}
            for name, player in players.items():
                player._task = json.dumps({"run": name, "replies": REPLIES[name]})
            await asyncio.wait_for(through_the_kill(world, players), 60)
            for player in players.values():
                await player.finish()
                player.played.events = player.played.again
            return {name: player.played for name, player in players.items()}

    return asyncio.run(all_three())


@pytest.mark.parametrize(("name", "text"), [("paused", "done"), ("asked", "That: the red one"), ("said", "done")])
def test_run_goes_on_soundly_to_its_end(played, name, text):
    check_run(played[name])
    assert (played[name].result.status, played[name].result.text) == ("completed", text)


@pytest.mark.parametrize("name", ["paused", "said"])
def test_what_was_approved_is_done_once(played, name):
    assert [effect.tool for effect in played[name].effects if effect.tool == "pay"] == ["pay"]
    assert [record.status for record in played[name].result.calls] == ["ok"]


def test_what_was_said_is_heard_once(played):
    users = [message.content for message in played["said"].state.messages if message.role == "user"]
    assert users[1] == "how is it going?"
    assert sum(content == "how is it going?" for content in users) == 1
