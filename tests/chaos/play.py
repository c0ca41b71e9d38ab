"""Playing many runs at once: all are brought to their points, then their one worker is broken off.

Killing one worker under thirty runs, each at a point of its own, tests as much as thirty kills, in a tenth of the time.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowHistory

from perdure.errors import PerdureError, RunEnded
from perdure.events import ApprovalRequested, Event, InDoubt
from perdure.messages import RunResult, RunStatus, ToolMessage
from perdure.state import RunState
from perdure.telemetry.projection import Projection
from perdure.testing.crash.processes import WorkerProcess
from tests.chaos.stage import Effect, Held
from tests.chaos.world import World

PATIENCE = 100


def call(name, **arguments):
    """Return a scripted call of a tool of the cast; `run` is filled in when it is played."""
    return {"name": name, "arguments": arguments}


@dataclass(frozen=True)
class Case:
    """One run: what its model asks for, where its worker is broken off, and what has to come of it.

    Attributes:
        turns: Calls of each model turn; after the last, the model answers.
        points: Where the first worker ends, the second, …; also `approval` and `in_doubt`, which are waits.
        results: Status of each call, by position.
        effects: How many entries of the ledger are right, by tool.
        people: What a person does where the run waits: `approve`, `deny`, `edit`, `settle`, `cancel`; with `signal`
            as a plain signal that is sent while no worker is there.
        settle: What a person says of a doubt; "" looks into the ledger: `done`, or else `retry`.
        lose: The tool whose reply is lost after its effect.
        doubts: How often the run comes to be in doubt; None: never mind.
        trouble: Of the model, in its first turn.
        last: The model's last reply.
        status: How the run ends.
        goes_on: Whether what is held at its point goes on, where the worker survives for a while.
    """

    turns: tuple[tuple[dict[str, Any], ...], ...]
    points: tuple[str, ...]
    results: dict[str, str]
    effects: dict[str, int] = field(default_factory=dict)
    people: str = "approve"
    settle: Literal["", "done", "not-done", "retry"] = ""
    lose: str = ""
    doubts: int | None = 0
    goes_on: bool = False
    trouble: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=lambda: {"text": "done"})
    status: RunStatus = "completed"


@dataclass
class Played:
    """What came of a case."""

    run: str
    ended: RunResult | None = None
    trouble: str = ""
    events: list[Event] = field(default_factory=list)  # as they were followed, across everything that broke
    again: list[Event] = field(default_factory=list)  # read at the end, from the beginning
    rest: list[Event] = field(default_factory=list)  # read at the end, from the fourth on
    effects: list[Effect] = field(default_factory=list)
    looks: list[bool] = field(default_factory=list)
    executions: int = 0
    projection: Projection | None = None
    state: RunState | None = None
    histories: list[WorkflowHistory] = field(default_factory=list)  # of each of its executions, the last one first
    kept: dict[str, bytes] = field(default_factory=dict)  # what the store has of its large results

    @property
    def result(self) -> RunResult:
        """How it ended, which it has."""
        assert self.ended
        return self.ended


class Player:
    """One run of a wave, with the person who attends to it."""

    def __init__(self, world: World, name: str, case: Case):
        self.world = world
        self.case = case
        self.played = Played(name.replace(" ", "-"))
        self.handle = world.client.handle(self.played.run)
        self._waits: dict[str, asyncio.Event] = {"approval": asyncio.Event(), "in_doubt": asyncio.Event()}
        self._held = {point: asyncio.Event() for point in self._waits}
        self._tasks: list[asyncio.Task[Any]] = []
        self._task = ""
        self._armed: list[Held] = []
        self._points = iter(case.points)
        self._last, self._next = "", next(self._points, "")

    async def start(self):
        """Start the run, and attend to it from now on."""
        run, case = self.played.run, self.case
        if case.lose:
            self.world.stage.lose_reply(run, case.lose)
        for point, held in self._held.items():
            if point not in case.points:
                held.set()
        self._arm()
        turns = [{"calls": [{**c, "arguments": {"run": run, **c["arguments"]}} for c in turn]} for turn in case.turns]
        turns[0].update(case.trouble)
        self._task = json.dumps({"run": run, "replies": [*turns, case.last]})
        await self.world.start(run, self._task)
        self.spawn(self._attend())

    def spawn(self, work):
        """Do something beside; what goes wrong with it is this run's trouble."""
        self._tasks.append(asyncio.create_task(work))

    def _arm(self):
        """Arm the next point."""
        if self._next and self._next not in self._waits:
            self._armed.append(self.world.stage.arm(self.played.run, self._next))

    async def reach(self):
        """Return once the run is at its next point; where it has none any more, once it has ended."""
        if not self._next:
            # What breaks next is not meant for it.
            with contextlib.suppress(TimeoutError, PerdureError):
                await asyncio.wait_for(self._ended(), PATIENCE / 2)
            return
        waits = self._waits.get(self._next)
        try:
            await asyncio.wait_for(waits.wait() if waits else self._armed[-1].reached, PATIENCE / 2)
        except TimeoutError:
            self.played.trouble += f"It never came to {self._next!r}. "

    async def until(self, *types):
        """Return once an event of one of these types has happened."""
        async for event in self.handle.events():
            if event.type in types:
                return

    @property
    def holder(self):
        """Process id of the worker that is held at the point that was reached last."""
        return self._armed[-1].reached.result()

    def turn(self):
        """Arm the point after the one that was reached."""
        self._last, self._next = self._next, next(self._points, "")
        self._arm()

    async def between(self):
        """Do what is done while no worker is there."""
        if held := self._held.get(self._last):
            if "signal" in self.case.people:
                await self._signal()
            held.set()

    async def _signal(self):
        name = self.case.people.split()[0]
        value = {"call": "1.1", "by": "Ann"}
        if name == "settle":
            value["outcome"] = self.outcome("1.1")
        await self.world.client.temporal.get_workflow_handle(self.played.run).signal(name, value)

    def release(self):
        """Let what is held go on."""
        for held in self._armed:
            held.released.set()

    async def _attend(self):
        async for event in self.handle.events():
            self.played.events.append(event)
            if isinstance(event, ApprovalRequested | InDoubt):
                point = "approval" if event.type == "approval_requested" else "in_doubt"
                self._waits[point].set()
                self.spawn(self.answer(point, event.call))

    async def answer(self, point, position):
        """Decide what the run waits for."""
        await self._held[point].wait()
        case = self.case
        if "signal" in case.people:
            return
        if point == "in_doubt":
            outcome = self.outcome(position)
            await self.handle.settle(position, outcome, result="seen" if outcome == "done" else None)
        elif case.people == "cancel":
            await self.handle.cancel()
        elif case.people.startswith("deny"):
            await self.handle.deny(position)
        else:
            edited = {"run": self.played.run, "ask": "edited"} if case.people.startswith("edit") else None
            await self.handle.approve(position, arguments=edited)

    def outcome(self, position: str) -> Literal["done", "not-done", "retry"]:
        """Return what a person says who has looked into the ledger."""
        there = any(effect.call == position for effect in self.played_effects())
        return self.case.settle or ("done" if there else "retry")

    def played_effects(self):
        """Return the effects of the run so far, without the model's requests."""
        return [effect for effect in self.world.stage.done(self.played.run) if not effect.tool.startswith("model")]

    async def finish(self):
        """Wait for the run's end, and gather what came of it."""
        await self.end()
        await self.look_back()

    async def end(self, patience: float = PATIENCE):
        """Wait for the run's end, and until all has been answered."""
        played = self.played
        try:
            async with asyncio.timeout(patience):
                await self._ended()
                played.ended = await self._result()
        except (TimeoutError, PerdureError) as error:
            played.trouble += f"{type(error).__name__}: {error}"
        for task in self._tasks:
            task.cancel()

    async def _result(self):
        try:
            return await self.handle.result()
        except RunEnded as error:
            return error.result

    async def _ended(self):
        """Return when the run has ended and all has been answered; raise what went wrong with an answer."""
        while pending := [task for task in self._tasks if not task.done()]:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def look_back(self):
        """Gather what came of the run: as its history has it, as a worker has it, and as the world outside has it."""
        played, temporal = self.played, self.world.client.temporal
        await self.world.start(played.run, self._task)  # once more: it is the same run, ended or not
        played.projection = await self.handle.projection()
        played.again = played.projection.events
        if played.ended:
            played.state = await self.handle._workflow().query("state", result_type=RunState)
            played.rest = [event async for event in self.handle.events(after=played.again[2].position)]
        played.histories = await self._histories(temporal)
        results = [entry.result for entry in played.projection.entries if isinstance(entry, ToolMessage)]
        played.kept = {one.ref: await self.world.store.get(one.ref) for one in results if one.ref}
        played.executions = (await temporal.count_workflows(f"WorkflowId = '{played.run}'")).count
        played.effects = self.world.stage.done(played.run)
        played.looks = self.world.stage.looks.get(played.run, [])

    async def _histories(self, temporal: TemporalClient) -> list[WorkflowHistory]:
        found: list[WorkflowHistory] = []
        execution = ""
        while not found or execution:
            handle = temporal.get_workflow_handle(self.played.run, run_id=execution or None)
            found.append(await handle.fetch_history())
            started = found[-1].events[0].workflow_execution_started_event_attributes
            execution = started.continued_execution_run_id
        return found


Breaking = Callable[[World, list[Player], WorkerProcess], Coroutine[Any, Any, WorkerProcess]]
"""Breaks something off while all runs are at their points, and returns the worker that goes on."""


async def kill(world: World, players: list[Player], worker: WorkerProcess) -> WorkerProcess:
    """Kill the worker with SIGKILL, and start another one."""
    worker.kill()
    await asyncio.gather(*(player.between() for player in players))
    return world.worker()


async def play(
    world: World, cases: dict[str, Case], breaking: Breaking = kill, first: WorkerProcess | None = None
) -> dict[str, Played]:
    """Play all cases at once; once all are at their points something breaks, and so on at their next points."""
    players = [Player(world, name, case) for name, case in cases.items()]
    worker = first or world.worker()
    await asyncio.gather(*(player.start() for player in players))
    for _ in range(max(len(case.points) for case in cases.values())):
        await asyncio.gather(*(player.reach() for player in players))
        for player in players:
            player.turn()
        worker = await breaking(world, players, worker)
    await asyncio.gather(*(player.finish() for player in players))
    return dict(zip(cases, (player.played for player in players), strict=True))
