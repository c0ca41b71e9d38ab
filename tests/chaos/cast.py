"""The agent whose worker is killed: tools of every effect, and a model that plays what the task says.

A task is JSON: `{"run": ID, "replies": [...]}`; see `perdure.testing.script` for the replies. Each tool tells the
stage that it is before and after its effect, and so does the store of what it keeps for a run.
"""

import asyncio
import json
import os
import re
import socket
from contextlib import closing
from typing import Any
from uuid import uuid4

from pydantic import BaseModel
from temporalio import activity

from perdure import Agent, Done, Limits, NotDone, Plan, ToolContext, ask_user, tool
from perdure.activities.providers import register
from perdure.activities.stores.sql import SQLStore
from perdure.messages import AssistantMessage
from perdure.models import ModelReply
from perdure.strategies.team import Member, Team
from perdure.testing import ScriptedModel
from tests.chaos.stage import returned


def tell_blocking(op, **said):
    """Tell the stage something, and return its answer.

    Raises:
        ConnectionError: If it gave none.
    """
    host, port = os.environ["CHAOS_STAGE"].split(":")
    with closing(socket.create_connection((host, int(port)))) as connection, connection.makefile("rwb") as stream:
        stream.write(_line(op, said))
        stream.flush()
        return _answer(stream.readline())


async def tell(op, **said):
    """Tell the stage something without blocking the loop."""
    reader, writer = await asyncio.open_connection(*os.environ["CHAOS_STAGE"].split(":"))
    try:
        writer.write(_line(op, said))
        return _answer(await reader.readline())
    finally:
        writer.close()


def _line(op, said):
    return json.dumps({"op": op, "pid": os.getpid(), **said}).encode() + b"\n"


def _answer(line):
    if not line:
        raise ConnectionResetError("the stage closed the connection without an answer")
    return json.loads(line)


# -- tools -------------------------------------------------------------------------------------------------


def asks(run: str, ask: str = "", **_: object) -> bool:
    """Judge whether a person is asked; edited arguments are judged where the stage can hold it."""
    if ask == "edited":
        tell_blocking("at", run=run, point="judging")
    return bool(ask)


async def was_done(ctx: ToolContext, **_: object) -> Done | NotDone:
    """Look into the ledger."""
    found = await tell("look", run=ctx.run_id, key=ctx.idempotency_key)
    return Done("found") if found["found"] else NotDone()


def effect_of(ctx, name, idempotent):
    """Return what is said to the stage to have the effect."""
    said = {"run": ctx.run_id, "tool": name, "key": ctx.idempotency_key, "call": ctx.call}
    return {**said, "idempotent": idempotent}


SHOWN = 1_000
"""Bytes of a result that the model is shown."""


def performing(name, *, effect, timeout=60, **options):
    """Return an async tool that has an effect on the ledger, or reads from it."""

    async def perform(ctx: ToolContext, run: str, ask: str = "", careful: bool = False, big: int = 0) -> str:
        await tell("at", run=ctx.run_id, point=f"{name} before")
        if careful and ctx.cancelled:
            return "too late: nothing was done"
        said = effect_of(ctx, name, idempotent=effect != "unsafe")
        answer = await tell("effect", **said)
        await tell("at", run=ctx.run_id, point=f"{name} after")
        return returned(name, answer["number"], big)

    described = {"name": name, "description": f"{name} something", "effect": effect, "approval": asks}
    return tool(**described, timeout=timeout, result_limit=SHOWN, **options)(perform)


def paying_in_thread(name, **options):
    """Return a sync tool with an unsafe effect, in a thread that nobody can stop."""

    def perform(ctx: ToolContext, run: str, ask: str = "", big: int = 0) -> str:
        tell_blocking("at", run=ctx.run_id, point=f"{name} before")
        answer = tell_blocking("effect", **effect_of(ctx, name, idempotent=False))
        tell_blocking("at", run=ctx.run_id, point=f"{name} after")
        return returned(name, answer["number"], big)

    described = {"name": name, "description": f"{name} something", "timeout": 60, "approval": asks}
    return tool(**described, result_limit=SHOWN, **options)(perform)


