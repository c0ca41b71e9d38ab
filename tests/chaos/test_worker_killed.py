"""One worker is killed with SIGKILL while each of these runs is at a point of its own; others take over."""

import asyncio
import contextlib
from typing import Any

import pytest

from tests.chaos.checks import check_sound
from tests.chaos.play import Case, call, kill, play
from tests.chaos.stage import Stage
from tests.chaos.world import World

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

ASKING = call("pay", ask="yes")


def one(name, point, *, status="ok", effects=1, doubts=0, **more):
    """Return the case of a single call."""
    return Case(((call(name),),), (point,), {"1.1": status}, {name: effects} if effects else {}, doubts=doubts, **more)


def staged(*points):
    """Return the case of a run that executes two actions after its answer."""
    return Case(((call("mail"), call("mail")),), points, {"1.1": "ok", "1.2": "ok"}, {"mail": 2})


def undone(*points):
    """Return the case of a run that fails after two effects, which are undone."""
    return Case(
        ((call("hire"),), (call("hire"),)),
        points,
        {"1.1": "ok", "2.1": "ok"},
        {"hire": 2, "dismiss": 2},
        last={"error": {"kind": "authentication"}},
        status="failed",
    )


def spoken(turn, moment):
    """Return the case of a model call."""
    return Case(((call("read"),),), (f"model {turn} {moment}",), {"1.1": "ok"}, {"read": 1})


CASES = {
    **{
        f"model turn {turn} {moment}": spoken(turn, moment)
        for turn in (1, 2)
        for moment in ("before", "during", "after")
    },
    # A read is repeated, and so is what the ledger knows by its key.
    **{f"read {moment}": one("read", f"read {moment}") for moment in ("before", "during", "after")},
    **{f"local read {moment}": one("local_read", f"local_read {moment}") for moment in ("before", "during", "after")},
    **{f"idempotent {moment}": one("charge", f"charge {moment}") for moment in ("before", "during", "after")},
    # An unsafe effect is never repeated: a person says what became of it, having looked.
    **{f"unsafe {moment}": one("pay", f"pay {moment}", doubts=1) for moment in ("before", "during", "after")},
    **{
        f"unsafe in a thread {moment}": one("pay_in_thread", f"pay_in_thread {moment}", doubts=1)
        for moment in ("before", "during", "after")
    },
    # A probe looks it up instead.
    "probed before": one("pay_probed", "pay_probed before", status="error", effects=0),
    "probed during": one("pay_probed", "pay_probed during"),
    "probed after": one("pay_probed", "pay_probed after"),
    # Waiting for a person, in the middle of nowhere.
    "waiting for approval": Case(((ASKING,),), ("approval",), {"1.1": "ok"}, {"pay": 1}),
    "approval signalled while no worker is there": Case(
        ((ASKING,),), ("approval",), {"1.1": "ok"}, {"pay": 1}, people="approve signal"
    ),
    "denial signalled while no worker is there": Case(
        ((ASKING,),), ("approval",), {"1.1": "denied"}, people="deny signal"
    ),
    "approved but not yet executed": Case(((ASKING,),), ("pay before",), {"1.1": "ok"}, {"pay": 1}, doubts=1),
    "approved and executed": Case(((ASKING,),), ("pay after",), {"1.1": "ok"}, {"pay": 1}, doubts=1),
    "edit being judged": Case(((ASKING,),), ("judging",), {"1.1": "ok"}, {"pay": 1}, people="edit"),
    "edit judged and executed": Case(
        ((ASKING,),), ("judging", "pay after"), {"1.1": "ok"}, {"pay": 1}, people="edit", doubts=1
    ),
    "in doubt, waiting for a person": one("pay", "in_doubt", lose="pay", doubts=1),
    "settled by signal while no worker is there": one("pay", "in_doubt", lose="pay", doubts=1, people="settle signal"),
    # A reply that is lost after its effect, and a kill on top of it.
    "idempotent again after a lost reply": one("charge", "charge after", lose="charge"),
    "probe under way": Case(((call("pay_probed"),),), ("pay_probed after", "probe"), {"1.1": "ok"}, {"pay_probed": 1}),
    "probe under way, nothing done": Case(((call("pay_probed"),),), ("pay_probed before", "probe"), {"1.1": "error"}),
    "probe under way after a lost reply": one("pay_probed", "probe", lose="pay_probed"),
    # Killed over and over.
    "read lost twice": Case(((call("read"),),), ("read before",) * 2, {"1.1": "error"}),
    "idempotent lost twice": Case(((call("charge"),),), ("charge after",) * 2, {"1.1": "ok"}, {"charge": 1}),
    "idempotent lost each time": Case(
        ((call("charge"),),), ("charge after",) * 3, {"1.1": "ok"}, {"charge": 1}, doubts=1
    ),
    "unsafe tried again and lost again": Case(
        ((call("pay"),),), ("pay before", "pay after"), {"1.1": "ok"}, {"pay": 1}, doubts=2
    ),
    "tried again, then another": Case(
        ((call("pay"),), (call("charge"),)),
        ("pay before",),
        {"1.1": "ok", "2.1": "ok"},
        {"pay": 1, "charge": 1},
        doubts=1,
    ),
    "local read beside another": Case(
        ((call("local_read"), call("read")),),
        ("model 2 before",),
        {"1.1": "ok", "1.2": "ok"},
        {"local_read": 1, "read": 1},
    ),
    "model lost three times": Case(((call("read"),),), ("model 1 during",) * 3, {"1.1": "ok"}, {"read": 1}),
    "model lost three times, then not reached twice": Case(
        ((call("read"),),),
        ("model 1 during",) * 3,
        {"1.1": "ok"},
        {"read": 1},
        trouble={"error": {"kind": "connection"}, "times": 2},
    ),
    # The conversation is too long for the model.
    **{
        name: Case(((call("study"),), (call("study"),)), points, {"1.1": "ok", "2.1": "ok"})
        for name, points in {
            "summing up": ("summary",),
            "summing up, three times": ("summary",) * 3,
            "summed up": ("summary", "model 3 before"),
        }.items()
    },
    # Staged, and executed after the answer.
    "staged, waiting for approval": staged("approval"),
    "staged, one under way": staged("mail before"),
    "staged, one done": staged("mail after", "mail during"),
    # Undoing, with a key that the ledger knows.
    **{f"undone, {moment} the last effect": undone(f"dismiss hire 2 {moment}") for moment in ("before", "after")},
    "undone, while it is undone": undone("dismiss during"),
    "undone, each time it is tried": undone("dismiss hire 2 before", "dismiss during", "dismiss hire 1 after"),
    "undone after it was cancelled": Case(
        ((call("hire"),), (ASKING,)),
        ("dismiss hire 1 before", "dismiss hire 1 after"),
        {"1.1": "ok", "2.1": "cancelled"},
        {"hire": 1, "dismiss": 1},
        people="cancel",
        status="cancelled",
    ),
    # Calls of one turn.
    "one effect done, the next under way": Case(
        ((call("pay"), call("read"), call("charge"), call("pay_in_thread")),),
        ("charge during",),
        {"1.1": "ok", "1.2": "ok", "1.3": "ok", "1.4": "ok"},
        {"pay": 1, "read": 1, "charge": 1, "pay_in_thread": 1},
    ),
    "one asks, the next is under way": Case(
        ((ASKING, call("charge"), call("read")), (call("pay"),)),
        ("charge after", "pay after"),
        {"1.1": "ok", "1.2": "ok", "1.3": "ok", "2.1": "ok"},
        {"pay": 2, "charge": 1, "read": 1},
        doubts=1,
    ),
}


