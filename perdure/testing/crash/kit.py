"""The kit: each task without a kill, once for each point with a kill there, then many at once under random trouble."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure.agents import Task
from perdure.client import Client
from perdure.engine.server import DevServer
from perdure.loading import load_agents
from perdure.messages import Content
from perdure.policies import AgentSpec
from perdure.testing.crash.playing import Course, Ledger, People, Played, Player, judge
from perdure.testing.crash.points import STAGE
from perdure.testing.crash.processes import KeptUp
from perdure.testing.crash.report import Judged, Report
from perdure.testing.crash.stage import Stage, nothing
from perdure.testing.crash.trouble import Trouble
from perdure.testing.engines import settings_of_tests

_UNDER_WAY = 12
"""Runs at once under random trouble."""

_UNBROKEN: Mapping[str, int] = {}

Progress = Callable[[str, int, int], None]
"""Told of a part, of how many runs of it are over, and of how many there are; 0 of them: not known yet."""


@dataclass(frozen=True)
class Workload:
    """An agent in its file, what it is to do, and where one can see what it did.

    Attributes:
        agent: FILE.py, or FILE.py:agent.
        tasks: Each is run many times; its course has to be the same in every run, so that its model is a scripted one.
        ledger: What was done for a run, by its id: the name of each effect, the same in every run of a task.
        model: Beats the agent's own, such as `scripted:replies.json`.
        people: What people say. Default: they approve, and look before they speak of a doubt.
        environment: More environment variables of the workers.
        settings: Settings that are not to be as usual, such as `max_history_events`.
    """

    agent: str
    tasks: Sequence[Content | Task]
    ledger: Ledger
    model: str | None = None
    people: People = field(default_factory=People)
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def crash(
    workload: Workload,
    *,
    each: bool = True,
    only: str = "",
    kills: int = 0,
    workers: int = 3,
    jobs: int = 2,
    seed: int | None = None,
    patience: float = 120,
    progress: Progress = nothing,
) -> Report:
    """Run a workload while its workers are killed, and return what went wrong.

    Args:
        each: Kill at each point in turn, one run for each.
        only: Of these points, those alone whose names have this in them.
        kills: How many things are broken at random besides, with several runs under way: workers killed, stopped and
            frozen, the server killed, the store locked.
        workers: Of the runs that are under way then.
        jobs: Runs at once, each with a worker of its own, where each point is killed at in turn.
        seed: Of what is random. Default: another one each time; the report has it.
        patience: Seconds after which a run is taken for wedged.

    Raises:
        AgentError: If the agent can't be loaded.
        ChildProcessError: If a worker ends by itself; the text has what it said.
    """
    seed = random.randrange(1_000_000) if seed is None else seed  # noqa: S311
    async with _open(workload) as lab:
        courses = await lab.courses(patience, progress)
        judged = await lab.each(courses, only, jobs, patience, progress) if each else []
        judged_, broken = (
            await lab.random(courses, kills, workers, seed, patience, progress) if kills else ([], _UNBROKEN)
        )
    return Report((*judged, *judged_), broken, seed)


@asynccontextmanager
async def _open(workload: Workload) -> AsyncGenerator[_Lab]:
    with tempfile.TemporaryDirectory(prefix="perdure-crash-", ignore_cleanup_errors=True) as folder:
        settings = settings_of_tests(Path(folder), **workload.settings)
        async with Stage.open() as stage, await DevServer.start(settings) as server:
            yield _Lab(workload, Path(folder), stage, server, await Client.connect(settings))


class _Lab:
    """A server, and what is started on it."""

    def __init__(self, workload: Workload, home: Path, stage: Stage, server: DevServer, client: Client) -> None:
        self._workload, self._home, self._stage, self._server, self._client = workload, home, stage, server, client
        self._agent = load_agents(workload.agent)[0]
        self._names = (f"crash-{number:05}" for number in itertools.count(1))
        self._queues = itertools.count(1)

    @property
    def _spec(self) -> AgentSpec:
        model = self._workload.model
        return self._agent.spec.model_copy(update={"model": model} if model else {})

    def _worker(self, queue: str, name: str) -> KeptUp:
        command = [sys.executable, "-m", "perdure.testing.crash.worker", _absolute(self._workload.agent)]
        return KeptUp([*command, "--task-queue", queue], self._home, name, self._environment())

    def _environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "PERDURE_"))}
        path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
        quick = {"PERDURE_HEARTBEAT_TIMEOUT": "PT2S", "PERDURE_GRACE": "PT0.5S", "PERDURE_CANCEL_GRACE": "PT0.3S"}
        here = {"PERDURE_HOME": str(self._home), "PYTHONPATH": path, "NO_COLOR": "1", STAGE: self._stage.address}
        return {**ours, **quick, **here, "TEMPORAL_CONFIG_FILE": os.devnull, **self._workload.environment}

    @asynccontextmanager
    async def _cell(self) -> AsyncGenerator[str]:
        """Serve a queue of its own with one worker."""
        queue = f"crash-cell-{next(self._queues)}"
        async with aclosing(self._worker(queue, queue)) as kept:
            yield queue
            if kept.trouble:
                raise ChildProcessError(kept.trouble)

    async def _play(self, run: str, number: int, course: Course, queue: str, patience: float) -> Played:
        player = Player(self._client, run, self._workload.ledger, self._workload.people, course)
        return await player.play(self._spec, self._workload.tasks[number], queue, patience)

    # -- without a kill --------------------------------------------------------------------------------

    async def courses(self, patience: float, progress: Progress) -> list[Course]:
        """Return how each task goes when nothing is killed."""
        courses: list[Course] = []
        async with self._cell() as queue:
            for number in range(len(self._workload.tasks)):
                courses.append(await self._course(number, queue, patience))
                progress("courses", number + 1, len(self._workload.tasks))
        return courses

    async def _course(self, number: int, queue: str, patience: float) -> Course:
        course, run = Course(), next(self._names)
        self._stage.expect(run)
        before: dict[str, Counter[str]] = {}

        def moment(whose: str, call: str, moment: str) -> None:
            if whose == run and moment == "start":
                before[call] = Counter(self._workload.ledger(run))
            elif whose == run:
                course.done[call] = Counter(self._workload.ledger(run))
                course.made[call] = course.done[call] - before.get(call, Counter())

        self._stage.moment = moment
        played = await self._play(run, number, course, queue, patience)
        if played.result is None:
            raise ChildProcessError(f"Task {number + 1} does not end although nothing is killed: {played.trouble}")
        course.points, course.effects = list(self._stage.points[run]), played.effects
        course.status = played.result.status
        self._stage.moment = nothing
        return course

    # -- each point in turn ----------------------------------------------------------------------------

    async def each(
        self, courses: Sequence[Course], only: str, jobs: int, patience: float, progress: Progress
    ) -> list[Judged]:
        """Kill at each point of each task in turn."""
        due = [(number, point) for number, course in enumerate(courses) for point in course.points if only in point]
        left, judged = iter(due), list[Judged]()

        async def work() -> None:
            async with self._cell() as queue:
                for number, point in left:
                    judged.append(await self._killed(number, courses[number], point, queue, patience))
                    progress("each", len(judged), len(due))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(jobs, len(due))):
                group.create_task(work())
        return judged

    async def _killed(self, number: int, course: Course, point: str, queue: str, patience: float) -> Judged:
        run = next(self._names)
        self._stage.expect(run, point)
        played = await self._play(run, number, course, queue, patience)
        return _judged(played, course, "each", point, reached=self._stage.kills[run] > 0)

    # -- at random -------------------------------------------------------------------------------------

    async def random(
        self, courses: Sequence[Course], kills: int, workers: int, seed: int, patience: float, progress: Progress
    ) -> tuple[list[Judged], Mapping[str, int]]:
        """Break so many things while several runs are under way."""
        dice, queue = random.Random(seed), "crash-random"  # noqa: S311
        async with AsyncExitStack() as stack:
            kept = [self._worker(queue, f"random-{number}") for number in range(workers)]
            for one in kept:
                await stack.enter_async_context(aclosing(one))
            trouble = Trouble(kept, self._server, self._home / "store.db", dice)
            making = asyncio.create_task(trouble.make(kills))
            judged = list[Judged]()

            async def work(numbers: Iterator[int]) -> None:
                while not making.done():
                    number = next(numbers)
                    played = await self._play(next(self._names), number, courses[number], queue, patience * 3)
                    judged.append(_judged(played, courses[number], "random"))
                    progress("random", sum(trouble.broken.values()), kills)

            numbers = itertools.cycle(range(len(courses)))
            await asyncio.gather(*(work(numbers) for _ in range(_UNDER_WAY)))
            await making
            return judged, dict(trouble.broken)


def _judged(played: Played, course: Course, part: str, point: str = "", *, reached: bool = True) -> Judged:
    counts = judge(played, course)
    return Judged(played.run, part, counts, point, reached, tuple(_story(played)) if counts else ())


def _story(played: Played) -> list[str]:
    events = [f"{one.position} {one.time:%M:%S.%f} {one.type} {getattr(one, 'call', '')}" for one in played.events]
    return [*([played.trouble] if played.trouble else []), *events, f"ledger: {', '.join(played.effects)}"]


def _absolute(agent: str) -> str:
    """Return the same agent's reference, good in every folder."""
    where, colon, name = agent.partition(":")
    return f"{Path(where).resolve()}{colon}{name}" if Path(where).exists() else agent