async def dismiss(ctx: ToolContext, result: str, **_: object) -> str:
    """Undo a hiring: the ledger knows a request by its key."""
    await tell("at", run=ctx.run_id, point=f"dismiss {result} before")
    await tell("effect", run=ctx.run_id, tool="dismiss", key=ctx.idempotency_key, call="", idempotent=True)
    await tell("at", run=ctx.run_id, point=f"dismiss {result} after")
    return f"dismissed {result}"


async def study(ctx: ToolContext, run: str) -> str:
    """Study a book: two of them are more than the model can take."""
    await tell("at", run=ctx.run_id, point="study before")
    return "word " * 39_000


TOOLS = [
    tool(effect="read", timeout=60, result_limit=200_000)(study),
    performing("hire", effect="unsafe", compensate=dismiss),
    performing("mail", effect="idempotent", defer=True),
    performing("read", effect="read"),
    performing("local_read", effect="read", local=True, timeout=8),
    performing("charge", effect="idempotent"),
    performing("pay", effect="unsafe"),
    performing("pay_probed", effect="unsafe", probe=was_done, timeout=8),
    paying_in_thread("pay_in_thread"),
    paying_in_thread("pay_in_thread_probed", probe=was_done),
    performing("pay_probed_soon", effect="unsafe", probe=was_done, timeout=2),
    ask_user,
]


# -- the store ---------------------------------------------------------------------------------------------

_put = SQLStore.put


async def put_on_stage(self, data, owner):
    """Keep it, and tell the stage so: `tool put before`, `put_away put after`."""
    kind, run = activity.info().activity_type if activity.in_activity() else "perdure.workflow", owner.partition("/")[2]
    what = kind.removeprefix("perdure.") if kind.startswith("perdure.") else "tool"
    await tell("at", run=run, point=f"{what} put before")
    ref = await _put(self, data, owner)
    await tell("at", run=run, point=f"{what} put after")
    return ref


if "CHAOS_STAGE" in os.environ:  # in a worker, not where the agent is only looked at
    setattr(SQLStore, "put", put_on_stage)  # noqa: B010


# -- the model ---------------------------------------------------------------------------------------------


def _task(said: str) -> dict[str, Any]:
    """Return the task that is said; who does a step of a plan, or is told of an event, knows its own by that."""
    told: dict[str, Any] = json.loads(next((line for line in said.splitlines() if line.startswith("{")), said))
    if step := re.search(r"^Your step \((.*?)\)", said, re.MULTILINE):
        return {"run": activity.info().workflow_id, "replies": told["steps"][step[1]]}
    return told if "run" in told else json.loads(told.get("text") or told["what"])


class PlayedModel:
    """Plays the task, and tells the stage that it is before, during and after turn 1, 2, …"""

    provider = "played"

    def __init__(self, name, settings):
        del name, settings
        self._models = {}

    async def generate(self, request):
        if not request.tools:
            await tell("at", run=activity.info().workflow_id, point="summary")
            return ModelReply(text="A book was studied.")
        task = _task(request.messages[0].content)
        replies = [message for message in request.messages if isinstance(message, AssistantMessage)]
        turn = 1 + request.hidden + sum(message.source == "model" for message in replies)
        name, run = f"model {turn}", task["run"]
        await tell("at", run=run, point=f"{name} before")
        await tell("effect", run=run, tool=name, key=f"{run} {uuid4()}", call="", idempotent=False)
        model = self._models.setdefault(run, ScriptedModel(task["replies"]))
        reply = await model.generate(request)
        await tell("at", run=run, point=f"{name} after")
        return reply

    async def aclose(self):
        pass


register("played", PlayedModel)
chaos = Agent("chaos", "played:task", tools=TOOLS, compensate_on=["cancelled", "failed"])
mate = Agent("mate", "played:task", tools=[one for one in TOOLS if one.name in ("charge", "pay_probed", "read")])
desk = Agent("desk", "played:task", tools=[TOOLS[3]], handoffs=[mate])
boss = Agent("boss", "played:task", tools=[mate.as_tool("Does a part of it.")])
planner = Agent("planner", "played:task", tools=mate.tools, strategy=Plan())


class Found(BaseModel):
    """Something that a member of the crew has found."""

    what: str


scout = Agent("scout", "played:task", tools=[one for one in TOOLS if one.name == "charge"])
crew = Agent(
    "crew",
    "played:task",
    strategy=Team({"found": Found}, [Member(scout, ["request"], ["found"]), Member(mate, ["found"])], answer="mate"),
    limits=Limits(steps=40),
)