SOON = {  # by itself, since its deadline passes while others come to their points
    # When a worker is back, the deadline has long passed by the history's clock, but not by the workflow's.
    "probed, and no worker for longer than its deadline": one(
        "pay_probed_soon", "pay_probed_soon before", status="error", effects=0
    ),
}
LONELY = {
    "in doubt, and no worker for long": one("pay", "pay before", doubts=1),
    "approval asked for, and no worker for long": Case(((ASKING,),), ("model 1 after",), {"1.1": "ok"}, {"pay": 1}),
}

ALL = {**CASES, **SOON, **LONELY}


async def kill_for_long(world, players, worker):
    """Kill the worker, and start another one when the attempts have been lost for longer than their deadline."""
    worker.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            for player in players[:1]:
                while not (await player.handle.projection()).state.calls[0].doubt:
                    await asyncio.sleep(0.1)
    await asyncio.sleep(3)
    return world.worker()


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    async def played(breaking, *waves):
        runs: dict[str, Any] = {}
        async with Stage.open() as stage, World.open(tmp_path_factory.mktemp("killed"), stage) as world:
            for cases in waves:
                runs |= await play(world, cases, breaking)
                world.kill_workers()
        return runs

    async def both():
        first, second = await asyncio.gather(played(kill, CASES), played(kill_for_long, SOON, LONELY))
        return {**first, **second}

    return asyncio.run(both())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.reported(13)
def test_worker_killed_while(wave, name):
    check_sound(wave[name], ALL[name])


def test_look_that_came_too_early_by_the_workflows_clock_is_told_as_such(wave):
    run = wave["probed, and no worker for longer than its deadline"]
    assert run.looks == [False, False]
    assert [event.type for event in run.events if event.type in ("probed", "tool_finished")] == [
        "probed",
        "probed",
        "tool_finished",
    ]
