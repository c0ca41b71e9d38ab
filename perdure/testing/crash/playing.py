"""One run, the person who attends to it, and what is looked at when it is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from perdure.agents import Task
from perdure.client import Client, RunHandle
from perdure.errors import ConnectionFailed, DecisionRejected, PerdureError, RunEnded
from perdure.events import ApprovalRequested, Asked, ContextCompacted, Event, InDoubt, ModelFailed, ModelFinished
from perdure.messages import CallRecord, Content, RunResult
from perdure.policies import AgentSpec
from perdure.testing.crash.report import Counts, compared

Ledger = Callable[[str], Iterable[str]]
"""Returns what was done for a run, by its id: the name of each effect, which is the same in every run of a task."""

Outcome = Literal["done", "not-done", "retry"]
T = TypeVar("T")


def _approve(asked: ApprovalRequested) -> bool:
    del asked
    return True


def _yes(asked: Asked) -> str:
    del asked
    return "yes"


@dataclass(frozen=True)
class People:
    """What people say. They look before they speak of a doubt.

    Attributes:
        approve: Whether a call is approved. Default: each is.
        answer: What a question is answered.
        settle: What became of a call in doubt, from the event and the ledger. Default: `done` where the ledger has
            what the call does when nothing is killed, else `retry`.
    """

    approve: Callable[[ApprovalRequested], bool] = _approve
    answer: Callable[[Asked], str] = _yes
    settle: Callable[[InDoubt, list[str]], Outcome] | None = None


@dataclass
class Course:
    """How a task goes when nothing is killed.

    Attributes:
        points: Where a worker can be killed, in order.
        effects: What the ledger has at the end.
        done: Activity by activity: what the ledger has when it has returned.
        made: Activity by activity: what it has added.
    """

    points: list[str] = field(default_factory=list[str])
    effects: list[str] = field(default_factory=list[str])
    done: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    made: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    status: str = ""

    def outcome(self, call: str, effects: list[str]) -> Outcome:
        """Return what a person says of a call in doubt who has looked into the ledger."""
        there, made = Counter(effects), self.made.get(call, Counter[str]())
        due = self.done.get(call, Counter[str]())
        return "done" if made and all(there[name] >= due[name] for name in made) else "retry"


@dataclass
class Played:
    """What came of a run."""

    run: str
    result: RunResult | None = None
    trouble: str = ""
    events: list[Event] = field(default_factory=list[Event])
    approved: list[str] = field(default_factory=list[str])
    effects: list[str] = field(default_factory=list[str])


class Player:
    """Starts a run, says what people say, and looks back."""

    def __init__(self, client: Client, run: str, ledger: Ledger, people: People, course: Course) -> None:
        self._client, self._ledger, self._people, self._course = client, ledger, people, course
        self._handle: RunHandle = client.handle(run)
        self._spoken: set[asyncio.Task[None]] = set()
        self.played = Played(run)

    async def play(self, spec: AgentSpec, task: Content | Task, queue: str, patience: float) -> Played:
        """Play it to its end, or for so many seconds."""
        try:
            async with asyncio.timeout(patience):
                await insist(lambda: self._client.start(spec, task, id=self.played.run, task_queue=queue))
                await self._attend()
                self.played.result = await self._result()
        except (TimeoutError, PerdureError) as error:
            self.played.trouble = f"{type(error).__name__}: {error}"
        for task_ in self._spoken:
            task_.cancel()
        self.played.effects = list(self._ledger(self.played.run))
        return self.played

    async def _attend(self) -> None:
        async for event in self._handle.events():
            self.played.events.append(event)
            if isinstance(event, ApprovalRequested | InDoubt | Asked):
                self._spoken.add(asyncio.create_task(self._speak(event)))

    async def _speak(self, event: ApprovalRequested | InDoubt | Asked) -> None:
        try:
            await insist(lambda: self._say(event))
        except DecisionRejected:
            return  # it was taken, and its receipt was lost
        finally:
            if isinstance(event, ApprovalRequested) and self._people.approve(event):
                self.played.approved.append(event.call)

    async def _say(self, event: ApprovalRequested | InDoubt | Asked) -> None:
        if isinstance(event, Asked):
            await self._handle.answer(self._people.answer(event), event.call)
        elif isinstance(event, InDoubt):
            effects = list(self._ledger(self.played.run))
            settle = self._people.settle
            outcome = settle(event, effects) if settle else self._course.outcome(event.call, effects)
            await self._handle.settle(event.call, outcome, result="seen" if outcome == "done" else None)
        elif self._people.approve(event):
            await self._handle.approve(event.call)
        else:
            await self._handle.deny(event.call)

    async def _result(self) -> RunResult:
        try:
            return await self._handle.result()
        except RunEnded as error:
            return error.result


async def insist(say: Callable[[], Awaitable[T]]) -> T:
    """Say it until a server answers."""
    while True:
        with suppress(ConnectionFailed):
            return await say()
        await asyncio.sleep(0.2)


# -- judging -----------------------------------------------------------------------------------------------


def judge(played: Played, course: Course) -> Counts:
    """Return what went wrong in a run, compared with how its task goes when nothing is killed."""
    twice, lacking = compared(played.effects, course.effects)
    result = played.result
    if result is None:
        return Counts(duplicates=len(twice), wedged=1)
    return Counts(
        duplicates=len(twice),
        lost=len(lost(lacking, result.calls, course.made)),
        orphans=len(orphans(result.calls, played.events)),
        approvals=len(forgotten(played, result.calls)),
        wedged=int(result.status != course.status),
        drift=int(drifts(result, played.events)),
    )


def lost(lacking: Sequence[str], calls: Sequence[CallRecord], made: Mapping[str, Counter[str]]) -> list[str]:
    """Return what the ledger lacks although the run does not tell of a call that failed."""
    honest = Counter[str]()
    for call in calls:
        if call.status != "ok":
            honest += made.get(call.position, Counter())
    return sorted((Counter(lacking) - honest).elements())


def orphans(calls: Sequence[CallRecord], events: Sequence[Event]) -> list[str]:
    """Return the positions of calls that have no end, or whose end is not told exactly once."""
    finished = Counter(one.call for one in events if one.type == "tool_finished" and one.status != "staged")
    return [call.position for call in calls if call.status == "open" or finished[call.position] != 1]


def forgotten(played: Played, calls: Sequence[CallRecord]) -> list[str]:
    """Return the positions of calls that were approved and then asked for again, denied, or never executed."""
    asked = Counter(one.call for one in played.events if isinstance(one, ApprovalRequested))
    records = {call.position: call.status for call in calls}
    kept = {"ok", "error", "in_doubt"}
    return [call for call in played.approved if asked[call] > 1 or records.get(call) not in kept]


def drifts(result: RunResult, events: Sequence[Event]) -> bool:
    """Return whether the result tells of other steps or tokens than its models were asked; runs below add theirs."""
    turns = sum(one.type == "model_finished" for one in events)
    usages = [one.usage for one in events if isinstance(one, ModelFinished | ContextCompacted | ModelFailed)]
    own = sum(usage.input_tokens + usage.output_tokens for usage in usages)
    told = result.usage.input_tokens + result.usage.output_tokens
    return told < own if result.steps > turns else (result.steps, told) != (turns, own)
